"""What an audit would load and need, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clbench.audit import audit
from clbench.audit.preview import preview
from clbench.audit.settings import AuditSettings
from clbench.cli.app import main
from clbench.models.locate import TINY
from clbench.training.memory import LiveBytes

SMALL: dict[str, Any] = {"tasks": ["synthetic/sentiment"], "rows": 50, "texts": 30}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> str:
    import transformers

    folder = tmp_path_factory.mktemp("tuned")
    model = transformers.AutoModelForMaskedLM.from_pretrained(TINY)
    model.bert.encoder.layer[0].output.dense.weight.data.mul_(1.1)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(TINY).save_pretrained(folder)
    return str(folder)


def test_the_memory_is_what_an_audit_takes(tuned: str) -> None:
    plan = preview("tiny", [tuned], AuditSettings(**SMALL))
    assert plan.sizes == {"synthetic/sentiment": 50}
    assert plan.texts == 30
    assert list(plan.weights_mb.values()) == pytest.approx([12.3, 12.3], abs=0.3)
    with LiveBytes() as live:
        audit.audit("tiny", [tuned], device="cpu", **SMALL)
    assert plan.peak_mb == pytest.approx(live.peak / 1e6, rel=0.2)


def test_a_dry_run_reads_no_weights_and_writes_nothing(
    tuned: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", None)
    words = ["--tasks", "synthetic/sentiment", "--rows", "50", "--texts", "30"]
    assert main(["audit", "tiny", tuned, *words, "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "tiny: 12 MB of weights in float32" in out
    assert "synthetic/sentiment (50)" in out
    assert "Memory: up to " in out
    assert [*tmp_path.iterdir()] == []


def test_logs_need_no_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--logs", str(tmp_path), str(tmp_path), "--dry-run"]) == 2
    assert "--dry-run needs models" in capsys.readouterr().err

"""What an audit would load and need, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.general_rows import write_hub

from clbench.audit import audit
from clbench.audit.preview import preview
from clbench.audit.settings import AuditSettings
from clbench.cli.app import main
from clbench.cli.console import megabytes
from clbench.core.errors import ClbenchError
from clbench.models.locate import TINY
from clbench.runner.fit import total_mb
from clbench.training.memory import LiveBytes

SMALL: dict[str, Any] = {"tasks": ["synthetic/sentiment"], "rows": 50, "texts": 30}


def save(folder: Path, factor: float) -> str:
    """Save the built-in model with one matrix multiplied by `factor`."""
    import transformers

    model = transformers.AutoModelForMaskedLM.from_pretrained(TINY)
    model.bert.encoder.layer[0].output.dense.weight.data.mul_(factor)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(TINY).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("tuned"), 1.1)


def test_the_memory_is_what_an_audit_takes(tuned: str) -> None:
    plan = preview("tiny", [tuned], AuditSettings(**SMALL))
    assert plan.sizes == {"synthetic/sentiment": 50}
    assert plan.texts == 30
    assert list(plan.weights_mb.values()) == pytest.approx([12.3, 12.3], abs=0.3)
    with LiveBytes() as live:
        audit.audit("tiny", [tuned], device="cpu", **SMALL)
    assert plan.peak_mb == pytest.approx(live.peak / 1e6, rel=0.2)


def test_the_items_are_those_that_show_the_loss_to_detect(tuned: str) -> None:
    own = SMALL | {"rows": 500, "detect": 0.2}
    plan = preview("tiny", [tuned], AuditSettings(**own))
    found = audit.audit("tiny", [tuned], device="cpu", **own)
    (change,) = (each for each in found.models[0].comparison.changes if each.part == "features")
    assert plan.sizes == {"synthetic/sentiment": len(change.paired)}
    assert len(change.paired) < 100


def test_items_are_those_of_the_first_look(tuned: str) -> None:
    plan = preview("tiny", [tuned], AuditSettings(**SMALL, until_settled=True))
    assert plan.sizes == {"synthetic/sentiment": 50}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rephrase": 2}, "rephrase is for general tasks"),
        ({"questions": 30}, "questions is for general tasks"),
        ({"relearn_rate": 1e-3}, "relearn_rate is the rate of relearn. Give both, or neither"),
        ({"relearn": 10**6}, "are not scored. Relearn on fewer"),
        ({"tasks": ["copa"]}, "copa need a decoder"),
    ],
    ids=str,
)
def test_an_audit_and_its_preview_refuse_alike(
    options: dict[str, Any], message: str, tuned: str, tmp_path: Path
) -> None:
    options = SMALL | {"data": write_hub(tmp_path, times=25)} | options
    with pytest.raises(ClbenchError, match=message) as own:
        preview("tiny", [tuned], AuditSettings(**options))
    with pytest.raises(ClbenchError) as of_audit:
        audit.audit("tiny", [tuned], device="cpu", **options)
    assert str(own.value) == str(of_audit.value)


def test_a_dry_run_reads_the_gate(
    tuned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = tmp_path / "gate.toml"
    gate.write_text('["synthetic/sentimant"]\nnot_worse_by = 0.1\n')
    words = ["--tasks", "synthetic/sentiment", "--rows", "50", "--gate", str(gate), "--dry-run"]
    assert main(["audit", "tiny", tuned, *words]) == 2
    assert "is neither an axis nor a task of this audit" in capsys.readouterr().err


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


@pytest.mark.parametrize("more", [-1.0, 1.0], ids=["too little for one", "enough for one"])
def test_what_fits_is_computed_where_memory_is_too_little(
    more: float,
    tuned: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = save(tmp_path / "other", 1.2)
    one = total_mb(preview("tiny", [tuned], AuditSettings(**SMALL)).peak_mb)
    assert total_mb(preview("tiny", [tuned, other], AuditSettings(**SMALL)).peak_mb) > one + more
    monkeypatch.setattr("clbench.runner.fit.room_mb", lambda *_: one + more)
    words = ["--tasks", "synthetic/sentiment", "--rows", "50", "--texts", "30", "--dry-run"]
    assert main(["audit", "tiny", tuned, other, *words]) == 0
    told = " ".join(capsys.readouterr().out.split())
    advice = f"One tuned model at a time needs {megabytes(one)}, which is enough."
    if more < 0.0:
        advice = f"One at a time needs {megabytes(one)}: use a larger machine."
    assert told.endswith(f"which is too little. {advice}")


def test_logs_need_no_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--logs", str(tmp_path), str(tmp_path), "--dry-run"]) == 2
    assert "--dry-run needs models" in capsys.readouterr().err

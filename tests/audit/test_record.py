"""What ``audit.json`` holds, and that it is read back, without torch."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.audits import TEXT, make_audit, write

from clbench.audit.record import Measure, Record, measures
from clbench.cli.app import main


def content(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "audit.json").read_text("utf-8"))
    return found


def read(folder: Path) -> list[Measure]:
    return measures(Record.read(folder).content["models"][0])


def test_every_item_is_in_the_file_and_gives_its_numbers(tmp_path: Path) -> None:
    found = read(write(tmp_path, "sst2"))
    assert [(each.items["task"], each.items["metric"], each.primary) for each in found] == [
        ("glue/cola", "accuracy", True),
        ("synthetic/sentiment", "accuracy", True),
        ("language", "loss", True),
        ("glue/cola", "f1", False),
    ]
    for each in found:
        base, tuned = each.items["base"], each.items["tuned"]
        assert len({*each.items["keys"]}) == len(base) == len(tuned)
        assert np.mean(base) == pytest.approx(each.numbers["base"])
        assert np.mean(tuned) == pytest.approx(each.numbers["tuned"])
        if not each.is_loss:
            pairs = [*zip(base, tuned, strict=True)]
            assert len(pairs) == each.numbers["n"]
            assert pairs.count((1, 0)) == each.numbers["flips_lost"]
            assert pairs.count((0, 1)) == each.numbers["flips_gained"]
    assert found[0].items["source"]["hub"] == "nyu-mll/glue"


def test_measures_are_called_as_on_the_page(tmp_path: Path) -> None:
    comparison = make_audit("sst2").models[0].comparison
    changes = (*comparison.changes, *comparison.exploratory)
    own = {(each.title, str(each.change)) for each in changes}
    assert {(each.title, str(each)) for each in read(write(tmp_path, "sst2"))} == own


def test_texts_are_in_the_file_only_if_asked_for(tmp_path: Path) -> None:
    write(tmp_path, "sst2")
    assert TEXT[:8] not in (tmp_path / "audit.json").read_text("utf-8")
    (first, *_) = read(write(tmp_path, "sst2", with_texts=True))
    text = first.items["inputs"][3]
    assert (text, first.items["answers"][3]) == (f"{TEXT} 3", "yes")
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == first.items["keys"][3]


def test_lists_of_items_are_lines(tmp_path: Path) -> None:
    lines = (write(tmp_path, "sst2") / "audit.json").read_text("utf-8").splitlines()
    assert sum(line.strip().startswith('"keys": ["') for line in lines) == 4


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    write(tmp_path, "sst2")
    code = (
        "import sys; from clbench.cli.app import main;"
        f"assert main(['export', {str(tmp_path)!r}, '--to', 'every-eval-ever']) == 0;"
        "assert not {'torch', 'transformers', 'matplotlib', 'pandas', 'scipy'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"schema_version": 1},
        {"schema_version": 99},
        {"models": [{"model": "a"}]},
        {"models": 3},
        {"models": [{"model": "a", "verdict": "kept", "notes": [], "features": {"b": {}}}]},
    ],
)
def test_damaged_files_are_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any]
) -> None:
    write(tmp_path, "sst2")
    damaged = json.dumps(content(tmp_path) | change)
    (tmp_path / "audit.json").write_text(damaged, "utf-8")
    assert main(["export", str(tmp_path), "--to", "github"]) == 2
    error = capsys.readouterr().err
    assert "is not an audit of this clbench" in error
    assert error.count("\n") == 1
    assert main(["export", str(tmp_path / "none"), "--to", "github"]) == 2
    assert "none: there is no audit.json." in capsys.readouterr().err

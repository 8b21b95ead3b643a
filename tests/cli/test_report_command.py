from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from helpers.commands import KEYS, RUN, Call
from helpers.fake_engine import FakeExecutor


def test_a_report_changes_nothing_but_the_scores(
    place: Path, engine: FakeExecutor, clbench: Call
) -> None:
    clbench(*RUN)
    cells = place / "results/mine/cells"
    (cells / f"{KEYS[1]}.json").write_text('{"schema_ver')
    (cells / "foreign.json").write_text('{"a": 1}')
    before = {path: path.read_bytes() for path in cells.rglob("*.json")}
    code, _, err = clbench("report", "results/mine", "--formats", "png")
    assert code == 1
    assert err.splitlines() == [
        "results/mine/cells/foreign.json is not a valid cell file (key: is missing). It is left "
        "out.",
        f"results/mine/cells/{KEYS[1]}.json is not a valid cell file (truncated or not JSON). It "
        "is left out.",
    ]
    assert {path: path.read_bytes() for path in cells.rglob("*.json")} == before
    assert len(pd.read_csv(place / "results/mine/scores.csv")) == 4  # else the lost is forgotten
    (cells / f"{KEYS[1]}.json").unlink()
    for _ in range(2):
        code, _, err = clbench("report", "results/mine", "--formats", "png")
        assert code == 1
        assert f"scores.csv was made from cells that are missing: {KEYS[1]}. Restore them" in err
    (cells / f"{KEYS[1]}.json").write_text("{")
    _, _, err = clbench(*RUN, "--dry-run")
    assert "foreign.json is not a valid cell file (key: is missing). It is left out." in err
    clbench(*RUN)
    assert (cells / "foreign.json").exists()
    assert (cells / f"broken/{KEYS[1]}.json").exists()


def test_a_table_without_cells_that_were_written_meanwhile_is_made_again(
    place: Path, engine: FakeExecutor, clbench: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    clbench(*RUN)
    one = place / f"results/mine/cells/{KEYS[1]}.json"
    late = one.rename(place / one.name)
    monkeypatch.setattr(
        "clbench.cli.report.scores_frame", lambda *_: (late.rename(one).touch(), pd.DataFrame())[1]
    )
    (place / "results/mine/scores.csv").unlink()
    clbench("report", "results/mine", "--formats", "png")
    clbench(*RUN)
    assert len(pd.read_csv(place / "results/mine/scores.csv")) == len(KEYS)


def test_a_report_names_a_single_task_reference_that_is_missing(
    place: Path, engine: FakeExecutor, clbench: Call
) -> None:
    clbench("run", "mine.toml")
    table = (place / "results/mine/scores.csv").read_text()
    (place / "results/mine/cells/one-two--reference1--seed1.json").unlink()
    code, _, err = clbench("report", "results/mine", "--formats", "png")
    assert code == 1
    assert err.splitlines() == [
        "scores.csv was made from cells that are missing: one-two--reference1--seed1. Restore "
        "them, run the suite again, or delete the table if you have removed them."
    ]
    assert (place / "results/mine/scores.csv").read_text() == table


def test_a_report_of_a_folder_that_cannot_be_written(
    place: Path, engine: FakeExecutor, clbench: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    clbench(*RUN)

    def refuse(*arguments: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("os.fsync", refuse)
    code, out, err = clbench("report", "results/mine", "--formats", "png")
    assert code == 2
    assert "vanilla" in out
    assert "report/figures/tradeoff.png cannot be written" in err
    assert err.startswith(
        "scores.csv is left unchanged: results/mine/scores.csv cannot be written: Read-only file "
        "system."
    )


def test_report_of_a_run_with_failures(place: Path, engine: FakeExecutor, clbench: Call) -> None:
    engine.fails = {KEYS[0]}
    clbench(*RUN)
    code, out, _ = clbench("report", "results/mine", "--formats", "png")
    assert code == 1
    assert f"failed: {KEYS[0]}: loss is nan" in out

from __future__ import annotations

import re
from pathlib import Path

from helpers.commands import Call
from helpers.fake_engine import FakeExecutor

TUNE = ("tune", "mine.toml", "--methods", "vanilla,ewc", "--trials", "4", "--out", "tuned")


def test_a_tuning_from_end_to_end(place: Path, engine: FakeExecutor, clbench: Call) -> None:
    engine.p_o = lambda cell: 0.9 if cell.baseline.settings.get("lr_multiple") == 0.5 else 0.6
    code, out, err = clbench(*TUNE, "--seeds", "1000")
    assert code == 0
    assert "mine-tune: 8 of 8 trials finished" not in err  # said before each round
    assert len(engine.ran) == 8
    assert re.search(r"^method +trials +before +best", out, re.MULTILINE)
    assert re.search(r"^vanilla +4 +0\.6", out, re.MULTILINE)
    assert "Next: clbench run mine.toml --methods tuned/vanilla.toml,tuned/ewc.toml" in out
    assert "Tuned: the best of 4 trials" in (place / "tuned" / "ewc.toml").read_text()
    engine.ran.clear()
    again, table, _ = clbench(*TUNE, "--seeds", "1000")
    assert (again, table, engine.ran) == (0, out, [])


def test_a_dry_run_prints_sweeps_and_counts_cells(
    place: Path, engine: FakeExecutor, clbench: Call
) -> None:
    clbench(*TUNE, "--seeds", "1000")
    engine.ran.clear()
    code, out, _ = clbench(*TUNE, "--seeds", "1000,1001", "--dry-run")
    assert (code, engine.ran) == (0, [])
    assert re.search(r"^ewc +4 +importance +10 to 1e\+06 \(log\)", out, re.MULTILINE)
    assert "16 cells in tuned, 8 of them finished." in out


def test_failed_trials_give_exit_code_1(place: Path, engine: FakeExecutor, clbench: Call) -> None:
    engine.fails = {"one-two--ewc--seed1000"}
    code, out, err = clbench(*TUNE, "--seeds", "1000")
    assert code == 1
    assert "Some trials of ewc failed" in err
    assert re.search(r"^ewc +4 +failed", out, re.MULTILINE)

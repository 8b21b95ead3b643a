from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.commands import Call

from clbench.core.errors import SettingsError
from clbench.search import SearchOutcome, TrialRecord
from clbench.search.plan import SearchSettings, read_seconds
from clbench.search.rates import SearchOrigin, SearchSpace
from clbench.search.trials import EpochRecord

pytest.importorskip("autogluon")  # it has no version for Python 3.14

PLUGIN = """
import clbench


@clbench.metric("mine")
def mine(labels, outputs):
    return 0.0
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400), ("1.5 h", 5400)],
)
def test_time_limit_is_read_in_seconds(text: str, expected: float) -> None:
    assert read_seconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "-1", "0", "2 weeks", "1h30m"])
def test_wrong_time_limit_is_an_error(text: str) -> None:
    with pytest.raises(SettingsError, match="must be a time such as 90s, 30m or 2h"):
        read_seconds(text)


def test_dry_run_prints_the_plan_and_writes_nothing(
    tmp_path: Path, clbench: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("search", "quick", "--scenario", "sentiment-acceptability", "--trials", "7")
    code, out, err = clbench(*arguments, "--dry-run")
    assert (code, err) == (0, "")
    assert "7 trials, bayes; asha may stop trials after 1, 2, 4 … epochs" in out
    assert "6 rates from 1e-07 to 0.001: embeddings, layer 0," in out
    assert "First trial: 0.0005 for all" in out
    assert "tuning (0.1 of the training rows, held out)" in out
    code, out, _ = clbench(*arguments, "--dry-run", "--paper-split", "--scheduler", "none")
    assert "the paper's choice" in out
    assert "no trial is stopped early" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["search", "quick"], "Give one of sentiment-acceptability, growing-head"),
        (["search", "quick", "--scenario", "x"], "--scenario 'x' matches no scenario of quick"),
        (
            ["search", "quick", "--device=cuda:99", "--dry-run", "--scenario=growing-head"],
            "--device cuda:99",
        ),
        (["search", "quick", "--searcher", "grid"], "--searcher 'grid' is unknown"),
        (["search", "quick", "--scheduler", "pbt"], "--scheduler 'pbt' is unknown"),
        (
            ["search", "quick", "--workers", "0"],
            "--workers: must be greater than or equal to 1, got 0",
        ),
        (["search", "quick", "--trials", "0"], "--trials: must be greater than 0, got 0"),
        (["search", "quick", "--time-limit", "x"], "--time-limit 'x'"),
        (["search"], "SUITE"),
    ],
)
def test_wrong_input_is_one_line(
    tmp_path: Path, clbench: Call, monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = clbench(*arguments)
    assert code == 2
    assert re.search(re.escape(text), err), err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_next_command_repeats_options_and_plugins(
    tmp_path: Path, clbench: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_tasks.py").write_text(PLUGIN)
    monkeypatch.setattr("clbench.search.search", lambda *_, **__: outcome())
    options = ("--scenario", "growing-head", "--limit", "40", "--plugin", "my_tasks.py")
    code, out, _ = clbench("search", "quick", *options, "--out", "found")
    assert code == 0
    assert out.splitlines()[-1] == (
        "Next: clbench run quick --methods vanilla,found/bertcl.toml,found/bertcl-mean.toml "
        "--scenarios growing-head --limit 40 --plugin my_tasks.py"
    )


def outcome() -> SearchOutcome:
    epoch = EpochRecord(stage=1, epoch=1, scores=[0.5, 0.6], reward=1.1, seconds=7.0)
    done = {"status": "complete", "p_o": 0.5, "p_s": 0.6, "epochs": [epoch], "seconds": 7.0}
    space = SearchSpace(SearchOrigin(5e-4, 4), 6)
    plan: Any = SimpleNamespace(space=space, split="tuning", settings=SearchSettings())
    return SearchOutcome.of([TrialRecord(number=1, rates=space.flat, **done)], plan)

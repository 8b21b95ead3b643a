"""Details of board that no other test notices."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from board.test_agreement import found, scored
from helpers.report_runs import cell

from clbench.board import rerun
from clbench.board.agreement import NOISE, Noise, largest_gap, noise_of
from clbench.board.recomputed import _equal, matrix_follows
from clbench.board.reported import chooses_no_seed
from clbench.board.submission import Submission
from clbench.results.cell import pack_rows
from clbench.suite.read import packaged_files


def test_two_rows_of_sixty_may_differ() -> None:
    """2 % of 60 rows are 1.2, so that two may."""
    base = np.arange(30) % 3 > 0
    other = base.copy()
    other[[0, 1]] = ~other[[0, 1]]  # one becomes right, one wrong
    assert not found(scored([other, base]), scored([base, base]))
    other[[3, 4]] = ~other[[3, 4]]
    assert "4 of 60 rows" in found(scored([other, base]), scored([base, base]))[0]


def test_bf16_on_either_side_decides_the_noise() -> None:
    one, two = (
        cell("pair", "vanilla", 0, 0.6, settings={"precision": kind})
        for kind in ("float32", "bf16")
    )
    assert noise_of(one, one) == NOISE["float32"]
    assert noise_of(one, two) == noise_of(two, one) == noise_of(two) == NOISE["bf16"]


@pytest.mark.parametrize(
    ("name", "task", "is_packaged"),
    [
        ("quick", {}, True),
        ("quick", {"mine": {"train": "mine.csv"}}, False),  # a copy of that suite, in a folder
        ("findings-smollm2", {"titles": {}}, True),
        ("mine", {}, False),
    ],
)
def test_files_of_own_tasks_are_those_of_data(
    name: str, task: dict[str, Any], is_packaged: bool, tmp_path: Path
) -> None:
    (tmp_path / "suite.json").write_text(json.dumps({"suite": {"name": name, "task": task}}))
    submission = Submission(tmp_path, tmp_path / "data")
    scenarios = packaged_files("scenarios")["quick"].parent
    assert submission.base == (scenarios if is_packaged else tmp_path / "data")


def test_gaps_that_machines_explain_are_none() -> None:
    one = cell("pair", "vanilla", 0, 0.6)
    assert largest_gap(one, cell("pair", "vanilla", 0, 0.6 + 0.9 * NOISE["float32"].score)) == 0.0
    assert largest_gap(one, cell("pair", "vanilla", 0, 0.7)) == pytest.approx(0.1)


def test_losses_above_1_may_differ_by_their_share() -> None:
    noise = Noise(rows=0.02, score=0.02)
    assert noise.allows(3.05, 3.0)
    assert not noise.allows(3.07, 3.0)
    assert noise.allows(0.119, 0.1)
    assert not noise.allows(0.121, 0.1)
    assert not noise.allows(float("nan"), 0.1)


def test_a_metric_that_only_one_training_has_is_wrong() -> None:
    base = np.arange(40) % 4 > 0

    def with_metrics(**last: float) -> Any:
        return scored([base, base], metrics=[[{"accuracy": 0.9}, None], [last, None]])

    ours = with_metrics(accuracy=0.75, f1=0.7)
    assert not found(ours, ours)
    (line,) = found(with_metrics(accuracy=0.75), ours)
    assert line == "pair--vanilla--seed0: R[1][0], f1, is None, and 0.7 here."


def test_entries_of_the_table_are_equal_to_the_sixth_digit() -> None:
    assert _equal(0.75, 0.7500005)
    assert not _equal(0.75, 0.750002)
    assert _equal(2000.0, 2000.001)
    assert not _equal(2000.0, 2000.01)
    assert _equal(float("nan"), float("nan"))
    assert not _equal(float("nan"), 0.5)
    assert not _equal("vanilla", 0.5)


@pytest.mark.parametrize("lacking", [(0, 0), (1, 1), (1, 0)])
def test_a_score_after_its_own_stage_or_at_the_end_needs_its_rows(
    lacking: tuple[int, int],
) -> None:
    bits = pack_rows(np.array([1, 1, 1, 1, 0], bool))
    correct: Any = [[bits, None], [bits, bits]]
    correct[lacking[0]][lacking[1]] = None
    metrics: Any = [[{"accuracy": 0.8}, None], [{"accuracy": 0.8}] * 2]
    own = cell(
        "s", "vanilla", 0, 0.8, tasks=["glue/sst2", "glue/rte"], R=[[0.8, None], [0.8, 0.8]],
        correct=correct, metrics=metrics,
    )  # fmt: skip
    protocol = SimpleNamespace(task_metric={})
    submission: Any = SimpleNamespace(cells=[own], file=SimpleNamespace(protocol=protocol, task={}))
    outcome = matrix_follows(submission)
    where = "s--vanilla--seed0: R[{}][{}]".format(*lacking)
    assert (outcome.wrong, outcome.unchecked) == ([], [f"1 score without rows, such as {where}"])


@pytest.mark.parametrize(
    ("seeds", "left"), [([0, 1, 2], None), ([2, 3, 4], "0-1"), ([0, 2], "1"), ([1, 2], "0")]
)
def test_seeds_begin_at_0(seeds: list[int], left: str | None) -> None:
    submission: Any = SimpleNamespace(
        file=SimpleNamespace(seeds=seeds), suite={"name": "own"},
        store=SimpleNamespace(looks=lambda: None),
    )  # fmt: skip
    lines = list(chooses_no_seed(submission))
    assert bool(lines) == (left is not None)
    assert all(f" leave out {left}: " in line for line in lines)


def test_recipes_of_another_version_are_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    submission: Any = SimpleNamespace(
        cells=[SimpleNamespace(recipe={"version": 1}, key="a")], has_code=False,
        manifest=SimpleNamespace(clbench="0.1"),
    )  # fmt: skip
    monkeypatch.setattr(rerun, "RECIPE_VERSION", 2)
    outcome = rerun.rerun(submission, ["a"], None)  # type: ignore[arg-type]
    assert not outcome.wrong
    assert outcome.unchecked == [
        "it has recipes of version 1, and this clbench trains version 2; use clbench 0.1, which "
        "wrote it"
    ]

"""The comparisons of SmolLM2's three tasks are those that the suite declares."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from clbench.results.cell import CellResult
from clbench.results.store import Store
from clbench.suite.read import read_suite
from tools import findings_smollm2_three as study
from tools.findings import REFERENCE
from tools.findings_smollm2 import RATES

LEARNED = {"vanilla-quarter": 0.3, "vanilla-half": 0.5, "vanilla": 0.7, "dft": 0.9}
"""What the rates and `dft` learn of each task in the cells made up here; the others learn .6."""
CACHED = (
    study.kept, study.compared, study.on_curve, study.against_rates, study.against_untrained
)  # fmt: skip


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CellResult]]:
    """Put made-up cells in place of the kept ones: those of `FIRST`, with five seeds.

    The rates lose as much text loss and forget as much as they learn of a task, others .2 less.
    """
    (pilot,) = Store(REFERENCE / "findings-smollm2-pilot-240").read().cells
    rng = np.random.default_rng(0)
    made = []
    for name in study.FIRST:
        for seed in range(study.SEEDS):
            right = LEARNED.get(name, 0.6) + rng.normal(0.0, 0.01)
            lost = right - 0.2 * (name not in RATES) + rng.normal(0.0, 0.001)
            own = {
                "baseline": name,
                "seed": seed,
                "R": [[right, 0.0, 0.0], [right, right, 0.0], [right - lost, right - lost, right]],
                "untrained": [0.1, 0.6, 0.0],
                "scores": dict.fromkeys(study.LOST, lost),
            }
            made.append(pilot.model_copy(update=own))
    run = SimpleNamespace(cells=made)
    monkeypatch.setattr(study, "Store", lambda _: SimpleNamespace(read=lambda: run))
    for function in CACHED:
        function.cache_clear()
    yield made
    for function in CACHED:
        function.cache_clear()


def test_the_families_are_those_that_the_suite_declares(cells: list[CellResult]) -> None:
    suite = read_suite("findings-smollm2").file
    assert suite.methods[:9] == ["vanilla", "wise-ft", "ewc-fewer", "replay", *study.FIRST[1::-1],
                                 *study.FIRST[6:]]  # fmt: skip
    assert tuple(suite.methods[9:]) == study.LATER
    assert suite.seeds == [*range(study.SEEDS)]
    assert tuple(suite.asked.scores) == study.LOST
    header = read_suite("findings-smollm2").path.read_text("utf-8")
    assert f": {len(study.against_rates())} comparisons, a second" in header
    assert f": {len(study.against_untrained())}, a third family" in header
    assert len(study.on_curve()) == 2 * 6


def test_what_is_lost_is_read_where_the_rates_learned_as_much(cells: list[CellResult]) -> None:
    found = study.on_curve()
    for score in study.LOST:
        read = found[score, "replay"]
        assert not isinstance(read, int)
        assert read.difference == pytest.approx(0.2, abs=0.02)
        assert read.verdict == "better"
        assert found[score, "dft"] == study.SEEDS  # learns more than the rates


def test_less_of_what_is_lost_is_better(cells: list[CellResult]) -> None:
    found = study.against_rates()
    for score in study.LOST:
        assert found[score, "vanilla", "vanilla-half"].difference == pytest.approx(-0.2, abs=0.02)
        assert found[score, "vanilla", "vanilla-half"].verdict == "better"
        assert found[score, "vanilla-quarter", "dft"].verdict == "worse"
    assert found[study.LEARNED, "vanilla", "vanilla-half"].verdict == "worse"


def test_learning_is_compared_with_the_untrained_model_task_by_task(
    cells: list[CellResult],
) -> None:
    found = study.against_untrained()
    half = [found[task, "vanilla-half"] for task in study.TASKS]
    assert [each.difference for each in half] == pytest.approx([0.4, -0.1, 0.5], abs=0.02)
    assert [each.verdict for each in half] == ["better", "worse", "better"]


@pytest.mark.parametrize("lost", [slice(0, 1), slice(0, 5)], ids=["a seed", "a baseline"])
def test_nothing_is_compared_before_all_seeds_are_there(
    cells: list[CellResult], lost: slice
) -> None:
    del cells[lost]
    with pytest.raises(ValueError, match=r"findings-smollm2: \d of 5 seeds; nothing is compared"):
        study.against_rates()
    with pytest.raises(ValueError, match="0 of 5 seeds"):
        study.on_curve(study.LATER)

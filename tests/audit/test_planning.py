"""What rows can show before they are scored, and looks at more of them."""

from __future__ import annotations

import numpy as np
import pytest

from clbench.audit.changes import Flips
from clbench.audit.comparison import compare
from clbench.audit.planning import detectable, looks, plan, rows_needed
from clbench.audit.scores import ItemScores
from clbench.results.statistics import ALPHA, spend


@pytest.mark.parametrize(("tests", "flips", "loss"), [(1, 0.2, 0.1), (6, 0.2, 0.05), (6, 0.5, 0.1)])
def test_the_rows_for_a_loss_show_it_four_times_of_five(
    tests: int, flips: float, loss: float
) -> None:
    rows, draws = rows_needed(loss, tests, flips), 500
    shares = [(flips + loss) / 2, (flips - loss) / 2, 1 - flips]
    counts = np.random.default_rng(0).multinomial(rows, shares, size=draws)
    level = 1 - ALPHA / tests
    shown = sum(Flips(int(b), int(c), rows).interval(level)[1] < 0 for b, c, _ in counts)
    assert 0.75 < shown / draws < 0.87


@pytest.mark.parametrize("rows", [50, 500, 20_000])
@pytest.mark.parametrize("flips", [0.2, 0.5])
def test_the_loss_that_rows_show_is_the_one_they_are_needed_for(rows: int, flips: float) -> None:
    assert rows_needed(detectable(rows, 5, flips), 5, flips) == pytest.approx(rows, abs=2)


def test_the_plan_names_the_task_with_the_fewest_rows() -> None:
    line = plan({"a": 500, "b": 200}, 3)
    assert line == (
        f"200 items of b show a loss of {detectable(200, 3):.3f} with 80 % power if 20 % of the "
        f"items flip, and of {detectable(200, 3, 0.5):.3f} if half do."
    )
    assert f"show a loss of {detectable(200, 3, alpha=0.0375):.3f}" in plan(
        {"b": 200}, 3, None, 0.0375
    )
    needed = rows_needed(0.02, 3)
    assert plan({"a": needed}, 3, detect=0.02).endswith("if half do.")
    short = plan({"a": 500}, 3, detect=0.02)
    assert short.endswith(f"if half do. detect=0.02 needs {needed:,} items; the task has no more.")


def test_looks_end_with_the_rows() -> None:
    assert looks(500, 5000) == [500, 1000, 2000]
    assert looks(500, 1200) == [500, 1000, 1200]
    assert looks(500, 300) == [500]


def test_tasks_that_cannot_show_forgetting_keep_no_audit_looking() -> None:
    rng, keys = np.random.default_rng(0), tuple(map(str, range(200)))
    known, guessed = (rng.random(200) < 0.98).astype(float), (rng.random(200) < 0.5).astype(float)

    def compared(second: np.ndarray, chance: float) -> bool:
        base = [
            ItemScores("known", "features", known, keys, chance=0.5),
            ItemScores("guessed", "features", guessed, keys, chance=chance),
        ]
        tuned = [base[0], ItemScores("guessed", "features", second, keys, chance=chance)]
        found = compare(base, tuned, 0.05)
        assert [each.change.word for each in found.changes] == ["kept", "unclear"]
        return found.is_settled

    other = np.roll(guessed, 1)
    assert compared(other, 0.5)
    assert not compared(other, 0.3)


def test_looks_share_one_error_rate() -> None:
    """Nothing changed; each audit ends at the first look that settles it."""
    rng, plan_of, draws, false = np.random.default_rng(0), looks(100, 400), 300, 0
    for _ in range(draws):
        flips = rng.choice([-1.0, 0.0, 1.0], p=[0.05, 0.9, 0.05], size=(2, 400))
        for count, alpha in zip(plan_of, spend(plan_of), strict=True):
            keys = tuple(map(str, range(count)))
            both = [
                [
                    ItemScores(str(i), "features", (sign * row[:count] > 0).astype(float), keys)
                    for i, row in enumerate(flips)
                ]
                for sign in (-1, 1)
            ]
            comparison = compare(*both, 0.02, alpha=alpha)
            for each in comparison.changes:
                excludes = each.change.low > 0 or each.change.high < 0
                assert not excludes or each.change.p_family < ALPHA
            if comparison.is_settled:
                break
        false += any(each.change.word in ("forgot", "gained") for each in comparison.changes)
    assert false / draws <= 0.05

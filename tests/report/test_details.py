"""Details of report that no other test notices."""

from __future__ import annotations

import pytest
from helpers.report_runs import cell
from report.test_sentences import lines

from clbench.report.content import floors_frame
from clbench.report.sentences import error_rates
from clbench.suite.schema import Question


def test_the_largest_difference_of_either_sign_comes_first() -> None:
    base = [(0.6 + 0.01 * seed, 0.8) for seed in range(4)]
    some = {
        name: [(p_o + change + 0.001 * seed, 0.8) for seed, (p_o, _) in enumerate(base)]
        for name, change in (("bad", -0.1), ("worst", -0.3), ("good", 0.1), ("best", 0.3))
    }
    (line,) = lines(Question(scores=["p_o"]), vanilla=base, **some)
    assert line.index("best ") < line.index("good ") < line.index("worst ") < line.index("bad ")


@pytest.mark.parametrize(("complete", "begun", "planned"), [(20, 20, True), (20, 25, False)])
def test_seeds_beyond_the_last_look_make_a_report_an_interim_one(
    complete: int, begun: int, planned: bool
) -> None:
    (line,) = error_rates([5, 10, 20], complete, begun, 0, 0)
    assert ("This is look 3 of 3" in line) == planned
    assert ("This is an interim report" in line) != planned


def test_floors_are_those_of_the_method_whatever_its_baseline_is_called() -> None:
    some = [
        cell("s", "frozen-high", 0, 0.5, floors=[0.4, 0.3]).model_copy(update={"method": "frozen"}),
        cell("s", "frozen", 0, 0.9, floors=[0.4, 0.3]).model_copy(update={"method": "vanilla"}),
    ]
    table = floors_frame(some)
    assert table["frozen"].tolist() == [0.5, 0.8]
    assert table["constant"].tolist() == [0.4, 0.3]

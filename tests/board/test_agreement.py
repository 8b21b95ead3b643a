"""Whether cells that were trained again agree with those of a submission."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.report_runs import cell

from clbench.board.agreement import NOISE, compare
from clbench.results.cell import CellResult, pack_rows


def scored(rows: Any, **changes: Any) -> CellResult:
    """A cell with rows right or wrong on both tasks after the last stage."""
    shares = [float(np.mean(some)) for some in rows]
    return cell(
        "pair", "vanilla", 0, shares[0],
        R=[[0.9, None], shares],
        correct=[[None, None], [pack_rows(np.array(some, bool)) for some in rows]],
        **{"settings": {"precision": "float32"}, **changes},
    )  # fmt: skip


def found(theirs: CellResult, ours: CellResult) -> list[str]:
    return compare([theirs], [ours], [theirs.key]).wrong


BASE = np.arange(400) % 4 > 0  # three quarters are right
RELEARNED = [0.5, 0.55, 0.87, 0.875]


def flipped(*numbers: int) -> Any:
    rows = BASE.copy()
    rows[list(numbers)] = ~rows[list(numbers)]
    return rows


def test_equal_cells_agree() -> None:
    outcome = compare([scored([BASE, BASE])], [scored([BASE, BASE])], ["pair--vanilla--seed0"])
    assert not outcome.wrong
    assert "0 of 800 rows differ" in outcome.says


def test_flips_up_to_the_noise_agree_and_more_do_not() -> None:
    most = int(NOISE["float32"].rows * 800)
    half = most // 2  # as many become right as wrong
    wrong, right = [np.flatnonzero(value == BASE) for value in (False, True)]
    both = [*wrong[:half], *right[: most - half]]
    assert not found(scored([flipped(*both), BASE]), scored([BASE, BASE]))
    more = [*both, right[-1], wrong[-1]]
    assert (
        "rows are right in one training"
        in found(scored([flipped(*more), BASE]), scored([BASE, BASE]))[0]
    )


def test_flips_that_all_favour_the_submission_do_not_agree() -> None:
    better = np.flatnonzero(~BASE)[:12]
    some = [flipped(*better[:6]), flipped(*better[6:])]
    (line,) = found(scored(some), scored([BASE, BASE]))
    assert line.startswith("12 rows are right there and wrong here, and only 0")
    assert not found(scored([BASE, BASE]), scored(some))  # worse than here


def test_a_stage_that_cells_share_counts_once() -> None:
    def first_stage(rows: Any, seed: int = 0) -> list[CellResult]:
        R, correct = [[rows.mean(), None], [0.7, 0.8]], [[pack_rows(rows), None], [None, None]]
        return [cell("pair", name, seed, 0.7, R=R, correct=correct) for name in "abcd"]

    better = flipped(*np.flatnonzero(~BASE)[:3])
    theirs, ours = first_stage(better), first_stage(BASE)
    outcome = compare(theirs, ours, [cell.key for cell in theirs])
    assert not outcome.wrong
    assert "3 of 400 rows differ" in outcome.says
    for seed in (1, 2, 3):  # trained apart
        theirs, ours = theirs + first_stage(better, seed), ours + first_stage(BASE, seed)
    assert "12 rows" in compare(theirs, ours, [cell.key for cell in theirs]).wrong[0]


def test_every_score_is_compared_although_its_rows_agree() -> None:
    before, curve = {"text_loss": 2.0}, {"scores": {"a": [[0, 0.1], [4, 0.1]]}}
    measured = {
        "capabilities": [before, before, {"text_loss": 3.0, "divergence": 0.5}],
        "probes": [[0.5, 0.5], [0.7, 0.5], [0.6, 0.8]],
        "relearning": {"rows": [8, 16], "steps": [1, 2], "scores": [0.6, 0.7], "recovered": False},
        "lm_eval": {"arc_easy": {"acc": 0.4}},
    }
    ours = scored([BASE, BASE], **measured)
    assert not found(ours, ours)
    for field, value, name in (
        ("R", [[0.9, None], [0.99, 0.75]], "R[1][0]"),
        ("capabilities", [before, before, {"text_loss": 2.0}], "text_loss after 2 stages"),
        ("probes", [[0.5, 0.5], [0.7, 0.5], [0.9, 0.8]], "probe of task 1 after 2 stages"),
        ("relearning", measured["relearning"] | {"scores": [0.6, 0.9]}, "relearned score 2"),
        ("lm_eval", {"arc_easy": {"acc": 0.9}}, "acc of arc_easy"),
        ("stages", [s.model_copy(update={"curves": curve}) for s in ours.stages], "area"),
    ):
        line, *_ = found(ours.model_copy(update={field: value}), ours)
        assert line.startswith(f"pair--vanilla--seed0: {name} is")


@pytest.mark.parametrize(
    ("changes", "agree"),
    [
        ({}, True),
        ({"rows": [0, 8], "scores": [0.5, 0.55]}, False),  # stops early without recovery
        ({"rows": [0], "scores": [0.5], "recovered": True, "needed": 0}, False),
        ({"rows": [0, 4, 8, 16], "recovered": True, "needed": 16}, False),
        ({"rows": [0, 8, 16, 32], "recovered": True, "needed": 8}, False),
        ({"scores": [0.5, 0.55, 0.87, 0.885], "recovered": True, "needed": 32}, True),
        ({"scores": []}, False),
        # Rows beyond all that there are, of which one says that it recovers.
        ({"rows": [0, 8, 16, 32, 64], "scores": [*RELEARNED, 0.87]}, False),
        (
            {
                "rows": [0, 8, 16, 32, 1],
                "scores": [*RELEARNED, 0.99],
                "recovered": True,
                "needed": 1,
            },
            False,
        ),
    ],
)
def test_rows_to_relearn_are_compared(changes: dict[str, Any], agree: bool) -> None:
    here = {"rows": [0, 8, 16, 32], "scores": RELEARNED, "recovered": False}
    theirs, ours, none = (
        scored([BASE, BASE], relearning=relearning) for relearning in (here | changes, here, {})
    )
    lines = [] if agree else ["rows to relearn"]
    assert [line[22:37] for line in found(theirs, ours)] == lines
    assert [line[22:37] for line in found(theirs, none)] == ["rows to relearn"]


def test_a_single_task_reference_is_compared_by_its_one_score() -> None:
    stage = cell("pair", "vanilla", 0, 0.6).stages[1].model_dump()
    theirs, ours, other = (
        cell("pair", "vanilla", 0, 0.6, key="pair--reference1--seed0", baseline="reference1",
             reference_of=1, R=[[None, score]], scores={"reference": score}, stages=[stage])
        for score in (0.8, 0.81, 0.9)
    )  # fmt: skip
    assert not found(theirs, ours)
    assert found(theirs, other) == ["pair--reference1--seed0: R[0][1] is 0.8000, and 0.9000 here."]


def test_scores_without_rows_and_facts_are_compared() -> None:
    plain = {"settings": {"precision": "bf16"}}
    ours = cell("pair", "vanilla", 0, 0.6, **plain)
    assert not found(cell("pair", "vanilla", 0, 0.6 + NOISE["bf16"].score - 0.001, **plain), ours)
    assert found(cell("pair", "vanilla", 0, 0.6 + NOISE["bf16"].score + 0.001, **plain), ours)
    assert (
        "keeps_rows is False here"
        in found(cell("pair", "vanilla", 0, 0.6, keeps_rows=True, **plain), ours)[0]
    )
    shown = {"settings": {"precision": "bf16", "method": {"lr": 1.0}}}
    assert "shows other settings: lr" in found(cell("pair", "vanilla", 0, 0.6, **shown), ours)[0]


@pytest.mark.parametrize(("here", "wrong"), [(False, []), (True, ["first"])])
def test_a_setting_that_is_newer_than_the_cell_has_its_default(
    here: bool, wrong: list[str]
) -> None:
    theirs, ours = (
        cell("pair", "wise-ft", 0, 0.6, settings={"method": {"alpha": 0.5, **more}})
        for more in ({}, {"first": here})
    )
    says = [f"pair--wise-ft--seed0 shows other settings: {name}." for name in wrong]
    assert found(theirs, ours) == says


def test_a_method_without_defaults_is_compared() -> None:
    theirs, ours, other = (
        cell("pair", "layerwise", 0, 0.6, settings={"method": {"decay": decay}})
        for decay in (0.9, 0.9, 0.8)
    )
    assert not found(theirs, ours)
    assert found(theirs, other) == ["pair--layerwise--seed0 shows other settings: decay."]


def test_a_cell_that_fails_here_does_not_agree() -> None:
    theirs = cell("pair", "vanilla", 0, 0.6)
    ours = cell("pair", "vanilla", 0, 0.6, status="failed", reason="out of memory")
    assert found(theirs, ours) == ["pair--vanilla--seed0 failed here: out of memory"]
    assert compare([theirs], [], [theirs.key]).wrong == [
        "pair--vanilla--seed0 failed here: no result"
    ]

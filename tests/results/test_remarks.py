from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.handmade import failed, pair, reference
from helpers.report_runs import cell, cells

from clbench.results.cell import CellResult, pack_rows
from clbench.results.comparisons import comparisons_frame
from clbench.results.remarks import remarks, sentences
from clbench.results.scores import scores_of
from clbench.suite.schema import Question

LOST = [0.55, 0.8, 0.81, 0.79, 0.56]


def noted(some: list[CellResult], question: Question | None = None) -> list[str]:
    question = question or Question()
    texts = sentences(remarks(some, question), question)
    return [text for of_scenario in texts.values() for text in of_scenario]


def test_collapsed_runs_are_counted() -> None:
    """Two of five runs of ewc lose a quarter of the old task; mas loses as much on every seed."""
    values = {
        "vanilla": [(0.8, 0.8)] * 5,
        "ewc": [(p_o, 0.8) for p_o in LOST],
        "mas": [(0.55, 0.8)] * 5,
    }
    question = Question(scores=["p_o", "forgetting"])
    assert noted(cells(**values), question) == [
        "ewc: 2 of 5 runs collapsed in p_o",
        "ewc: 2 of 5 runs collapsed in forgetting",  # less is better: those that forgot more
    ]
    table = comparisons_frame(cells(**values), question).set_index(["method", "score"])
    assert table.loc[("ewc", "p_o"), "collapsed"] == 2
    assert table.loc[("ewc", "p_o"), "remark"] == "2 of 5 runs collapsed in p_o"
    assert (table.loc["vanilla", "collapsed"] == 0).all()


def test_methods_with_the_same_remark_share_a_sentence() -> None:
    lost = [(p_o, 0.8) for p_o in LOST]
    assert noted(cells(vanilla=lost, ewc=lost)) == ["vanilla, ewc: 2 of 5 runs collapsed in p_o"]


def right(method: str, seed: int, text: str, **settings: Any) -> CellResult:
    """A cell whose rows of the first task are right (1) or wrong (0) at the end."""
    bits = pack_rows(np.array([digit == "1" for digit in text]))
    R = [[0.9, None], [text.count("1") / len(text), 0.5]]
    correct: list[list[Any]] = [[bits, None], [bits, bits]]
    return cell("pair", method, seed, 0.0, R=R, correct=correct, settings={"method": settings})


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"strength": 1.0, "examples": 1000}, ": raise `strength`"),
        ({"gamma": 1.0, "importance": 1000.0}, ": raise `importance`"),
        ({"c": 0.1, "xi": 0.1}, ": raise `c`"),
        ({"alpha": 1.0}, ""),
        ({"weight": 1.0, "share": 0.01}, ": raise `share`"),
    ],
)
def test_a_method_that_changes_no_row_is_named(settings: dict[str, float], remedy: str) -> None:
    theirs = [right("vanilla", 0, "1101"), right("vanilla", 1, "1001")]
    same = [right("mas", 0, "1101", **settings), right("mas", 1, "1001", **settings)]
    assert noted([*theirs, *same]) == [f"mas: changes nothing here{remedy}"]
    # as many rows are right on seed 1, but not the same ones
    other = [same[0], right("mas", 1, "0101", **settings)]
    assert noted([*theirs, *other]) == []
    # the same rows, but another language model
    stages = [{}, {"text_loss": 3.0}]
    other = [same[0].model_copy(update={"capabilities": stages}), same[1]]
    assert noted([*theirs, *other]) == []
    assert noted([*theirs, right("mas", 2, "1101", **settings)]) == []  # no seed in common


def test_rows_that_were_not_recorded_say_nothing() -> None:
    assert noted(cells(vanilla=[(0.8, 0.8)] * 3, ewc=[(0.8, 0.8)] * 3)) == []


def test_methods_at_chance_are_named_by_task() -> None:
    floors = [0.5, 0.6]
    some = [
        pair("vanilla", 0, floors=floors),
        pair("adapter", 0, R=[[0.9, None], [0.7, 0.61]], floors=floors),
        pair("adapter", 1, R=[[0.9, None], [0.7, 0.65]], floors=floors),  # mean .03 of .4
        pair("early", 0, R=[[0.9, None], [0.54, 0.65]], floors=floors),  # .04 of .5, .05 of .4
        failed("broken", 0, "no memory"),
        reference(1, 0.6),
    ]
    assert noted(some) == [
        "adapter: at chance or below on glue/mrpc in the end",
        "early: at chance or below on glue/sst2 in the end",
    ]
    assert noted([pair("adapter", R=[[0.5, None], [0.1, 0.1]])]) == []  # no floors


def test_questions_of_scores_beside_references_get_remarks() -> None:
    floors = [0.5, 0.6]
    some = [
        pair("vanilla", 0, floors=floors),
        pair("adapter", 0, R=[[0.9, None], [0.7, 0.61]], floors=floors),
        reference(1, 0.6),
    ]
    remark = "adapter: at chance or below on glue/mrpc in the end"
    assert noted(some, Question(scores=["intransigence"])) == [remark]


def test_tasks_that_a_language_model_does_not_learn_are_named() -> None:
    some = [
        pair("vanilla", 0, R=[[0.9, None], [0.6, 0.8]], untrained=[0.7, 0.5]),
        pair("lora", 0, R=[[0.6, None], [0.75, 0.8]], untrained=[0.7, 0.5]),
        pair("lora", 1, R=[[0.8, None], [0.75, 0.8]], untrained=[0.7, 0.5]),  # mean .70
        pair("sdft", 0, R=[[0.8, None], [0.5, 0.4]], untrained=[0.7, 0.5]),
    ]
    remark = "no better on {} right after its stage than the untrained model"
    assert noted(some) == [
        f"lora: {remark.format('glue/sst2')}",
        f"sdft: {remark.format('glue/mrpc')}",
    ]
    earlier = pair("lora", 2, R=[[0.6, None], [0.75, 0.8]])  # of a version that did not measure it
    assert noted([*some[:3], earlier]) == []
    perfect = pair("lora", 0, R=[[1.0, None], [0.9, 0.8]], untrained=[1.0, 0.5])
    assert noted([perfect]) == []


def test_a_task_that_occurs_twice_is_named_with_its_stage() -> None:
    """And the pretraining, a task before the trained ones, has no such score."""
    tasks = ["pretraining", "glue/sst2", "glue/sst2"]
    R = [[0.9, 0.5, None], [0.8, 0.6, None], [0.7, 0.9, 0.9]]
    own = {"R": R, "scores": scores_of(R), "stages": cell("a", "b", 0, 0.5).model_dump()["stages"]}
    lora = cell("twice", "lora", 0, 0.0, tasks=tasks, untrained=[0.7, 0.5], **own)
    assert noted([lora]) == [
        "lora: no better on glue/sst2 (stage 1) right after its stage than the untrained model"
    ]


def test_means_over_scenarios_know_the_collapses_of_each() -> None:
    """On one of three scenarios ewc always collapses and mas once: .25 / 3 in the mean."""
    steady = [(0.8, 0.8), (0.81, 0.8), (0.8, 0.8)]
    lost = [(p_o - 0.25, 0.8) for p_o, _ in steady]
    runs = cells("a", vanilla=steady, ewc=lost, mas=[lost[0], *steady[1:]])
    runs += [c for name in "bc" for c in cells(name, vanilla=steady, ewc=steady, mas=steady)]
    question = Question(scores=["p_o"], mean_over_scenarios=True)
    table = comparisons_frame(runs, question).set_index(["scenario", "method", "score"])
    row = table.loc[("mean over scenarios", "ewc", "p_o")]
    assert row["difference"] == pytest.approx(-0.25 / 3)
    assert row["verdict"] == "no verdict"
    assert row["why"] == "runs collapse: to tell it from chance takes 4 seeds or more"
    alone = [c for c in runs if c.baseline != "mas"]
    table = comparisons_frame(alone, question).set_index(["scenario", "method", "score"])
    assert table.loc[("mean over scenarios", "ewc", "p_o"), "verdict"] == "worse"

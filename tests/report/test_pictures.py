from __future__ import annotations

import pandas as pd
import pytest
from helpers.report_runs import STEADY, cells

from clbench.core.files import plain
from clbench.report.pictures import pictures, sparklines
from clbench.results.cell import StageRecord
from clbench.results.comparisons import comparisons_frame
from clbench.suite.schema import Question


def frame(question: Question) -> pd.DataFrame:
    return comparisons_frame(cells(**STEADY), question)


def test_the_picture_has_a_row_for_each_method_best_first() -> None:
    old, new = pictures(frame(Question()), Question())
    assert [panel["title"] for panel in (old, new)] == ["p_o − vanilla", "p_s − vanilla"]
    assert [(row["method"], row["mark"]) for row in old["rows"]] == [("ewc", "▲"), ("mas", "○")]
    assert [(row["method"], row["mark"]) for row in new["rows"]] == [("mas", "○"), ("ewc", "▼")]
    assert old["end"] == new["end"]  # one scale
    for row in old["rows"]:
        assert row["at"] == pytest.approx(50 + 50 * row["difference"] / old["end"])
        assert row["left"] == pytest.approx(50 + 50 * row["difference_low"] / old["end"])
        width = row["difference_high"] - row["difference_low"]
        assert row["length"] == pytest.approx(50 * width / old["end"])
        assert row["left"] >= 0
        assert row["left"] + row["length"] <= 100
    assert old["margin"] == pytest.approx(50 * 0.01 / old["end"])


def test_better_is_to_the_right_where_less_is_better() -> None:
    question = Question(scores=["forgetting"])
    (panel,) = pictures(frame(question), question)
    assert panel["less"]
    assert panel["rows"][0]["method"] == "ewc"
    assert panel["rows"][0]["difference"] == pytest.approx(-0.2, abs=0.001)
    assert panel["rows"][0]["at"] > 50


def test_a_seed_or_two_have_no_whiskers_and_no_run_has_no_picture() -> None:
    two = {name: values[:2] for name, values in STEADY.items()}
    table = comparisons_frame(cells(**two), Question())
    row = pictures(table, Question())[0]["rows"][0]
    assert (row["length"], row["mark"]) == (0.0, "?")
    assert pictures(comparisons_frame([], Question()), Question()) == []


def test_differences_of_0_at_a_margin_of_0_are_in_the_middle() -> None:
    same = Question(margin=0.0)
    table = comparisons_frame(cells(vanilla=[(0.5, 0.5)], ewc=[(0.5, 0.5)]), same)
    panels = pictures(table, same)
    assert len(panels) == len(same.scores)
    for panel in panels:
        (row,) = panel["rows"]
        assert (row["left"], row["at"], row["length"], panel["margin"]) == (50.0, 50.0, 0.0, 0.0)


def stage(**curves: object) -> StageRecord:
    return StageRecord(
        task="b", rows=1, steps=4, epochs=1.0, examples=1, tokens=1, train_seconds=1.0,
        curves=plain(curves),
    )  # fmt: skip


def test_lines_hold_the_curves_of_a_stage() -> None:
    lines = sparklines(
        stage(
            step=[2, 4], loss=[0.5, 0.25], lr=[1e-5, 0.0],
            scores={"a": [[0, 0.9], [2, 0.6], [4, 0.7]]},
            distance=[[0, 0.0], [4, 2.0]], k=[[0, 0.1]],
        )
    )  # fmt: skip
    by_name = {line.name: (line.points, line.text) for line in lines}
    assert list(by_name) == ["score on a", "training loss", "learning rate", "distance", "k"]
    assert by_name["score on a"] == (
        "2,2 80,30 158,20.7",
        "0.9 at step 0, 0.7 at step 4; from 0.6 to 0.9",
    )
    assert by_name["training loss"] == ("2,2 158,30", "0.5 at step 2, 0.25 at step 4")
    assert by_name["distance"][0] == "2,30 158,2"
    assert by_name["k"] == ("", "0.1 at step 0")


def test_curves_without_points_are_left_out() -> None:
    assert (
        sparklines(stage(gone=[[0, float("nan")]], step=[1], loss=[None], scores={"a": []})) == []
    )
    (flat,) = sparklines(stage(same=[[0, 1.0], [4, 1.0]]))
    assert flat.points == "2,16 158,16"

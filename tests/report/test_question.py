from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from helpers.report_runs import STEADY, cells

from clbench.report.files import table_files
from clbench.report.question import MARKS, mark, paper_frame, pictures
from clbench.results.comparisons import comparisons_frame
from clbench.suite.schema import MEAN, Question


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


def test_verdicts_have_different_signs() -> None:
    signs = [*map(mark, [*MARKS, None])]
    assert len({*signs}) == len(MARKS)
    assert signs[-2:] == ["?", "?"]


@pytest.mark.parametrize("question", [Question(), Question(mean_over_scenarios=True)])
def test_a_paper_gets_means_and_differences_with_their_verdicts(question: Any) -> None:
    table = paper_frame(frame(question), question)
    assert list(table) == ["method", "p_o", "p_o − vanilla", "p_s", "p_s − vanilla"]
    rows = {row["method"]: row for row in table.to_dict("records")}
    assert rows["vanilla"]["p_o"] == "0.650 ± 0.050"
    assert rows["vanilla"]["p_o − vanilla"] == ""
    assert rows["ewc"]["p_o − vanilla"].startswith("+0.200 [+0.")
    assert rows["ewc"]["p_o − vanilla"].endswith("] ▲")
    assert rows["ewc"]["p_s − vanilla"].startswith("−0.100 [−0.")
    assert rows["ewc"]["p_s − vanilla"].endswith("] ▼")
    latex = table_files("paper", table)["paper.tex"]
    assert r"0.650 $\pm$ 0.050" in latex
    assert r"] $\bigtriangleup$ & " in latex
    assert latex.isascii()


def test_a_paper_gets_the_means_that_the_question_asks_for() -> None:
    both = [cell for name in ("one", "two") for cell in cells(name, **STEADY)]
    for question, scenarios in (
        (Question(), ["one", "two"]),
        (Question(mean_over_scenarios=True), None),
        (Question(scenarios=["one"]), ["one", "two"]),
    ):
        comparisons = comparisons_frame(both, question)
        table = paper_frame(comparisons, question)
        if scenarios is None:
            assert "scenario" not in table
            assert len(table) == len(STEADY)
            assert MEAN in set(comparisons["scenario"])
        else:
            assert list(dict.fromkeys(table["scenario"])) == scenarios
    exploratory = table[(table["scenario"] == "two") & (table["method"] == "ewc")]
    assert exploratory["p_o − vanilla"].str.endswith("]").all()  # no verdict, so no sign

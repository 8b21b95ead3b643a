from __future__ import annotations

import math
from typing import Any

import pytest
from helpers.handmade import three
from helpers.report_runs import STEADY, cells

from clbench.report.files import table_files
from clbench.report.sentences import (
    MARKS,
    control_line,
    error_rates,
    mark,
    paper_frame,
    verdict_lines,
)
from clbench.results.cell import CellResult
from clbench.results.comparisons import comparisons_frame, controls_frame
from clbench.suite.schema import MEAN, Question
from clbench.suite.scores import SCORE


def lines(question: Question | None = None, **methods: list[tuple[float, float]]) -> list[str]:
    question = question or Question()
    table = comparisons_frame(cells(**methods), question)
    return list(map(str, verdict_lines(table, "pair", question)))


def test_a_line_for_each_score_groups_the_methods_by_verdict() -> None:
    old, new = lines(**STEADY)
    assert old.startswith("p_o, the old task. Better than vanilla: ewc +0.200 (+0.")
    assert "); no difference shown: mas +0.037 (-0." in old
    assert new.startswith("p_s, the new task. Worse than vanilla: ewc -0.100 (-0.")
    assert "); no difference shown: mas +0.000 (-0." in new  # the step alone is too wide for .01


def test_a_question_about_forgetting_is_answered() -> None:
    (line,) = lines(Question(scores=["forgetting"]), **STEADY)
    assert line.startswith(
        "forgetting, less is better. Better than vanilla: ewc -0.200 (-0.2"  # it forgets less
    )


@pytest.mark.parametrize("score", [name for name, score in SCORE.items() if score.step])
def test_every_score_of_a_question_has_a_title_or_a_reason_why_it_lacks(score: str) -> None:
    some = [three(name, seed) for name in ("vanilla", "ewc") for seed in range(3)]
    both = list(dict.fromkeys(["average", score]))
    for question in (Question(scores=[score]), Question(scores=both)):
        *_, line = verdict_lines(comparisons_frame(some, question), some[0].scenario, question)
        expected = ". Within ±0.01 of vanilla: ewc +0.000 ("
        if SCORE[score].needs:
            expected = "No finished cell has this score: "
        assert expected in str(line)


def test_means_over_scenarios_have_lines_of_their_own() -> None:
    two = [*cells("a", **STEADY), *cells("b", vanilla=STEADY["vanilla"], ewc=STEADY["ewc"])]
    question = Question(mean_over_scenarios=True)

    def texts(some: list[CellResult]) -> list[str]:
        return list(map(str, verdict_lines(comparisons_frame(some, question), MEAN, question)))

    old, new, missing = texts(two)
    assert old.startswith("p_o, the old task. Better than vanilla: ewc +0.200 (+0.")
    assert new.startswith("p_s, the new task. Worse than vanilla: ewc -0.100 (-0.")
    assert missing == "Without mas, which lacks a scenario."
    assert texts(two[:3] + two[-3:]) == [
        "No method has one seed with this score on all scenarios of the question."
    ]
    assert texts([c for c in two if (c.scenario, c.baseline) != ("b", "vanilla")]) == [
        "vanilla lacks a scenario, so there is nothing to compare with."
    ]


def test_a_method_within_the_margin_is_said_to_be_equivalent() -> None:
    base = [(0.6 + 0.01 * seed, 0.8) for seed in range(10)]
    near = [(p_o + 0.002 * (seed % 2), 0.8) for seed, (p_o, _) in enumerate(base)]
    assert "Within ±0.01 of vanilla: near +0.001 (" in lines(vanilla=base, near=near)[0]


@pytest.mark.parametrize(
    ("methods", "text"),
    [
        ({"vanilla": [(0.6, 0.8)] * 3}, "Only vanilla has a finished cell."),
        (
            {"ewc": [(0.6, 0.8)] * 3},
            "vanilla has no finished cell, so there is nothing to compare with.",
        ),
        (
            {"vanilla": [(0.6, 0.8), (0.5, 0.8)], "ewc": [(0.9, 0.8), (0.9, 0.8)]},
            "No verdict: at least 3 common seeds are needed (here 2).",
        ),
        (
            {"vanilla": [(0.6, 0.8)], "ewc": [(0.9, 0.8), (0.9, 0.8)]},
            "No verdict: at least 3 common seeds are needed (here 1).",
        ),
    ],
)
def test_sentences_say_why_there_is_no_verdict(
    methods: dict[str, list[tuple[float, float]]], text: str
) -> None:
    assert lines(**methods) == [text]


def test_a_scenario_outside_the_question_is_not_judged() -> None:
    assert lines(Question(methods=["si"]), **STEADY) == [
        "The question compares no method with vanilla here."
    ]


def control_cells(**methods: tuple[float, list[tuple[float, float]]]) -> list[Any]:
    """Cells with seconds and scores; methods whose names end in -control are controls."""
    some = cells(**{name: values for name, (_, values) in methods.items()})
    return [
        cell.model_copy(
            update={
                "train_seconds": methods[cell.baseline][0],
                "control": cell.baseline.endswith("control"),
                "keeps_rows": cell.baseline.startswith("rows"),
            }
        )
        for cell in some
    ]


CONTROLS: dict[str, tuple[float, list[tuple[float, float]]]] = {
    "vanilla": (10.0, [(0.60, 0.8), (0.70, 0.9), (0.65, 0.7)]),
    "cheap-control": (7.5, [(0.60, 0.8), (0.70, 0.9), (0.65, 0.7)]),
    "slow-control": (10.0, [(0.90, 0.9)] * 3),
    "rows-control": (1.0, [(0.90, 0.9)] * 3),
    "ewc": (20.0, [(0.80, 0.85), (0.90, 0.95), (0.85, 0.75)]),
    "mas": (20.0, [(0.70, 0.8), (0.68, 0.9), (0.68, 0.7)]),
    "new": (20.0, [(0.70, 0.8)]),
}


def test_methods_that_do_not_beat_every_control_are_named() -> None:
    table = controls_frame(control_cells(**CONTROLS))
    assert list(dict.fromkeys(table["control"])) == ["cheap-control", "slow-control", "vanilla"]
    assert list(dict.fromkeys(table["method"])) == ["vanilla", "ewc", "mas", "new"]
    row = table.set_index(["control", "method"]).loc["cheap-control", "ewc"]
    assert (row["time"], row["pairs"]) == (0.75, 3)
    assert row["difference"] == pytest.approx(0.25)  # .2 in p_o and .05 in p_s
    # A method makes one claim, however many controls it must beat: vanilla, ewc and mas.
    assert row["level"] == pytest.approx(1 - 0.05 / 3)
    line = str(control_line(table, "pair", Question()))
    assert line.startswith(
        "p_o + p_s against controls. Not shown to beat cheap-control (0.75 × the time of vanilla): "
        "vanilla +0.000 (-0."
    )
    assert "mas +0.037 (-0." in line
    assert "; not shown to beat slow-control (1 × the time of vanilla): ewc -0.100 (" in line
    assert "new" not in line


def test_methods_are_compared_with_controls_in_the_scores_of_the_question() -> None:
    question = Question(scores=["average", "forgetting"])
    table = controls_frame(control_cells(**CONTROLS), question)
    row = table.set_index(["control", "method"]).loc["cheap-control", "ewc"]
    # .125 in the average, and .2 less forgotten of a p_o_before of .9
    assert row["difference"] == pytest.approx(0.325)
    line = str(control_line(table, "pair", question))
    assert line.startswith("average − forgetting against controls. ")


def test_a_score_that_no_cell_of_a_scenario_has_is_left_out_of_the_sum() -> None:
    question = Question(scores=["average", "told"])  # its tasks share no head
    table = controls_frame(control_cells(**CONTROLS), question)
    assert str(control_line(table, "pair", question)).startswith("average against controls. ")


def test_methods_that_beat_every_control_are_named() -> None:
    values = {**CONTROLS, "slow-control": (10.0, [(0.6, 0.8), (0.7, 0.9), (0.65, 0.7)])}
    line = str(control_line(controls_frame(control_cells(**values)), "pair", Question()))
    assert line.endswith("; better than every control and vanilla: ewc.")


def test_no_line_on_controls_where_all_methods_beat_it_or_none_was_run() -> None:
    some = {name: CONTROLS[name] for name in ("cheap-control", "ewc")}
    table = controls_frame(control_cells(**some))
    assert table["control"].tolist() == ["cheap-control", "vanilla"]
    assert table["verdict"].tolist() == ["better", "no verdict"]  # vanilla was not run
    assert math.isnan(table["time"][0])
    assert control_line(table, "pair", Question()) is None
    assert controls_frame(cells(**STEADY)).empty


def test_a_method_that_some_control_was_not_compared_with_is_no_winner() -> None:
    ahead = [(0.90, 0.9), (0.95, 0.9), (0.92, 0.9)]
    weak = [(0.60, 0.8), (0.64, 0.8), (0.62, 0.8)]
    some = control_cells(
        vanilla=(10.0, weak), ewc=(20.0, ahead), mas=(20.0, weak), weak_control=(7.5, weak)
    )
    two = control_cells(other_control=(8.0, weak[:2]))
    lost = [cell.model_copy(update={"status": "failed", "R": [], "scores": {}}) for cell in two]

    def line(runs: list[Any]) -> str:
        return str(control_line(controls_frame(runs), "pair", Question()))

    assert "better than every control and vanilla: ewc" in line(some)
    for more in (two, lost):
        table = controls_frame([*some, *more]).set_index(["control", "method"])
        assert table.loc[("other_control", "ewc"), "verdict"] == "no verdict"
        assert "better than every" not in line([*some, *more])


def test_no_method_beats_every_control_without_beating_the_reference() -> None:
    values = {
        "vanilla": (10.0, [(0.90, 0.8), (0.92, 0.8), (0.94, 0.8)]),
        "cheap-control": (7.5, [(0.60, 0.8), (0.62, 0.8), (0.64, 0.8)]),
        "ewc": (20.0, [(0.902, 0.8), (0.918, 0.8), (0.941, 0.8)]),
        "mas": (20.0, [(0.60, 0.8), (0.62, 0.8), (0.64, 0.8)]),
    }
    line = str(control_line(controls_frame(control_cells(**values)), "pair", Question()))
    assert "better than every control" not in line
    assert "; not shown to beat vanilla: ewc +0.000 (" in line


COLLAPSING = {
    "vanilla": [(0.80, 0.8), (0.81, 0.8), (0.80, 0.8)],
    "ewc": [(0.55, 0.8), (0.56, 0.8), (0.55, 0.8)],
    "mas": [(0.56, 0.8), (0.80, 0.8), (0.81, 0.8)],
}


def test_a_verdict_that_collapsed_runs_withhold_says_how_many_seeds_it_takes() -> None:
    table = comparisons_frame(cells(**COLLAPSING), Question())
    old, _ = map(str, verdict_lines(table, "pair", Question()))
    assert "no verdict: ewc (runs collapse: to tell it from chance takes 4 seeds or more)" in old


def test_an_interim_report_says_that_its_verdicts_do_not_count() -> None:
    (line,) = error_rates([5, 10, 20], 7, 7, 0, 0)
    assert "7 complete seeds, for which no error rate was planned" in line
    assert "do not count before look 2 of 3, with 10 seeds" in line
    assert "hold jointly" not in line
    assert error_rates([5, 10, 20], 5, 10, 0, 0)[0] == line.replace("7 comp", "5 comp")  # begun


def test_error_rates_name_the_looks() -> None:
    (line,) = error_rates([], 5, 5, 0, 0)
    assert line.startswith("All these intervals hold jointly at 95 % or more, so the risk")
    looks, others = error_rates([5, 10, 20], 10, 10, 8, 3)
    # shares of .05: 1/16, 3/16 and 12/16
    assert looks.startswith(
        "Looks were planned after 5, 10 and 20 seeds. This is look 2 of 3, with 10 seeds: it "
        "spends 0.94 % of the error rate of 5 %, and 1.25 % are spent so far. All these intervals "
        "hold jointly at 99.06 % or more"
    )
    assert others == (
        "Exploratory, each a family of its own at 5 % over all looks: 8 claims to beat every "
        "control and 3 comparisons of curves."
    )
    assert error_rates([], 5, 5, 1, 0)[1] == (
        "Exploratory, a family of its own at 5 %: 1 claim to beat every control."
    )


def test_verdicts_have_different_signs() -> None:
    signs = [*map(mark, [*MARKS, None])]
    assert len({*signs}) == len(MARKS)
    assert signs[-2:] == ["?", "?"]


@pytest.mark.parametrize("question", [Question(), Question(mean_over_scenarios=True)])
def test_a_paper_gets_means_and_differences_with_their_verdicts(question: Any) -> None:
    table = paper_frame(comparisons_frame(cells(**STEADY), question), question)
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

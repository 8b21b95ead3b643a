from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.handmade import pair, reference, stage, three
from helpers.report_runs import STEADY, cell, cells

from clbench.results.cell import CellResult, correct_after, pack_rows, score_steps, unpack_rows
from clbench.results.comparisons import comparisons_frame, controls_frame
from clbench.results.overall import overall_frame
from clbench.results.scores import scores_of
from clbench.suite.schema import MEAN, Question


def row(table: pd.DataFrame, method: str, score: str) -> pd.Series:
    (match,) = [r for _, r in table.iterrows() if (r["method"], r["score"]) == (method, score)]
    return match


def test_the_primary_question_gets_verdicts_and_the_rest_is_exploratory() -> None:
    table = comparisons_frame(cells(**STEADY), Question(scores=["p_o"], methods=["ewc"]))
    ewc = row(table, "ewc", "p_o")
    assert ewc["difference"] == pytest.approx((0.2 + 0.201 + 0.2) / 3)
    assert ewc["level"] == pytest.approx(0.95)
    assert ewc["verdict"] == "better"
    assert table["primary"].sum() == 1
    for method, score in (("mas", "p_o"), ("ewc", "p_s"), ("ewc", "forgetting")):
        other = row(table, method, score)
        assert (other["verdict"], other["why"]) == (None, "exploratory")
        assert other["difference_low"] < other["difference"] < other["difference_high"]
    vanilla = row(table, "vanilla", "p_o")
    assert vanilla["why"] == "the reference"
    assert (vanilla["n"], vanilla["median"]) == (3, pytest.approx(0.65))


def test_scores_that_need_references_are_compared() -> None:
    ours = [pair("ewc", seed, [[0.9, 0.5], [0.8, 0.8 + seed / 1e3]]) for seed in range(3)]
    trained = [pair(seed=seed) for seed in range(3)] + ours
    alone = [reference(1, 0.75, seed=seed) for seed in range(3)]
    question = Question(scores=["intransigence"])
    ewc = row(comparisons_frame([*trained, *alone], question), "ewc", "intransigence")
    assert ewc["difference"] == pytest.approx(0.7 - 0.801)
    assert ewc["verdict"] == "better"
    control = [c.model_copy(update={"control": c.baseline == "vanilla"}) for c in trained]
    (claim,) = controls_frame([*control, *alone], question).to_dict("records")
    assert claim["difference"] == pytest.approx(0.801 - 0.7)
    assert "intransigence" not in {*comparisons_frame(trained, question)["score"]}


def test_all_scenarios_share_the_error_rate() -> None:
    two = [*cells(**STEADY), *cells("other", **STEADY)]
    table = comparisons_frame(two, Question())
    assert table["primary"].sum() == 8  # two methods, two scores, two scenarios
    assert row(table[table["scenario"] == "pair"], "ewc", "p_o")["level"] == 1 - 0.05 / 8
    one = comparisons_frame(two, Question(scenarios=["pa*"]), alpha=0.01)
    assert row(one[one["scenario"] == "pair"], "ewc", "p_o")["level"] == 1 - 0.01 / 4
    assert not one[one["scenario"] == "other"]["primary"].any()


def test_a_question_about_means_over_scenarios() -> None:
    def p_o(*values: float) -> list[tuple[float, float]]:
        return [(value, 0.8) for value in values]

    first = {"vanilla": p_o(0.6, 0.7, 0.5), "ewc": p_o(0.7, 0.8, 0.8), "mas": p_o(0.6, 0.6, 0.6)}
    second = {"vanilla": p_o(0.4, 0.5, 0.3), "ewc": p_o(0.6, 0.7, 0.4), "mas": p_o(0.4, 0.4)}
    some = [*cells("a", **first), *cells("b", **second), *cells("other", vanilla=p_o(0.1, 0.1))]
    question = Question(scores=["p_o"], scenarios=["a", "b"], mean_over_scenarios=True)
    table = comparisons_frame(some, question)
    means = table[table["scenario"] == MEAN]
    assert table["primary"].sum() == 2
    assert means["primary"].sum() == 2
    ewc = row(means, "ewc", "p_o")
    by_seed = [(0.1 + 0.2) / 2, (0.1 + 0.2) / 2, (0.3 + 0.1) / 2]
    assert (ewc["pairs"], ewc["n"], ewc["mean"]) == (3, 3, pytest.approx(2 / 3))
    assert ewc["difference"] == pytest.approx(np.mean(by_seed))
    step = math.hypot(1 / 500, 1 / 500) / 2
    assert ewc["spread"] == pytest.approx(math.hypot(np.std(by_seed, ddof=1), step))
    assert ewc["level"] == 1 - 0.05  # mas has too few seeds for a verdict
    mas = row(means, "mas", "p_o")  # seed 2 is missing on b
    assert (mas["pairs"], mas["difference"]) == (2, pytest.approx((0.0 + -0.1) / 2))
    assert mas["why"] == "2 common seeds, 3 are needed"
    assert row(means, "vanilla", "p_o")["n"] == 3
    single = row(table[table["scenario"] == "a"], "ewc", "p_o")
    assert (single["why"], single["verdict"]) == ("exploratory", None)
    missing = [c for c in some if (c.scenario, c.baseline) != ("b", "vanilla")]
    without = comparisons_frame(missing, question)
    assert set(without[without["scenario"] == MEAN]["why"]) == {"vanilla lacks a scenario"}
    uncovered = comparisons_frame(cells("other", **first), question)  # of a run of few scenarios
    assert set(uncovered["scenario"]) == {"other"}
    assert not uncovered["primary"].any()


def test_any_method_can_be_the_reference() -> None:
    table = comparisons_frame(cells(**STEADY), Question(reference="mas"))
    assert row(table, "mas", "p_o")["why"] == "the reference"
    assert row(table, "vanilla", "p_o")["difference"] == pytest.approx(-(0.1 - 0.02 + 0.03) / 3)
    absent = comparisons_frame(cells(**STEADY), Question(reference="lwf"))
    assert set(absent["why"]) == {"lwf has no finished cell"}


def test_failed_cells_are_ignored() -> None:
    some = cells(**STEADY)
    some[-1] = cell("pair", "mas", 2, 0.5, status="failed", reason="diverged")
    table = comparisons_frame(some, Question())
    mas = row(table, "mas", "p_o")
    assert mas["pairs"] == 2
    assert (mas["verdict"], mas["why"]) == ("no verdict", "2 common seeds, 3 are needed")


def test_steps_are_one_row_of_each_task() -> None:
    (first, *_) = cells(**STEADY)
    steps = score_steps(first)
    assert (steps["p_o"], steps["p_s"], steps["forgetting"]) == (1 / 500, 1 / 200, 1 / 500)
    assert (steps["average"], steps["bwt"], steps["mean_forgetting"]) == (1 / 400, 1 / 500, 1 / 500)
    assert (steps["told"], steps["area"]) == (1 / 400, 1 / 800)
    assert steps["plasticity"] == steps["forward_transfer"] == steps["intransigence"] == 1 / 200
    assert (steps["text_loss_added"], steps["same_token"]) == (0.0, 1.0)
    assert score_steps(first.model_copy(update={"scenario_report": {}})) == {}
    same = {"vanilla": [(0.6, 0.8)] * 3, "ewc": [(0.602, 0.8)] * 3}
    assert row(comparisons_frame(cells(**same), Question()), "ewc", "p_o")["verdict"] not in (
        "better",
        "worse",
    )


def with_rows(method: str, seed: int, before: str, after: str) -> CellResult:
    """A cell whose rows of the first task are right (1) or wrong (0) before and after."""
    bits = [np.array([digit == "1" for digit in text]) for text in (before, after)]
    p_o = float(bits[1].mean())
    correct: list[list[Any]] = [[pack_rows(bits[0]), None], [pack_rows(bits[1]), None]]
    R = [[float(bits[0].mean()), None], [p_o, 0.5]]
    return cell("pair", method, seed, p_o, R=R, correct=correct)


def test_rows_are_packed_into_a_text() -> None:
    bits = np.random.default_rng(0).random(1001) < 0.8
    text = pack_rows(bits)
    assert (unpack_rows(text) == bits).all()
    assert text.startswith("1001:")
    assert len(text) < 180
    assert (unpack_rows(pack_rows(bits[:0])) == bits[:0]).all()


def test_differences_by_row() -> None:
    one = with_rows("vanilla", 0, "1111100", "1110011")
    some = [one, with_rows("ewc", 0, "1111100", "1111101"), with_rows("ewc", 4, "1", "0")]
    ewc = row(comparisons_frame(some, Question()), "ewc", "p_o")
    assert (ewc["rows"], ewc["rows_only_method"], ewc["rows_only_reference"]) == (7, 2, 1)
    assert ewc["rows_difference"] == pytest.approx(1 / 7)
    other_rows = comparisons_frame([*some, with_rows("vanilla", 4, "10", "11")], Question())
    assert math.isnan(row(other_rows, "ewc", "p_o")["rows_difference"])
    assert correct_after(one, 1) is None


def test_rows_that_flipped_are_counted_by_seed() -> None:
    some = [
        with_rows("vanilla", 0, "1111100", "1110001"),  # two lost, one gained
        with_rows("vanilla", 1, "1111100", "1111100"),
        with_rows("ewc", 0, "1111100", "1101101"),  # one lost, one gained
        with_rows("ewc", 1, "1111100", "0111111"),  # one lost, two gained
        with_rows("ewc", 2, "1111100", "0000000"),  # all five lost; vanilla has no such seed
    ]
    table = comparisons_frame(some, Question())
    ewc = row(table, "ewc", "p_o")
    assert (ewc["rows_lost"], ewc["rows_gained"]) == (7 / 3, 1)
    # 1110001 against 1101101: one right in vanilla only, two in ewc only; 1111100, 0111111: 1 and 2
    assert (ewc["rows_only_reference"], ewc["rows_only_method"]) == (1, 2)
    assert ewc["rows_difference"] == pytest.approx((2 - 1) / 7)
    vanilla = row(table, "vanilla", "p_o")
    assert (vanilla["rows"], vanilla["rows_lost"], vanilla["rows_gained"]) == (7, 1, 0.5)
    assert math.isnan(row(table, "ewc", "p_s")["rows_lost"])


def test_the_interval_over_rows_is_beside_that_over_seeds() -> None:
    rng = np.random.default_rng(2)
    base = rng.random((3, 300)) < 0.7
    better = base | (rng.random((3, 300)) < 0.3)
    text = ["".join("01"[int(bit)] for bit in row) for row in (*base, *better)]
    some = [with_rows("vanilla", seed, text[seed], text[seed]) for seed in range(3)]
    some += [with_rows("ewc", seed, text[3 + seed], text[3 + seed]) for seed in range(3)]
    ewc = row(comparisons_frame(some, Question()), "ewc", "p_o")
    assert ewc["rows"] == 300
    assert ewc["rows_difference"] == pytest.approx(ewc["difference"])
    assert ewc["rows_low"] < ewc["rows_difference"] < ewc["rows_high"]
    assert math.isnan(row(comparisons_frame(some, Question()), "ewc", "forgetting")["rows"])


def test_overall_intervals_have_a_width_where_all_seeds_agree() -> None:
    same = {"vanilla": [(0.6, 0.8)] * 3, "ewc": [(0.61, 0.8)] * 3}
    table = overall_frame([*cells("one", **same), *cells("two", **same)])
    row = table[(table["method"] == "ewc") & (table["score"] == "p_o")].iloc[0]
    # 500 rows of the old task in each scenario: a seed's mean has a step of sqrt(2) / 500 / 2
    half = 4.302653 * math.sqrt(2) / 1000 / math.sqrt(3)
    assert (row["low"], row["high"]) == pytest.approx((0.01 - half, 0.01 + half))
    five = [c for name in "abcde" for c in cells(name, **same)]
    row = overall_frame(five, scores=["p_o"]).set_index("method").loc["ewc"]
    half = 9.924843 * math.sqrt(5) / 500 / 5 / math.sqrt(3)  # t(.995, 2): no scenario differs
    assert row["high_anywhere"] - row["low_anywhere"] == pytest.approx(2 * half)


def test_few_scenarios_have_no_interval_for_others_like_them() -> None:
    """Effects .00, .01, .02, .03 and .19 by scenario, equal on all seeds: Student's t over them."""

    def some(effects: list[float]) -> pd.Series:
        runs = [
            c
            for j, effect in enumerate(effects)
            for c in cells(f"s{j}", vanilla=[(0.6, 0.8)] * 3, ewc=[(0.6 + effect, 0.8)] * 3)
        ]
        return overall_frame(runs, scores=["p_o"]).set_index("method").loc["ewc"]

    few, enough = some([0.0, 0.01, 0.02, 0.03]), some([0.0, 0.01, 0.02, 0.03, 0.19])
    assert math.isnan(few["low_anywhere"])
    assert few["low"] < few["difference"] < few["high"]
    # mean .05, deviation .078740, t(.995, 4) = 4.604095; the step of a row adds little
    half = 4.604095 * 0.0787401 / math.sqrt(5)
    assert enough["high_anywhere"] - 0.05 == pytest.approx(half, rel=0.01)


def test_overall_differences_and_ranks() -> None:
    two = [*cells(**STEADY), *cells("other", **STEADY)]
    table = overall_frame(two)
    ewc = row(table, "ewc", "p_o")
    assert (ewc["scenarios"], ewc["seeds"]) == (2, 3)
    assert ewc["difference"] == pytest.approx((0.2 + 0.201 + 0.2) / 3)
    assert ewc["low"] < 0.2 < ewc["high"]
    assert [row(table, name, "p_o")["mean_rank"] for name in ("ewc", "mas", "vanilla")] == [1, 2, 3]
    assert row(table, "ewc", "p_s")["mean_rank"] == 3
    assert row(table, "vanilla", "p_s")["mean_rank"] == 1.5  # tied with mas
    assert math.isnan(row(table, "vanilla", "p_o")["difference"])
    single = overall_frame(cells(**STEADY))
    assert math.isnan(row(single, "ewc", "p_o")["low_anywhere"])
    assert math.isnan(row(single, "ewc", "p_o")["critical_difference"])


def test_a_method_that_lacks_a_scenario_has_no_rank() -> None:
    some = [*cells(**STEADY), *cells("other", vanilla=STEADY["vanilla"], ewc=STEADY["ewc"])]
    table = overall_frame(some)
    assert math.isnan(row(table, "mas", "p_o")["mean_rank"])
    assert row(table, "mas", "p_o")["scenarios"] == 1


def failed(method: str, seed: int) -> CellResult:
    """A cell whose worker was lost: without tasks and without a report on its scenario."""
    return cell("pair", method, seed, 0.0, status="failed", tasks=[], scenario_report={})


def test_a_lost_cell_changes_no_verdict() -> None:
    values = {"vanilla": [(0.6, 0.8)] * 3, "ewc": [(0.602, 0.8)] * 3}
    before = comparisons_frame(cells(**values), Question())
    after = comparisons_frame([*cells(**values), failed("zzz", 0)], Question())
    for name in ("p", "verdict", "difference_low"):
        assert row(after, "ewc", "p_o")[name] == row(before, "ewc", "p_o")[name]
    assert row(after, "ewc", "p_o")["p"] > 0.0
    two = [*cells(**values), *cells("other", **values)]
    assert overall_frame([*two, failed("zzz", 0)]).equals(overall_frame(two))


def test_too_few_seeds_are_still_part_of_the_question() -> None:
    values = {"vanilla": [(0.6, 0.8)] * 3, "ewc": [(0.7, 0.8)] * 2, "mas": [(0.7, 0.8)] * 2}
    table = comparisons_frame(cells(**values), Question(methods=["ewc"]))
    ewc, mas = row(table, "ewc", "p_o"), row(table, "mas", "p_o")
    assert (ewc["primary"], ewc["verdict"]) == (True, "no verdict")
    assert (mas["primary"], mas["verdict"]) == (False, None)
    assert mas["why"] == "2 common seeds, 3 are needed"  # instead of "exploratory": no interval
    alone = comparisons_frame(cells(ewc=values["ewc"]), Question())
    assert row(alone, "ewc", "p_o")["why"] == "vanilla has no finished cell"
    assert row(alone, "ewc", "p_o")["verdict"] == "no verdict"


def test_a_single_pair_has_no_p() -> None:
    table = comparisons_frame(
        cells(vanilla=[(0.6, 0.8)], ewc=[(0.7, 0.8)]), Question(methods=["ewc"])
    )
    assert math.isnan(row(table, "ewc", "p_o")["p_family"])


def test_equal_means_share_a_rank() -> None:
    values = {"vanilla": [(0.1, 0.8), (0.2, 0.8)], "ewc": [(0.15, 0.8), (0.15, 0.8)]}
    table = overall_frame([*cells(**values), *cells("other", **values)], scores=["p_o"])
    assert table["mean_rank"].tolist() == [1.5, 1.5]


def test_ties_are_no_certainty_beside_the_pretraining() -> None:
    parts = {"parts": [{"task": "glue/mrpc", "validation": 408}]}
    tasks = ["pretraining", "glue/mrpc"]
    runs = [
        pair(name, seed, [[0.3, None], [0.25, 0.7 + more]], tasks=tasks, scenario_report=parts,
             stages=[stage("glue/mrpc")])
        for seed in range(3)
        for name, more in (("vanilla", 0.0), ("ewc", 1 / 408))
    ]  # fmt: skip
    table = comparisons_frame(runs, Question()).set_index(["method", "score"])
    assert table.loc[("ewc", "p_s"), "spread"] == pytest.approx(1 / 408)
    assert table.loc[("ewc", "p_s"), "verdict"] == "no difference shown"
    assert table.loc[("ewc", "p_o"), "verdict"] == "no verdict"
    assert "do not vary" in table.loc[("ewc", "p_o"), "why"]


def test_means_wait_for_every_scenario_of_the_question() -> None:
    question = Question(mean_over_scenarios=True)
    good = cells("a", **STEADY)
    lost = [
        cell.model_copy(update={"scenario": "b", "status": "failed", "R": [], "scores": {}})
        for cell in good
    ]
    assert MEAN in set(comparisons_frame(good, question)["scenario"])
    assert MEAN not in set(comparisons_frame([*good, *lost], question)["scenario"])


def test_ranks_compare_methods_on_common_seeds() -> None:
    values = {"vanilla": [(0.5, 0.8), (0.6, 0.8), (0.7, 0.8)]}
    late = cells(ewc=[(0.65, 0.8)] * 3)[2:]  # seed 2 only
    table = overall_frame([*cells(**values), *late], scores=["p_o"]).set_index("method")
    assert table.loc["ewc", "difference"] == pytest.approx(-0.05)
    assert table.loc["ewc", "mean_rank"] == 2.0


def test_a_question_may_ask_for_scores_of_sequences() -> None:
    question = Question(scores=["average", "mean_forgetting"])
    cells = []
    for seed in range(4):
        for method, more in (("vanilla", 0.0), ("ewc", 0.05)):
            R = [[0.9, None, None], [0.8, 0.9, None], [0.7 + more, 0.8 + more, 0.9]]
            scores = {name: value for name, value in scores_of(R).items() if value is not None}
            cells.append(three(method, seed, R=R, scores=scores))
    table = comparisons_frame(cells, question).set_index(["method", "score"])
    for score, difference in (("average", 0.1 / 3), ("mean_forgetting", -0.05)):
        row = table.loc[("ewc", score)]
        assert row["difference"] == pytest.approx(difference)
        assert bool(row["primary"])
        assert row["verdict"] == "better"
    assert table.loc[("ewc", "p_o"), "why"] == "exploratory"
    assert ("ewc", "bwt") not in table.index

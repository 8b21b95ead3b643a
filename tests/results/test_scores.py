from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path
from statistics import stdev
from typing import Any

import pandas as pd
import pytest
from helpers.handmade import failed, pair, reference, three
from helpers.report_runs import REPORT, make_run
from pydantic import ValidationError

from clbench.report.files import write_report
from clbench.results.cell import CellResult, summarizer
from clbench.results.score_tables import (
    failures,
    fields,
    load_run,
    score_rows,
    scores_frame,
    summary,
    to_csv,
    visible_scores,
)
from clbench.results.scores import scores_of
from clbench.results.store import Store
from clbench.suite.schema import Question
from clbench.suite.scores import SCORE, Need, Score, Steps


def test_scores_of_a_pair() -> None:
    scores = scores_of([[0.9, None], [0.7, 0.8]])
    assert scores["p_o_before"] == 0.9
    assert scores["p_o"] == 0.7
    assert scores["p_s"] == 0.8
    assert scores["p"] == pytest.approx(1.5)
    assert scores["forgetting"] == pytest.approx(0.2)
    assert scores["mean_forgetting"] == pytest.approx(0.2)
    assert scores["bwt"] == pytest.approx(-0.2)
    assert scores["average"] == pytest.approx(0.75)


def test_scores_of_three_tasks() -> None:
    matrix = [[0.8, None, None], [0.9, 0.6, None], [0.5, 0.7, 0.4]]
    scores = scores_of(matrix)
    # First task: 0.8 after its own stage, 0.5 at the end; its best before the end was 0.9.
    assert scores["forgetting"] == pytest.approx(0.3)
    assert scores["mean_forgetting"] == pytest.approx(((0.9 - 0.5) + (0.6 - 0.7)) / 2)
    assert scores["bwt"] == pytest.approx(((0.5 - 0.8) + (0.7 - 0.6)) / 2)
    assert scores["average"] == pytest.approx(1.6 / 3)
    assert scores["p_s"] == 0.4


def test_forgetting_is_negative_for_a_score_that_rises() -> None:
    assert scores_of([[0.5, None], [0.6, 0.9]])["forgetting"] == pytest.approx(-0.1)


def test_scores_ignore_entries_above_the_diagonal() -> None:
    assert scores_of([[0.9, 0.1], [0.7, 0.8]]) == scores_of([[0.9, None], [0.7, 0.8]])


def test_a_single_task_has_only_p_s_and_average() -> None:
    scores = scores_of([[0.9]])
    assert (scores["p_s"], scores["average"]) == (0.9, 0.9)
    assert scores["p_o"] is None
    assert scores["forgetting"] is None


@pytest.mark.parametrize(
    "matrix", [[], [[0.5, None]], [[0.5, None], [0.5, None]], [[0.5], [0.5, 0.5]]]
)
def test_incomplete_matrices_raise(matrix: list[list[float | None]]) -> None:
    with pytest.raises(ValueError, match="score matrix"):
        scores_of(matrix)


REQUIRED = {
    *("scenario", "shift", "method", "model", "seed", "p_o", "p_s", "p", "p_o_before"),
    *("forgetting", "train_seconds", "peak_memory_mb", "status"),
}


def three_seeds() -> list[CellResult]:
    # p_o 0.80, 0.70, 0.60; before 0.90, 0.90, 0.75: forgetting 0.10, 0.20, 0.15
    matrices = [
        [[0.90, 0.5], [0.80, 0.7]],
        [[0.90, 0.5], [0.70, 0.8]],
        [[0.75, 0.5], [0.60, 0.9]],
    ]
    return [pair("vanilla", seed, R) for seed, R in enumerate(matrices)]


def test_scores_frame_has_a_row_for_each_cell() -> None:
    frame = scores_frame([*three_seeds(), failed("ewc", 0)])
    assert list(frame.columns) == fields()
    assert {*fields()} >= REQUIRED
    assert frame["seed"].tolist() == [0, 1, 2, 0]
    assert frame["p"].tolist()[:3] == pytest.approx([1.5, 1.5, 1.5])
    assert frame["status"].tolist() == ["ok", "ok", "ok", "failed"]
    assert frame["reason"].tolist() == ["", "", "", "loss is nan"]
    assert frame.loc[3, ["p_o", "p_s", "p", "forgetting", "average"]].isna().all()


def test_summary_has_means_and_sample_deviations() -> None:
    frame = scores_frame([*three_seeds(), failed("vanilla", 3)])
    row = summary(frame).iloc[0]
    assert row["seeds"] == 3
    assert row["failed"] == 1
    assert row["p_o_mean"] == pytest.approx(0.70)
    # deviations 0.1, 0, -0.1: sum of squares 0.02, over n - 1 = 2 is 0.01
    assert row["p_o_std"] == pytest.approx(0.10)
    assert row["p_s_mean"] == pytest.approx(0.80)
    assert row["forgetting_mean"] == pytest.approx(0.15)
    # deviations -0.05, 0.05, 0: sum of squares 0.005, over 2 is 0.0025
    assert row["forgetting_std"] == pytest.approx(0.05)
    assert row["bwt_mean"] == pytest.approx(-0.15)


def test_summary_of_one_seed_has_no_deviation_and_of_none_no_mean() -> None:
    table = summary(scores_frame([pair("vanilla"), failed("ewc")]))
    assert table["method"].tolist() == ["vanilla", "ewc"]
    assert table.loc[0, "p_o_mean"] == pytest.approx(0.8)
    assert math.isnan(table.loc[0, "p_o_std"])
    assert table["seeds"].tolist() == [1, 0]
    assert math.isnan(table.loc[1, "p_o_mean"])


def test_intransigence_is_the_reference_minus_the_last_task_of_the_same_seed() -> None:
    cells = [
        pair("vanilla", 0),
        pair("vanilla", 1),
        reference(1, 0.75, seed=0),
        reference(0, 0.99, seed=1),
    ]
    frame = scores_frame(cells)
    assert len(frame) == 2
    # R*[1] - R[1, 1] = 0.75 - 0.70; seed 1 has the reference of the other task only
    assert frame.loc[0, "intransigence"] == pytest.approx(0.05)
    assert math.isnan(frame.loc[1, "intransigence"])
    assert summary(frame).iloc[0]["intransigence_mean"] == pytest.approx(0.05)


def test_shares_of_what_was_learned_above_the_floors() -> None:
    matrix = [[0.9, None, None], [0.7, 0.6, None], [0.6, 0.7, 0.55]]
    scores = scores_of(matrix, floors=[0.5, 0.4, 0.35], reference=0.75)
    # learned .4 of the first task and .2 of the second; left at the end .1 and .3
    assert scores["old_gain"] == pytest.approx(0.6)
    assert scores["old_gain_left"] == pytest.approx(0.4)
    assert scores["retained"] == pytest.approx(2 / 3)
    # .2 above the floor, where the reference is .4 above it
    assert scores["learned"] == pytest.approx(0.5)
    assert not {"retained", "learned", "old_gain"} & scores_of(matrix, reference=0.75).keys()
    assert scores_of(matrix, floors=[None, 0.4, 0.35])["retained"] is None
    assert scores_of(matrix, floors=[0.95, 0.9, 0.35])["retained"] is None  # nothing was learned
    little = [matrix[0][0] - 0.01, matrix[1][1], 0.35]
    assert scores_of(matrix, floors=little)["retained"] is None
    rounding = {"old_gain": 1.85e-17, "old_gain_left": 1.85e-17}
    assert scores_of(matrix, floors=[0.5] * 3, file_scores=rounding)["retained"] is None
    assert scores_of(matrix, floors=[0.5, 0.4, 0.8], reference=0.8)["learned"] is None
    alone = scores_of([[0.9]], floors=[0.5], reference=0.7)
    assert (alone["retained"], alone["learned"]) == (None, pytest.approx(2.0))


def test_shares_over_seeds_are_ratios_of_sums() -> None:
    floors = [0.5, 0.6]
    cells = [
        pair("vanilla", 0, [[0.9, None], [0.6, 0.7]], floors=floors),
        pair("vanilla", 1, [[0.6, None], [0.6, 0.9]], floors=floors),
        pair("ewc", 0, [[0.9, None], [0.7, 0.65]], floors=floors),
        pair("ewc", 1, [[0.5, None], [0.5, 0.9]], floors=floors),  # learned nothing of the old task
        pair("ewc", 2, [[0.8, None], [0.5, 0.95]], floors=floors),  # vanilla has no such seed
    ]
    rows = score_rows(cells)
    assert [row["learned"] for row in rows[2:4]] == pytest.approx([0.5, 1.0])
    assert "learned" not in rows[4]
    assert rows[3]["retained"] is None
    vanilla, ewc = summary(scores_frame(cells)).to_dict("records")
    # left .1 + .1 of .4 + .1; the mean of the ratios would be .625
    assert vanilla["retained_mean"] == pytest.approx(0.4)
    assert vanilla["learned_mean"] == pytest.approx(1.0)
    # left .2 + 0 + 0 of .4 + 0 + .3; learned .05 + .3 of vanilla's .1 + .3, without seed 2
    assert ewc["retained_mean"] == pytest.approx(0.2 / 0.7)
    assert ewc["learned_mean"] == pytest.approx(0.35 / 0.4)
    assert math.isnan(ewc["learned_std"])
    other = score_rows(cells, "ewc")
    assert [row.get("learned") for row in other] == pytest.approx([2.0, 1.0, 1.0, 1.0, 1.0])


def test_cells_of_earlier_versions_have_no_floors() -> None:
    frame = scores_frame([pair("vanilla"), pair("ewc")])
    assert frame[["retained", "learned"]].isna().all(axis=None)
    assert "retained" not in {s.name for s in visible_scores(summary(frame).to_dict("records"))}


def test_references_of_another_protocol_are_ignored() -> None:
    few = {"protocol": {"limit": 32}}
    other = CellResult.model_validate({**reference(1, 0.75).model_dump(), "settings": few})
    assert math.isnan(scores_frame([pair(), other]).loc[0, "intransigence"])


def test_a_reference_may_keep_the_columns_of_the_other_tasks() -> None:
    wide = CellResult.model_validate(
        {
            **reference(1, 0.75).model_dump(),
            "R": [[None, 0.75]],
            "metrics": [[None, None]],
            "tasks": ["a", "b"],
        }
    )
    assert scores_frame([pair(), wide]).loc[0, "intransigence"] == pytest.approx(0.05)


def test_failed_references_are_ignored() -> None:
    lost = CellResult.model_validate(
        {
            **reference(1, 0.75).model_dump(),
            "status": "failed",
            "reason": "x",
            "R": [],
            "scores": {},
            "stages": [],
        }
    )
    assert math.isnan(scores_frame([pair(), lost]).loc[0, "intransigence"])
    assert failures([pair(), lost]) == [("sst2-mrpc--reference1--seed0", "x")]


def test_summary_leaves_its_input_unchanged() -> None:
    frame = scores_frame(three_seeds())
    before = frame.copy(deep=True)
    summary(frame)
    pd.testing.assert_frame_equal(frame, before)


def test_csv_reads_back_to_the_last_digit() -> None:
    third = 1 / 3
    frame = scores_frame([pair(R=[[0.1 + 0.2, 0.5], [third, 0.7]])])
    back = pd.read_csv(io.StringIO(to_csv(frame)), float_precision="round_trip")
    assert back.loc[0, "p_o"] == third
    assert back.loc[0, "p_o_before"] == 0.1 + 0.2


def test_reasons_survive_the_csv_as_one_printable_line() -> None:
    reason = 'RuntimeError: "a", b\nsecond \x1b[31mline'
    text = to_csv(scores_frame([failed(reason=reason)]))
    line = 'RuntimeError: "a", b second \\x1b[31mline'
    assert pd.read_csv(io.StringIO(text)).loc[0, "reason"] == line


def test_a_score_of_intransigence_needs_the_reference() -> None:
    matrix = [[0.9, None], [0.7, 0.6]]
    assert "intransigence" not in scores_of(matrix)
    assert scores_of(matrix, alone={1: 0.8})["intransigence"] == pytest.approx(0.2)


def test_scores_of_a_sequence_by_hand() -> None:
    matrix = [[0.9, None, None], [0.8, 0.7, None], [0.6, 0.5, 0.4]]
    curves = [
        {"a": [[2, 0.5], [4, 0.9]]},
        {"a": [[0, 0.9], [1, 0.9], [4, 0.8]], "b": [[1, 0.1], [4, 0.7]]},
    ]
    scores = scores_of(matrix, alone={1: 0.8, 2: 0.5}, curves=curves)
    assert scores["average_over_time"] == pytest.approx((0.9 + 0.75 + 0.5) / 3)
    assert scores["plasticity"] == pytest.approx(-0.1)
    assert scores["intransigence"] == pytest.approx(0.1)
    # Means .5 .9 .5 .75 at the steps 2 4 5 8: (2 × .7 + 1 × .7 + 3 × .625) / 6
    assert scores["area"] == pytest.approx(3.975 / 6)
    assert scores_of(matrix, alone={2: 0.5})["plasticity"] is None
    assert "area" not in scores_of(matrix, curves=[{}, {}])


@pytest.fixture
def worst(monkeypatch: pytest.MonkeyPatch) -> Score:
    """A score that exists for one test, by one entry."""
    need = Need(
        "measures", lambda protocol, _: protocol.epochs > 3, "Train longer.", "it needs time"
    )
    score = Score(
        "worst", "the worst", "lowest score at the end", lambda r, _: min(r[-1]), Steps.last,
        needs=(need,), visibility="always", on_card=True,
    )  # fmt: skip
    monkeypatch.setitem(SCORE, "worst", score)
    return score


def test_one_entry_adds_a_score_to_tables_page_question_and_comparisons(
    worst: Score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clbench.report.files.draw_all", lambda figures, formats: [])
    measures = [{"divergence": 0.0}, {}, {"divergence": 0.1}]
    run = make_run(tmp_path, capabilities=measures, scenario_report=REPORT)
    store = Store(run)
    question = {"scores": ["worst"]}
    store.write_suite({**store.read_suite(), "questions": [question]})
    report = write_report([run])
    frame = load_run(run).frame
    assert "worst" in to_csv(frame).splitlines()[0].split(",")
    assert frame["worst"].equals(frame[["p_o", "p_s"]].min(axis=1))
    page = report.page.read_text(encoding="utf-8")
    assert '<th scope="col" class="n">the worst</th>' in page
    assert 'title="lowest score at the end">the worst</th>' in page  # a card
    assert '<span class="title">the worst</span>. <span class="better">Better than vanilla' in page
    row = report.content.tables["comparisons"].set_index(["scenario", "method", "score"])
    ewc = row.loc[("one", "ewc", "worst")]
    assert (bool(ewc["primary"]), ewc["verdict"]) == (True, "better")
    deviation = stdev([0.05, 0.052, 0.054, 0.8 - 0.75])  # p_s is lower than the last p_o
    assert ewc["spread"] == pytest.approx(math.hypot(deviation, 1 / 200))


def test_a_score_without_a_step_is_not_asked_for(worst: Score) -> None:
    assert Question(scores=["worst"]).scores == ["worst"]
    with pytest.raises(ValidationError, match=r"should be 'p_o', .*'reverse_kl_own' or 'worst'"):
        Question(scores=["p"])
    with pytest.raises(ValueError, match="worst: a score that is compared needs a step"):
        replace(worst, step=None, compared=True)


def test_kinds_of_errors_are_means_over_the_tasks_that_share_a_head() -> None:
    ends = [{"told": 0.9, "elsewhere": 0.3}, {"told": 0.6, "elsewhere": 0.1}]
    cell = pair(metrics=[[{"told": 0.1}, None], ends])
    row = scores_frame([cell]).iloc[0]
    assert (row["told"], row["elsewhere"]) == pytest.approx((0.75, 0.2))
    summarized = scores_frame([summarizer()(cell)]).iloc[0]
    assert summarized["told"] == row["told"]
    assert pd.isna(scores_frame([pair()]).loc[0, "told"])


def test_columns_depend_on_the_run() -> None:
    def names(*cells: CellResult) -> list[str]:
        means = summary(scores_frame(cells)).to_dict("records")
        return [score.name for score in visible_scores(means)]

    always = ["p_o", "p_s", "forgetting"]
    assert names(pair()) == always
    sequence = ["bwt", "average", "average_over_time", "mean_forgetting"]
    assert names(three()) == ["p_o", "p_s", *sequence]
    assert names(pair(), three(scenario="three")) == [*always, *sequence]
    assert names(pair(), reference(1, 0.75)) == [*always, "intransigence"]


def test_measures_that_a_suite_turns_on_are_shown_for_pairs() -> None:
    stages = [{"divergence": 0.0}, {"divergence": 0.1}, {"divergence": 0.3, "forward_kl": 0.2}]
    again = {"rows": [0, 8], "steps": [0, 1], "scores": [0.5, 0.8], "recovered": True}
    cells = [pair(capabilities=stages, relearning=again)]
    rows = summary(scores_frame(cells)).to_dict("records")

    def names(**options: Any) -> list[str]:
        return [score.name for score in visible_scores(rows, **options)]

    always = ["p_o", "p_s", "forgetting"]
    assert names() == always
    assert names(page=True) == [*always, "relearned_rows", "forward_kl"]
    assert names(asked=["average", "divergence"]) == [*always, "average", "divergence"]


def test_no_cells_give_empty_tables_with_columns() -> None:
    frame = scores_frame([])
    assert list(frame.columns) == fields()
    assert summary(frame).empty
    assert "p_o_mean" in summary(frame).columns


def test_methods_that_keep_rows_are_marked() -> None:
    both = {"keeps_rows": True, "needs_task_id": True}
    frame = scores_frame([pair("replay", keeps_rows=True), pair("vanilla")])
    assert [*frame.columns[-4:]] == ["keeps_rows", "needs_task_id", "status", "reason"]
    assert not summary(frame)["needs_task_id"].any()
    assert summary(scores_frame([pair("own", **both)]))["needs_task_id"].all()
    assert summary(frame).set_index("method")["keeps_rows"].to_dict() == {
        "replay": True,
        "vanilla": False,
    }


def test_scores_of_probes() -> None:
    matrix = [[0.9, None, None], [0.7, 0.8, None], [0.5, 0.6, 0.7]]
    probes = [[0.5, 0.4, 0.3], [0.9, 0.5, 0.2], [0.8, 0.9, 0.5], [0.7, 0.8, 0.9]]
    scores = scores_of(matrix, probes=probes)
    assert scores["features_forgetting"] == pytest.approx(((0.9 - 0.7) + (0.9 - 0.8)) / 2)
    assert scores["head_gap"] == pytest.approx(((0.7 - 0.5) + (0.8 - 0.6)) / 2)
    assert scores["forward_transfer"] == pytest.approx(((0.5 - 0.4) + (0.5 - 0.3)) / 2)
    assert "head_gap" not in scores_of(matrix)
    assert scores_of([[0.9]], probes=[[0.5], [0.9]])["head_gap"] is None


def test_scores_of_probes_leave_out_the_pretraining_and_multiple_choice() -> None:
    matrix = [[0.9, None, None], [0.7, 0.8, None], [0.5, 0.6, 0.7]]
    probes = [[None, 0.4, None], [None, 0.9, None], [None, 0.8, None]]  # column 0 has no stage
    scores = scores_of(matrix, probes=probes)
    assert scores["features_forgetting"] == pytest.approx(0.9 - 0.8)
    assert scores["head_gap"] == pytest.approx(0.8 - 0.6)
    assert scores["forward_transfer"] is None

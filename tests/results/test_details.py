"""Details of results that no other test notices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.handmade import pair, reference, stage
from helpers.report_runs import cells
from results.test_comparisons import row, with_rows
from scipy import stats

from clbench.results.cell import CellResult
from clbench.results.comparisons import comparisons_frame, controls_frame
from clbench.results.score_tables import score_rows, scores_frame, summary
from clbench.results.statistics import Differences, compare, crossed_interval
from clbench.suite.schema import Question


def test_a_difference_far_beyond_all_collapses_is_an_effect() -> None:
    """One run of mas lost .25; ewc lost .5 on every seed, twice as much as any collapse."""
    step, some_lost = 1 / 400, (-0.25, 0.002, -0.001)

    def verdict(*lost: float) -> str:
        pair = {"ewc": Differences(lost, step), "mas": Differences(some_lost, step)}
        return compare({"p_o": pair})["p_o", "ewc"].verdict

    assert verdict(-0.5, -0.502, -0.498) == "worse"
    # The largest gap is .251; 1.5 times that is .3765. The interval's half width at 1 - .05/2:
    half = stats.t.ppf(1 - 0.025 / 2, 2) * math.hypot(0.002, step) / math.sqrt(3)
    assert 0.01 < half < 0.02
    inside = 1.5 * 0.251 + half / 2
    assert verdict(-inside, -inside - 0.002, -inside + 0.002) == "no verdict"


def test_more_seeds_are_asked_for_than_there_are() -> None:
    """Four of eight runs lost .25: t = 2.6, which collapses give with a probability of .052."""
    lost = (*[-0.25] * 4, *[0.0] * 4)
    found = compare({"p_o": {"ewc": Differences(lost, 1e-4)}}, family=1)["p_o", "ewc"]
    assert found.verdict == "no verdict"
    assert found.why == "runs collapse: to tell it from chance takes 9 seeds or more"


def test_opposite_effects_do_not_narrow_the_interval() -> None:
    """Seeds differ by .1; what is left, that of a Latin square, must not cancel it."""
    table = np.eye(3) + 0.1 * np.arange(3)[:, None]
    # mean squares .03 of seeds, 0 of rows and .5 of the rest; at least one degree of freedom
    half = stats.t.ppf(0.975, 1) * math.sqrt(0.03 / 9)
    mean = float(table.mean())
    assert crossed_interval(table) == pytest.approx((mean - half, mean + half))


def test_shares_of_little_over_many_seeds_are_not_given() -> None:
    floors = [0.5, 0.5]
    some = [pair("vanilla", s, [[0.515, None], [0.51, 0.9]], floors=floors) for s in range(3)]
    table = summary(scores_frame(some)).iloc[0]
    assert math.isnan(table["retained_mean"])  # .045 in all, .015 on each seed


def test_a_baseline_of_the_references_method_is_not_the_reference() -> None:
    floors = [0.5, 0.6]
    some = [
        pair("vanilla", 0, [[0.9, None], [0.6, 0.8]], floors=floors),
        pair("longer", 0, [[0.9, None], [0.6, 0.7]], floors=floors).model_copy(
            update={"method": "vanilla"}
        ),
    ]
    for cells_ in (some, some[::-1]):
        learned = {r["method"]: r["learned"] for r in score_rows(cells_)}
        assert learned == {"vanilla": pytest.approx(1.0), "longer": pytest.approx(0.5)}


def test_stages_are_counted_without_the_pretraining() -> None:
    own = pair(
        R=[[0.3, None], [0.25, 0.7]],
        tasks=["pretraining", "glue/mrpc"],
        stages=[stage("glue/mrpc")],
    )
    (row,) = score_rows([own, reference(0, 0.75)])
    assert row["intransigence"] == pytest.approx(0.05)


def test_one_seed_of_equal_rows_is_no_certainty() -> None:
    """Every row differs alike on all seeds: only the step of one row in four is left."""
    some = [with_rows("vanilla", seed, "0000", "0000") for seed in range(3)]
    some += [with_rows("ewc", seed, "0000", "1111") for seed in range(3)]
    ewc = row(comparisons_frame(some, Question()), "ewc", "p_o")
    half = 4.302653 * 0.25 / math.sqrt(3)
    assert (ewc["rows_low"], ewc["rows_high"]) == pytest.approx((1 - half, 1 + half))


def test_intervals_of_a_method_and_of_what_is_not_asked() -> None:
    same = {"vanilla": [(0.6, 0.8)] * 3, "ewc": [(0.61, 0.8)] * 3, "mas": [(0.61, 0.8)] * 3}
    table = comparisons_frame(cells(**same), Question(scores=["p_o"], methods=["ewc"]))
    half = 4.302653 / 500 / math.sqrt(3)
    ewc, mas = row(table, "ewc", "p_o"), row(table, "mas", "p_o")
    assert (ewc["low"], ewc["high"]) == pytest.approx((0.61 - half, 0.61 + half))
    assert (mas["difference_low"], mas["level"]) == (pytest.approx(0.01 - half), 0.95)


def test_the_step_of_a_sum_is_that_of_all_its_scores() -> None:
    same = {"vanilla": [(0.6, 0.8)] * 3, "control": [(0.6, 0.8)] * 3, "ewc": [(0.61, 0.81)] * 3}
    some = [c.model_copy(update={"control": c.baseline == "control"}) for c in cells(**same)]
    table = controls_frame(some).set_index(["control", "method"])
    assert table.loc[("control", "ewc"), "spread"] == pytest.approx(math.hypot(1 / 500, 1 / 200))


def test_the_bends_of_both_curves_widen_the_intervals() -> None:
    from results.test_matched import point

    from clbench.results.matched import learned_curves, matched_frame, read

    some = []
    for seed in range(4):
        for dose in (0.2, 0.6, 1.0, 1.2):
            for name, lost in (("vanilla", 0.2 * dose**2), ("ewc", 0.1 * dose**3)):
                setting = name if dose == 1.0 else f"{name}-{dose:g}"
                noise = 0.01 * seed + (0.002 * seed**2 if name == "ewc" else 0.0)
                some.append(point(setting, name, seed, dose, lost + noise))
    (curves,) = learned_curves(some, "vanilla", "mean_forgetting").values()
    both = {name: read(name, curves[name], 0.75) for name in ("vanilla", "ewc")}
    assert min(each.bend for each in both.values()) > 0.001
    table = matched_frame(some, "vanilla")
    table = table[(table["score"] == "mean_forgetting") & (table["learned"] == 0.75)]
    (ewc,) = table[table["method"] == "ewc"].to_dict("records")
    ours, theirs = (list(both[name].values.values()) for name in ("ewc", "vanilla"))
    variance = np.subtract(ours, theirs).var(ddof=1)
    error = math.hypot(both["ewc"].bend, both["vanilla"].bend)
    half = stats.t.ppf((1 + ewc["level"]) / 2, 3) * math.sqrt(variance / 4 + error**2)
    assert ewc["difference_high"] - ewc["difference"] == pytest.approx(half, rel=1e-3)
    half = stats.t.ppf(0.975, 3) * math.sqrt(np.var(ours, ddof=1) / 4 + both["ewc"].bend ** 2)
    assert ewc["high"] - ewc["mean"] == pytest.approx(half, rel=1e-3)


def test_of_settings_that_learn_alike_the_one_that_forgets_more_is_beaten() -> None:
    from clbench.results.matched import read_curve

    curve = np.array([[(0.2, 0.0), (0.6, 0.1), (0.6, 0.15), (1.0, 0.2)]])
    (value,), bend = read_curve(curve, 0.8)
    assert value == pytest.approx(0.15)
    assert not math.isnan(bend)


def test_refused_readings_share_the_error_rate() -> None:
    from results.test_matched import frames_of, sweep

    ours = sweep("ewc", 0.1, most=0.8)
    table = frames_of([*sweep("vanilla", 0.2), *[c for c in ours if c.baseline != "ewc"]])
    found = table["mean_forgetting"]
    assert found.loc[(0.9, "ewc"), "verdict"] == "no verdict"
    # three levels of each of two scores
    read = list(sweep("ewc", 0.1, most=0.8))
    found = frames_of([*sweep("vanilla", 0.2), *read])["mean_forgetting"]
    some = [c for c in read if not (c.seed == 3 and c.baseline == "ewc")]
    found = frames_of([*sweep("vanilla", 0.2), *some, *sweep("mas", 0.1)])["mean_forgetting"]
    assert found.loc[(0.5, "ewc"), "verdict"] == "no verdict"
    assert found.loc[(0.5, "mas"), "level"] == pytest.approx(1 - 0.05 / 12)


def test_what_was_learned_is_a_share_of_the_references_mean_gain() -> None:
    from results.test_matched import point

    from clbench.results.matched import learned_curves

    some = [point("vanilla", "vanilla", seed, dose, 0.1) for seed, dose in enumerate((0.5, 1.0))]
    some += [point("vanilla-2", "vanilla", seed, 1.0, 0.2) for seed in range(2)]
    (curves,) = learned_curves(some, "vanilla", "p_o").values()
    # gains .2 and .4 above the floor, .3 in the mean
    learned = [curves["vanilla"]["vanilla"][seed][0] for seed in range(2)]
    assert learned == pytest.approx([2 / 3, 4 / 3])


def curve_cells(p_s: float, p_o: float, family: str = "vanilla", **changes: Any) -> list[Any]:
    from results.test_fronts import point

    cells_ = [point(family, family, seed, p_o, p_s) for seed in range(3)]
    cells_ += [point(family, f"{family}-1", seed, 0.1, 0.1) for seed in range(3)]
    return [cell.model_copy(update=changes) for cell in cells_]


def test_volumes_lie_above_the_floor_of_each_task_and_one_row_moves_them() -> None:
    from clbench.results.fronts import fronts_frame

    report = {"parts": [{"validation": 50}, {"validation": 200}]}
    some = curve_cells(0.8, 0.6, floors=[0.2, 0.6], scenario_report=report)
    (found,) = fronts_frame(some, "vanilla").to_dict("records")
    # (.8 - .6)·(.6 - .2) of (1 - .6)·(1 - .2)
    assert found["hypervolume"] == pytest.approx(0.25)
    step = math.hypot(1 / 200 / 0.4, 1 / 50 / 0.8)
    assert found["high"] - 0.25 == pytest.approx(4.302653 * step / math.sqrt(3))


def test_the_error_rate_is_that_of_the_report() -> None:
    from results.test_fronts import point

    from clbench.results.fronts import fronts_frame

    some = [
        point(name, setting, seed, p_o, 0.5)
        for seed, shift in enumerate((0.0, 0.02, -0.02, 0.01, 0.0))
        for name, p_o in (("vanilla", 0.4), ("ewc", 0.6 + shift))
        for setting in (name, f"{name}-1")
    ]
    widths = []
    for alpha in (0.05, 0.01):
        row = fronts_frame(some, "vanilla", alpha).set_index("method").loc["ewc"]
        widths.append(row["difference_high"] - row["difference_low"])
    ratio = stats.t.ppf(0.995, 4) / stats.t.ppf(0.975, 4)
    assert widths[1] / widths[0] == pytest.approx(ratio, rel=1e-6)


def test_ranks_of_means_know_the_collapses_of_each_scenario() -> None:
    from clbench.results.ranks import rank_methods

    steady = [(0.8, 0.8), (0.81, 0.8), (0.8, 0.8)]
    lost = [(p_o - 0.25, 0.8) for p_o, _ in steady]
    runs = cells("a", vanilla=steady, ewc=lost, mas=[lost[0], *steady[1:]])
    runs += [c for name in "bc" for c in cells(name, vanilla=steady, ewc=steady, mas=steady)]
    found = rank_methods(runs, "p_o").comparisons["ewc", "vanilla"]
    assert (found.verdict, found.why[:13]) == ("no verdict", "runs collapse")


@pytest.mark.parametrize(
    "own", [{"model": "proj/minilm"}, {"corpus": "/b.txt"}, {"task_epochs": {"urgent": 5}}]
)
def test_references_count_although_paths_and_other_tasks_differ(own: dict[str, Any]) -> None:
    def of(cell: CellResult, **protocol: Any) -> CellResult:
        settings = {"protocol": {"model": "minilm", **protocol}}
        return CellResult.model_validate({**cell.model_dump(), "settings": settings})

    frame = scores_frame([of(pair(), **own), of(reference(1, 0.75))])
    assert frame.loc[0, "intransigence"] == pytest.approx(0.05)

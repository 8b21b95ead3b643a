"""Forgetting at equal learning, against numbers worked out by hand."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.handmade import pair

from clbench.report.sentences import matched_lines
from clbench.results.cell import CellResult
from clbench.results.matched import LEVELS, matched_frame, read, read_curve
from clbench.suite.schema import Question

ROOT = Path(__file__).parents[2]


def test_a_curve_is_read_between_its_settings() -> None:
    """By hand: halfway between (.4, .1) and (.8, .2) is .15, and .3 of the way .13."""
    line = np.array([[(0.0, 0.0), (0.4, 0.1), (0.8, 0.2)], [(0.0, 0.0), (0.5, 0.1), (0.9, 0.2)]])
    values, bend = read_curve(line, 0.6)
    assert values == pytest.approx([0.15, 0.125])
    # The means are (0, 0), (.45, .1), (.85, .2): slopes .1/.45 and .1/.4, bend
    # (.25 − .2222) / .85 · (.6 − .45) · (.85 − .6) = .001225.
    assert bend == pytest.approx(0.001225, abs=1e-6)
    # y = x²: the line from .4 to .8 at .6 is .4, the parabola .36.
    (value,), bend = read_curve(np.array([[(x, x * x) for x in (0.8, 0.1, 0.4)]]), 0.6)
    assert (value, bend) == (pytest.approx(0.4), pytest.approx(0.04))


def test_settings_that_train_alike_count_once() -> None:
    curve = np.array([[(0.1, 0.01), (0.4, 0.16), (0.8, 0.64)]])
    twice = curve[:, [0, 1, 1, 2, 2]]
    assert read_curve(twice, 0.6)[0] == read_curve(curve, 0.6)[0]
    assert read_curve(twice, 0.6)[1] == pytest.approx(0.04)
    assert read_curve(twice[:, 1:], 0.6)[1] == math.inf


def test_a_curve_is_not_extended() -> None:
    curve = np.array([[(0.2, 0.0), (0.5, 0.1), (0.95, 0.2)], [(0.2, 0.0), (0.5, 0.1), (0.85, 0.2)]])
    values, _ = read_curve(curve, 0.9)
    assert values[0] == pytest.approx(0.1 + 0.1 * 0.4 / 0.45)
    assert math.isnan(values[1])
    assert math.isnan(read_curve(curve, 0.1)[0][0])


def test_settings_that_another_beats_on_every_seed_are_left_out() -> None:
    """A rate that is too high learns less and forgets more; it is not on the way to .9."""
    good = [(0.2, 0.0), (0.6, 0.1), (1.0, 0.2)]
    both = np.array([[*good, (0.88, 0.5)]] * 2)
    assert read_curve(both, 0.9)[0] == pytest.approx([0.175, 0.175])
    both[1, 3] = (1.1, 0.5)  # on one seed it learns more
    assert read_curve(both, 0.9)[0] == pytest.approx([0.5 - 0.3 * 0.02 / 0.12, 0.175])
    assert read_curve(np.array([[good[0], good[2]]]), 0.9)[1] == math.inf


def point(name: str, family: str, seed: int, learned: float, forgetting: float) -> CellResult:
    """Return a cell: vanilla gains .4 above a floor of .5, and the old task begins at .9."""
    p_s = 0.5 + 0.4 * learned
    cell: Any = pair(name, seed, [[0.9, None], [0.9 - forgetting, p_s]])
    return CellResult.model_validate({**cell.model_dump(), "family": family, "floors": [0.5, 0.5]})


def sweep(name: str, forgets: float, noise: float = 0.01, most: float = 1.2) -> list[CellResult]:
    """Return a method that forgets `forgets` of what it learns, on four seeds."""
    cells = []
    for seed in range(4):
        extra = noise * (seed - 1.5) + (0.002 * seed**2 if name != "vanilla" else 0.0)
        for dose in (0.2, 0.6, 1.0, most):
            setting = name if dose == 1.0 else f"{name}-{dose:g}"
            cells.append(point(setting, name, seed, dose, forgets * dose + extra))
    return cells


def frames_of(cells: list[CellResult]) -> dict[str, pd.DataFrame]:
    """Return what is read by score, indexed by level and method."""
    table = matched_frame(cells, "vanilla")
    return {str(s): own.set_index(["learned", "method"]) for s, own in table.groupby("score")}


def test_methods_are_compared_where_they_learn_as_much() -> None:
    cells = [*sweep("vanilla", 0.2), *sweep("ewc", 0.1)]
    table, ends = (frames_of(cells)[score] for score in ("mean_forgetting", "p_o"))
    assert list(table.index.levels[0]) == list(LEVELS)
    assert (table["settings"] == 4).all()
    for level in LEVELS:
        end = ends.loc[(level, "ewc"), "difference"]
        assert end == pytest.approx(-table.loc[(level, "ewc"), "difference"])
        ours, theirs = table.loc[level, "ewc"], table.loc[level, "vanilla"]
        assert theirs["mean"] == pytest.approx(0.2 * level)
        assert theirs["why"] == "the reference"
        # .002 · (0 + 1 + 4 + 9) / 4 = .007 is the mean of the noise that ewc has alone.
        assert ours["difference"] == pytest.approx(-0.1 * level + 0.007)
        assert ours["p_family"] == pytest.approx(min(1.0, 6 * ours["p"]))
    assert table.loc[(0.9, "ewc"), "verdict"] == ends.loc[(0.9, "ewc"), "verdict"] == "better"
    lines = list(map(str, matched_lines(table.reset_index(), cells[0].scenario, Question())))
    lines += map(str, matched_lines(ends.reset_index(), cells[0].scenario, Question()))
    assert lines[-1].startswith("p_o where 0.9 is learned. Better than vanilla: ewc +0.083 (")
    assert lines[len(LEVELS) - 1].startswith(
        "mean forg. where 0.9 is learned, less is better. Better than vanilla: ewc -0.083 ("
    )


def test_what_learned_less_of_the_old_task_has_less_to_forget() -> None:
    """Both end alike on the old task, from which one had learned less."""
    cells = []
    for seed in range(4):
        for name, before in (("vanilla", 0.9), ("ewc", 0.7)):
            for dose in (0.2, 0.6, 1.0, 1.2):
                end = 0.6 - 0.1 * dose + 0.01 * seed + 0.002 * seed**2 * (name == "ewc")
                matrix = [[before, None], [end, 0.5 + 0.4 * dose]]
                one: Any = pair(name if dose == 1.0 else f"{name}-{dose:g}", seed, matrix)
                changes = {"family": name, "floors": [0.5, 0.5]}
                cells.append(CellResult.model_validate({**one.model_dump(), **changes}))
    forgetting, end = (
        frames_of(cells)[score].loc[(0.75, "ewc")] for score in ("mean_forgetting", "p_o")
    )
    assert forgetting["verdict"] == "better"
    assert forgetting["difference"] == pytest.approx(-0.207)
    assert end["difference"] == pytest.approx(0.007)
    assert end["verdict"] == "no difference shown"


def test_what_a_method_never_learns_is_not_extrapolated() -> None:
    few = [cell for cell in sweep("ewc", 0.1) if not (cell.seed == 3 and "1.2" in cell.baseline)]
    few.append(point("ewc-1.2", "ewc", 3, 0.7, 0.08))
    few = [cell for cell in few if cell.baseline != "ewc"]
    table = frames_of([*sweep("vanilla", 0.2), *few])["mean_forgetting"]
    refused = table.loc[0.9, "ewc"]
    assert refused["verdict"] == "no verdict"
    assert refused["why"] == "ewc never learns as much as 0.9 on seed 3"
    assert math.isnan(refused["mean"])
    assert math.isnan(refused["difference"])
    assert table.loc[(0.5, "ewc"), "verdict"] != "no verdict"
    lines = list(map(str, matched_lines(table.reset_index(), few[0].scenario, Question())))
    assert lines[-1] == (
        "mean forg. where 0.9 is learned, less is better. "
        "No verdict: ewc (ewc never learns as much as 0.9 on seed 3)."
    )
    high = {f"s{x}": {0: (x, 0.1)} for x in (0.6, 0.7, 0.8)}
    assert read("ewc", high, 0.5).lack == "ewc learns more at every setting than 0.5 on seed 0"
    beaten = {**high, "low": {0: (0.3, 0.2)}}  # forgets more than those that learn more
    lack = "ewc has only settings that others beat below 0.5 on seed 0"
    assert read("ewc", beaten, 0.5).lack == lack
    tied = {"a": {0: (0.25, 0.0), 1: (0.25, 0.1)}, "b": {0: (0.25, 0.1), 1: (0.25, 0.0)}}
    tied |= {"c": {0: (0.75, 0.5), 1: (0.75, 0.5)}}
    lack = "ewc has settings near 0.5 that learn exactly alike on average"
    assert read("ewc", tied, 0.5).lack == lack
    del tied["a"]
    lack = "ewc has fewer than 3 settings that none beats on every seed"
    assert read("ewc", tied, 0.5).lack == lack


def test_a_reference_without_a_reading_says_why() -> None:
    few = [cell for cell in sweep("vanilla", 0.2) if cell.baseline in ("vanilla", "vanilla-0.2")]
    ours = [cell for cell in sweep("ewc", 0.1, most=0.8) if cell.baseline != "ewc"]
    table = frames_of([*few, *ours])["mean_forgetting"]
    lack = "vanilla has fewer than 3 settings that none beats on every seed"
    assert table.loc[(0.75, "vanilla"), "why"] == table.loc[(0.5, "ewc"), "why"] == lack
    both = table.loc[(0.9, "ewc"), "why"]
    assert both == f"ewc never learns as much as 0.9 on seed 0; {lack}"


def test_nothing_is_read_without_a_swept_reference() -> None:
    assert matched_frame(sweep("ewc", 0.1), "vanilla").empty
    plain = [cell for cell in sweep("vanilla", 0.2) if cell.baseline == "vanilla"]
    assert matched_frame([*plain, *sweep("ewc", 0.1)], "vanilla").empty


def test_the_figure_has_a_bar_for_each_reading() -> None:
    from clbench import figures

    cells = [*sweep("vanilla", 0.2), *sweep("ewc", 0.1, most=0.8)]
    drawn = figures.matched(cells).axes
    assert [axes.get_ylabel() for axes in drawn] == ["forgetting", "score on the old task"]
    for axes in drawn:
        read_at = [float(c.lines[0].get_xdata()[i]) for c in axes.containers for i in range(3)]
        assert read_at == pytest.approx([*LEVELS, *LEVELS], abs=0.01)
    with pytest.raises(ValueError, match="vanilla was not run at several settings"):
        figures.matched(sweep("ewc", 0.1))


def test_bars_of_many_methods_stand_nearest_to_their_level() -> None:
    from clbench import figures

    cells = [cell for number in range(20) for cell in sweep(f"m{number}", 0.1)]
    axes, _ = figures.matched([*sweep("vanilla", 0.2), *cells]).axes
    for bars in axes.containers:
        read_at = np.array(bars.lines[0].get_xdata(), float)
        assert np.abs(read_at - LEVELS).max() <= 0.05
    assert len(axes.containers) == 21


def test_the_figure_has_the_lines_that_are_read() -> None:
    """A setting that forgets more than one that learns more has a mark and no line."""
    from clbench import figures

    beaten = [point("vanilla-9", "vanilla", seed, 0.9, 0.3) for seed in range(4)]
    for cells in (sweep("vanilla", 0.2), [*sweep("vanilla", 0.2), *beaten]):
        lines = [own for own in figures.matched(cells).axes[0].lines if own.get_alpha()]
        assert [len(own.get_xdata()) for own in lines] == [4] * 4


def test_simulated_comparisons_at_equal_learning_hold_their_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = importlib.import_module("matched")
    rng, draws = np.random.default_rng(0), 200
    benchmark.check_reading(rng)  # the simulation reads curves as the package does
    cases = [("straight", ["same"], "rows", 7, 3), ("bent", ["shifted"], "rows", 4, 5)]
    cases += [("overtrained", ["same"], "loud", 4, 10), ("flat", ["shifted"], "loud", 7, 5)]
    cases += [("humped", [*benchmark.DOSES], "quiet", 7, 5)]
    for case in cases:
        rates = benchmark.rates(*case, draws=draws, rng=rng)
        assert rates.error <= 0.06 + 3 * math.sqrt(0.06 * 0.94 / draws), case
        assert rates.refused < 1.0, case
    rates = benchmark.rates(*cases[0][:4], 10, draws=draws, rng=rng)
    assert rates.power > 0.9 > rates.refused
    for kind, doses, settings in (("bent", "shifted", 7), ("straight", "same", 4)):
        rates = benchmark.point_rates(kind, doses, "rows", settings, 10, draws=draws, rng=rng)
        assert rates.error <= 0.065 + 3 * math.sqrt(0.065 * 0.935 / draws), kind
        assert rates.power > 0.9 > rates.refused


def test_the_documentation_states_the_errors_at_equal_learning() -> None:
    table = pd.read_csv(ROOT / "results" / "verdicts" / "gain.csv")
    error = table["error"].max()
    assert error <= 0.06
    few, many = table.groupby("settings")["power"].mean()[[4, 7]]
    text = " ".join((ROOT / "docs" / "read.md").read_text(encoding="utf-8").split())
    shown = f"{math.ceil(1000 * error - 1e-6) / 1000:.3f}"
    assert f"at most {shown} of families of equal curves".replace("0.", ".") in text
    without = table["without_bends"].max()
    assert f"Without the term for bends, up to {without:.2f} of families".replace("0.", ".") in text
    power = f"on average {few:.2f} with four settings and {many:.2f} with seven"
    assert power.replace("0.", ".") in text


def test_the_documentation_states_the_errors_of_the_studies() -> None:
    table = pd.read_csv(ROOT / "results" / "verdicts" / "points.csv")
    steep = (table["curves"] == "overtrained") & (table["settings"] == 4)
    most, steepest = (
        math.ceil(1000 * table[some]["error"].max() - 1e-6) for some in (~steep, steep)
    )
    text = " ".join((ROOT / "docs" / "read.md").read_text(encoding="utf-8").split())
    assert f"at most .{most:03d} of families err" in text
    assert f"of four settings up to .{steepest:03d} do" in text

"""Figures of runs show the numbers of the cells."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from clbench import figures
from clbench.figures import style
from clbench.figures.inputs import method_rates
from clbench.results.cell import CellResult


def cell(
    method: str,
    seed: int,
    rows: Sequence[Sequence[float | None]],
    *,
    scenario: str = "pair",
    curve: bool = True,
    **changes: Any,
) -> CellResult:
    tasks = [f"t/{i}" for i in range(len(rows))]
    last = rows[-1]
    stages = [
        {
            "task": task, "rows": 10, "steps": 4, "epochs": 1.0, "examples": 40, "tokens": 100,
            "train_seconds": (2.0 + seed) / len(rows),
            "curves": {"scores": {t: [[0, 0.5], [4, last[j]]] for j, t in enumerate(tasks)}}
            if curve else {},
        }
        for task in tasks
    ]  # fmt: skip
    fields: dict[str, Any] = {
        "key": f"{scenario}--{method}--seed{seed}",
        "fingerprint": "0",
        "scenario": scenario,
        "shift": "dataset",
        "baseline": method,
        "method": method,
        "model": "tiny",
        "seed": seed,
        "status": "ok",
        "tasks": tasks,
        "R": rows,
        "scores": {
            "p_o": last[0], "p_s": last[-1], "forgetting": (rows[0][0] or 0.0) - (last[0] or 0.0),
        },
        "stages": stages,
        "train_seconds": 2.0 + seed,
        "peak_memory_mb": 100.0,
    }  # fmt: skip
    fields |= changes
    fields.setdefault("metrics", [[None] * len(row) for row in fields["R"]])
    return CellResult(**fields)


def pair(method: str, seed: int, before: float, p_o: float, p_s: float, **more: Any) -> CellResult:
    return cell(method, seed, [[before, None], [p_o, p_s]], **more)


CELLS = [
    pair("vanilla", 0, 0.9, 0.7, 0.8),
    pair("vanilla", 1, 0.9, 0.6, 0.9),
    pair("ewc", 0, 0.9, 0.8, 0.7),
    pair("ewc", 1, 0.9, 0.9, 0.7),
    pair("lwf", 0, 0.9, 0.5, 0.6),
    pair("lwf", 1, 0.9, 0.5, 0.6),
]


def render(figure: Figure) -> bytes:
    """Draw the figure, which reveals most defects of one."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    assert figure.get_label()
    return buffer.getvalue()


def points(axes: Any, size: float) -> list[tuple[float, float]]:
    return [
        (float(x), float(y))
        for line in axes.get_lines()
        if line.get_marker() != "None" and line.get_markersize() == pytest.approx(size)
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]


def test_tradeoff_has_each_seed_and_each_mean() -> None:
    figure = figures.tradeoff(CELLS)
    (axes,) = figure.axes
    assert (0.7, 0.85) in [(round(x, 6), round(y, 6)) for x, y in points(axes, 7)]  # ewc
    stars = points(axes, 7 * 1.8)
    assert [(round(x, 6), round(y, 6)) for x, y in stars] == [(0.85, 0.65)]  # vanilla
    assert {(0.7, 0.8), (0.7, 0.9), (0.6, 0.5)} <= set(points(axes, 3))
    grey = [line for line in axes.get_lines() if line.get_color() == style.LIGHT]
    assert len(grey) == 1
    assert list(np.round(grey[0].get_xdata(), 6)) == [0.7, 0.85]  # lwf is beaten by both
    assert "n = 2 seeds" in figure.get_label()
    render(figure)


def test_lines_of_equal_sums_have_equal_sums() -> None:
    figure = figures.tradeoff(CELLS)
    (axes,) = figure.axes
    dashed = [line for line in axes.get_lines() if line.get_color() == style.GREY]
    assert len(dashed) >= 2
    for line in dashed:
        sums = np.asarray(line.get_xdata()) + np.asarray(line.get_ydata())
        assert sums[0] == pytest.approx(sums[1])
    labels = {text.get_text() for text in axes.texts}
    assert {
        f"{float(np.sum([x[0] for x in (d.get_xdata(), d.get_ydata())])):.4g}" for d in dashed
    } == labels


def test_the_pareto_front() -> None:
    from clbench.results.fronts import front

    assert front({"a": (0.1, 0.9), "b": (0.5, 0.5), "c": (0.4, 0.4), "d": (0.9, 0.1)}) == [
        "a", "b", "d",
    ]  # fmt: skip
    assert front({"a": (0.5, 0.5), "b": (0.5, 0.6)}) == ["b"]
    assert front({"a": (0.5, 0.5), "b": (0.5, 0.5)}) == ["a", "b"]


def test_trade_off_curves_count_the_seeds_of_what_they_draw() -> None:
    swept = [
        pair(name, seed, 0.9, 0.7 + step, 0.8 - step, family="ewc")
        for name, step in (("ewc-1", 0.0), ("ewc-2", 0.1))
        for seed in range(2)
    ]
    others = [pair("vanilla", seed, 0.9, 0.7, 0.8) for seed in range(5)]
    assert "as fractions, n = 2 seeds." in figures.fronts([*swept, *others]).get_label()
    assert "as fractions, n = 1 to 2 seeds." in figures.fronts(swept[1:]).get_label()


def test_forgetting_is_in_points_with_the_worst_method_below() -> None:
    three = [*CELLS, *(pair(m, 2, 0.9, p, 0.7) for m, p in (("vanilla", 0.5), ("ewc", 0.85)))]
    figure = figures.forgetting(three)
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["lwf", "vanilla", "ewc"]
    means = [x for x, _ in points(axes, 7)]
    assert sorted(round(x, 6) for x in means) == [5.0, 40.0]
    intervals = [line for line in axes.get_lines() if line.get_linewidth() == 1.6]
    assert len(intervals) == 2  # lwf has two seeds only
    render(figure)


def test_equal_forgetting_on_three_seeds_is_not_certain() -> None:
    """One of 50 rows is 2 points; the t of two degrees of freedom is 4.303."""
    report = {"parts": [{"validation": 50}, {"validation": 20}]}
    cells = [pair("vanilla", seed, 0.9, 0.7, 0.8, scenario_report=report) for seed in range(3)]
    (axes,) = figures.forgetting(cells).axes
    (line,) = (line for line in axes.get_lines() if line.get_linewidth() == 1.6)
    half = 4.303 * 2.0 / 3**0.5
    assert list(line.get_xdata()) == pytest.approx([20.0 - half, 20.0 + half], abs=1e-3)


def test_forgetting_of_sequences_is_the_mean_over_earlier_tasks() -> None:
    rows = [[0.9, 0.1, 0.1], [0.9, 0.8, 0.1], [0.9, 0.2, 0.7]]
    scores = {"forgetting": 0.0, "mean_forgetting": 0.3}
    long = [cell(m, 0, rows, scores=scores) for m in ("vanilla", "ewc")]
    (axes,) = figures.forgetting(long).axes
    assert {round(x, 6) for x, _ in points(axes, 7)} == {30.0}
    assert axes.get_xlabel() == "mean forg. × 100"


def test_curves_show_both_tasks() -> None:
    figure = figures.curves(CELLS)
    old, new = figure.axes
    lines = [list(line.get_ydata()) for line in old.get_lines() if line.get_color() == style.BLACK]
    assert lines[0] == pytest.approx([0.5, 0.65])
    assert "old task: t/0" in old.get_title()
    assert "new task: t/1" in new.get_title()
    render(figure)
    assert "on some rows of each (in stages too short for that:" in figure.get_label()
    settings = {"protocol": {"curve_rows": 50}}
    caption = figures.curves([pair("vanilla", 0, 0.9, 0.7, 0.8, settings=settings)]).get_label()
    assert "on at most 50 rows of each" in caption
    with pytest.raises(ValueError, match="curve_points = 0"):
        figures.curves([pair("vanilla", 0, 0.9, 0.7, 0.8, curve=False)])


def test_curves_are_drawn_at_the_steps_that_all_seeds_have() -> None:
    axes = Figure().subplots()
    series = [[(0.0, 0.2), (5.0, 0.4)], [(0.0, 0.4), (5.0, 0.8), (7.0, 0.1)]]
    style.draw_over_seeds(axes, series, style.Look("black", "o"))
    (line,) = axes.get_lines()
    assert list(line.get_xdata()) == [0.0, 5.0]
    assert list(line.get_ydata()) == pytest.approx([0.3, 0.6])
    (band,) = axes.collections
    assert {tuple(point) for point in band.get_paths()[0].vertices} >= {(0.0, 0.2), (5.0, 0.8)}


def test_matrices_show_the_mean_of_each_entry() -> None:
    rows = [[0.9, None, None], [0.7, 0.8, None], [0.5, 0.6, 0.7]]
    figure = figures.matrices([cell("vanilla", 0, rows), cell("ewc", 0, rows)])
    first, second, bar = figure.axes
    assert (first.get_title(), second.get_title()) == ("vanilla", "ewc")
    entries = np.ma.filled(first.images[0].get_array(), np.nan)
    np.testing.assert_allclose(entries, np.array(rows, dtype=float))
    assert {text.get_text() for text in first.texts} == {"0.90", "0.70", "0.80", "0.50", "0.60"}
    assert bar.get_ylabel() == "score"
    render(figure)


def test_costs_show_the_search() -> None:
    cost = {"trials": 50, "epochs": 200.0, "seconds": 500.0}
    searched = [pair("bertcl", s, 0.9, 0.85, 0.8, search=cost) for s in (0, 1)]
    figure = figures.costs([*CELLS, *searched])
    times, memory = figure.axes
    assert (2.5, 5.0) in [(x, round(y, 6)) for x, y in points(times, 8)]
    assert (502.5, 5.0) in [(x, round(y, 6)) for x, y in points(times, 8)]
    assert times.get_xscale() == "log"
    assert figures.costs(CELLS).axes[0].get_xscale() == "linear"
    hollow = [line for line in times.get_lines() if line.get_markerfacecolor() == "white"]
    assert len(hollow) == 1
    assert len(points(memory, 8)) == 3
    render(figure)


def test_memory_is_what_a_method_adds_to_vanilla_on_the_same_seed() -> None:
    memory_mb = {"vanilla": (100.0, 140.0), "ewc": (130.0, 170.0), "lwf": (101.0, None)}
    cells = [
        cell.model_copy(update={"training_memory_mb": memory_mb[cell.baseline][cell.seed]})
        for cell in CELLS
    ]
    memory = figures.costs(cells).axes[1]
    assert memory.get_xlabel() == "memory beyond vanilla's, MB"
    assert sorted(x for x, _ in [*points(memory, 8), *points(memory, 8 * 1.8)]) == [0.0, 1.0, 30.0]
    alone = figures.costs([cell for cell in cells if cell.baseline == "ewc"])
    assert alone.axes[1].get_xlabel() == "memory, MB"
    assert points(alone.axes[1], 8)[0][0] == 150.0
    assert figures.costs(CELLS).axes[1].get_xlabel() == "peak memory, MB"


def test_a_cell_without_forgetting_is_left_out() -> None:
    silent = cell("lwf", 0, [[0.7]], scores={"p_s": 0.7, "forgetting": None})
    figure = figures.costs([*CELLS[:4], silent])
    assert len(points(figure.axes[1], 8)) + len(points(figure.axes[1], 8 * 1.8)) == 2
    with pytest.raises(ValueError, match="no cell of pair has a score for forgetting"):
        figures.costs([silent])


def test_distances_to_the_anchor_and_the_weight_of_the_task() -> None:
    def recadam(seed: int, far: float) -> CellResult:
        plain = pair("recadam", seed, 0.9, 0.7, 0.8)
        curves = {
            "distance": [[0, far], [4, 1.0]],
            "distance.embeddings": [[0, far / 2], [4, 0.5]],
            "distance.layer.0": [[0, far], [4, 0.25]],
            "lambda": [[0, 0.0], [4, 1.0]],
        }
        last = plain.stages[1].model_copy(update={"curves": curves})
        return plain.model_copy(update={"stages": [plain.stages[0], last]})

    figure = figures.anchor_distances([*CELLS, recadam(0, 3.0), recadam(1, 5.0)])
    loss, whole, groups, annealing = figure.axes
    assert loss.get_title() == "training loss"
    assert list(whole.get_lines()[0].get_ydata()) == [4.0, 1.0]
    assert [line.get_label() for line in groups.get_lines()] == ["embeddings", "layer 0"]
    assert list(groups.get_lines()[0].get_ydata()) == [2.0, 0.5]
    assert list(annealing.get_lines()[0].get_ydata()) == [0.0, 1.0]
    render(figure)
    drifting = CELLS[0].stages[1].model_copy(update={"curves": {"drift": [[0, 0.0], [4, 2.0]]}})
    stages = [CELLS[0].stages[0], drifting]
    figure = figures.anchor_distances([CELLS[0].model_copy(update={"stages": stages})])
    _, whole = figure.axes
    assert list(whole.get_lines()[0].get_ydata()) == [0.0, 2.0]
    assert "to the pretrained weights" in figure.get_label()
    render(figure)
    with pytest.raises(ValueError, match="no method of pair records a distance"):
        figures.anchor_distances(CELLS)


def test_methods_look_the_same_in_every_figure_and_differ() -> None:
    many = [pair(f"m{i}", 0, 0.9, 0.7, 0.8) for i in range(30)]
    looks = style.looks([*many, *CELLS])
    assert len({(look.color, look.mark) for look in looks.values()}) == 33
    assert looks["vanilla"].color == style.BLACK
    render(figures.tradeoff([*many, *CELLS]))


def test_errors_say_why_nothing_is_drawn() -> None:
    failed = cell("vanilla", 0, [[0.9]], status="failed", R=[], scores={}, stages=[])
    with pytest.raises(ValueError, match="no finished cell"):
        figures.tradeoff([failed])
    two = [*CELLS, pair("vanilla", 0, 0.9, 0.7, 0.8, scenario="other")]
    with pytest.raises(ValueError, match="choose one of the scenarios pair, other"):
        figures.curves(two)
    with pytest.raises(ValueError, match="no scenario 'third'"):
        figures.costs(two, "third")
    assert len(figures.tradeoff(two).axes) == 2


def test_a_module_dropped_into_the_package_appears_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.setattr(figures, "__path__", [*figures.__path__, str(tmp_path)])
    monkeypatch.setattr(style, "REPORT_FIGURES", list(style.REPORT_FIGURES))
    monkeypatch.setattr(figures, "REPORT_FIGURES", style.REPORT_FIGURES)
    names = [figure.name for figure in figures.report_figures()]
    assert names == [
        "overall", "tradeoff", "fronts", "matched", "forgetting", "mine", "rates", "shift",
        "retention", "probes", "curves", "anchor", "matrices", "costs",
    ]  # fmt: skip


MODULE = """
from matplotlib.figure import Figure
from clbench.figures import style


@style.in_report("My figure", order=25)
def mine(results):
    return style.captioned(Figure(), "mine")
"""


def test_axes_without_spread_have_plain_ticks() -> None:
    noise = [pair(m, 0, 0.3, 0.3 + d, 0.7) for m, d in (("vanilla", 0.0), ("ewc", 5.6e-17))]
    for figure in (figures.costs(noise), figures.forgetting(noise), figures.matrices(noise[:1])):
        render(figure)
        for axes in figure.axes:
            for axis in (axes.xaxis, axes.yaxis):
                assert axis.get_offset_text().get_text() == ""
                assert abs(np.subtract(*axis.get_view_interval())) > 0.01
    figure = figures.tradeoff([pair("ewc", s, 0.9, 0.9 + s / 1e6, 0.7) for s in (0, 1)])
    render(figure)
    assert figure.axes[0].yaxis.get_offset_text().get_text() == ""


def test_matrices_keep_the_whole_names_of_tasks() -> None:
    figure = figures.matrices([pair("ewc", 0, 0.9, 0.8, 0.7, tasks=["a/b", "c[x/y] $1 $2"])])
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["a/b", r"c[x/y] \$1 \$2"]
    render(figure)


def test_short_stages_show_whole_steps() -> None:
    figure = figures.curves(CELLS)
    render(figure)
    ticks = [tick for axes in figure.axes for tick in axes.get_xticks()]
    assert all(tick == int(tick) for tick in ticks)


def test_methods_with_other_numbers_of_groups_are_named() -> None:
    def rates(method: str, values: object, lr: float = 1e-3) -> CellResult:
        settings = {"protocol": {"lr": lr}, "method": {"multiples": values}}
        return pair(method, 0, 0.9, 0.7, 0.8, settings=settings)

    cells = [rates("a", [1.0, 0.5, 2.0]), rates("b", [1.0, 1.0, 1.0, 1.0]), rates("c", ["x"] * 3)]
    figure = method_rates(cells)
    assert "(n = 1 distribution)" in figure.get_label()
    assert figure.get_label().endswith("they have other numbers of groups: b (4 groups).")
    assert len(method_rates([cells[0], rates("d", [1, 1, 1], 1e-4)]).axes[0].get_lines()) == 2
    with pytest.raises(ValueError, match="no method has layer rates"):
        method_rates([cells[2]])

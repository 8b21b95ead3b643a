"""A run at a glance: old task against new task, trade-off curves, and all scenarios together."""

import math
import textwrap
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from clbench.core.errors import ArgumentError
from clbench.figures import style
from clbench.results.cell import CellResult, without_extra_points
from clbench.results.fronts import curves as settings_curves
from clbench.results.fronts import front, mean_points
from clbench.results.matched import LEVELS, learned_curves, matched_frame, unbeaten
from clbench.results.overall import overall_frame
from clbench.suite.scores import SCORE

MANY = 8
"""Methods above which a single panel is wider, for its legend."""
NO_RANKS = "In some scenario, no seed is common to all methods, so there are no ranks."


@style.in_report("Old task versus new task", order=10)
def tradeoff(results: style.Results) -> Figure:
    """Draw p_o against p_s, a panel for each scenario and a point for each method.

    A large point is the mean over seeds, joined to a small one for each seed. Dashed lines have
    equal p_o + p_s; the grey line joins the methods that no other beats in both (Pareto front).
    """
    cells = [
        cell
        for cell in style.good_cells(results)
        if cell.scores.get("p_o") is not None and cell.scores.get("p_s") is not None
    ]
    if not cells:
        raise ArgumentError("no cell has both p_o and p_s")
    looks = style.looks(cells)
    groups = style.by_scenario(cells)
    labels = style.short_labels(groups)
    is_large = len(groups) == 1 and len(looks) > MANY
    width, height = (6.8, 4.2) if is_large else (3.4, 3.0)
    figure, grid = style.panels(len(groups), width=width, height=height)
    for axes, (scenario, methods) in zip(grid, groups.items(), strict=True):
        _panel(axes, methods, looks)
        _frame(axes, labels[scenario])
        _equal_sums(axes)
    style.legend(figure, looks)
    return style.captioned(
        figure,
        "Score on the old task (p_o) against score on the new task (p_s) after training on both, "
        "as fractions. Large marks are means, small marks single seeds, "
        f"{style.count_seeds(cells)}. Dashed lines: equal p_o + p_s. Grey line: methods that no "
        "other method beats in both scores, including those that keep rows of earlier tasks.",
    )


def _panel(axes: Axes, methods: dict[str, list[CellResult]], looks: dict[str, style.Look]) -> None:
    means: dict[str, tuple[float, float]] = {}
    for name, cells in methods.items():
        color, mark, scale, _ = looks[name]
        x = [cell.scores["p_s"] or 0.0 for cell in cells]
        y = [cell.scores["p_o"] or 0.0 for cell in cells]
        means[name] = fmean(x), fmean(y)
        spokes = [
            [value for seed in seeds for value in (mean, seed, math.nan)]
            for mean, seeds in zip(means[name], (x, y), strict=True)
        ]
        axes.plot(*spokes, "-", color=color, lw=0.6, alpha=0.6, zorder=1)
        axes.plot(x, y, mark, ls="none", ms=3 * scale, color=color, alpha=0.6, zorder=2)
        axes.plot(*means[name], mark, ms=7 * scale, color=color, mec="white", zorder=4)
    best = zip(*(means[name] for name in front(means)), strict=True)
    axes.plot(*best, "-", lw=3, color=style.LIGHT, zorder=0)


def _frame(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel(f"{SCORE['p_s'].label}, {SCORE['p_s'].meaning}")
    axes.set_ylabel(f"{SCORE['p_o'].label}, {SCORE['p_o'].meaning}")
    axes.margins(0.08)
    axes.locator_params(nbins=style.TICKS)
    style.widen(axes)


def _equal_sums(axes: Axes) -> None:
    """Draw lines of equal p_o + p_s at round values, labelled where they leave the panel."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for total in MaxNLocator(5).tick_values(left + bottom, right + top):
        start, end = max(left, total - top), min(right, total - bottom)
        if end - start < 0.05 * (right - left):
            continue
        x, y = [start, end], [total - start, total - end]
        axes.plot(x, y, ls=(0, (4, 4)), lw=0.6, color=style.GREY, zorder=0)
        axes.annotate(
            f"{total:.4g}", (end, total - end), xytext=(-2, 2), textcoords="offset points",
            fontsize="xx-small", color=style.GREY, ha="right", zorder=0,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)


@style.in_report("Trade-off curves", order=12)
def fronts(results: style.Results) -> Figure:
    """Draw p_o against p_s of every setting of swept methods, and join those on each front.

    Raises an ArgumentError if no baseline was run at several settings.
    """
    cells = [cell for cell in style.all_cells(results) if cell.status == "ok"]
    by_scenario = settings_curves(cells)
    if not by_scenario:
        raise ArgumentError("no baseline was run at several settings")
    names = dict.fromkeys(name for by_name in by_scenario.values() for name in by_name)
    looks = style.looks_of(names)
    labels = style.short_labels(by_scenario)
    figure, grid = style.panels(len(by_scenario))
    for axes, (scenario, by_name) in zip(grid, by_scenario.items(), strict=True):
        for name, curve in by_name.items():
            color, mark, scale, _ = looks[name]
            points = mean_points(curve)
            best = front(points)
            axes.plot(*zip(*points.values(), strict=True), mark, ls="none", ms=4 * scale,
                      color=color, alpha=0.45)  # fmt: skip
            axes.plot(*zip(*(points[point] for point in best), strict=True), mark, ls="-", lw=1.2,
                      ms=6 * scale, color=color, mec="white")  # fmt: skip
        _frame(axes, labels[scenario])
    style.legend(figure, looks)
    curves = [curve for by_name in by_scenario.values() for curve in by_name.values()]
    seeds = style.seeds_of(len(point) for curve in curves for point in curve.values())
    return style.captioned(
        figure,
        "Score on the old task (p_o) against score on the new task (p_s) after training on both, "
        f"as fractions, {seeds}. A mark is the mean of one setting; lines join "
        "the settings of a method that none of its others beats in both scores.",
    )


@style.in_report("Forgetting at equal learning", order=13)
def matched(results: style.Results) -> Figure:
    """Draw what is forgotten and what is left against what was learned, read at equal learning.

    Raises an ArgumentError if the reference, vanilla or that of the report, was not run at several
    settings.
    """
    cells = [cell for cell in style.all_cells(results) if cell.status == "ok"]
    reference = results.reference if isinstance(results, style.ReportData) else style.VANILLA
    table = matched_frame(cells, reference)
    if table.empty:
        raise ArgumentError(f"{reference} was not run at several settings")
    groups = list(dict.fromkeys(zip(table["scenario"], table["score"], strict=True)))
    looks = style.looks_of(dict.fromkeys(table["method"]))
    labels = style.short_labels(scenario for scenario, _ in groups)
    figure, grid = style.panels(len(groups))
    for axes, (scenario, score) in zip(grid, groups, strict=True):
        by_name = learned_curves(cells, reference, score)[scenario]
        some = table[(table["scenario"] == scenario) & (table["score"] == score)]
        sign = -1.0 if SCORE[score].higher_is_better else 1.0
        for name, curve in by_name.items():
            color, mark, scale, _ = looks[name]
            seeds = sorted(set.intersection(*map(set, curve.values())))
            every = np.array([[curve[point][seed] for point in curve] for seed in seeds])
            for own in every[:, unbeaten(every * (1.0, sign))] if seeds else ():
                line = own[own[:, 0].argsort(kind="stable")].T
                axes.plot(*line, "-", lw=0.5, color=color, alpha=0.35, zorder=1)
            points = mean_points(curve).values()
            axes.plot(*zip(*points, strict=True), mark, ls="none", ms=4 * scale, color=color)
        limits = axes.get_ylim()  # of the curves: intervals of few seeds may be far wider
        apart = min(0.012, 0.1 / len(by_name))  # the closest levels are .15 apart
        for number, name in enumerate(by_name):
            shift = apart * (number - (len(by_name) - 1) / 2)
            rows = some[(some["method"] == name) & some["mean"].notna()]
            at, mean, low, high = rows[["learned", "mean", "low", "high"]].to_numpy(float).T
            axes.errorbar(at + shift, mean, [mean - low, high - mean], fmt="_", ms=7, lw=1.6,
                          capsize=2, color=looks[name].color, zorder=3)  # fmt: skip
        axes.set_ylim(limits)
        axes.set_xlim(left=max(-0.2, axes.get_xlim()[0]))  # where less is learned, nothing is read
        for level in LEVELS:
            axes.axvline(level, lw=0.6, ls=(0, (4, 4)), color=style.GREY, zorder=0)
        axes.set_title(labels[scenario], fontsize="medium")
        axes.set_xlabel(f"learned, share of the gain of {reference}")
        label = "forgetting" if score == "mean_forgetting" else SCORE[score].meaning
        axes.set_ylabel(textwrap.fill(label, 36))
        axes.locator_params(nbins=style.TICKS)
    style.legend(figure, looks)
    return style.captioned(
        figure,
        "Forgetting, and the score on the old task, against what was learned of the new one, as a "
        f"share of the gain of {reference} at its own setting. Marks are means of a setting over "
        "seeds, thin lines the curves of single seeds, without settings that another one beats. "
        "Bars are readings between the settings of each seed, with 95 % intervals, cut at the "
        "frame; they belong to the nearest dashed line. A method without a bar has no reading "
        "there, for the reason in tables/matched.csv.",
    )


@style.in_report("All scenarios", order=5)
def overall(results: style.Results) -> Figure:
    """Draw mean differences from the reference and mean ranks over scenarios.

    The reference and the scores are those of the report, else vanilla, p_o and p_s. Differences
    are those of methods that have all scenarios. Raises an ArgumentError for fewer than two
    scenarios, or if nothing can be compared.
    """
    cells = style.good_cells(results)
    report = results if isinstance(results, style.ReportData) else style.ReportData(cells)
    reference, scores = report.reference, report.scores
    scenarios = len({cell.scenario for cell in cells})
    looks = style.looks(cells)
    # Scores such as plasticity are made of single-task references, too.
    finished = [cell for cell in style.all_cells(results) if cell.status == "ok"]
    frame = overall_frame(without_extra_points(finished), reference, scores)
    frame.loc[frame["scenarios"] != scenarios, "difference"] = math.nan
    if scenarios < 2 or frame["difference"].isna().all():
        raise ArgumentError("a summary needs two scenarios that a method shares with the reference")
    scores = [s for s in scores if frame.loc[frame["score"] == s, "difference"].notna().any()]
    compared = {*frame.loc[frame["difference"].notna(), "method"], reference}
    height = 1.1 + 0.24 * len(looks)
    columns = 1 + bool(frame["mean_rank"].notna().any())  # without common seeds there are no ranks
    figure, grid = style.panels(columns * len(scores), width=4.2, height=height, columns=columns)
    for axes, score in zip(grid[::columns], scores, strict=True):
        _differences(axes, frame[frame["score"] == score].to_dict("records"), looks)
        axes.set_title(f"{SCORE[score].label} − {reference}", fontsize="medium")
    for axes, score in zip(grid[1::2] if columns == 2 else (), scores, strict=False):
        _ranks(axes, frame[frame["score"] == score].to_dict("records"), looks)
        axes.set_title(f"mean rank in {SCORE[score].label}", fontsize="medium")
    others = [name for name in looks if name not in compared]
    lack = f"lack some of them, or seeds in common with {reference}"
    missing = f" (without {', '.join(others)}, which {lack})" if others else ""
    ranks = (
        "Right: mean ranks, 1 for the best; methods whose ranks differ by less than the bar at the "
        "bottom (Nemenyi, 5 %) do not differ significantly."
    )
    return style.captioned(
        figure,
        f"Over {scenarios} scenarios{missing}{'. Left' if columns == 2 else ''}: mean difference "
        f"from {reference}, with the same weight for every scenario; thick lines are 95 % "
        "intervals for the mean of these scenarios, thin ones, from five scenarios on, for others "
        "like them (cut at arrows). " + (ranks if columns == 2 else NO_RANKS),
    )


def _differences(axes: Axes, rows: list[dict], looks: dict[str, style.Look]) -> None:  # type: ignore[type-arg]
    rows = [row for row in rows if not math.isnan(row["difference"])]
    rows.sort(key=lambda row: row["difference"])
    labels = style.short_labels(looks)
    for position, row in enumerate(rows):
        color, mark, scale, _ = looks[row["method"]]
        for width, low, high in ((0.8, "low_anywhere", "high_anywhere"), (2.4, "low", "high")):
            if not math.isnan(row[low]):
                axes.plot([row[low], row[high]], [position] * 2, "-", lw=width, color=color)
        axes.plot([row["difference"]], [position], mark, ms=6 * scale, color=color, mec="white")
    spans = [abs(row[name]) for row in rows for name in ("difference", "low", "high")]
    widest = max((span for span in spans if not math.isnan(span)), default=0.0)
    if widest:  # intervals for other scenarios may be far wider, and are cut
        end = 1.6 * widest
        axes.set_xlim(-end, end)
        for position, row in enumerate(rows):
            color = looks[row["method"]].color
            for name, sign, mark in (("low_anywhere", -1, "<"), ("high_anywhere", 1, ">")):
                if sign * row[name] > end:
                    axes.plot([sign * end], [position], mark, ms=4, color=color, clip_on=False)
    axes.axvline(0.0, lw=0.8, color=style.GREY, zorder=0)
    style.name_rows(axes, [labels[row["method"]] for row in rows])


def _ranks(axes: Axes, rows: list[dict], looks: dict[str, style.Look]) -> None:  # type: ignore[type-arg]
    rows = [row for row in rows if not math.isnan(row["mean_rank"])]
    rows.sort(key=lambda row: -row["mean_rank"])
    labels = style.short_labels(looks)
    for position, row in enumerate(rows):
        color, mark, scale, _ = looks[row["method"]]
        axes.plot([row["mean_rank"]], [position], mark, ms=6 * scale, color=color, mec="white")
    style.name_rows(axes, [labels[row["method"]] for row in rows], below=1.6)
    axes.set_xlim(0.5, len(rows) + 0.5)
    if rows and not math.isnan(critical := rows[0]["critical_difference"]):
        best = rows[-1]["mean_rank"]
        axes.set_xlim(0.5, max(len(rows) + 0.5, best + critical + 0.1))
        axes.plot([best, best + critical], [-1, -1], "-|", lw=1.6, color=style.BLACK)

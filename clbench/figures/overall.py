"""A run at a glance: differences from the reference and ranks over all scenarios."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from clbench.figures import style
from clbench.results.cell import without_extra_points
from clbench.results.overall import overall_frame
from clbench.results.scores import SCORE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@style.in_report("All scenarios", order=5)
def overall(results: style.Results) -> Figure:
    """Draw mean differences from the reference and mean ranks over scenarios.

    The reference and the scores are those of the report, else vanilla, p_o and p_s. Differences
    are those of methods that have all scenarios. Raises a ValueError for fewer than two scenarios,
    or if nothing can be compared.
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
        raise ValueError("a summary needs two scenarios that a method shares with the reference")
    scores = [s for s in scores if frame.loc[frame["score"] == s, "difference"].notna().any()]
    compared = {*frame.loc[frame["difference"].notna(), "method"], reference}
    height = 1.1 + 0.24 * len(looks)
    figure, grid = style.panels(2 * len(scores), width=4.2, height=height, columns=2)
    for axes, score in zip(grid[::2], scores, strict=True):
        _differences(axes, frame[frame["score"] == score].to_dict("records"), looks)
        axes.set_title(f"{SCORE[score].label} − {reference}", fontsize="medium")
    for axes, score in zip(grid[1::2], scores, strict=True):
        _ranks(axes, frame[frame["score"] == score].to_dict("records"), looks)
        axes.set_title(f"mean rank in {SCORE[score].label}", fontsize="medium")
    others = [name for name in looks if name not in compared]
    missing = f" (without {', '.join(others)}, which lack some of them)" if others else ""
    return style.captioned(
        figure,
        f"Over {scenarios} scenarios{missing}. Left: mean difference from {reference}, with the "
        "same weight for every scenario; thick lines are 95 % intervals for the mean of these "
        "scenarios, thin ones for scenarios like these (cut at arrows). Right: mean ranks, 1 for "
        "the best; methods whose ranks differ by less than the bar at the bottom (Nemenyi, 5 %) do "
        "not differ significantly.",
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
    axes.set_yticks(range(len(rows)), [labels[row["method"]] for row in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.locator_params(axis="x", nbins=style.TICKS)
    axes.grid(axis="x", lw=0.4, alpha=0.6)


def _ranks(axes: Axes, rows: list[dict], looks: dict[str, style.Look]) -> None:  # type: ignore[type-arg]
    rows = [row for row in rows if not math.isnan(row["mean_rank"])]
    rows.sort(key=lambda row: -row["mean_rank"])
    labels = style.short_labels(looks)
    for position, row in enumerate(rows):
        color, mark, scale, _ = looks[row["method"]]
        axes.plot([row["mean_rank"]], [position], mark, ms=6 * scale, color=color, mec="white")
    axes.set_yticks(range(len(rows)), [labels[row["method"]] for row in rows])
    axes.set_ylim(-1.6, len(rows) - 0.4)
    axes.set_xlim(0.5, len(rows) + 0.5)
    if rows and not math.isnan(critical := rows[0]["critical_difference"]):
        best = rows[-1]["mean_rank"]
        axes.set_xlim(0.5, max(len(rows) + 0.5, best + critical + 0.1))
        axes.plot([best, best + critical], [-1, -1], "-|", lw=1.6, color=style.BLACK)
    axes.locator_params(axis="x", nbins=style.TICKS)
    axes.grid(axis="x", lw=0.4, alpha=0.6)

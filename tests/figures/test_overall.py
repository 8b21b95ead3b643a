"""The figure that sums up a run over its scenarios."""

from __future__ import annotations

import pytest
from helpers.handmade import pair

from clbench import figures
from clbench.figures import style
from clbench.results.cell import CellResult


def cells(scores: dict[str, float], *scenarios: str, seed: int = 0) -> list[CellResult]:
    return [
        pair(method, seed, [[score, None], [score, 0.7]], scenario=scenario)
        for method, score in scores.items()
        for scenario in scenarios
    ]


def test_the_summary_compares_with_the_reference_of_the_report() -> None:
    both = cells({"vanilla": 0.3, "ewc": 0.4}, "one", "two")
    for results, reference in ((both, "vanilla"), (style.ReportData(both, {}, "ewc"), "ewc")):
        figure = figures.overall(results)
        assert f"mean difference from {reference}," in figure.get_label()
        assert figure.axes[0].get_title().endswith(f"− {reference}")


def test_the_summary_draws_the_scores_of_the_question() -> None:
    both = cells({"vanilla": 0.3, "ewc": 0.4}, "one", "two")
    figure = figures.overall(style.ReportData(both, scores=("average",)))
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["average − vanilla", "mean rank in average"]


def test_the_summary_leaves_out_methods_that_lack_scenarios() -> None:
    both = cells({"vanilla": 0.4, "ewc": 0.4}, "one", "two")
    some = cells({"lwf": 0.5}, "one")
    figure = figures.overall([*both, *some])
    assert "(without lwf, which lack" in figure.get_label()
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["ewc"]
    with pytest.raises(ValueError, match="two scenarios that a method shares"):
        figures.overall([*both[:2], *some])


def test_without_common_seeds_there_are_no_ranks() -> None:
    both = cells({"vanilla": 0.4, "ewc": 0.5}, "one", "two")
    figure = figures.overall([*both, *cells({"lwf": 0.5}, "one", "two", seed=1)])
    titles = [axes.get_title() for axes in figure.axes]
    assert [title.rsplit(maxsplit=2)[1:] for title in titles] == [["−", "vanilla"]] * 2
    caption = figure.get_label()
    assert "(without lwf, which lack some of them, or seeds in common with vanilla)" in caption
    assert caption.endswith("no seed is common to all methods, so there are no ranks.")

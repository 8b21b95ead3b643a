"""Names of all lengths and scripts in figures."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.handmade import pair

from clbench import figures
from clbench.figures import style

LONG = {kind: [f"{kind}-{'with-a-long-name-' * 5}{v}"[-96:] for v in "ab"] for kind in "smt"}


def test_long_names_are_shortened_and_stay_different() -> None:
    names = ["vanilla", *LONG["m"], "x" * 40 + "1" + "y" * 40, "x" * 40 + "2" + "y" * 40, "名" * 90]
    labels = style.short_labels(names)
    assert list(labels) == names
    assert labels["vanilla"] == "vanilla"
    assert labels[LONG["m"][0]] == "m-with-a-long-…-a-long-name-a"
    assert len(set(labels.values())) == len(names)
    assert max(map(len, labels.values())) <= style.LONGEST_LABEL
    assert len(labels["名" * 90]) <= style.LONGEST_LABEL // 2


@pytest.mark.parametrize("draw", [figures.tradeoff, figures.forgetting, figures.matrices,
                                  figures.curves, figures.costs, figures.retention])  # fmt: skip
def test_no_text_of_a_figure_with_long_names_leaves_it_or_covers_another(draw: Any) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    tasks = LONG["t"] if draw is not figures.retention else [*LONG["t"], LONG["t"][0] + "c"]

    def matrix(seed: int) -> list[list[float | None]]:
        return [
            [0.9 - 0.1 * seed] * (i + 1) + [None] * (len(tasks) - i - 1) for i in range(len(tasks))
        ]

    per_run = draw in (figures.tradeoff, figures.forgetting)
    cells = [
        pair(method, seed, matrix(seed), scenario=scenario, tasks=tasks)
        for scenario in LONG["s"][: 2 if per_run else 1]
        for method in ["vanilla", *LONG["m"]]
        for seed in (0, 1)
    ]
    for i, each in enumerate(cells):
        stages = [
            stage.model_copy(
                update={"curves": {"scores": {t: [[0, 0.5], [4, 0.8]] for t in tasks}}}
            )
            for stage in each.stages
        ]
        cells[i] = each.model_copy(update={"stages": stages})
    figure = draw(cells)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    width, height = canvas.get_width_height()
    titles = []
    for words in figure.findobj(Text):
        if not any(map(str.isalpha, words.get_text())):
            continue
        assert len(words.get_text()) <= style.LONGEST_LABEL + 20
        box = words.get_window_extent()
        assert box.x0 >= -1, words
        assert box.x1 <= width + 1, words
        assert box.y0 >= -1, words
        assert box.y1 <= height + 1, words
        titles += [box] if words in [axes.title for axes in figure.axes] else []
    assert not any(a.overlaps(b) for i, a in enumerate(titles) for b in titles[:i])
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        labels = [words for words in axis.get_ticklabels() if words.get_text()]
        boxes = [words.get_window_extent() for words in labels if not words.get_rotation()]
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i]), labels


def test_a_character_that_no_font_has_gives_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    from clbench.report.drawing import draw

    assert draw(figures.matrices([pair(tasks=["名前", "\ue123"])]), [])
    figures.rate_distributions({"a": [8e-5] * 3}, groups=["a", "b", "c"], flat=1e-300)
    assert not recwarn.list


def test_a_character_takes_an_installed_font_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import font_manager

    style._families.cache_clear()
    entries = font_manager.fontManager.ttflist
    only = [entry for entry in entries if entry.name in ("DejaVu Sans", "STIXGeneral")]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", only)
    assert style._families("aλ") == ["DejaVu Sans"]
    assert style._families("a\u20dd") == ["DejaVu Sans", "STIXGeneral"]
    assert style._families("\ue123") == ["DejaVu Sans"]
    style._families.cache_clear()

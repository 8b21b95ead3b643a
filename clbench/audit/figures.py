"""The pictures of an audit: what changed, and where the model moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clbench.audit.changes import Change
from clbench.audit.mend import BASE, TUNED, Mended
from clbench.audit.outcome import Audit, TaskChange
from clbench.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW = 0.28
"""Height of a row in inches."""


def changes(audit: Audit) -> Figure:
    """Draw the change of each measure with its interval, for every tuned model."""
    looks = style.looks_of([model.name for model in audit.models])
    names = list(
        dict.fromkeys(_label(task) for each in audit.models for task in each.comparison.tasks)
    )
    height = 1.1 + ROW * max(2, len(names)) * (0.6 + 0.4 * len(audit.models))
    figure, (left, right) = style.panels(2, width=4.2, height=height, columns=2)
    places = {name: len(names) - 1 - i for i, name in enumerate(names)}
    for number, model in enumerate(audit.models):
        look = looks[model.name]
        shift = 0.5 * ((number + 0.5) / len(audit.models) - 0.5)
        for task in model.comparison.tasks:
            _draw(left, task.change, places[_label(task)] - shift, look)
        _draw(right, model.comparison.language.change, -shift, look)
    margin = audit.settings["margin"]
    for axes, ticks in ((left, {places[n]: n for n in names}), (right, {0: "language"})):
        axes.axvspan(-margin, margin, color=style.LIGHT, lw=0, alpha=0.6)
        axes.axvline(0, color=style.GREY, lw=0.8)
        axes.set_yticks(list(ticks), list(ticks.values()))
        axes.set_ylim(min(ticks) - 0.6, max(ticks) + 0.6)
    left.set_xlabel("change in accuracy")
    right.set_xlabel("change in nats of loss, sign turned")
    style.legend(figure, looks)
    return style.captioned(
        figure,
        f"Change from {audit.base}, by probes of the features where no part is named; left of 0 is "
        "worse. Intervals have the levels of Holm's procedure over a model's tests. Filled marks: "
        f"a loss or gain is shown. Changes inside the grey band, ±{margin:g}, do not matter.",
    )


def _label(task: TaskChange) -> str:
    return task.task if task.part == "features" else f"{task.task}, {task.part}"


def _draw(axes: Axes, change: Change, place: float, look: style.Look) -> None:
    axes.plot([change.low, change.high], [place, place], color=look.color, lw=1.5)
    is_shown = change.word in ("forgot", "gained")
    axes.plot(
        *(change.difference, place, look.mark),
        ms=6 * look.scale,
        color=look.color,
        mfc=look.color if is_shown else "white",
        mew=1.2,
    )


def layers(audit: Audit) -> Figure:
    """Draw how far each group of layers moved, and what putting it back regains."""
    looks = style.looks_of([model.name for model in audit.models])
    names = [
        layer.name.replace("layer.", "").replace("embeddings", "emb.")
        for layer in audit.models[0].layers
    ]
    back = any(model.put_back for model in audit.models)
    figure, grid = style.panels(3 if back else 2, width=3.6, height=2.8)
    for model in audit.models:
        color, mark, scale, line = looks[model.name]
        series = [[layer.weights for layer in model.layers]]
        series.append([layer.similarity for layer in model.layers])
        if back:
            series.append([each.features for each in model.put_back])
        for axes, values in zip(grid, series, strict=True):
            axes.plot(names, values, marker=mark, ms=4 * scale, ls=line, lw=1.5, color=color)
    texts = ("relative change of weights", "CKA of hidden states", "accuracy regained if restored")
    for axes, text in zip(grid, texts, strict=False):
        axes.set_ylabel(text)
        axes.set_xlabel("layer")
        axes.grid(axis="y", lw=0.4, alpha=0.6)
        axes.tick_params(axis="x", rotation=45 if len(names) > 8 else 0)
    style.legend(figure, looks)
    caption = (
        "Left: distance of the weights of each group of layers from the base model’s, as a share "
        "of their norm. Then: linear CKA of the hidden states behind it with the base model’s at "
        "the same tokens; 1 is equal."
    )
    if back:
        caption += (
            " Right: change of the probes’ mean accuracy if this group alone gets the base "
            "model’s weights back; above 0, restoring it helps."
        )
    return style.captioned(figure, caption)


def mended_front(mended: Mended) -> Figure:
    """Draw what each recipe keeps against what it has learned, with the front and the choice."""
    figure, (axes,) = style.panels(1, width=5.0, height=4.0)
    uniform = [p for p in mended.points if not p.recipe.groups and p.recipe.keep == 1.0]
    groups = [p for p in mended.points if p.recipe.groups]
    trimmed = [p for p in mended.points if not p.recipe.groups and p.recipe.keep < 1.0]
    for points, mark, name, line in (
        (uniform, "o", "one α", "-"),
        (groups, "v", "α by layer group", ""),
        (trimmed, "^", "largest changes alone", ""),
    ):
        color = style.PALETTE["ov^".index(mark)]
        axes.plot(
            [p.learned for p in points],
            [p.kept for p in points],
            *(mark,),
            ls=line or "none",
            lw=0.8,
            ms=5,
            color=color,
            alpha=0.7,
            label=name,
        )
    best = mended.front
    axes.plot(
        [p.learned for p in best], [p.kept for p in best], color=style.GREY, lw=1.0, label="front"
    )
    places = {p.recipe: p for p in mended.points if not p.recipe.groups}
    for name, recipe in (("base", BASE), ("tuned", TUNED)):
        point = places[recipe]
        at = (point.learned, point.kept)
        axes.annotate(name, at, xytext=(5, 5), textcoords="offset points", fontsize="small")
    chosen = next(p for p in mended.points if p.recipe == mended.chosen)
    axes.plot(
        chosen.learned, chosen.kept, "o", ms=12, mfc="none", color=style.BLACK, label="chosen"
    )
    axes.set_xlabel(f"accuracy on {mended.learn}")
    axes.set_ylabel("mean accuracy on the tasks to keep")
    axes.legend(frameon=False, fontsize="small")
    return style.captioned(
        figure,
        "What mixtures of base and tuned weights keep and have learned, on the rows on which the "
        "choice was made.",
    )

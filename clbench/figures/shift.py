"""What a shift did to the rows of a task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from clbench.core.errors import join_names
from clbench.figures import style
from clbench.results.score_tables import Run
from clbench.results.store import Store

PERPLEXITY = 30.0
"""Perplexity of t-SNE (van der Maaten & Hinton 2008, section 2: typically 5 to 50)."""
MOST_BINS = 40


@style.in_report("distribution shift", order=35, per="scenario")
def shift(run: Run | style.ReportData | str | Path, scenario: str | None = None) -> Figure:
    """Draw a distribution shift: its clusters in two dimensions, or its lengths.

    For an embedding shift: t-SNE of the embeddings of a sample of the training rows, coloured by
    cluster and by label (Kenneweg et al. 2022, figure 1). For a length shift: rows by length.
    """
    if isinstance(run, style.ReportData):
        pictures: Mapping[str, Mapping[str, Any]] = run.pictures
    else:
        pictures = Store(Path(run if isinstance(run, str | Path) else run.path)).read_pictures()
    if scenario is None and len(pictures) > 1:
        raise ValueError(f"choose one of the scenarios {join_names(pictures)}")
    name = next(iter(pictures), None) if scenario is None else scenario
    if name is None or name not in pictures:
        which = "no scenario has" if scenario is None else f"scenario {scenario!r} has no"
        raise ValueError(f"{which} data for this figure; only embedding and length shifts save it")
    kinds = {"clusters": _clusters, "lengths": _lengths}
    if (kind := pictures[name].get("kind")) not in kinds:
        raise ValueError(f"{name}: there is no figure for {kind!r}")
    try:
        return kinds[kind](name, pictures[name])
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{name}: the data for this figure are damaged") from error


def _clusters(scenario: str, content: Mapping[str, Any]) -> Figure:
    from sklearn.manifold import TSNE

    points = np.asarray(content["points"], dtype=np.float64)
    perplexity = min(PERPLEXITY, (len(points) - 1) / 3)
    flat = TSNE(2, perplexity=perplexity, init="pca", random_state=0).fit_transform(points)
    figure, grid = style.panels(2, width=4.2, height=3.8)
    groups = {
        "by cluster": [f"cluster-{number}" for number in content["parts"]],
        "by label": _classes(content["labels"]),
    }
    for axes, (title, names) in zip(grid, groups.items(), strict=True):
        labels = style.short_labels(sorted(names))
        for number, name in enumerate(labels):
            axes.plot(
                *flat[np.array(names) == name].T, style.MARKS[number % len(style.MARKS)], ms=3.5,
                alpha=0.75, color=style.PALETTE[number % len(style.PALETTE)], label=labels[name],
            )  # fmt: skip
        axes.set_title(title, fontsize="medium")
        axes.set_xticks([])
        axes.set_yticks([])
        columns = style.legend_columns(4.2, labels.values())
        axes.legend(fontsize="small", frameon=False, loc="upper center", ncols=columns,
                    bbox_to_anchor=(0.5, -0.02))  # fmt: skip
    return style.captioned(
        figure,
        f"{scenario}: t-SNE (perplexity {perplexity:g}) of the embeddings of {len(points)} of "
        f"{content['rows']} training rows of {content['task']}, by cluster and by label. "
        "Neighbouring rows are similar; distances between groups mean little.",
    )


def _lengths(scenario: str, content: Mapping[str, Any]) -> Figure:
    figure, grid = style.panels(2, width=4.2)
    sizes, parts = [], len(content["counts"]["train"])
    how = "at the median length" if parts == 2 else f"into {parts} equal parts by the lengths"
    names = {"train": "training", "validation": "validation"}
    for axes, (split, label) in zip(grid, names.items(), strict=True):
        counts = content["counts"][split]
        top = max(int(length) for rows in counts.values() for length, _ in rows)
        width = -(-(top + 1) // MOST_BINS)  # whole numbers, so that every bin holds as many lengths
        edges = list(range(0, top + 1 + width, width))
        labels = style.short_labels(counts)
        for number, (name, rows) in enumerate(counts.items()):
            lengths, weights = np.asarray(rows).T
            axes.hist(
                lengths, edges, weights=weights, alpha=0.55,
                color=style.PALETTE[number % len(style.PALETTE)],
                label=labels[name], hatch=("", "//")[number % 2], edgecolor="white", lw=0.3,
            )  # fmt: skip
            sizes.append(f"{weights.sum()} {name} {label}")
        axes.set_title(f"{label} rows", fontsize="medium")
        axes.set_xlabel(f"{content['unit']} in a row")
        axes.set_ylabel("rows")
        axes.legend(fontsize="small", frameon=False)
    return style.captioned(
        figure,
        f"{scenario}: rows of {content['task']} by length in {content['unit']}, divided "
        f"{how} of the training rows: {', '.join(sizes)} rows.",
    )


def _classes(labels: Sequence[str | float]) -> list[str]:
    """Return class names as they are; sort numeric targets into three classes of equal size."""
    if all(isinstance(label, str) for label in labels):
        return [str(label) for label in labels]
    values = np.asarray(labels, dtype=np.float64)
    low, high = np.quantile(values, [1 / 3, 2 / 3])
    names = (f"up to {low:.2g}", f"{low:.2g} to {high:.2g}", f"above {high:.2g}")
    return [names[int(value > low) + int(value > high)] for value in values]

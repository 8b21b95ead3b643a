"""What a shift did to the rows of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clbench.figures import style
from clbench.results.store import Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from clbench.api import Run

PERPLEXITY = 30.0
"""Of t-SNE: its usual value (van der Maaten & Hinton 2008, section 2: 5 to 50)."""


def shift(run: Run | str | Path, scenario: str | None = None) -> Figure:
    """Draw a distribution shift: its clusters in two dimensions, or its lengths.

    Of an embedding shift a sample of the training rows by t-SNE of their embeddings, coloured
    by cluster and by label (Kenneweg et al. 2022, figure 1); of a length shift the rows by
    length.

    Parameters
    ----------
    run
        A run or its folder.
    scenario
        Which; may be left out where only one has such a figure.

    Raises
    ------
    ValueError
        If there is none, or several to choose from.
    """
    folder = Path(run) if isinstance(run, (str, Path)) else run.path
    pictures = Store(folder).read_pictures()
    if scenario is None and len(pictures) > 1:
        raise ValueError(f"give one of the scenarios {', '.join(pictures)}")
    name = next(iter(pictures), None) if scenario is None else scenario
    if name is None or name not in pictures:
        what = "no scenario" if scenario is None else f"scenario {scenario!r} is none that"
        raise ValueError(
            f"{what} of {folder} has clusters or lengths to draw; embedding and length shifts "
            "keep them, in runs of this version on"
        )
    return picture(name, pictures[name])


def picture(scenario: str, content: Mapping[str, Any]) -> Figure:
    """The figure of one scenario, from what its shift kept.

    Raises
    ------
    ValueError
        If that is of no known kind.
    """
    kinds = {"clusters": _clusters, "lengths": _lengths}
    if content.get("kind") not in kinds:
        raise ValueError(f"{scenario}: there is no figure for {content.get('kind')!r}")
    return kinds[content["kind"]](scenario, content)


def _clusters(scenario: str, content: Mapping[str, Any]) -> Figure:
    from sklearn.manifold import TSNE

    points = np.asarray(content["points"], dtype=np.float64)
    perplexity = min(PERPLEXITY, (len(points) - 1) / 3)
    flat = TSNE(2, perplexity=perplexity, init="pca", random_state=0).fit_transform(points)
    parts = [f"cluster-{number}" for number in content["parts"]]
    labels = content["labels"]
    figure, grid = style.panels(2, width=4.2, height=3.8)
    for axes, title, of in zip(
        grid, ("by cluster", "by label"), (parts, _in_words(labels)), strict=True
    ):
        for number, name in enumerate(sorted(set(of))):
            chosen = np.array([value == name for value in of])
            axes.plot(
                *flat[chosen].T, style.MARKS[number % len(style.MARKS)], ms=3.5, alpha=0.75,
                color=style.PALETTE[number % len(style.PALETTE)], label=name,
            )  # fmt: skip
        axes.set_title(title, fontsize="medium")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.legend(fontsize="small", frameon=False, loc="upper center", ncols=3,
                    bbox_to_anchor=(0.5, -0.02))  # fmt: skip
    return style.captioned(
        figure,
        f"{scenario}: {len(points)} of {content['rows']} training rows of {content['task']} by "
        f"t-SNE (perplexity {perplexity:g}) of their embeddings, by cluster and by label. "
        "Neighbours are alike; distances between groups mean little.",
    )


def _lengths(scenario: str, content: Mapping[str, Any]) -> Figure:
    figure, grid = style.panels(2, width=4.2)
    counts = content["counts"]
    sizes = []
    for axes, split in zip(grid, ("train", "validation"), strict=True):
        every = np.concatenate([np.asarray(rows)[:, 0] for rows in counts[split].values()])
        top = int(every.max())
        edges = np.linspace(0, top + 1, min(top + 1, 40) + 1)
        for number, (name, rows) in enumerate(counts[split].items()):
            lengths, weights = np.asarray(rows).T
            color = style.PALETTE[number]
            axes.hist(lengths, edges.tolist(), weights=weights, color=color, alpha=0.55, label=name,
                      hatch=("", "//")[number % 2], edgecolor="white", lw=0.3)  # fmt: skip
            sizes.append(f"{weights.sum()} {name} {split}")
        axes.set_title(f"{split} rows", fontsize="medium")
        axes.set_xlabel(f"{content['unit']} in a row")
        axes.set_ylabel("rows")
        axes.legend(fontsize="small", frameon=False)
    return style.captioned(
        figure,
        f"{scenario}: rows of {content['task']} by length in {content['unit']}, after the division "
        f"at the middle of the training rows: {', '.join(sizes)} rows.",
    )


def _in_words(labels: Sequence[str | float]) -> list[str]:
    """Classes as they are; targets in thirds of their range."""
    if all(isinstance(label, str) for label in labels):
        return [str(label) for label in labels]
    values = np.asarray(labels, dtype=np.float64)
    low, high = np.quantile(values, [1 / 3, 2 / 3])
    names = (f"to {low:.2g}", f"to {high:.2g}", f"above {high:.2g}")
    return [names[int(value > low) + int(value > high)] for value in values]

"""Figures of what a run is made of: the shift between its tasks, and learning rates by layer."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from clbench.core.errors import ArgumentError, count, join_names
from clbench.core.options import checks_arguments
from clbench.core.registry import LARGEST
from clbench.figures import style
from clbench.results.score_tables import Run
from clbench.results.store import Store


@checks_arguments
def rate_distributions(
    pairs: Mapping[str, Sequence[float]],
    combined: Sequence[float] | None = None,
    *,
    groups: Sequence[str],
    flat: float | None = None,
    combined_name: str = "combined",
) -> Figure:
    """Draw learning rates over the depth of the model (as in Kenneweg et al. 2022, figure 2).

    Parameters
    ----------
    pairs
        Rates of all groups, by the name of the task pair that they come from.
    combined, combined_name
        Combined rates, drawn as a thick line, and their label.
    groups
        Names of the groups, from the embeddings to the head.
    flat
        The flat rate, drawn as a dashed line.

    Raises
    ------
    ArgumentError
        If the number of rates differs from the number of groups.
    """
    others = [] if combined is None else [(combined_name, combined)]
    for name, rates in [*pairs.items(), *others]:
        if len(rates) != len(groups):
            raise ArgumentError(f"{name} has {len(rates)} rates for {len(groups)} groups")
    figure, (axes,) = style.panels(1, width=6.4, height=3.5)
    axes.set_yscale("log")
    positions = range(len(groups))
    labels = style.short_labels(pairs)
    for number, (name, rates) in enumerate(pairs.items()):
        mark = style.MARKS[number % len(style.MARKS)]
        axes.plot(
            positions,
            rates,
            mark,
            ls="-",
            lw=1,
            ms=4,
            color=style.GREY,
            mfc="white",
            label=labels[name],
        )
    if combined is not None:
        color = style.PALETTE[0]
        axes.plot(positions, combined, "o-", lw=2.5, ms=5, color=color, label=combined_name)
    if flat is not None:
        axes.axhline(flat, ls="--", lw=1.2, color=style.PALETTE[1], label=f"flat rate {flat:g}")
    axes.set_ylabel("learning rate")
    axes.set_xticks(list(positions), list(groups), rotation=40, ha="right")
    axes.grid(axis="y", which="major", lw=0.4, alpha=0.6)
    columns = style.legend_columns(6.4, [*labels.values(), combined_name])
    figure.legend(loc="outside upper center", frameon=False, fontsize="small", ncols=columns)
    return style.captioned(
        figure,
        f"Learning rate of each layer group, from the embeddings to the head (n = {len(pairs)} "
        f"distribution{'' if len(pairs) == 1 else 's'})"
        + ("." if combined is None else f"; thick line: {combined_name}."),
    )


@style.in_report("Learning rates by layer", order=30, name="rates")
def method_rates(results: style.Results) -> Figure:
    """Draw the learning rates of methods with a rate for each layer group, and the flat rate."""
    by_groups: dict[int, dict[str, list[float]]] = {}
    flat_rates = set()
    for cell in style.good_cells(results):
        flat = cell.settings.get("protocol", {}).get("lr", 0.0)
        method = cell.settings.get("method", {})
        own = [method.get("lr") or flat, method.get("lr_multiple", 1.0)]
        for key, units in (("rates", [1.0]), ("multiples", own)):
            values = method.get(key)
            if not isinstance(values, list) or len(values) < 3:
                continue
            # Other methods may use the name of the setting for something else.
            if all(isinstance(v, int | float) and 0 <= v <= LARGEST for v in [*units, *values]):
                unit = math.prod(units)
                rates = by_groups.setdefault(len(values), {})
                rates[cell.baseline] = [unit * value for value in values]
                flat_rates.add(flat)
    if not by_groups:
        raise ArgumentError("no method has layer rates")
    rates = max(by_groups.values(), key=len)
    inner = [f"group {number}" for number in range(1, len(next(iter(rates.values()))) - 1)]
    only_flat = flat_rates.pop() if len(flat_rates) == 1 else None
    figure = rate_distributions(rates, groups=["embeddings", *inner, "head"], flat=only_flat)
    rest = {name: size for size, some in by_groups.items() if some is not rates for name in some}
    names = join_names(f"{name} ({count(size, 'group')})" for name, size in rest.items())
    note = f" Left out, as they have other numbers of groups: {names}." if rest else ""
    return style.captioned(figure, f"{figure.get_label()}{note}")


@checks_arguments
def search_trace(trials: Sequence[Any]) -> Figure:
    """Draw the reward p_o + p_s of each trial, the best so far, and the epochs of each trial.

    Trials are in the order in which they were proposed. Each has a `number` from 1, a `status`
    (running, complete, stopped or failed) and `epochs`, each with its `reward`. Stopped and failed
    ones have no comparable reward; running ones are left out. Raises an ArgumentError
    if no trial is complete.
    """
    ended = [trial for trial in trials if trial.status != "running"]
    complete = [trial for trial in ended if trial.status == "complete"]
    if not complete:
        raise ArgumentError("there is no complete trial to draw")
    color = style.PALETTE[0]
    looks = {
        "complete": (color, "o"),
        "stopped": (style.GREY, "v"),
        "failed": (style.PALETTE[1], "x"),
    }
    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    rewards, epochs = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    numbers = [trial.number for trial in complete]
    values = [trial.epochs[-1].reward for trial in complete]
    rewards.plot(numbers, values, "o", ms=5, color=color, label="complete trial")
    best = [max(values[: i + 1]) for i in range(len(values))]
    steps = [*numbers, ended[-1].number], [*best, best[-1]]
    rewards.step(*steps, where="post", color=style.BLACK, label="best so far")
    rewards.set_ylabel("p_o + p_s")
    for status, (color, mark) in looks.items():
        some = [trial for trial in ended if trial.status == status]
        x, y = [trial.number for trial in some], [len(trial.epochs) for trial in some]
        label = status if some and status != "complete" else None
        epochs.plot(x, y, mark, ls="none", ms=5, color=color, label=label)
    most = max(len(trial.epochs) for trial in complete)
    epochs.set_ylabel(f"epochs of {most}")
    epochs.set_ylim(-0.5, most + 0.7)
    epochs.set_xlabel("trial")
    epochs.xaxis.set_major_locator(MaxNLocator(integer=True))
    epochs.yaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (rewards, epochs):
        axes.grid(axis="y", lw=0.4, alpha=0.6)
        style.plain(axes)
    figure.legend(loc="outside upper center", frameon=False, fontsize="small", ncols=4)
    return style.captioned(
        figure,
        f"Reward p_o + p_s of the complete trials (of n = {len(ended)}), in the order in which "
        "they were proposed, and the best so far. Below: the epochs of each trial.",
    )


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
        raise ArgumentError(f"choose one of the scenarios {join_names(pictures)}")
    name = next(iter(pictures), None) if scenario is None else scenario
    if name is None or name not in pictures:
        which = "no scenario has" if scenario is None else f"scenario {scenario!r} has no"
        raise ArgumentError(
            f"{which} data for this figure: it needs an embedding or length shift, and the folder "
            "that `clbench run` wrote, with scenarios/NAME.picture.json"
        )
    kinds = {"clusters": _clusters, "lengths": _lengths}
    if (kind := pictures[name].get("kind")) not in kinds:
        raise ArgumentError(f"{name}: there is no figure for {kind!r}")
    try:
        return kinds[kind](name, pictures[name])
    except ArgumentError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ArgumentError(f"{name}: the data for this figure are damaged") from error


def _clusters(scenario: str, content: Mapping[str, Any]) -> Figure:
    from sklearn.manifold import TSNE

    points = np.asarray(content["points"], dtype=np.float64)
    if not np.ptp(points, axis=0).any():  # t-SNE would end the process
        raise ArgumentError(f"{scenario}: all embeddings are equal, so there is nothing to draw")
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

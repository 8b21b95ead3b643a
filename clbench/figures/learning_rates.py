"""Learning rates by layer, and how the search for them went."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from clbench.core.errors import count, join_names
from clbench.core.registry import LARGEST
from clbench.figures import style


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
    ValueError
        If the number of rates differs from the number of groups.
    """
    for name, rates in {**pairs, **({combined_name: combined} if combined else {})}.items():
        if len(rates) != len(groups):
            raise ValueError(f"{name} has {len(rates)} rates for {len(groups)} groups")
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
            if isinstance(values, list) and _are_rates([*units, *values]):
                unit = math.prod(units)
                rates = by_groups.setdefault(len(values), {})
                rates[cell.baseline] = [unit * value for value in values]
                flat_rates.add(flat)
    if not by_groups:
        raise ValueError("no method has layer rates")
    rates = max(by_groups.values(), key=len)
    inner = [f"group {number}" for number in range(1, len(next(iter(rates.values()))) - 1)]
    only_flat = flat_rates.pop() if len(flat_rates) == 1 else None
    figure = rate_distributions(rates, groups=["embeddings", *inner, "head"], flat=only_flat)
    rest = {name: size for size, some in by_groups.items() if some is not rates for name in some}
    names = join_names(f"{name} ({count(size, 'group')})" for name, size in rest.items())
    note = f" Left out, as they have other numbers of groups: {names}." if rest else ""
    return style.captioned(figure, f"{figure.get_label()}{note}")


def _are_rates(values: list[Any]) -> bool:
    """Whether a method's setting holds rates; other methods may use its name for something else."""
    numbers = all(isinstance(value, int | float) and 0 <= value <= LARGEST for value in values)
    return numbers and len(values) > 3


def search_trace(trials: Sequence[Any]) -> Figure:
    """Draw the reward p_o + p_s of each trial, the best so far, and the epochs of each trial.

    Trials are in the order in which they were proposed. Each has a `number` from 1, a `status`
    (running, complete, stopped or failed) and `epochs`, each with its `reward`. Stopped and failed
    ones have no comparable reward; running ones are left out. Raises a ValueError if no trial is
    complete.
    """
    ended = [trial for trial in trials if trial.status != "running"]
    complete = [trial for trial in ended if trial.status == "complete"]
    if not complete:
        raise ValueError("there is no complete trial to draw")
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

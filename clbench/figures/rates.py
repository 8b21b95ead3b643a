"""Learning rates by depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from clbench.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMBINED, SINGLE, FLAT = style.PALETTE[0], style.GREY, style.PALETTE[1]


def rate_distributions(
    pairs: Mapping[str, Sequence[float]],
    combined: Sequence[float] | None = None,
    *,
    groups: Sequence[str],
    flat: float | None = None,
    combined_name: str = "combined",
) -> Figure:
    """Draw distributions of rates over the depth (as Kenneweg et al. 2022, figure 2).

    Parameters
    ----------
    pairs
        Rates by the name of what they were found on.
    combined
        What was made of them; drawn thicker.
    groups
        Names of the groups, from the embeddings to the head.
    flat
        The flat rate, as a broken line.
    combined_name
        What to call `combined`.

    Raises
    ------
    ValueError
        If a distribution has another number of rates than there are groups.
    """
    from matplotlib.figure import Figure

    for name, rates in {**pairs, **({combined_name: combined} if combined else {})}.items():
        if len(rates) != len(groups):
            raise ValueError(f"{name} has {len(rates)} rates for {len(groups)} groups")
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    places = range(len(groups))
    for number, (name, rates) in enumerate(pairs.items()):
        mark = style.MARKS[number % len(style.MARKS)]
        axes.plot(places, rates, mark, ls="-", lw=1, ms=4, color=SINGLE, mfc="white", label=name)
    if combined is not None:
        axes.plot(places, combined, "o-", lw=2.5, ms=5, color=COMBINED, label=combined_name)
    if flat is not None:
        axes.axhline(flat, ls="--", lw=1.2, color=FLAT, label=f"flat rate {flat:g}")
    axes.set_yscale("log")
    axes.set_ylabel("learning rate")
    axes.set_xticks(list(places), list(groups), rotation=40, ha="right")
    axes.grid(axis="y", which="major", lw=0.4, alpha=0.6)
    style.plain(axes)
    figure.legend(loc="outside upper center", frameon=False, fontsize="small", ncols=3)
    return style.captioned(
        figure,
        f"Learning rate of each group of layers, from the embeddings to the head (n = {len(pairs)} "
        f"distribution{'' if len(pairs) == 1 else 's'})"
        + ("." if combined is None else f"; thick: {combined_name}."),
    )

"""How a search of learning rates went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from clbench.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from clbench.search import TrialRecord

COMPLETE, FAILED = style.PALETTE[:2]
STOPPED, BEST = style.GREY, style.BLACK


def search_trace(trials: Sequence[TrialRecord]) -> Figure:
    """Draw the reward p_o + p_s of each trial, and the best so far.

    Complete trials stand at their reward. Those that were stopped or failed have none that could
    be compared, so they stand below, at the number of epochs that they got.

    Parameters
    ----------
    trials
        In the order in which their rates were proposed; those that were cut off are left out.

    Raises
    ------
    ValueError
        If none is complete.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    ended = [trial for trial in trials if trial.status != "running"]
    complete = [trial for trial in ended if trial.status == "complete"]
    if not complete:
        raise ValueError("there is no complete trial to draw")
    whole = max(len(trial.epochs) for trial in complete)
    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    rewards, epochs = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    numbers = [trial.number for trial in complete]
    values = [trial.epochs[-1].reward for trial in complete]
    rewards.plot(numbers, values, "o", ms=5, color=COMPLETE, label="complete trial")
    best = [max(values[: i + 1]) for i in range(len(values))]
    steps = [*numbers, ended[-1].number], [*best, best[-1]]
    rewards.step(*steps, where="post", color=BEST, label="best so far")
    rewards.set_ylabel("p_o + p_s")
    for status, color, mark in (
        ("complete", COMPLETE, "o"),
        ("stopped", STOPPED, "v"),
        ("failed", FAILED, "x"),
    ):
        some = [trial for trial in ended if trial.status == status]
        epochs.plot(
            [trial.number for trial in some],
            [len(trial.epochs) for trial in some],
            mark,
            ls="none",
            ms=5,
            color=color,
            label=status if some and status != "complete" else None,
        )
    epochs.set_ylabel(f"epochs of {whole}")
    epochs.set_ylim(-0.5, whole + 0.7)
    epochs.set_xlabel("trial")
    epochs.xaxis.set_major_locator(MaxNLocator(integer=True))
    epochs.yaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (rewards, epochs):
        axes.grid(axis="y", lw=0.4, alpha=0.6)
        style.plain(axes)
    figure.legend(loc="outside upper center", frameon=False, fontsize="small", ncols=4)
    return style.captioned(
        figure,
        f"Reward p_o + p_s of the complete ones of n = {len(ended)} trials, in the order of their "
        "proposals, and the best so far; below, the epochs that each trial got.",
    )

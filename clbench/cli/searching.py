"""What `clbench search` says: before, on the way, and at the end."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from clbench.cli.console import duration, err, out, plural, show_table

if TYPE_CHECKING:
    from clbench.search.outcome import Found
    from clbench.search.record import TrialRecord
    from clbench.search.search import SearchPlan


class Lines:
    """One line a trial, on stderr.

    Parameters
    ----------
    plan
        What is searched.
    """

    def __init__(self, plan: SearchPlan) -> None:
        self._plan = plan
        self._console = err()
        self._pending = self._done = 0
        self._best: float | None = None

    def started(self, trials: int, pending: int, epochs: int) -> None:
        """Say how many trials there are and how many are left."""
        self._pending, self._epochs = pending, epochs
        self._began = time.monotonic()
        before = f", {trials - pending} of before" if pending < trials else ""
        self.note(
            f"{self._plan.run.scenarios[0].name}: {plural(trials, 'trial')}{before}, "
            f"{plural(self._plan.space.groups, 'rate')}, at most {plural(epochs, 'epoch')} each, "
            f"rewarded on {self._plan.split}; results in {self._plan.run.out}"
        )

    def trial_ended(self, trial: TrialRecord) -> None:
        """Say what came of it."""
        self._done += 1
        spent = time.monotonic() - self._began
        left = spent / self._done * (self._pending - self._done)
        end = f"; about {duration(left)} left" if left > 0 else ""
        self.note(
            f"[{self._done}/{self._pending}] trial {trial.number}: {self._told(trial)} "
            f"({duration(trial.seconds)}{end})"
        )

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, soft_wrap=True)

    def _told(self, trial: TrialRecord) -> str:
        if trial.status == "failed":
            return f"failed: {trial.reason}"
        if trial.status == "stopped":
            return f"stopped after {plural(len(trial.epochs), 'epoch')}"
        reward = trial.epochs[-1].reward
        best = self._best is None or reward > self._best
        self._best = reward if best else self._best
        return (
            f"p_o {trial.p_o:.3f}  p_s {trial.p_s:.3f}  p {reward:.3f}"
            f"{'  the best so far' if best else ''}"
        )


def show_search(plan: SearchPlan) -> None:
    """Print what would be searched."""
    from clbench.cli.estimate import from_sizes
    from clbench.search import SearchFolder

    SearchFolder(plan.run.out).check(plan.recipe())
    settings, space = plan.settings, plan.space
    console = out()
    one = from_sizes(plan.run, plan.run.cells)
    estimate = replace(one, seconds=one.seconds * settings.trials)
    stop = "no trial is stopped early"
    if settings.halving is not None:
        first = settings.halving.milestones(2**20)[:3]
        stop = f"asha may stop trials after {', '.join(map(str, first))} … epochs"
    for line in (
        f"{plan.run.scenarios[0].name}: {plural(settings.trials, 'trial')}, {settings.searcher}; "
        f"{stop}",
        f"{plural(space.groups, 'rate')} from {space.lowest:g} to {space.highest:g}: "
        f"{', '.join(space.names)}",
        f"First trial: {space.found.flat:g} for all",
        f"Reward: p_o + p_s on {plan.split}",
        f"Results in {plan.run.out}",
        f"Estimate: {estimate}, one trial after another; early stopping saves about half.",
    ):
        console.print(line, soft_wrap=True)


def show_found(found: Found, plan: SearchPlan, suite: str) -> None:
    """Print the rates, and what to do with them.

    Parameters
    ----------
    found, plan
        What was found, and searched.
    suite
        As the user called it, with the options that a run of it should have too.
    """
    from rich.table import Table

    from clbench.search.outcome import BEST, MEAN

    console, flat = out(), found.space.found.flat
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("group")
    for title in ("best", "x flat", "mean", "x flat"):
        table.add_column(title, justify="right")
    for name, best, mean in zip(found.space.names, found.best.rates, found.mean, strict=True):
        table.add_row(name, *(f"{value:.3g}" for value in (best, best / flat, mean, mean / flat)))
    show_table(console, table)
    counts, cost = found.counts, found.cost
    words = {"complete": "complete", "stopped": "stopped", "failed": "failed", "running": "cut off"}
    each = ", ".join(f"{counts[key]} {word}" for key, word in words.items() if counts[key])
    console.print(
        f"{plural(cost.trials, 'trial')}: {each}; "
        f"{cost.epochs:g} epochs, {duration(cost.seconds)} of training and scoring",
        soft_wrap=True,
    )
    first = next((t for t in found.trials if t.rates == found.space.flat and t.p_o), None)
    if first is not None:
        console.print(
            f"p on {found.split}: flat rate {first.epochs[-1].reward:.4f}, best trial "
            f"{found.best.epochs[-1].reward:.4f} (trial {found.best.number}); the best of many is "
            "too good by chance, so compare on the reported split",
            soft_wrap=True,
        )
    folder = plan.run.out
    console.print(
        f"Next: clbench run {suite} --scenarios {plan.run.scenarios[0].name} "
        f"--methods vanilla,{folder / BEST},{folder / MEAN}",
        soft_wrap=True,
    )

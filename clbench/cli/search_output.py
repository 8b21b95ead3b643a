"""Output of `clbench search`: the dry run, a line for each trial, and the result."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from clbench.cli.console import duration, err, out, show_table
from clbench.core.errors import count
from clbench.search import SearchListener

if TYPE_CHECKING:
    from clbench.runner.resources import Resources
    from clbench.search import SearchOutcome, SearchPlan, TrialRecord


class TrialLines(SearchListener):
    """Prints one line for each trial on stderr."""

    def __init__(self, plan: SearchPlan) -> None:
        self._plan = plan
        self._console = err()
        self._pending = self._ended = 0
        self._best = -math.inf

    def started(self, trials: int, pending: int, epochs: int) -> None:
        """Print the size of the search and where its results go."""
        self._pending, self._start = pending, time.monotonic()
        finished = f", {trials - pending} already finished" if pending < trials else ""
        self.note(
            f"{self._plan.run.scenarios[0].name}: {count(trials, 'trial')}{finished}, "
            f"{count(self._plan.space.groups, 'rate')}, at most {count(epochs, 'epoch')} each, "
            f"rewarded on {self._plan.split}; results in {self._plan.run.out}"
        )

    def trial_ended(self, trial: TrialRecord) -> None:
        """Print the result of a trial and the remaining time."""
        self._ended += 1
        remaining = (time.monotonic() - self._start) * (self._pending / self._ended - 1.0)
        suffix = f"; about {duration(remaining)} left" if remaining > 0 else ""
        self.note(
            f"[{self._ended}/{self._pending}] trial {trial.number}: {self._result(trial)} "
            f"({duration(trial.seconds)}{suffix})"
        )

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, soft_wrap=True)

    def _result(self, trial: TrialRecord) -> str:
        if trial.status == "failed":
            return f"failed: {trial.reason}"
        if trial.status == "stopped":
            return f"stopped after {count(len(trial.epochs), 'epoch')}"
        reward = trial.epochs[-1].reward
        best = "  best so far" if reward > self._best else ""
        self._best = max(self._best, reward)
        return f"p_o {trial.p_o:.3f}  p_s {trial.p_s:.3f}  p {reward:.3f}{best}"


def show_plan(plan: SearchPlan, resources: Resources) -> None:
    """Print what a search would do."""
    from clbench.cli.estimate import from_sizes
    from clbench.runner.listener import Listener
    from clbench.runner.run_plan import check_inputs
    from clbench.search import SearchFolder

    SearchFolder(plan.run.out).check(plan.recipe())
    check_inputs(plan.run, plan.run.cells, resources, Listener())
    settings, space = plan.settings, plan.space
    trial = from_sizes(plan.run, plan.run.cells)
    estimate = replace(trial, seconds=trial.seconds * settings.trials)
    stop = "no trial is stopped early"
    if settings.scheduler == "asha":
        epochs = [math.ceil(settings.grace * settings.reduction**n) for n in range(3)]
        stop = f"asha may stop trials after {', '.join(map(str, epochs))} … epochs on D_s"
    for line in (
        f"{plan.run.scenarios[0].name}: {count(settings.trials, 'trial')}, {settings.searcher}; "
        f"{stop}",
        f"{count(space.groups, 'rate')} from {space.lowest:g} to {space.highest:g}: "
        f"{', '.join(space.names)}",
        f"First trial: {space.origin.flat:g} for all",
        f"Reward: p_o + p_s on {plan.split}",
        f"Results in {plan.run.out}",
        f"Estimate: {estimate}, one trial after another; early stopping saves about a fifth.",
    ):
        out().print(line, soft_wrap=True)


def show_outcome(outcome: SearchOutcome, plan: SearchPlan, suite: str) -> None:
    """Print the rates, the cost, and the command that runs them on `suite` with its options."""
    from clbench.search.outcome import BEST, MEAN

    space, best, cost = outcome.space, outcome.best, outcome.cost
    columns = {"best": best.rates, "mean": outcome.mean}
    show_rates(space.names, columns, space.origin.flat)
    counts = outcome.counts
    counts["interrupted"] = counts.pop("running", 0)
    numbers = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    lines = [
        f"{count(cost.trials, 'trial')}: {numbers}; {cost.epochs:g} epochs, "
        f"{duration(cost.seconds)} of training and scoring"
    ]
    flat = next((t for t in outcome.trials if t.rates == space.flat and t.p_o), None)
    if flat is not None:
        lines.append(
            f"p on {outcome.split}: flat rate {flat.epochs[-1].reward:.4f}, best trial "
            f"{best.epochs[-1].reward:.4f} (trial {best.number}). The best of many trials is too "
            "good by chance: compare on the reported split"
        )
    folder = plan.run.out
    lines.append(
        f"Next: clbench run {suite} --scenarios {plan.run.scenarios[0].name} "
        f"--methods vanilla,{folder / BEST},{folder / MEAN}"
    )
    for line in lines:
        out().print(line, soft_wrap=True)


def show_rates(groups: Sequence[str], columns: dict[str, Sequence[float]], flat: float) -> None:
    """Print learning rates by group, each column also as multiples of the flat rate."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("group")
    cells: list[Sequence[str]] = [groups]
    for title, rates in columns.items():
        table.add_column(title, justify="right", overflow="fold")
        table.add_column("x flat", justify="right")
        cells += [[f"{rate:.3g}" for rate in rates], [f"{rate / flat:.3g}" for rate in rates]]
    for row in zip(*cells, strict=True):
        table.add_row(*row)
    show_table(out(), table)

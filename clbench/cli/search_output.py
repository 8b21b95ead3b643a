"""Output of `clbench search`, `tune` and `combine`: dry runs, trials and results."""

from __future__ import annotations

import math
import shlex
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.table import Table

from clbench.cli.console import duration, err, out, show_table
from clbench.cli.estimate import from_finished, from_sizes
from clbench.cli.progress import Lines
from clbench.core.errors import count
from clbench.runner.run_state import Listener
from clbench.search import SearchFolder, SearchListener
from clbench.search.experiment import BEST, MEAN
from clbench.search.trials import FAILED
from clbench.suite.baselines import LR_MULTIPLES, Range
from clbench.suite.read import read_suite

if TYPE_CHECKING:
    from clbench.runner.resources import Resources
    from clbench.runner.run_state import RunState
    from clbench.search import SearchOutcome, SearchPlan, TrialRecord
    from clbench.search.plan import TunePlan
    from clbench.search.study import Study
    from clbench.suite.options import RunOptions

CHANCE = "The best of many trials is too good by chance: compare on the reported split"


class TrialLines(SearchListener):
    """Prints one line for each trial on stderr."""

    def __init__(self, plan: SearchPlan) -> None:
        self._plan, self._best = plan, -math.inf
        self._lines = Lines(plan.run.suite.name, plan.run.out, err())

    def started(self, trials: int, pending: int, epochs: int) -> None:
        """Print the size of the search and where its results go."""
        self._lines.pending, self._lines.start = pending, self._lines.clock()
        finished = f", {trials - pending} already finished" if pending < trials else ""
        self.note(
            f"{self._plan.name}: {count(trials, 'trial')}{finished}, "
            f"{count(self._plan.space.groups, 'rate')}, at most {count(epochs, 'epoch')} each, "
            f"rewarded on {self._plan.split}; results in {self._plan.run.out}"
        )

    def trial_ended(self, trial: TrialRecord) -> None:
        """Print the result of a trial and the remaining time."""
        if trial.status == "failed":
            result = f"failed: {trial.reason}"
        elif trial.status == "stopped":
            result = f"stopped after {count(len(trial.epochs), 'epoch')}"
        else:
            reward = trial.epochs[-1].reward
            result = f"p_o {trial.p_o:.3f}  p_s {trial.p_s:.3f}  p {reward:.3f}"
            result += "  best so far" if reward > self._best else ""
            self._best = max(self._best, reward)
        self._lines.item_finished(f"trial {trial.number}: {result}", trial.seconds)

    def note(self, text: str) -> None:
        """Print a line."""
        self._lines.note(text)


def show_plan(plan: SearchPlan, resources: Resources) -> None:
    """Print what a search would do."""
    from clbench.runner.run_plan import check_inputs

    SearchFolder(plan.run.out).check(plan.recipe())
    check_inputs(plan.run, plan.run.cells, resources, Listener())
    settings, space = plan.settings, plan.space
    trial = from_sizes(plan.run, plan.run.cells)
    estimate = replace(trial, seconds=trial.seconds * settings.trials)
    stop = "no trial is stopped early"
    if settings.scheduler == "asha":
        epochs = [math.ceil(settings.grace * settings.reduction**n) for n in range(3)]
        stop = f"asha may stop trials after {', '.join(map(str, epochs))} … epochs on D_s"
    show_lines(
        f"{plan.name}: {count(settings.trials, 'trial')}, {settings.searcher}; {stop}",
        f"{count(space.groups, 'rate')} from {space.lowest:g} to {space.highest:g}: "
        f"{', '.join(space.names)}",
        f"First trial: {space.origin.flat:g} for all",
        f"Reward: p_o + p_s on {plan.split}",
        f"Results in {plan.run.out}",
        f"Estimate: {estimate}, one trial after another; early stopping saves about a fifth.",
    )


def show_outcome(outcome: SearchOutcome, plan: SearchPlan, suite: str, options: RunOptions) -> None:
    """Print the rates, the cost, and the command that runs them on `suite` with its options."""
    space, best, cost = outcome.space, outcome.best, outcome.cost
    show_rates(space.names, {"best": best.rates, "mean": outcome.mean}, space.origin.flat)
    counts = outcome.counts
    counts["interrupted"] = counts.pop("running", 0)
    numbers = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    show_lines(
        f"{count(cost.trials, 'trial')}: {numbers}; {cost.epochs:g} epochs, "
        f"{duration(cost.seconds)} of training and scoring"
    )
    flat = next((t for t in outcome.trials if t.rates == space.flat and t.p_o), None)
    if flat is not None:
        show_lines(
            f"p on {outcome.split}: flat rate {flat.epochs[-1].reward:.4f}, best trial "
            f"{best.epochs[-1].reward:.4f} (trial {best.number}). {CHANCE}"
        )
    methods = ["vanilla", *(str(plan.run.out / file) for file in (BEST, MEAN))]
    show_next(suite, replace(options, scenarios=[plan.name], methods=methods))


def show_sweeps(plan: TunePlan, studies: Sequence[Study], state: RunState) -> None:
    """Print the sweep of each method, the number of cells and an estimate of their time.

    `state` is that of the first trials.
    """
    rows = []
    for study in studies:
        labels = [(study.baseline.name, str(study.most))]
        for setting, axis in study.sweep.items() or [("", [])]:
            if isinstance(axis, Range):
                text = f"{axis.low:g} to {axis.high:g} ({axis.scale})"
            else:
                text = ", ".join(map(str, axis))
            rows.append([*(labels.pop() if labels else ("", "")), setting, text])
    titles = ("method", "trials", "setting", "values")
    show_columns(titles, rows, left={*titles} - {"trials"})
    finished = sum(cell.status == "ok" for study in studies for cell in study.cells)
    trials = {study.baseline.name: study.most for study in studies}
    # Other rates than the first trial's share no stages with it.
    cells = [
        replace(cell, seed=cell.seed + number % len(LR_MULTIPLES))
        for cell in plan.first.cells
        for number in range(trials[cell.baseline.name])
    ]
    estimate = from_finished(cells, state.present) or from_sizes(state.plan, cells)
    show_lines(
        f"{count(len(cells), 'cell')} in {plan.out}, {finished} of them finished.",
        f"Estimate for all: {estimate}.",
    )


def show_studies(plan: TunePlan, studies: Sequence[Study]) -> None:
    """Print the best trial of each method beside its first, and the cost of all."""
    rows = []
    for study in studies:
        keeps_rows = any(cell.keeps_rows for cell in study.all_cells)
        row = [study.baseline.name + " *" * keeps_rows, str(len(study.trials))]
        if (best := study.best) is None:
            rows.append([*row, "", "", "", "", "", "all trials failed"])
            continue
        changes = ", ".join(f"{key} {value}" for key, value in best.settings.items())
        before = study.trials[0].score
        row.append("failed" if before == FAILED else f"{before:.3f}")
        values = (best.score, best.p_o, best.p_s)
        row += ["" if math.isnan(value) else f"{value:.3f}" for value in values]
        rows.append([*row, duration(study.cost().seconds), changes or "the baseline's"])
    titles = ("method", "trials", "before", "best", "p_o", "p_s", "time", "settings")
    show_columns(titles, rows, left={"method", "settings"})
    show_lines(
        f"before, best: mean score over tasks, scenarios and seeds on the tuning rows. {CHANCE}."
    )
    most = plan.settings.trials
    if rest := sum(max(0, len(study.proposals) - most) for study in studies):
        show_lines(
            f"{count(rest, 'further trial')} in {plan.out}: not considered, as each method has "
            f"{most} by --trials. Their cost counts."
        )


def show_rates(groups: Sequence[str], columns: dict[str, Sequence[float]], flat: float) -> None:
    """Print learning rates by group, each column also as multiples of the flat rate."""
    titles, cells = ["group"], [list(groups)]
    for title, rates in columns.items():
        titles += [title, "x flat"]
        cells += [[f"{rate:.3g}" for rate in rates], [f"{rate / flat:.3g}" for rate in rates]]
    show_columns(titles, zip(*cells, strict=True), left={"group"})


def show_columns(
    titles: Sequence[str], rows: Iterable[Sequence[str]], left: Container[str]
) -> None:
    """Print a table whose columns are right-aligned, except those in `left`."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, justify="left" if title in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    show_table(out(), table)


def show_lines(*lines: str) -> None:
    """Print unwrapped lines."""
    for line in lines:
        out().print(line, soft_wrap=True)


def show_next(suite: str, options: RunOptions) -> None:
    """Print the command that runs a result on `suite` with the same options."""
    show_lines(f"Next: {shlex.join(options.command(read_suite(suite)))}")

"""Run a search of learning rates for a pair of tasks: its trials, and what comes out of them."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from clbench.core.errors import SearchError, SettingsError, count, named
from clbench.core.files import locked, write_atomically
from clbench.core.options import checks_arguments
from clbench.core.user_code import own_state
from clbench.runner.resources import Resources, cell_resources, connected
from clbench.search.plan import SearchPlan
from clbench.search.rates import BASE, SearchSpace, combine
from clbench.search.trials import SearchFolder, SearchListener, TrialRecord, cost_of, quiet_ray
from clbench.suite.baselines import Cost

BEST, MEAN = "bertcl.toml", "bertcl-mean.toml"
FEW_ROWS = 100
"""Rows below which the reward is so coarse that the user is warned."""


@dataclass(frozen=True)
class SearchOutcome:
    """The outcome of a search.

    Attributes
    ----------
    trials
        All trials, in the order in which their rates were proposed.
    best
        Complete trial with the highest p_o + p_s, the earlier one if tied: the paper's BERTcL.
    mean
        Mean rates of the complete trials, weighted by b^(−rank) with b = 1.8.
    space, split
        The search space, and a description of the rows that gave the rewards.
    cost
        Cost of all trials, including those without a result.
    """

    trials: tuple[TrialRecord, ...]
    best: TrialRecord
    mean: tuple[float, ...]
    space: SearchSpace
    split: str
    cost: Cost

    @classmethod
    def of(cls, trials: Sequence[TrialRecord], plan: SearchPlan) -> Self:
        """Return the outcome of `trials`, or raise a SearchError if none is complete."""
        complete = [(trial, record) for record in trials if (trial := record.trial())]
        if not complete:
            reasons = [trial.reason for trial in trials if trial.reason]
            raise SearchError(
                f"No trial is complete yet ({len(trials)} started). Run the same command again to "
                "resume, with more time or trials."
                + (f" Reason of the last one: {reasons[-1]}" if reasons else "")
            )
        mean = combine([[trial for trial, _ in complete]]).rates
        _, best = max(complete, key=lambda pair: pair[0].p)
        settings = plan.settings
        cost = cost_of(trials, [settings.seed], on_reported_rows=settings.paper_split)
        return cls(tuple(trials), best, mean, plan.space, plan.split, cost)

    @property
    def counts(self) -> Counter[str]:
        """Number of trials by status."""
        return Counter(trial.status for trial in self.trials)

    def write(self, folder: Path, name: str) -> None:
        """Write the two baseline files and the figures of a search on the pair `name`."""
        from clbench.figures import rate_distributions, search_trace
        from clbench.figures.style import save_png

        number, complete, flat = self.best.number, self.counts["complete"], self.space.origin.flat
        search = f"{len(self.trials)} trials ({complete} complete) of clbench search on {name}"
        reward, p = f"p_o + p_s on {self.split}", self.best.epochs[-1].reward
        best = f"Trial {number}, the best of {search}: {p:.4f} = {reward}."
        mean = f"Geometric mean with weights {BASE:g}^(-rank) of {search}, ranked by {reward}."
        for file, rates, title, source in (
            (BEST, self.best.rates, "the best trial", best),
            (MEAN, self.mean, "the mean of the trials, weighted by rank", mean),
        ):
            description = f"Learning rates searched on {name}: {title}."
            text = self.space.origin.baseline_text(
                rates, description, source, "As in the search.", self.cost
            )
            write_atomically(folder / file, text)
        columns = {f"best trial ({number})": self.best.rates}
        figure = rate_distributions(
            columns, self.mean, groups=self.space.names, flat=flat, combined_name="weighted mean"
        )
        write_atomically(folder / "rates.png", partial(save_png, figure))
        write_atomically(folder / "trace.png", partial(save_png, search_trace(self.trials)))


@checks_arguments
def search(
    plan: SearchPlan,
    resources: Resources = Resources(),  # noqa: B008 - immutable
    *,
    listener: SearchListener | None = None,
) -> SearchOutcome:
    """Run or resume a search, and write its baseline files and figures.

    Parameters
    ----------
    plan
        From `make_search`.
    resources
        Where trials run, and how many at a time.
    listener
        Receives progress.

    Raises
    ------
    ClbenchError
        A SearchError if no trial is complete or the first ones all fail; another one if the folder
        is in use or holds another search, or Ray cannot be reached.
    """
    folder = SearchFolder(plan.run.out)
    folder.check(plan.recipe())
    with locked(folder.path, marker=folder.file), own_state():
        past = folder.read()
        pending = plan.settings.trials - sum(trial.status != "running" for trial in past)
        try:
            if pending > 0:
                _search(plan, resources, listener or SearchListener(), folder, past, pending)
        finally:
            # Also write the outcome of an interrupted search.
            with suppress(SearchError):
                outcome = SearchOutcome.of(folder.read(), plan)
                outcome.write(folder.path, plan.name)
    return SearchOutcome.of(folder.read(), plan)


def _search(
    plan: SearchPlan,
    resources: Resources,
    listener: SearchListener,
    folder: SearchFolder,
    past: list[TrialRecord],
    pending: int,
) -> None:
    from clbench.runner.prepare import ScenarioPreparer
    from clbench.runner.run_plan import versions

    run, settings = plan.run, plan.settings
    device = resources.device_here(run.device)
    scenario = ScenarioPreparer.of(run, device).prepare(run.scenarios[0], settings.seed)
    if columns := scenario.scenario.extra_columns:
        raise SettingsError(
            f"{named('scenario', plan.name)}: {columns[0].name} is scored besides the tasks, and "
            "the reward is p_o + p_s of two tasks. Choose another scenario."
        )
    lengths = [run.protocol.stage_length(task.name, len(task.rows)) for task in scenario.train]
    first, second = (-(-steps // epoch_steps) for steps, epoch_steps in lengths)

    def write(trial: TrialRecord) -> None:
        folder.write(trial)
        if trial.status != "running":
            listener.trial_ended(trial)

    with connected(resources) as ray, quiet_ray():
        from clbench.search import ray_tune

        cell = cell_resources(ray, resources, run.device)
        facts = {
            "suite": run.suite.name,
            "scenario": plan.name,
            "tasks": list(run.scenarios[0].task_names),
            "model": run.protocol.model,
            "split": plan.split,
            "groups": plan.space.names,
            "versions": versions(),
        }
        folder.begin(plan.recipe(), facts)
        listener.started(settings.trials, pending, first + second)
        for data in scenario.scored:
            if (rows := len(data.rows)) < FEW_ROWS:
                listener.note(
                    f"{data.name}: rewards come from {rows} rows, so they move in steps of "
                    f"{1 / rows:.3f} and the best of many is mostly luck. Raise {named('limit')}."
                )
        if settings.scheduler == "asha" and settings.grace >= second:
            epochs = count(second, "epoch")
            listener.note(
                f"{named('grace', settings.grace)}: no trial of {epochs} on D_s stops early."
            )
        setup = ray_tune.TrialSetup.of(plan, scenario, cell.threads)
        workers = resources.workers or (1 if resources.address is None else None)
        recorder = ray_tune.TrialRecorder(
            settings, plan.space, (first, second), past, write, workers
        )
        ray_tune.run_trials(ray_tune.run_trial, setup, pending, recorder, cell)
    if recorder.all_failed:
        raise SearchError(
            f"the first {len(recorder.failures)} trials failed, so the search has ended. Reason of "
            f"the last one: {recorder.failures[-1]}"
        )

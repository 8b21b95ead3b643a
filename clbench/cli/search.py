"""`clbench search`, `combine` and `tune`: look for better settings of methods."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import Annotated

from clbench import api
from clbench import search as searches
from clbench.cli.arguments import Only, Suite, argument, command
from clbench.cli.console import duration, err, note, say, show_rows
from clbench.cli.estimate import from_finished, from_sizes
from clbench.cli.progress import Lines, progress_listener
from clbench.core.errors import DataError, SettingsError, count, display_path, join_names, named
from clbench.core.files import write_atomically
from clbench.core.options import Option, what
from clbench.models.groups import MOST_LAYERS, Division
from clbench.runner.resources import Resources
from clbench.runner.run_state import Listener, RunState
from clbench.search.experiment import BEST, MEAN
from clbench.search.plan import TunePlan, TuneSettings, make_tuning
from clbench.search.rates import BASE
from clbench.search.study import Study, read_studies, tuning_rounds, write_tuned
from clbench.search.trials import FAILED, common_origin, cost_of, read_source
from clbench.suite.baselines import Range
from clbench.suite.options import RunOptions
from clbench.suite.read import read_suite
from clbench.suite.sweeps import LR_MULTIPLES

CHANCE = "The best of many trials is too good by chance: compare on the reported split"


@command
def search(
    options: Annotated[
        RunOptions,
        Only(
            "plugins model limit epochs precision data device out",
            out="results/SUITE-search/SCENARIO",
        ),
    ],
    settings: searches.SearchSettings,
    resources: Annotated[
        Resources,
        Only("workers address threads gpus", workers="1; on a cluster as many as fit"),
    ],
    suite: Suite,
    scenario: Annotated[
        str | None, what("Scenario of two tasks; needed if the suite has several.", "NAME")
    ] = None,
    dry_run: Annotated[
        bool, Option("Print the plan and the estimated time; train nothing.")
    ] = False,
) -> int:
    """Search learning rates by depth for a pair of tasks (BERTcL).

    A trial trains both tasks; its reward is p_o + p_s on held-out training rows. Writes
    bertcl.toml for clbench run --methods FILE, and the trials for clbench combine. Repeat the
    command to resume the search.

    For example:

      clbench search quick --scenario sentiment-acceptability --trials 30 --workers 2
      clbench search mine.toml --time-limit 2h --dry-run
    """
    plan = searches.make_search(suite, scenario, settings, options)
    if dry_run:
        show_plan(plan, resources)
    else:
        outcome = searches.search(plan, resources, listener=TrialLines(plan))
        show_outcome(outcome, plan, suite, options)
    return 0


class TrialLines(searches.SearchListener):
    """Prints one line for each trial on stderr."""

    def __init__(self, plan: searches.SearchPlan) -> None:
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

    def trial_ended(self, trial: searches.TrialRecord) -> None:
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


def show_plan(plan: searches.SearchPlan, resources: Resources) -> None:
    """Print what a search would do."""
    from clbench.runner.run_plan import check_inputs

    searches.SearchFolder(plan.run.out).check(plan.recipe())
    check_inputs(plan.run, plan.run.cells, resources, Listener())
    settings, space = plan.settings, plan.space
    trial = from_sizes(plan.run, plan.run.cells)
    estimate = changed(trial, seconds=trial.seconds * settings.trials)
    stop = "no trial is stopped early"
    if settings.scheduler == "asha":
        epochs = [math.ceil(settings.grace * settings.reduction**n) for n in range(3)]
        stop = f"asha may stop trials after {', '.join(map(str, epochs))} … epochs on D_s"
    say(
        f"{plan.name}: {count(settings.trials, 'trial')}, {settings.searcher}; {stop}",
        f"{count(space.groups, 'rate')} from {space.lowest:g} to {space.highest:g}: "
        f"{', '.join(space.names)}",
        f"First trial: {space.origin.flat:g} for all",
        f"Reward: p_o + p_s on {plan.split}",
        f"Results in {plan.run.out}",
        f"Estimate: {estimate}, one trial after another; early stopping saves about a fifth.",
    )


def show_outcome(
    outcome: searches.SearchOutcome, plan: searches.SearchPlan, suite: str, options: RunOptions
) -> None:
    """Print the rates, the cost, and the command that runs them on `suite` with its options."""
    space, best, cost = outcome.space, outcome.best, outcome.cost
    show_rates(space.names, {"best": best.rates, "mean": outcome.mean}, space.origin.flat)
    counts = outcome.counts
    counts["interrupted"] = counts.pop("running", 0)
    numbers = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    say(
        f"{count(cost.trials, 'trial')}: {numbers}; {cost.epochs:g} epochs, "
        f"{duration(cost.seconds)} of training and scoring"
    )
    flat = next((t for t in outcome.trials if t.rates == space.flat and t.p_o), None)
    if flat is not None:
        say(
            f"p on {outcome.split}: flat rate {flat.epochs[-1].reward:.4f}, best trial "
            f"{best.epochs[-1].reward:.4f} (trial {best.number}). {CHANCE}"
        )
    methods = ["vanilla", *(str(plan.run.out / file) for file in (BEST, MEAN))]
    show_next(suite, changed(options, scenarios=[plan.name], methods=methods))


def show_next(suite: str, options: RunOptions) -> None:
    """Print the command that runs a result on `suite` with the same options."""
    say(f"Next: {shlex.join(options.command(read_suite(suite)))}")


@command
def combine(
    trials: Annotated[
        list[Path],
        argument("TRIALS", "Search folder or trial log of each pair of tasks."),
    ],
    out: Annotated[Path, Option("Baseline file to write, such as mine.toml.", "FILE")],
    b: Annotated[
        float,
        Option("Weight of each trial over that of the next worse one; 1 weighs all alike.", "B"),
    ] = BASE,
    flat: Annotated[
        float | None,
        Option(
            "Flat rate that the file's multiples refer to.", "RATE", default="the search's, or 2e-5"
        ),
    ] = None,
    depth: Annotated[
        int | None,
        Option("Number of layers of the model.", "N", default="the search's, or 12"),
    ] = None,
    division: Annotated[
        Division | None,
        Option("Layer groups of the trials.", default="the search's, or code"),
    ] = None,
    replace: Annotated[bool, Option("Overwrite existing files.")] = False,
) -> int:
    """Combine the learning rates of several searches into a baseline.

    Takes a weighted geometric mean within each pair and the plain one across pairs. Writes a
    file for clbench run --methods FILE, and a figure as .png beside it.
    """
    # Imports matplotlib, for which --help should not wait.
    from clbench.figures import rate_distributions
    from clbench.figures.style import save_png

    picture = _check_out(out, replace=replace)
    if flat is not None and not 1e-9 <= flat <= 1:
        raise SettingsError(f"--flat {flat:g}: must be between 1e-09 and 1.")
    if depth is not None and not 1 <= depth <= MOST_LAYERS:
        raise SettingsError(f"{named('depth', depth)}: must be from 1 to {MOST_LAYERS}.")
    if len({path.resolve() for path in trials}) < len(trials):
        raise SettingsError("TRIALS: each folder or log may be given only once.")
    sources = [read_source(path) for path in trials]
    origin = common_origin(sources, flat=flat, depth=depth, division=division)
    try:
        combination = searches.combine([source.trials for source in sources], b)
    except ValueError as error:
        raise DataError(f"{', '.join(map(str, trials))}: {error}.") from error

    given = [source.name for source in sources]
    within, pairs = {}, []
    for source, rates in zip(sources, combination.within, strict=True):
        name = source.name if given.count(source.name) == 1 else str(source.path)
        within[name] = rates
        split = f", on {source.split}" if source.split else ""
        pairs.append(f"{name} ({count(len(source.trials), 'trial')}{split})")
    records = [record for source in sources for record in source.records]
    cost = None
    if records:
        seeds = [seed for source in sources for seed in source.seeds]
        is_reported = any(source.on_reported_rows for source in sources)
        cost = cost_of(records, seeds, on_reported_rows=is_reported)
    logs = sum(source.origin is None for source in sources)
    remark = "; the cost does not include the logs'" if 0 < logs < len(sources) else ""
    by_user = "Given to clbench combine, or its default."
    text = origin.baseline_text(
        combination.rates,
        f"Learning rates combined from {count(len(pairs), 'pair')}.",
        f"clbench combine, b = {b:g}: {', '.join(pairs)}{remark}.",
        by_user if logs == len(sources) else "As in the searches.",
        cost,
    )
    labels = origin.group_names(len(combination.rates))
    figure = rate_distributions(within, combination.rates, groups=labels, flat=origin.flat)
    write_atomically(picture, lambda path: save_png(figure, path))
    write_atomically(out, text)
    show_rates(labels, {"combined": combination.rates, **within}, origin.flat)
    return 0


def _check_out(out: Path, *, replace: bool) -> Path:
    """Raise a SettingsError unless a baseline can be written there; return its figure's path."""
    if out.suffix != ".toml":
        raise SettingsError(f"--out {out}: must end in .toml, as a baseline file does.")
    picture = out.with_suffix(".png")
    for path in (out, picture):
        if path.exists() and (path.is_dir() or not replace):
            hint = "" if path.is_dir() else ", or give --replace"
            raise SettingsError(f"{path} already exists. Choose another --out{hint}.")
    return picture


def show_rates(groups: Sequence[str], columns: dict[str, Sequence[float]], flat: float) -> None:
    """Print learning rates by group, each column also as multiples of the flat rate."""
    titles, cells = ["group"], [list(groups)]
    for title, rates in columns.items():
        titles += [title, "x flat"]
        cells += [[f"{rate:.3g}" for rate in rates], [f"{rate / flat:.3g}" for rate in rates]]
    show_rows(zip(*cells, strict=True), titles, right={*titles} - {"group"}, unbroken=0)


@command
def tune(
    options: Annotated[
        RunOptions,
        Only(
            "methods scenarios plugins model corpus limit epochs precision head data device out",
            out="results/SUITE-tune",
        ),
    ],
    settings: TuneSettings,
    resources: Resources,
    suite: Suite,
    dry_run: Annotated[
        bool, Option("Print the sweeps and the size of the tuning; train nothing.")
    ] = False,
) -> int:
    """Tune methods, each with the same number of trials over its own sweep.

    A trial trains all scenarios with all seeds; its score is the mean over tasks after the last
    stage, on held-out training rows. Writes a baseline file for each method, for clbench run
    --methods FILE. Repeat the command to resume.

    For example:

      clbench tune quick --methods vanilla,ewc --trials 8 --dry-run
      clbench tune mine.toml --minutes 60 --workers 2
    """
    plan = make_tuning(suite, settings, options)
    state, studies = plan.state(plan.first), read_studies(plan)
    api.check(state, resources, Lines(plan.first.suite.name, plan.out, err()))
    for study in studies:
        note(*study.unfit())
    if dry_run:
        show_sweeps(plan, studies, state)
        return 0
    most = sum(study.most for study in studies)
    for state in tuning_rounds(plan):
        finished = sum(len(study.trials) for study in read_studies(plan))
        note(f"{plan.first.suite.name}: {finished} of {count(most, 'trial')} finished")
        with progress_listener(state) as listener:
            api.execute(state, resources, listener)
    studies = read_studies(plan)
    paths = write_tuned(plan, studies)
    show_studies(plan, studies)
    if paths:
        files = [display_path(path) for path in paths]
        show_next(suite, changed(options, scenarios=None, methods=files))
    failed = [study.baseline.name for study in studies if study.failures]
    if failed:
        note(
            f"Some trials of {join_names(failed)} failed; clbench report {plan.out} says why. The "
            "same command runs them again."
        )
    return 1 if failed else 0


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
    show_rows(rows, titles, right={"trials"}, unbroken=0)
    finished = sum(cell.status == "ok" for study in studies for cell in study.cells)
    trials = {study.baseline.name: study.most for study in studies}
    # Other rates than the first trial's share no stages with it.
    cells = [
        changed(cell, seed=cell.seed + number % len(LR_MULTIPLES))
        for cell in plan.first.cells
        for number in range(trials[cell.baseline.name])
    ]
    estimate = from_finished(cells, state.present) or from_sizes(state.plan, cells)
    say(
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
    show_rows(rows, titles, right={*titles} - {"method", "settings"}, unbroken=0)
    say(f"before, best: mean score over tasks, scenarios and seeds on the tuning rows. {CHANCE}.")
    most = plan.settings.trials
    if rest := sum(max(0, len(study.proposals) - most) for study in studies):
        say(
            f"{count(rest, 'further trial')} in {plan.out}: not considered, as each method has "
            f"{most} by --trials. Their cost counts."
        )

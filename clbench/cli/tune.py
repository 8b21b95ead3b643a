"""`clbench tune`."""

import math
from collections.abc import Sequence
from dataclasses import replace as changed
from typing import Annotated

from clbench import api
from clbench.cli.arguments import Only, Suite, command
from clbench.cli.console import duration, err, note, say, show_rows
from clbench.cli.progress import Lines, progress_listener
from clbench.cli.run import from_finished, from_sizes
from clbench.core.errors import count, display_path, join_names
from clbench.core.options import Option
from clbench.runner.resources import Resources
from clbench.runner.run_state import RunState
from clbench.search.plan import TunePlan, TuneSettings, make_tuning
from clbench.search.study import Study, read_studies, tuning_rounds, write_tuned
from clbench.search.trials import FAILED
from clbench.suite.baselines import LR_MULTIPLES, Range
from clbench.suite.options import RunOptions


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

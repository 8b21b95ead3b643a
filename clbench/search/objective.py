"""Train one trial in a worker: a pair of tasks, with a report after every epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clbench.search.search_folder import FAILED

if TYPE_CHECKING:
    from clbench.measure.rows import PreparedScenario
    from clbench.models.classifier import TaskModel
    from clbench.models.groups import Division
    from clbench.runner.ray_worker import WorkerSetup
    from clbench.suite.plan import Plan

Report = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class TrialSetup:
    """The data that all trials of a search share; sent to each worker once."""

    plan: Plan  # with the one cell of the pair
    scenario: PreparedScenario
    model: TaskModel  # each worker trains its own copy
    division: Division
    worker: WorkerSetup


def run_trial(rates: list[float], setup: TrialSetup, report: Report) -> None:
    """Train both stages at `rates`.

    After every epoch, `report` is called with ``reward`` (sum of the scores of the tasks so far),
    ``stage``, ``stage_epoch`` and ``scores``. An error becomes a final report with ``failure`` and
    the reward `FAILED`, as the searcher learns nothing from a trial that raises.
    """
    from clbench.core.user_code import explain
    from clbench.methods.layerwise import Layerwise
    from clbench.runner.cell_runner import CellRunner
    from clbench.runner.run_plan import compute_settings, thread_count

    def after_epoch(stage: int, epoch: int, row: list[dict[str, float] | None]) -> None:
        scores = [s for s in setup.scenario.scenario.main_scores(row) if s is not None]
        report({"reward": sum(scores), "stage": stage, "stage_epoch": epoch, "scores": scores})

    try:
        setup.worker.apply()
        with thread_count(setup.worker.threads):
            CellRunner(
                setup.plan.cells[0],
                setup.scenario,
                Layerwise(rates=rates, division=setup.division),
                compute_settings(setup.plan),
                after_epoch=after_epoch,
                model=setup.model,
            ).run()
    except Exception as error:  # not SystemExit, by which Ray Tune ends a trial
        report({"reward": FAILED, "failure": explain(error)})

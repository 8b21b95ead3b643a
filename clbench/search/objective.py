"""One trial: trains the pair at given rates and reports after every epoch; runs in a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clbench.errors import PluginError
from clbench.search.record import FAILED

if TYPE_CHECKING:
    from clbench.evaluation.prepare import PreparedScenario
    from clbench.models.classifier import Classifier
    from clbench.suite.plan import Cell, Plan

REWARD, EPOCH = "reward", "epoch"
"""Keys of a report; what the searcher raises, and what the scheduler counts time in."""

Report = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Pair:
    """What every trial of a search needs, sent to workers once.

    Attributes
    ----------
    plan
        Without cells and plug-ins.
    cell
        Scenario, seed and protocol.
    scene
        Tokenised rows.
    model
        As `clbench.evaluation.cell_runner.start_model` makes it; each trial trains a copy.
    settings
        Of the method ``layerwise``, the rates left out.
    threads
        Processor threads of a trial.
    version
        Of clbench.
    """

    plan: Plan
    cell: Cell
    scene: PreparedScenario
    model: Classifier
    settings: Mapping[str, Any]
    threads: int
    version: str


def try_rates(rates: list[float], pair: Pair, report: Report) -> None:
    """Train the pair's stages at `rates`.

    After every epoch of a stage the `report` is ``reward`` (sum of the scores of the tasks
    trained so far), ``epoch`` (in all), ``stage``, ``stage_epoch``, ``scores`` and ``seconds``.
    What goes wrong is the last report, with a ``failure`` and the reward
    `FAILED`: so the
    searcher learns to keep away, which it does not from trials that it hears nothing of.
    """
    from clbench.evaluation.run_cell import explain

    started = time.perf_counter()
    done = 0

    def tell(stage: int, epoch: int, row: list[dict[str, float] | None]) -> None:
        nonlocal done
        done += 1
        known = pair.scene.scenario.main_scores(row)
        scores = [score for score in known if score is not None]
        report(
            {
                REWARD: sum(scores),
                EPOCH: done,
                "stage": stage,
                "stage_epoch": epoch,
                "scores": scores,
                "seconds": time.perf_counter() - started,
            }
        )

    try:
        _train(rates, pair, tell)
    except Exception as fault:
        report(
            {
                REWARD: FAILED,
                EPOCH: done + 1,
                "failure": explain(fault),
                "seconds": time.perf_counter() - started,
            }
        )


def _train(
    rates: list[float], pair: Pair, tell: Callable[[int, int, list[dict[str, float] | None]], None]
) -> None:
    import clbench
    from clbench.evaluation.cell_runner import CellRunner
    from clbench.evaluation.run_plan import compute_settings, thread_count
    from clbench.methods.layerwise import Layerwise

    if clbench.__version__ != pair.version:
        raise PluginError(
            f"a worker has clbench {clbench.__version__}, the driver {pair.version}. Install "
            "the same version on all nodes."
        )
    with thread_count(pair.threads):
        method = Layerwise(rates=rates, **pair.settings)
        CellRunner(
            pair.cell,
            pair.scene,
            method,
            compute_settings(pair.plan),
            after_epoch=tell,
            model=pair.model,
        ).run()

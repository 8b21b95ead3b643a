"""The search itself, through autogluon.core on Ray Tune."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from clbench.evaluation.resources import CellResources
from clbench.search.halving import Halving
from clbench.search.record import TrialRecord
from clbench.search.recorder import Recorder
from clbench.search.space import Space

Searcher = Literal["bayes", "random"]
SEARCHERS: tuple[Searcher, ...] = ("bayes", "random")
Objective = Callable[[list[float], Any, Callable[[Mapping[str, Any]], None]], None]

QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the search, instead of being noted only
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}


@dataclass(frozen=True)
class Tuning:
    """How to search.

    Attributes
    ----------
    space
        Of the rates.
    epochs
        Of a whole trial, over its stages.
    trials
        To be tried now.
    searcher
        ``bayes`` (tree-structured Parzen estimators, by hyperopt) or ``random``.
    halving
        When hopeless trials are stopped; None lets all come to their end.
    seed
        Of the searcher.
    time_limit
        Seconds since the first trial began, after which all are ended; None is no limit.
    """

    space: Space
    epochs: int
    trials: int
    searcher: Searcher
    halving: Halving | None
    seed: int
    time_limit: float | None


def tune(
    objective: Objective,
    pair: Any,
    tuning: Tuning,
    past: Sequence[TrialRecord],
    recorder: Recorder,
    needs: CellResources,
    workers: int | None,
) -> None:
    """Search, with Ray started or joined already; the recorder keeps what comes of it.

    Parameters
    ----------
    objective, pair
        Called in a worker as ``objective(rates, pair, report)``; `pair` is sent once.
    tuning
        How to search.
    past
        Trials of before, which searcher and scheduler learn of. Those that were cut off are the
        first to be tried again; a search that has none begins with the flat rate.
    recorder
        Told of everything.
    needs
        What a trial takes of a node.
    workers
        Trials at a time; None is as many as there is room for.
    """
    with _quietly():
        from clbench.search.ray_tune import run

        run(objective, pair, tuning, past, recorder, needs, workers)


@contextmanager
def _quietly() -> Iterator[None]:
    """Let Ray Tune and autogluon keep to themselves what the records say."""
    import logging

    with ExitStack() as stack:
        stack.callback(_set_variables, {name: os.environ.get(name) for name in QUIET})
        _set_variables(QUIET)
        for name in ("ray.tune", "ray.air", "ray.train", "autogluon", "hyperopt"):
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield


def _set_variables(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

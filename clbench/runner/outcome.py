"""The outcome of a cell and of its stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from clbench.measure.capabilities import HarnessScores, Measures
from clbench.measure.rows import ProbeRow, Row
from clbench.training.device import Precision
from clbench.training.engine import Trace


@dataclass(frozen=True)
class ComputeSettings:
    """Device and precision, which affect the last digits of a result.

    `identity` describes them, with threads and versions, as plain JSON values.
    """

    device: torch.device
    precision: Precision
    identity: Mapping[str, Any]


@dataclass(frozen=True)
class StageOutcome:
    """The outcome of a stage: trace of the training, row of R, and seconds of scoring it.

    `correct` has the shape of `row` and says which rows of each task are right, packed as in
    `clbench.results.cell`; None where that is not recorded. `probes` is the row of P, empty
    without probes.
    """

    trace: Trace
    row: Row
    eval_seconds: float
    cached: bool
    correct: list[str | None]
    probes: ProbeRow
    capabilities: Measures


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell.

    `before` is the row of R before training, for extra columns; `probes_before` that of P.
    `capabilities_before` are those of the base model, `harness` the scores of the LM Evaluation
    Harness after the last stage.
    """

    stages: list[StageOutcome]
    notes: list[str]
    before: Row | None
    probes_before: ProbeRow
    capabilities_before: Measures
    harness: HarnessScores

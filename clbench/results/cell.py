"""What one cell leaves behind: the JSON file under `cells/` as a typed model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator

SCHEMA_VERSION = 1
"""Raised whenever a file of the older form can no longer be read as it stands."""

Number = float | None
Matrix = list[list[Number]]
Metrics = list[list[dict[str, Number] | None]]


def plain(value: Any) -> Any:
    """`value` as JSON can hold it, in new containers.

    NumPy scalars become Python numbers, tuples lists, and what is infinite or not a number
    becomes None: JSON has no word for those, and a reader in another language would stop.
    """
    if isinstance(value, BaseModel):
        return plain(value.model_dump(mode="json"))
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist") and not isinstance(value, bool | int | float | str):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, data: Any, info: ValidationInfo) -> Any:
        if info.mode == "json":
            return data  # cannot hold anything else
        return plain(data) if isinstance(data, Mapping) else data


class StageRecord(_Record):
    """Training on one task of a cell.

    Attributes
    ----------
    task
        Name of the task, or of the part of it, such as ``glue/sst2[short]``.
    rows, steps, epochs
        Training rows, optimizer steps, passes over the rows.
    examples, tokens
        Rows and real tokens (padding not counted) that went through the model.
    train_seconds, eval_seconds
        Time of training and of scoring along the way and at the end, in seconds.
    memory_mb
        Tensors of a training step at the peak, in megabytes (1e6 bytes), at the largest batches
        of the stage, see `clbench.training.memory.StepMemory`.
    cached
        Whether the stage was taken from the stage cache; the times are then those of the
        run that trained it.
    curves
        ``step``, ``loss`` and ``lr`` as lists of equal length; ``scores`` as a list of
        ``[step, score]`` a task; whatever the method logged besides.
    """

    task: str
    rows: int
    steps: int
    epochs: float
    examples: int
    tokens: int
    train_seconds: float
    eval_seconds: float = 0.0
    memory_mb: Number = None
    cached: bool = False
    curves: dict[str, Any] = {}


class CellResult(_Record):
    """One scenario × baseline × seed, finished or failed.

    Attributes
    ----------
    key
        Name of the file without ``.json``: ``sst2-mrpc--vanilla--seed0``.
    fingerprint
        Digest of everything that decides the scores.
    baseline, method
        Name of the baseline as the suite has it, and of the registered method behind it.
    reference_of
        None for an ordinary cell; j for the single-task reference of task j.
    settings
        What the cell was run with, by section: ``protocol``, ``method``, ``scenario``,
        ``sources``.
    tasks
        Names of the columns of R. In a scenario of the shift ``pretraining`` the first is the
        pretraining, which has a row of R and no stage in `stages`.
    R
        Score matrix: ``R[i][j]`` is the score on task j after stage i (fractions); None
        where it was not scored. `metrics` has the same shape and holds every metric.
    scores
        The scores made of R, by name.
    train_seconds
        Sum over the stages in seconds.
    training_memory_mb
        Tensors of a training step at the peak, in megabytes (1e6 bytes), at the largest batches
        of the last stage, where every method acts; None in results of earlier versions.
    peak_memory_mb
        Largest memory of the allocator on CUDA, of the process elsewhere, in megabytes.
    search
        What finding the baseline's settings took before, which no other number here holds:
        ``trials``, ``epochs`` and ``seconds``. Empty where no search is known of.
    keeps_rows
        The method keeps rows of earlier tasks, so it is an upper reference for those that
        may not.
    """

    schema_version: Literal[1] = 1
    key: str
    fingerprint: str
    scenario: str
    shift: str
    baseline: str
    method: str
    model: str
    seed: int
    status: Literal["ok", "failed"]
    reason: str | None = None
    reference_of: int | None = None
    settings: dict[str, Any] = {}
    recipe: dict[str, Any] = {}
    tasks: list[str] = []
    metrics: Metrics = []
    R: Matrix = []
    scores: dict[str, Number] = {}
    stages: list[StageRecord] = []
    train_seconds: float = 0.0
    training_memory_mb: Number = None
    peak_memory_mb: Number = None
    keeps_rows: bool = False
    search: dict[str, Number] = {}
    versions: dict[str, Any] = {}
    host: dict[str, Any] = {}
    scenario_report: dict[str, Any] = {}
    started: str = ""
    finished: str = ""
    notes: list[str] = []

    def to_json(self) -> str:
        """The file's text; never with NaN or Infinity, which are no JSON."""
        return json.dumps(self.model_dump(mode="json"), indent=1, allow_nan=False) + "\n"

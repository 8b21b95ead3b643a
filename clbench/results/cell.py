"""The JSON file of one cell as a typed model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator

SCHEMA_VERSION = 1
"""Version of the file format. Raise it when a change makes older files unreadable."""

Number = float | None
Matrix = list[list[Number]]
Metrics = list[list[dict[str, Number] | None]]


def plain(value: Any) -> Any:
    """Return a copy of `value` in types that JSON can hold.

    NumPy scalars become Python numbers, tuples become lists, NaN and infinity become None.
    """

    def convert(value: Any) -> Any:
        if isinstance(value, BaseModel):
            return value.model_dump(mode="json")
        if isinstance(value, Mapping):
            return dict(value)
        return value.tolist() if hasattr(value, "tolist") else str(value)

    return json.loads(json.dumps(value, default=convert), parse_constant=lambda name: None)


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, data: Any, info: ValidationInfo) -> Any:
        return plain(data) if info.mode != "json" and isinstance(data, Mapping) else data


class StageRecord(_Record):
    """Training on one task of a cell.

    Attributes
    ----------
    task
        Name of the task or of a part of it, such as ``glue/sst2[short]``.
    rows, steps, epochs
        Training rows, optimizer steps, passes over the rows.
    examples, tokens
        Rows and real tokens (without padding) that went through the model.
    train_seconds, eval_seconds
        Time of training, and of scoring during and after it, in seconds.
    memory_mb
        Peak size of a training step's tensors in megabytes (1e6 bytes), at the largest batches of
        the stage, see `clbench.training.memory.StepMemory`.
    cached
        Whether the stage came from the stage cache. Times are then those of the run that
        trained it.
    curves
        ``step``, ``loss`` and ``lr`` as lists of equal length, ``scores`` as a list of
        ``[step, score]`` for each task, and the method's own curves.
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
        Name of the baseline in the suite, and of the registered method behind it.
    reference_of
        None for an ordinary cell; j for the single-task reference of task j.
    settings
        Settings of the cell by section: ``protocol``, ``method``, ``scenario``, ``sources``.
    tasks
        Names of the columns of R. Where the pretraining is the first task, it has a row of R and
        no stage in `stages`.
    R
        Score matrix: ``R[i][j]`` is the score on task j after stage i (fractions); None where it
        was not scored. `metrics` has the same shape and holds all metrics.
    scores
        Scores computed from R, by name, see `clbench.results.scores.SCORES`.
    train_seconds
        Sum over the stages in seconds.
    training_memory_mb
        Peak size of a training step's tensors in megabytes (1e6 bytes), at the largest batches of
        the last stage, where every method acts; None in results of earlier versions.
    peak_memory_mb
        Peak memory in megabytes: of the allocator on CUDA, of the process elsewhere.
    search
        Cost of the search for the baseline's settings, not included in any other field:
        ``trials``, ``epochs`` and ``seconds``. Empty if there was no search.
    keeps_rows
        Whether the method keeps rows of earlier tasks. It is then an upper reference for methods
        that may not.
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
        """Return the text of the file, in strict JSON without NaN and Infinity."""
        return json.dumps(self.model_dump(mode="json"), indent=1, allow_nan=False) + "\n"


def summarizer(
    keep_curves: Callable[[CellResult], bool] = lambda cell: False,
) -> Callable[[CellResult], CellResult]:
    """Return a function that shrinks cells, so that thousands of them fit into memory.

    It drops the recipe, the metrics matrix, the scenario report and, where `keep_curves` returns
    False, the curves. Cells with equal settings, versions or hosts share one copy of them.
    """
    shared: dict[str, Any] = {}

    def share(value: Any) -> Any:
        return shared.setdefault(json.dumps(value, sort_keys=True), value)

    def summarize(cell: CellResult) -> CellResult:
        changes: dict[str, Any] = {"recipe": {}, "metrics": [], "scenario_report": {}}
        changes["settings"] = share({key: share(value) for key, value in cell.settings.items()})
        changes |= {name: share(getattr(cell, name)) for name in ("versions", "host")}
        if not keep_curves(cell):
            changes["stages"] = [stage.model_copy(update={"curves": {}}) for stage in cell.stages]
        return cell.model_copy(update=changes)

    return summarize

"""The JSON file of one cell as a typed model, which decides what a readable cell is."""

import base64
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    WrapValidator,
    field_validator,
    model_validator,
    with_config,
)
from typing_extensions import TypedDict

from clbench.core.errors import count, join_names, printable
from clbench.core.registry import LARGEST, Amount, Count, Seed
from clbench.results.scores import scores_of
from clbench.suite.scores import SCORES, Steps
from clbench.training.protocol import OPEN, Name
from clbench.training.protocol import StageRecord as StageRecord

SCHEMA_VERSION = 1
"""Version of the file format. Raise it when a change makes older files unreadable."""
TOLERANCE = 1e-6
"""Largest difference between a score in a file and the one that R gives."""

NEEDED = {"search": ("trials", "epochs", "seconds"), "relearning": ("rows", "recovered")}
"""What must be in a table of a cell that is not empty, by field."""

Text = Annotated[str, AfterValidator(lru_cache(printable))]
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)] | None
Matrix = list[list[Number]]
Bits = np.typing.NDArray[np.bool_]


def _has_a_bit_for_each_row(text: str) -> str:
    rows, _, bits = text.partition(":")
    if len(bits) % 4 or len(bits) // 4 * 3 - bits.count("=") != -(-int(rows) // 8):
        raise ValueError("must hold a bit for each row")
    return text


PackedRows = Annotated[
    str,
    Field(pattern=r"^[0-9]{1,9}:[A-Za-z0-9+/]*={0,2}$"),
    AfterValidator(_has_a_bit_for_each_row),
]
Correct = list[list[PackedRows | None]]
Metrics = list[list[dict[str, Number] | None]]


def _as_given(value: Any, check: Callable[[Any], Any]) -> Any:
    """Return a value that has passed its check, with its keys in their order."""
    check(value)
    return value


@with_config(OPEN)
class _Protocol(TypedDict, total=False):
    lr: Amount
    head_loss: Text
    capability_rows: Count | None


@with_config(OPEN)
class _Settings(TypedDict, total=False):
    protocol: Annotated[_Protocol, WrapValidator(_as_given)]
    method: dict[str, Any]
    scenario: dict[str, Any]
    sources: dict[str, Any]


@with_config(OPEN)
class _Search(TypedDict, total=False):
    trials: Count
    epochs: Amount
    seconds: Amount
    seeds: list[Count]
    on_reported_rows: bool


@with_config(OPEN)
class _Relearning(TypedDict, total=False):
    rows: Annotated[list[Count], Field(min_length=1)]
    steps: list[Count]
    scores: list[float]
    recovered: bool
    needed: Count


@with_config(OPEN)
class _Part(TypedDict, total=False):
    validation: Count


@with_config(OPEN)
class _ScenarioReport(TypedDict, total=False):
    parts: list[Annotated[_Part, WrapValidator(_as_given)]]


class CellResult(BaseModel):
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
        Names of the tasks of R. Where the pretraining is the first task, it has a row of R and
        no stage in `stages`.
    R
        Score matrix: ``R[i][j]`` is the score on task j after stage i (fractions); None where it
        was not scored. `metrics` has the same shape and holds all metrics.
    correct
        Which rows are right, as texts of `clbench.results.cell.pack_rows`, for each
        classification task after its own stage and after the last one; else None. The shape of R,
        or empty.
    probes
        Score of a linear probe of each task of R before training and after each stage; None
        where there is none. Empty without probes.
    capabilities
        Measures of the language model before training and after each stage, by name, see
        `clbench.measure.capabilities`. Empty where nothing was measured.
    untrained
        The untrained model's score on each task, among the classes that it is trained with. Empty
        where no capabilities were measured, and in results of earlier versions.
    relearning
        Rows and steps on which the final model was trained again on the first task, its scores
        after each, and whether it recovered, see `clbench.measure.relearning`. Empty without.
    lm_eval
        Scores of the LM Evaluation Harness after the last stage, by task and metric.
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
        ``trials``, ``epochs``, ``seconds``, the trials' ``seeds``, and whether they were scored
        ``on_reported_rows``. Empty if there was no search.
    keeps_rows
        Whether the method keeps rows of earlier tasks. It is then an upper reference for methods
        that may not.
    needs_task_id
        Whether the method is told the task of each row at test time, even where tasks share a head.
    control
        Whether the method is a control for other methods; False in results of earlier versions.
    family
        Baseline of which this one is a setting among several, as in a sweep; else empty.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    schema_version: Annotated[int, Field(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)] = SCHEMA_VERSION
    key: str
    fingerprint: str
    scenario: Name
    shift: Name
    baseline: Name
    method: Name
    model: Text
    seed: Seed
    status: Literal["ok", "failed"]
    reason: Text | None = None
    reference_of: Count | None = None
    settings: _Settings = {}
    recipe: dict[str, Any] = {}
    tasks: list[Name] = []
    metrics: Metrics = []
    R: Matrix = []
    correct: Correct = []
    floors: list[Number] = []
    probes: Annotated[Matrix, Field(exclude_if=lambda v: not v)] = []
    capabilities: Annotated[list[dict[str, Number]], Field(exclude_if=lambda v: not v)] = []
    untrained: Annotated[list[Number], Field(exclude_if=lambda v: not v)] = []
    relearning: Annotated[_Relearning, Field(exclude_if=lambda v: not v)] = {}
    lm_eval: Annotated[dict[str, dict[str, Number]], Field(exclude_if=lambda v: not v)] = {}
    scores: dict[str, Number] = {}
    stages: list[StageRecord] = []
    train_seconds: Amount = 0.0
    training_memory_mb: Amount | None = None
    peak_memory_mb: Amount | None = None
    keeps_rows: bool = False
    needs_task_id: bool = False
    control: bool = False
    family: Text = ""
    search: _Search = {}
    versions: dict[str, Any] = {}
    host: dict[str, Any] = {}
    scenario_report: Annotated[_ScenarioReport, WrapValidator(_as_given)] = {}
    started: Text = ""
    finished: Text = ""
    notes: list[Text] = []

    @field_validator(*NEEDED)
    @classmethod
    def _complete(cls, table: Mapping[str, Any], about: ValidationInfo) -> Mapping[str, Any]:
        if table and (missing := {*NEEDED[str(about.field_name)]} - table.keys()):
            raise ValueError(f"lacks {join_names(sorted(missing))}")
        return table

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        rows, stages, tasks = len(self.R), len(self.stages), len(self.tasks)
        expected: Mapping[str, float | None] = {}
        if self.status == "failed":
            fits = not rows and not stages
        elif self.reference_of is None:
            fits = rows == tasks and max(1, rows - 1) <= stages <= rows
            expected = scores_of(self.R)
        else:
            values = [score for row in self.R for score in row if score is not None]
            fits = rows == len(values) == stages == 1 and len(self.R[0]) == tasks
            expected = {"reference": values[0]} if fits else {}
        if not fits:
            size = f"{count(rows, 'row')}, {count(stages, 'stage')}, {count(tasks, 'task')}"
            raise ValueError(f"R, stages and tasks do not fit: {size}")
        shape = [len(row) for row in self.R]
        for name, table, lengths in (
            ("metrics", self.metrics, shape),
            ("correct", self.correct, shape),
            ("probes", self.probes, [tasks] * (stages + 1)),
            ("floors", [self.floors] if self.floors else [], [tasks]),
            ("untrained", [self.untrained] if self.untrained else [], [stages]),
        ):
            if expected and table and [len(row) for row in table] != lengths:
                raise ValueError(f"{name}: must fit R and its stages")
        common = self.scores.keys() & expected.keys()  # files of other versions have other scores
        if expected and not common:
            raise ValueError("scores: must hold what R gives")
        for name in common:
            score, given = expected[name], self.scores[name]
            if abs((score or 0.0) - (given or 0.0)) > TOLERANCE or (score is None) != (
                given is None
            ):
                raise ValueError(f"scores.{name}: is {given}, but R gives {score}")
        return self

    @property
    def is_scored(self) -> bool:
        """Whether it is finished and counts in tables: a single-task reference does not."""
        return self.status == "ok" and self.reference_of is None

    @property
    def is_smoke(self) -> bool:
        """Whether it comes from a smoke run, whose scores are no result."""
        return bool(self.settings.get("protocol", {}).get("smoke"))

    def to_json(self) -> str:
        """Return the text of the file, in strict JSON without NaN and Infinity."""
        return json.dumps(self.model_dump(mode="json"), indent=1, allow_nan=False) + "\n"


def cell_scores(cell: CellResult, **others: Any) -> dict[str, float | None]:
    """Return the scores of a finished cell, those of its file and those added later.

    `others` are what `scores_of` needs from other cells.
    """
    return scores_of(
        cell.R,
        curves=[stage.curves.get("scores", {}) for stage in cell.stages],
        floors=cell.floors,
        metrics=cell.metrics[-1] if cell.metrics else (),
        measures=cell.capabilities,
        probes=cell.probes,
        relearning=cell.relearning,
        file_scores=cell.scores,
        **others,
    )


def score_steps(cell: CellResult) -> dict[str, float]:
    """Return the smallest change of each score by name, such as 1 / rows; empty if unknown."""
    parts = cell.scenario_report.get("parts", [])
    tasks = [1.0 / part["validation"] for part in parts if part.get("validation")]
    # The pretraining, where it is the first task, has no rows.
    tasks = [0.0] * (len(cell.tasks) - len(cell.stages)) + tasks
    if not parts or len(tasks) != len(cell.tasks):
        return {}
    measured = cell.settings.get("protocol", {}).get("capability_rows") or 1
    steps = Steps(tasks, 1.0 / measured)
    return {score.name: score.step(steps) for score in SCORES if score.step}


def steps_by_scenario(cells: Iterable[CellResult]) -> dict[str, dict[str, float]]:
    """Return the smallest change of each score by scenario; see `score_steps`."""
    good = (cell for cell in cells if cell.is_scored)
    return {cell.scenario: score_steps(cell) for cell in good}


def step_of_mean(scenarios: Sequence[str], steps: Mapping[str, float]) -> float:
    """Return the smallest change that a seed's mean over scenarios can show, from those of each."""
    return math.hypot(*(steps[scenario] for scenario in scenarios)) / len(scenarios)


def without_extra_points(cells: Iterable[CellResult]) -> list[CellResult]:
    """Return the cells without those of sweeps, except for the swept baselines themselves.

    If no others are left, all are returned.
    """
    cells = list(cells)
    return [cell for cell in cells if cell.family in ("", cell.baseline)] or cells


def summarizer(
    keep_curves: Callable[[CellResult], bool] = lambda cell: False,
) -> Callable[[CellResult], CellResult]:
    """Return a function that shrinks cells, so that thousands of them fit into memory.

    It drops the recipe, the metrics matrix and, where `keep_curves` returns False, the curves, and
    keeps the scores that these give. Cells with equal settings, versions, hosts or scenario reports
    share one copy of them.
    """
    shared: dict[str, Any] = {}

    def share(value: Any) -> Any:
        return shared.setdefault(json.dumps(value, sort_keys=True), value)

    def summarize(cell: CellResult) -> CellResult:
        changes: dict[str, Any] = {"recipe": {}, "metrics": []}
        if cell.is_scored:
            changes["scores"] = cell_scores(cell)
        changes["settings"] = share({key: share(value) for key, value in cell.settings.items()})
        changes |= {
            name: share(getattr(cell, name)) for name in ("versions", "host", "scenario_report")
        }
        if not keep_curves(cell):
            changes["stages"] = [stage.model_copy(update={"curves": {}}) for stage in cell.stages]
        return cell.model_copy(update=changes)

    return summarize


def pack_rows(correct: Bits) -> str:
    """Return ``N:BITS``: the number of rows, and a bit for each, 1 if it is right, in base64."""
    return f"{len(correct)}:{base64.b64encode(np.packbits(correct).tobytes()).decode('ascii')}"


def unpack_rows(text: str) -> Bits:
    """Return whether each row is right, from the text of `pack_rows`."""
    count, _, bits = text.partition(":")
    packed = np.frombuffer(base64.b64decode(bits), dtype=np.uint8)
    return np.unpackbits(packed, count=int(count)).astype(bool)


def correct_rows(outputs: np.typing.NDArray[Any], labels: np.typing.NDArray[Any]) -> Bits:
    """Return whether the largest logit of each row, the first one if tied, is the label's."""
    correct: Bits = outputs.argmax(axis=1) == labels
    return correct


def correct_after(cell: CellResult, task: int, stage: int = -1) -> Bits | None:
    """Return which rows of a task are right after a stage; None if it was not recorded."""
    text = cell.correct[stage][task] if cell.correct else None
    return None if text is None else unpack_rows(text)

"""The base class of shifts, which generate scenarios, and their registry."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from clbench.core.registry import Configured, Registry
from clbench.tasks.task import IntArray, Rows, Task

if TYPE_CHECKING:
    import torch
    from torch import nn

    from clbench.shifts.split import Split
    from clbench.training.device import Precision


class ShiftContext(Protocol):
    """What a shift may use.

    Attributes
    ----------
    seed
        The protocol's `data_seed`: one for all cells.
    base
        Folder of the suite file, which relative paths in settings are resolved against.
    """

    seed: int
    base: Path

    def task(self, name: str) -> Task:
        """Return the task called `name`, already limited to the protocol's rows."""

    def column(self, name: str, column: str) -> Mapping[str, Mapping[int, str]]:
        """Return the cells of a column of a task by split and `Rows.index`."""

    def lengths(self, rows: Rows) -> IntArray:
        """Return the number of tokens of each row, uncut and without special ones; shape (n,)."""

    def embed(self, rows: Rows) -> npt.NDArray[np.float32]:
        """Return pooled embeddings of the frozen pretrained encoder; shape (n, h)."""

    def held_out_texts(self, count: int) -> list[str]:
        """Return at most `count` texts of the protocol's corpus that no method sees."""


class ColumnScorer(Protocol):
    """Scores a backbone on something that is not a task of the scenario.

    Attributes
    ----------
    part_tokens
        Number of tokens, without padding, that `score` reads with `part`.
    """

    part_tokens: int

    def score(
        self,
        backbone: nn.Module,
        *,
        part: bool = False,
        precision: Precision,
        device: torch.device,
    ) -> dict[str, float]:
        """Return all metrics of the backbone, which is on `device` and has its whole vocabulary.

        With `part`, score on a part of the data only, for the points of curves.
        """

    def describe(self, initial: dict[str, float] | None = None) -> str:
        """Return one line about what is scored and the scores before training."""


@dataclass(frozen=True)
class ColumnSpec:
    """A column of R that is scored, also before training, and never trained on.

    Attributes
    ----------
    name
        Name of the column.
    metric
        The metric that R holds.
    scorer
        Function of a `Protocol`, a device and the settings that returns a `ColumnScorer`; or its
        ``"module:object"``, imported when the scenario is prepared.
    settings
        Keyword arguments of `scorer`.
    """

    name: str
    metric: str
    scorer: Callable[..., ColumnScorer] | str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ScenarioTasks:
    """What a shift returns.

    Attributes
    ----------
    tasks
        In training order. Tasks with an equal `head` share it.
    split
        Division of a task into parts, if there is one.
    numbers
        Plain JSON values for the report, such as mean lengths.
    picture
        Plain JSON values that `clbench.figures.shift` draws; kept once per scenario.
    columns
        Columns of R before those of the tasks.
    notes
        Sentences for the user, such as which rows were left out.
    pretraining
        Deprecated: the same as one of `columns`.
    """

    tasks: tuple[Task, ...]
    split: Split | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    picture: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[ColumnSpec, ...] = ()
    notes: tuple[str, ...] = ()
    pretraining: InitVar[ColumnSpec | None] = None

    def __post_init__(self, pretraining: ColumnSpec | None) -> None:
        if pretraining is not None:
            _deprecate("ScenarioTasks(pretraining=…)", "columns=(pretraining_column(texts),)")
            object.__setattr__(self, "columns", (*self.columns, pretraining))


class Shift(Configured):
    """Base of all shifts; annotated attributes are its settings.

    Attributes
    ----------
    short_name
        Suffix of the default names of scenarios, as in ``sst2-length``; None stands for the
        shift's name, an empty string for no suffix.
    blur
        Share of the training rows of each task that come with its neighbours instead, half with
        the task before and half with the one after. Only for tasks that share a head.
    online
        Whether each row is trained on once: one epoch, whatever the protocol says.

    Examples
    --------
    >>> @clbench.shift("reverse")
    ... class Reverse(clbench.Shift):
    ...     tasks: list[str]
    ...
    ...     def build(self, context):
    ...         return [context.task(name) for name in reversed(self.tasks)]
    """

    kind: ClassVar[str] = "shift"
    short_name: ClassVar[str | None] = None

    # Files hold them only where they are set.
    blur: Annotated[float, Field(ge=0.0, le=0.5, exclude_if=lambda v: not v)] = 0.0
    online: Annotated[bool, Field(exclude_if=lambda v: not v)] = False

    def build(self, context: ShiftContext) -> ScenarioTasks | Sequence[Task]:
        """Return the tasks of the scenario in training order.

        Raises
        ------
        ShiftError
            If the rows do not allow this shift.
        """
        raise NotImplementedError


def _check(name: str, entry: object) -> str | None:
    if not (isinstance(entry, type) and issubclass(entry, Shift)):
        return "a shift must be a subclass of clbench.Shift"
    if entry.build is Shift.build:
        return "it does not define build(self, context)"
    entry.settings_model()
    if "name" not in entry.__dict__:
        entry.name = name
    return None


SHIFTS: Registry[type[Shift]] = Registry("shift", check=_check, group="clbench.shifts")
SHIFTS.add("dataset", "clbench.shifts.dataset:DatasetShift")
SHIFTS.add("pretraining", "clbench.shifts.dataset:Pretraining")
SHIFTS.add("sequence", "clbench.shifts.sequence:Sequence")
SHIFTS.add("class-incremental", "clbench.shifts.class_incremental:ClassIncremental")
SHIFTS.add("domain-incremental", "clbench.shifts.domain_incremental:DomainIncremental")
SHIFTS.add("sentence-length", "clbench.shifts.sentence_length:SentenceLength")
SHIFTS.add("embedding-cluster", "clbench.shifts.embedding_cluster:EmbeddingCluster")

Kind = TypeVar("Kind", bound=type[Shift])


def shift(name: str) -> Callable[[Kind], Kind]:
    """Register a shift: ``@clbench.shift("name")`` over a subclass of `Shift`."""
    return SHIFTS.register(name)


def __getattr__(name: str) -> Any:
    if name != "PretrainingTexts":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from clbench.shifts.dataset import pretraining_column

    _deprecate("clbench.shifts.base.PretrainingTexts", "clbench.shifts.dataset.pretraining_column")
    return pretraining_column


def _deprecate(old: str, new: str) -> None:
    warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=3)

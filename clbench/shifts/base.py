"""What a shift is: a generator of scenarios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from clbench.settings import Configured
from clbench.shifts.split import Split
from clbench.tasks.task import IntArray, Rows, Task


class ShiftContext(Protocol):
    """What a shift may ask for."""

    @property
    def seed(self) -> int:
        """The protocol's `data_seed`: one for all cells."""
        ...

    @property
    def base(self) -> Path:
        """Folder of the suite file; relative paths in settings start there."""
        ...

    def task(self, name: str) -> Task:
        """The task of that name, already limited."""
        ...

    def lengths(self, rows: Rows) -> IntArray:
        """Tokens of each row without cutting, specials excluded, both texts of a pair; (n,)."""
        ...

    def embed(self, rows: Rows) -> npt.NDArray[np.float32]:
        """Pooled embeddings of the frozen pretrained encoder; shape (n, H)."""
        ...

    def held_out_texts(self, count: int) -> list[str]:
        """At most `count` texts of the protocol's corpus that no method sees."""
        ...


@dataclass(frozen=True)
class PretrainingTexts:
    """Texts on which it is scored what a model keeps of its pretraining.

    Attributes
    ----------
    texts
        Running text that nothing is trained on.
    text_length
        Tokens after which a text is cut.
    head_steps
        Steps of fitting a language-model head that the checkpoint lacks.
    """

    texts: tuple[str, ...]
    text_length: int = 128
    head_steps: int = 300


@dataclass(frozen=True)
class ScenarioTasks:
    """What a shift returns.

    Attributes
    ----------
    tasks
        In training order. Tasks with an equal `head` share it.
    split
        How a task was divided, where it was.
    numbers
        Plain JSON values for the report, such as mean lengths.
    picture
        What `clbench.figures.shift` draws, as plain JSON values; kept once a scenario.
    pretraining
        Makes the pretraining the first task of R, scored on these texts and never trained.
    """

    tasks: tuple[Task, ...]
    split: Split | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    picture: Mapping[str, Any] = field(default_factory=dict)
    pretraining: PretrainingTexts | None = None


class Shift(Configured):
    """Base of all shifts; annotated attributes are its settings.

    Attributes
    ----------
    short_name
        Ends the default names of scenarios, as in ``sst2-length``; None is the shift's name,
        and an empty text adds nothing.

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

    def build(self, context: ShiftContext) -> ScenarioTasks | Sequence[Task]:
        """The tasks of the scenario in training order.

        Raises
        ------
        ShiftError
            If the rows do not allow the shift.
        """
        raise NotImplementedError

    def task_names(self) -> tuple[str, ...]:
        """Names of the tasks that `build` will ask for: those in `task` and `tasks`."""
        names = [*getattr(self, "tasks", ())]
        if hasattr(self, "task"):
            names.append(self.task)
        return tuple(dict.fromkeys(names))

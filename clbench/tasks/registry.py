"""The tasks that have a name: GLUE, the synthetic ones, and those of plug-ins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from clbench.registry import Registry
from clbench.tasks.synthetic import SPECS
from clbench.tasks.task import Task


@dataclass(frozen=True)
class TaskSource:
    """Where a loader may look for its rows.

    Attributes
    ----------
    data
        The folder given by ``--data``, or None.
    base
        Folder of the suite file; relative paths in a suite start there.
    """

    data: Path | None
    base: Path


TaskLoader = Callable[[TaskSource], Task]
"""What is registered: a function of a `TaskSource` that returns a `Task`.

A loader that is an object with a method ``identity(source) -> dict`` decides itself what a
result remembers of its rows; of any other loader the source file is digested.
"""

Loader = TypeVar("Loader", bound=TaskLoader)

GLUE_NAMES = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli")
"""The nine tasks of GLUE by the names of the hub repository's configurations."""


def _fault(name: str, entry: object) -> str | None:
    if "[" in name or "]" in name:
        return "a task's name must not hold brackets, which mark the parts of a shift"
    return None if callable(entry) else "a task must be a function of a TaskSource"


TASKS: Registry[TaskLoader] = Registry("task", check=_fault, group="clbench.tasks")

for _name in GLUE_NAMES:
    TASKS.add(f"glue/{_name}", f"clbench.tasks.glue:LOADERS.{_name}")
for _name in SPECS:
    TASKS.add(f"synthetic/{_name}", f"clbench.tasks.synthetic_task:LOADERS.{_name}")


def task(name: str) -> Callable[[Loader], Loader]:
    """Register a task of one's own.

    Examples
    --------
    >>> @task("my/shouting")
    ... def load(source: TaskSource) -> Task:
    ...     train = Rows.of(["HELLO", "hello", "YES", "yes"], None, [1, 0, 1, 0])
    ...     return Task("my/shouting", ("calm", "loud"), ("accuracy",), train, train, "my/shouting")
    """
    return TASKS.register(name)

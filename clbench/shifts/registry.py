"""The shifts that have a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from clbench.registry import Registry

if TYPE_CHECKING:
    from clbench.shifts.base import Shift

Kind = TypeVar("Kind", bound="type[Shift]")


def _fault(name: str, entry: object) -> str | None:
    from clbench.shifts.base import Shift

    if not (isinstance(entry, type) and issubclass(entry, Shift)):
        return "a shift must be a subclass of clbench.Shift"
    if entry.build is Shift.build:
        return "it does not define build(self, context)"
    entry.settings_model()
    if "name" not in entry.__dict__:
        entry.name = name
    return None


SHIFTS: Registry[type[Shift]] = Registry("shift", check=_fault, group="clbench.shifts")
SHIFTS.add("dataset", "clbench.shifts.dataset:DatasetShift")
SHIFTS.add("sentence-length", "clbench.shifts.sentence_length:SentenceLength")
SHIFTS.add("embedding-cluster", "clbench.shifts.embedding_cluster:EmbeddingCluster")
SHIFTS.add("pretraining", "clbench.shifts.pretraining:Pretraining")


def shift(name: str) -> Callable[[Kind], Kind]:
    """Register a shift of one's own: ``@clbench.shift("name")`` over a `Shift` subclass."""
    return SHIFTS.register(name)

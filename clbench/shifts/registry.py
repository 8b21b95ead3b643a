"""The shifts that have a name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from clbench.errors import DataError
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


def shift(name: str) -> Callable[[Kind], Kind]:
    """Register a shift of one's own: ``@clbench.shift("name")`` over a `Shift` subclass."""
    return SHIFTS.register(name)


def shift_identity(name: str, settings: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """What of a shift decides the rows besides its settings and its tasks.

    That is the content of the saved split that it uses again, and the code of a shift that
    does not come with clbench.

    Parameters
    ----------
    name, settings
        As in the suite's scenario.
    base
        Folder of the suite file.

    Raises
    ------
    DataError
        If the saved split cannot be read.
    """
    from clbench.tasks.identity import code_identity

    found: dict[str, Any] = {"name": name}
    entry = SHIFTS.get(name)
    if not entry.__module__.startswith("clbench."):
        found.update(code_identity(entry))
    split = settings.get("split")
    if isinstance(split, str):
        path = base / Path(split).expanduser()
        try:
            content = path.read_bytes()
        except OSError as fault:
            raise DataError(
                f"split {path} cannot be read: {fault.strerror}. Leave `split` out to divide anew."
            ) from fault
        found["split"] = hashlib.blake2b(content, digest_size=16).hexdigest()
    return found

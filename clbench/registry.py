"""One generic registry for methods, shifts, tasks and models.

An entry is an object or the text ``"module:object"``, which is imported on first use, so
that listing names stays fast. Entry points of installed packages are found by group.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from clbench.errors import PluginError, UnknownNameError, did_you_mean

T = TypeVar("T")
D = TypeVar("D")


class Registry(Generic[T]):
    """Names for things of one kind.

    Parameters
    ----------
    kind
        The word for one entry in messages: ``"method"``, ``"shift"``, ``"task"``.
    check
        Called with the name and the loaded entry; returns what is wrong with it or None.
    group
        Entry-point group of installed packages, such as ``"clbench.methods"``.
    """

    def __init__(
        self,
        kind: str,
        *,
        check: Callable[[str, object], str | None] | None = None,
        group: str | None = None,
    ) -> None:
        self.kind = kind
        self._check = check
        self._group = group
        self._entries: dict[str, T | str] = {}
        self._entry_points_read = False

    @property
    def _list(self) -> str:
        """The command that lists the names."""
        return f"clbench list {self.kind}s"

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        self._read_entry_points()
        return name in self._entries

    def names(self) -> list[str]:
        """All names, sorted."""
        self._read_entry_points()
        return sorted(self._entries)

    def add(self, name: str, entry: T | str, *, replace: bool = False) -> None:
        """Register `entry` under `name`.

        Raises
        ------
        PluginError
            If another entry has the name; both are named. The same source location may
            register again (a plug-in file that is loaded twice).
        """
        present = self._entries.get(name)
        if present is not None and not replace and _where(present) != _where(entry):
            raise PluginError(
                f"{self.kind} {name!r} is registered twice: by {_where(present)} and by "
                f"{_where(entry)}. Give one of them another name."
            )
        if not isinstance(entry, str):
            self._verify(name, entry)
        self._entries[name] = entry

    def register(self, name: str) -> Callable[[D], D]:
        """Decorator form of `add`."""

        def decorate(entry: D) -> D:
            self.add(name, entry)  # type: ignore[arg-type]
            return entry

        return decorate

    def get(self, name: str) -> T:
        """The entry called `name`, imported if need be.

        Raises
        ------
        UnknownNameError
            With the nearest names and all names.
        PluginError
            If its module cannot be imported.
        """
        self._read_entry_points()
        if name not in self._entries:
            raise UnknownNameError(
                f"Unknown {self.kind} {name!r}.{did_you_mean(name, self._entries, self._list)}"
            )
        entry = self._entries[name]
        if isinstance(entry, str):
            loaded = load_object(entry, self.kind)
            self._verify(name, loaded)
            self._entries[name] = loaded  # type: ignore[assignment]
            return loaded  # type: ignore[return-value]
        return entry

    def where(self, name: str) -> str:
        """Where the entry called `name` is defined, as ``"module:object"``; imports nothing.

        Raises
        ------
        UnknownNameError
            As `get`.
        """
        self._read_entry_points()
        if name not in self._entries:
            raise UnknownNameError(
                f"Unknown {self.kind} {name!r}.{did_you_mean(name, self._entries, self._list)}"
            )
        return _where(self._entries[name])

    def _verify(self, name: str, entry: object) -> None:
        fault = self._check(name, entry) if self._check else None
        if fault:
            raise PluginError(f"{self.kind} {name!r} ({_where(entry)}): {fault}")

    def _read_entry_points(self) -> None:
        if self._entry_points_read or self._group is None:
            return
        self._entry_points_read = True
        for point in entry_points(group=self._group):
            if point.name in self._entries:
                raise PluginError(
                    f"{self.kind} {point.name!r} is registered twice: by "
                    f"{_where(self._entries[point.name])} and by {point.value}. "
                    "Uninstall one of the two packages."
                )
            self._entries[point.name] = point.value


def load_object(reference: str, kind: str) -> object:
    """Import ``"module:object"``.

    Raises
    ------
    PluginError
        If the text has another form, the module fails to import or lacks the object.
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise PluginError(f"{kind} {reference!r} is not of the form 'module:object'.")
    try:
        loaded: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            loaded = getattr(loaded, part)
    except Exception as fault:
        raise PluginError(
            f"{kind} {reference!r} cannot be imported: {type(fault).__name__}: {fault}"
        ) from fault
    return loaded


def _where(entry: object) -> str:
    if isinstance(entry, str):
        return entry
    name = getattr(entry, "__qualname__", type(entry).__name__)
    return f"{getattr(entry, '__module__', '?')}:{name}"

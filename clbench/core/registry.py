"""One registry for methods, shifts, tasks, models and metrics, and their typed settings.

An entry is an object, or a string ``"module:object"`` that is imported on first use, so that
listing names stays fast. Installed packages add entries through entry points.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from clbench.core import errors

T = TypeVar("T")
D = TypeVar("D")

LARGEST = 1e12
"""Largest score, count, time (s) and size (MB): their sums and squares stay finite."""
Amount = Annotated[float, Field(ge=0.0, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
LONGEST_NAME = 100
NAME_PATTERN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._+]|-(?!-))*")
NAME = f"a text of 1 to {LONGEST_NAME} printable characters"


class Registry(Generic[T]):
    """Entries of one kind by name; iterating gives the names, sorted.

    Parameters
    ----------
    kind
        The word for one entry in messages: ``"method"``, ``"shift"``, ``"task"``.
    check
        Called with the name and the loaded entry; returns what is wrong with it, or None.
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

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        self._read_entry_points()
        return name in self._entries

    def names(self) -> list[str]:
        """Return all names, sorted."""
        self._read_entry_points()
        return sorted(self._entries)

    def add(self, name: str, entry: T | str, *, replace: bool = False) -> None:
        """Register `entry` under `name`.

        Raises a PluginError if the name is taken by an entry from another source location. A
        plug-in file that is loaded again replaces its own entries.
        """
        existing = self._entries.get(name)
        if existing is not None and not replace and _where(existing) != _where(entry):
            raise errors.PluginError(
                f"{self.kind} {name!r} is registered twice: by {_where(existing)} and by "
                f"{_where(entry)}. Rename one, or uninstall its package."
            )
        error = self._check(name, entry) if self._check and not isinstance(entry, str) else None
        if error:
            raise errors.PluginError(f"{self.kind} {name!r} ({_where(entry)}): {error}")
        self._entries[name] = entry

    def register(self, name: str) -> Callable[[D], D]:
        """Return a decorator that registers what it decorates.

        Raises a PluginError if `name` is not what `NAME` says, as where a decorator has no
        parentheses.
        """
        if not is_name(name):
            raise errors.PluginError(
                f"the name of a {self.kind} must be {NAME}, got {errors.format_value(name)}. "
                f"Write @clbench.{self.kind}('name')."
            )

        def decorate(entry: D) -> D:
            self.add(name, entry)  # type: ignore[arg-type]
            return entry

        return decorate

    def get(self, name: str) -> T:
        """Return the entry called `name`; import it on first use.

        Raises an UnknownNameError, which suggests the nearest name, or a PluginError if the entry
        cannot be imported.
        """
        entry = self._entry(name)
        if isinstance(entry, str):
            try:
                loaded: T = resolve_name(entry)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                text = f"{type(error).__name__}: {errors.error_text(error)}"
                raise errors.PluginError(
                    f"{self.kind} {entry!r} cannot be imported: {text}"
                ) from error
            self.add(name, loaded, replace=True)
            return loaded
        return entry

    def where(self, name: str) -> str:
        """Return the ``"module:object"`` of the entry called `name`; errors as in `get`."""
        return _where(self._entry(name))

    def _entry(self, name: str) -> T | str:
        if name not in self:
            hint = errors.did_you_mean(name, self._entries, f"clbench list {self.kind}s")
            raise errors.UnknownNameError(f"Unknown {self.kind} {name!r}.{hint}")
        return self._entries[name]

    def _read_entry_points(self) -> None:
        for point in entry_points(group=self._group) if self._group else ():
            self.add(point.name, point.value)
        self._group = None  # read once, but again after a clash


def check_name(name: str) -> str:
    """Return `name` if it can be part of a cell's key, as in ``a--b--seed0``, else a ValueError."""
    if not NAME_PATTERN.fullmatch(name) or len(name) > LONGEST_NAME:
        raise ValueError(
            f"a name consists of at most {LONGEST_NAME} letters, digits, '.', '_', '+' and single "
            "'-', and starts with a letter or digit"
        )
    return name


def is_name(name: object) -> bool:
    """Whether `name` is what `NAME` says, and so fits into messages and figures."""
    return isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable()


def _where(entry: object) -> str:
    if isinstance(entry, str):
        return entry
    name = getattr(entry, "__qualname__", type(entry).__name__)
    return f"{getattr(entry, '__module__', '?')}:{name}"


class Configured:
    """Base of classes with typed settings: each annotated attribute of a subclass is one.

    Attributes without an annotation are ordinary state.

    Raises
    ------
    SettingsError
        On construction, with all errors: unknown keys (with the nearest known one), wrong types
        and values out of range.
    """

    kind: ClassVar[str] = "settings"
    name: ClassVar[str] = ""
    _model: ClassVar[type[BaseModel] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._model = None

    def __init__(self, **settings: Any) -> None:
        model = self.settings_model()
        try:
            checked = model(**settings)
        except ValidationError as error:
            texts = errors.describe_errors(error, settings, model=model)
            label = self.name or type(self).__name__
            raise errors.SettingsError(f"{self.kind} {label!r}: {'; '.join(texts)}") from error
        for key in model.model_fields:
            setattr(self, key, getattr(checked, key))

    @classmethod
    def settings_model(cls) -> type[BaseModel]:
        """Return the pydantic model of the annotated attributes; built once for each class.

        Raises a SettingsError if an annotation cannot be resolved, such as a misspelt type.
        """
        if cls._model is None:
            fields: dict[str, Any] = {}
            for base in reversed(cls.__mro__):
                fields |= _declared(base)
            cls._model = create_model(
                f"{cls.__name__}Settings",
                __config__=ConfigDict(
                    extra="forbid", arbitrary_types_allowed=True, validate_default=True
                ),
                **fields,
            )
        return cls._model

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain JSON values, defaults included."""
        model = self.settings_model()
        values = {key: getattr(self, key) for key in model.model_fields}
        return model.model_construct(**values).model_dump(mode="json")

    def __repr__(self) -> str:
        inside = ", ".join(f"{key}={value!r}" for key, value in self.settings().items())
        return f"{type(self).__name__}({inside})"


def _declared(base: type) -> dict[str, Any]:
    """Return the settings that one class declares, as fields for `create_model`."""
    if base is Configured or not issubclass(base, Configured):
        return {}
    try:
        annotations = inspect.get_annotations(base)
        hints = get_type_hints(base, include_extras=True) if annotations else {}
    except NameError as error:
        raise errors.SettingsError(
            f"{base.__qualname__}: the type of a setting cannot be resolved: {error}"
        ) from error
    return {
        key: (hints[key], base.__dict__.get(key, ...))
        for key in annotations
        if not key.startswith("_") and ClassVar not in (hints[key], get_origin(hints[key]))
    }

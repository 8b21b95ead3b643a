"""Typed settings for methods and shifts: annotated class attributes, checked on construction.

A subclass of `Configured` declares a setting by annotating an attribute. Everything else
that is assigned to the instance later is plain state.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from clbench.errors import SettingsError, did_you_mean
from clbench.messages import describe_error


class Configured:
    """Base for anything with typed settings.

    Raises
    ------
    SettingsError
        On construction, naming every fault at once: unknown keys (with the nearest known
        one), wrong types and values out of range.
    """

    kind: ClassVar[str] = "settings"
    name: ClassVar[str] = ""
    _model: ClassVar[type[BaseModel] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._model = None

    def __init__(self, **settings: Any) -> None:
        model = self.settings_model()
        label = self.name or type(self).__name__
        unknown = [key for key in settings if key not in model.model_fields]
        faults = [f"unknown setting {k!r}.{did_you_mean(k, model.model_fields)}" for k in unknown]
        known = {key: value for key, value in settings.items() if key not in unknown}
        try:
            checked = model(**known)
        except ValidationError as fault:
            faults += _described(fault, known)
        if faults:
            raise SettingsError(f"{self.kind} {label!r}: {'; '.join(faults)}")
        for key in model.model_fields:
            setattr(self, key, getattr(checked, key))

    @classmethod
    def settings_model(cls) -> type[BaseModel]:
        """The pydantic model behind the annotated attributes (cached a class).

        Raises
        ------
        SettingsError
            If an annotation cannot be resolved, as with a misspelt type.
        """
        if cls.__dict__.get("_model") is None:
            fields: dict[str, Any] = {}
            for base in reversed(cls.__mro__):
                fields.update(_declared(base))
            cls._model = create_model(
                f"{cls.__name__}Settings",
                __config__=ConfigDict(
                    extra="forbid",
                    strict=False,
                    arbitrary_types_allowed=True,
                    validate_default=True,
                ),
                **fields,
            )
        assert cls._model is not None
        return cls._model

    def settings(self) -> dict[str, Any]:
        """The settings as plain JSON values, defaults included."""
        model = self.settings_model()
        values = {key: getattr(self, key) for key in model.model_fields}
        return model.model_construct(**values).model_dump(mode="json")

    def __repr__(self) -> str:
        inside = ", ".join(f"{key}={value!r}" for key, value in self.settings().items())
        return f"{type(self).__name__}({inside})"


def describe_fault(error: Any) -> str:
    """One pydantic fault as ``"key: what is wrong, got value"``."""
    key = ".".join(str(part) for part in error["loc"])
    return f"{key}: {describe_error(error)}" if key else describe_error(error)


def _described(fault: ValidationError, given: Mapping[str, Any]) -> list[str]:
    """Each fault once; where a setting may be of several types, what it fails to be of each."""
    texts: dict[str, list[str]] = {}
    for error in fault.errors():
        texts.setdefault(_key(error["loc"], given), []).append(describe_error(error))
    return [f"{key}: {', or '.join(dict.fromkeys(found))}" for key, found in texts.items()]


def _key(place: Sequence[str | int], given: Mapping[str, Any]) -> str:
    """The path into `given`, without the types of a union that pydantic puts between."""
    first, *others = place
    parts = [str(first)]
    value: Any = given.get(parts[0])
    for part in others:
        try:
            value = value[part]
        except (TypeError, KeyError, IndexError):
            if isinstance(part, str):
                continue
        parts.append(str(part))
    return ".".join(parts)


def _declared(base: type) -> dict[str, Any]:
    if base in (object, Configured) or not issubclass(base, Configured):
        return {}
    try:
        annotations = inspect.get_annotations(base)
        hints = get_type_hints(base, include_extras=True) if annotations else {}
    except NameError as fault:
        raise SettingsError(
            f"{base.__qualname__}: the type of a setting cannot be resolved: {fault}"
        ) from fault
    fields: dict[str, Any] = {}
    for key in annotations:
        hint = hints[key]
        if key.startswith("_") or hint is ClassVar or get_origin(hint) is ClassVar:
            continue
        fields[key] = (hint, base.__dict__.get(key, ...))
    return fields

"""Typed settings for methods and shifts: annotated class attributes, checked on construction."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from clbench.errors import SettingsError
from clbench.messages import describe_errors


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
            texts = describe_errors(error, settings, model=model)
            label = self.name or type(self).__name__
            raise SettingsError(f"{self.kind} {label!r}: {'; '.join(texts)}") from error
        for key in model.model_fields:
            setattr(self, key, getattr(checked, key))

    @classmethod
    def settings_model(cls) -> type[BaseModel]:
        """Return the pydantic model of the annotated attributes; built once for each class.

        Raises
        ------
        SettingsError
            If an annotation cannot be resolved, such as a misspelt type.
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
        raise SettingsError(
            f"{base.__qualname__}: the type of a setting cannot be resolved: {error}"
        ) from error
    return {
        key: (hints[key], base.__dict__.get(key, ...))
        for key in annotations
        if not key.startswith("_") and ClassVar not in (hints[key], get_origin(hints[key]))
    }

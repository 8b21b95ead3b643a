"""Checks of the registration and of the settings; nothing is trained."""

from __future__ import annotations

import inspect
import json
from typing import Any

from clbench.conformance.candidate import Candidate
from clbench.conformance.result import FailedCheckError
from clbench.errors import ClbenchError, SettingsError
from clbench.methods.base import METHODS, Method

WRONG: tuple[Any, ...] = ({"no such": {"value": "here"}}, "no such value", [["no", "such"]], -1e99)
"""At least one of these is no value of any sensible setting."""


def registers(subject: Candidate) -> str:
    """The method can be found, described and told apart."""
    if not issubclass(subject.kind, Method):
        raise FailedCheckError(
            f"{subject.kind.__qualname__} is no subclass of clbench.Method.",
            "Derive the class from clbench.Method.",
        )
    inherited = {inspect.getdoc(base) for base in subject.kind.__mro__[1:]}
    text = inspect.getdoc(subject.kind)
    if not text or text in inherited:
        raise FailedCheckError(
            "the class has no docstring.",
            "Its first line is what lists and readers are told about the method.",
        )
    if not isinstance(subject.kind.keeps_rows, bool):
        raise FailedCheckError(
            f"keeps_rows is {subject.kind.keeps_rows!r}.",
            "Write keeps_rows: ClassVar[bool] = True, or leave it out.",
        )
    if not subject.registered:
        return "a class; suites need it registered by @clbench.method('name')"
    return f"{METHODS.where(subject.baseline.method)}: {text.partition(chr(10))[0]}"


def settings(subject: Candidate) -> str:
    """Settings are typed: right ones are taken, wrong ones refused with a clear line."""
    try:
        made = subject.make()
    except ClbenchError as fault:
        raise FailedCheckError(str(fault), "Mend the settings of the baseline.") from fault
    model = subject.kind.settings_model()
    _refuses(subject, "no_such_setting", 1, "an unknown setting")
    for key in model.model_fields:
        if not any(_refused(subject, key, value) for value in WRONG):
            raise FailedCheckError(
                f"the setting {key!r} takes anything, such as {WRONG[0]!r}.",
                "Annotate it with the type of its values, such as float, and bound it by "
                "typing.Annotated[float, pydantic.Field(gt=0)].",
            )
    try:
        written = json.loads(json.dumps(made.settings()))
        again = subject.kind(**written).settings()
    except (ClbenchError, TypeError, ValueError) as fault:
        raise FailedCheckError(
            f"settings() cannot be written as JSON and read back: {fault}",
            "Use numbers, texts, lists and dictionaries as settings.",
        ) from fault
    if again != made.settings():
        raise FailedCheckError(
            f"settings() changes when it is read back: {made.settings()} becomes {again}.",
            "A setting must not depend on how often the method was made.",
        )
    count = len(model.model_fields)
    return f"{count} typed setting{'' if count == 1 else 's'}" if count else "no settings"


def _refused(subject: Candidate, key: str, value: Any) -> bool:
    """Whether a value is refused, and by the right error."""
    try:
        subject.kind(**{**subject.baseline.settings, key: value})
    except SettingsError as fault:
        if key in str(fault):
            return True
        raise FailedCheckError(
            f"{key} = {value!r} is refused by a line that does not name {key!r}: {fault}",
            "Say which setting is wrong, what is wrong with it, and what to do.",
        ) from fault
    except Exception as fault:
        raise FailedCheckError(
            f"{key} = {value!r} raises {type(fault).__name__}: {fault}",
            "Call super().__init__(**settings) first; it refuses wrong types. Raise "
            "clbench.errors.SettingsError in checks of your own.",
        ) from fault
    return False


def _refuses(subject: Candidate, key: str, value: Any, what: str) -> None:
    if not _refused(subject, key, value):
        raise FailedCheckError(
            f"{what} is taken without a word ({key} = {value!r}).",
            "Hand all settings on to super().__init__(**settings).",
        )

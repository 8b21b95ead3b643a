"""Values and faults in plain words, for messages; pydantic's own are for programmers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ARTICLES = {
    "int": "a whole number",
    "float": "a number",
    "string": "a text in quotes",
    "bool": "true or false",
    "list": "a list in [brackets]",
    "tuple": "a list in [brackets]",
    "set": "a list in [brackets]",
    "frozen": "a list in [brackets]",
    "dict": "a table",
    "mapping": "a table",
    "model": "a table",
    "dataclass": "a table",
    "path": "a path in quotes",
}
"""By the first word of pydantic's type of error: what the value must be."""

BOUNDS = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "string_pattern_mismatch": "must match the pattern {pattern!r}",
    "finite_number": "must be a finite number",
    "int_from_float": "must be a whole number",
    "none_required": "must be left out",
}
"""By pydantic's type of error: what the value must be, with the names of its context."""

SIZES = {
    "too_short": ("at least", "min_length", "item"),
    "too_long": ("at most", "max_length", "item"),
    "string_too_short": ("at least", "min_length", "character"),
    "string_too_long": ("at most", "max_length", "character"),
}


def describe_error(error: Mapping[str, Any]) -> str:
    """What is wrong with a value, of one entry of ``ValidationError.errors()``.

    Returns
    -------
    str
        Such as ``must be at least 2, got 1``, without a full stop.
    """
    kind, context, value = str(error["type"]), error.get("ctx") or {}, error["input"]
    if kind == "missing":
        return "is missing"
    if kind == "json_invalid":
        return "is no whole JSON"
    if kind in SIZES:
        return _size(kind, context, value)
    if kind in BOUNDS:
        return f"{BOUNDS[kind].format(**context)}, got {format_value(value)}"
    stem = kind.partition("_")[0]
    if kind.endswith(("_type", "_parsing")) and stem in ARTICLES:
        return f"must be {ARTICLES[stem]}, got {format_value(value)}"
    if kind in ("value_error", "assertion_error") and "error" in context:
        text = str(context["error"])
    else:
        text = re.sub(r"^[A-Z]\w* should ", "must ", str(error["msg"]))
    text = f"{text[:1].lower()}{text[1:]}".rstrip(".")
    return f"{text}, got {format_value(value)}" if isinstance(value, str | int | float) else text


def format_value(value: Any) -> str:
    """A value as a file would write it, cut where it is long."""
    text = "true" if value is True else "false" if value is False else repr(value)
    if value is None:
        text = "nothing"
    return text if len(text) <= 60 else f"{text[:57]}…"


def describe_type(value: object) -> str:
    """What a cell of a data file is: ``a whole number``, ``a list``, ``a text``."""
    for kind, words in (
        (bool, "a truth value"),
        (int, "a whole number"),
        (float, "a number"),
        (str, "a text"),
        (list, "a list"),
        (dict, "an object"),
        (bytes, "bytes"),
        (type(None), "nothing"),
    ):
        if isinstance(value, kind):
            return words
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def count(number: int, noun: str) -> str:
    """``1 row``, ``2 rows``, ``2 classes``."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{'' if number == 1 else ending}"


def describe_missing(path: Path, kind: str = "file") -> str:
    """Why there is nothing at `path`: ``there is no such file``, or a link that leads nowhere."""
    if path.is_symlink():
        return f"is a link to {path.readlink()}, which is not there"
    return f"there is no such {kind}"


def _size(kind: str, context: Mapping[str, Any], value: Any) -> str:
    bound, key, noun = SIZES[kind]
    size = len(value) if hasattr(value, "__len__") else context.get("actual_length")
    if size == 0 and context[key] == 1:
        return "must not be empty"
    got = "none" if size == 0 else size
    return f"must have {bound} {count(context[key], noun)}, got {got}"

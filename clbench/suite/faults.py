"""Faults of one file, gathered and told at once, each with its place and a remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, Tag, ValidationError

from clbench.errors import SuiteError, did_you_mean
from clbench.messages import describe_error, format_value


def raise_faults(path: Path, faults: Sequence[str]) -> None:
    """Raise all `faults` of a file in one message; do nothing when there are none.

    Raises
    ------
    SuiteError
        ``"my.toml: [protocol] epochs: must be …"``, or with several faults each after its number.
    """
    if not faults:
        return
    if len(faults) == 1:
        raise SuiteError(f"{shown(path)}: {faults[0]}")
    listed = " ".join(f"({n}) {fault}" for n, fault in enumerate(faults, 1))
    raise SuiteError(f"{shown(path)}: {len(faults)} faults: {listed}")


def shown(path: Path) -> str:
    """A path as short as it can be told: from the working directory on where it lies below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def nearest(name: str, known: Iterable[str], see: str = "") -> str:
    """``" Did you mean 'x'?"``, or the known names when none is near; see `did_you_mean`."""
    text = did_you_mean(name, known, see)
    question, _, _ = text.partition(" Available:")
    return question or text


def explain(fault: ValidationError, data: Mapping[str, Any], model: type[BaseModel]) -> list[str]:
    """Each fault of a validation as ``"[table] key: what is wrong and what would be right."``.

    Parameters
    ----------
    fault
        What pydantic found.
    data
        What was validated, to tell keys from the tags that pydantic puts into locations.
    model
        What it was validated against, for the names of its keys.
    """
    told: dict[tuple[str | int, ...], list[str]] = {}
    for error in fault.errors(include_url=False):
        path = _real_path(error["loc"], data, missing=error["type"] == "missing")
        text = _text(error, path, model)
        texts = told.setdefault(path, [])
        if text not in texts:
            texts.append(text)
    lines = []
    for path, texts in told.items():
        place = key_of(path, data)
        lines.append(f"{place}: {_joined(texts)}" if place else _joined(texts))
    return lines


def key_of(path: Sequence[str | int], data: Mapping[str, Any]) -> str:
    """A location as it reads in the file: ``[protocol] epochs``, ``[[scenario]] 2 'x': task``."""
    if not path:
        return ""
    head, rest = path[0], list(path[1:])
    if head == "scenario" and rest and isinstance(rest[0], int):
        scenario = data["scenario"][rest[0]]
        name = scenario.get("name") if isinstance(scenario, dict) else None
        table = f"[[scenario]] {rest[0] + 1}" + (f" {name!r}" if name else "")
        del rest[0]
    elif head in ("task", "baseline") and rest:
        table = f"[{head}.{quoted(str(rest.pop(0)))}]"
    elif isinstance(data.get(str(head)), dict) and rest:
        table = f"[{head}]"
    else:
        table, rest = "", [head, *rest]
    keys = ""
    for part in rest:
        if isinstance(part, int):
            keys += f" item {part + 1}"
        else:
            keys += f".{quoted(part)}" if keys else quoted(part)
    return f"{table} {keys}".strip()


def quoted(key: str) -> str:
    """A key as TOML writes it, in quotes where it must have them."""
    return key if key.replace("-", "").replace("_", "").isalnum() else f'"{key}"'


def _real_path(
    location: tuple[str | int, ...], data: Any, *, missing: bool
) -> tuple[str | int, ...]:
    """The part of a location that exists in `data`; pydantic adds the names of union members."""
    path: list[str | int] = []
    here = data
    for position, part in enumerate(location):
        in_table = isinstance(here, dict) and part in here
        in_list = isinstance(here, list) and isinstance(part, int) and part < len(here)
        if in_table or in_list:
            here = here[part]
        elif not missing or position < len(location) - 1:
            continue
        path.append(part)
    return tuple(path)


def _text(error: Any, path: tuple[str | int, ...], model: type[BaseModel]) -> str:
    kind = error["type"]
    if kind == "extra_forbidden":
        key, kinds = str(path[-1]), _keys(model, path[:-1])
        tag = next((tag for tag in kinds if tag in error["loc"]), None)
        other = next((known for known in kinds if known != tag and key in kinds[known]), None)
        if tag is not None and other is not None:
            return f"belongs to a {other}, and this is a {tag}."
        known = kinds[tag] if tag is not None else [k for keys in kinds.values() for k in keys]
        return f"unknown key.{nearest(key, known)}"
    if kind == "missing":
        return _missing(error["input"], str(path[-1]))
    if path == ("scenario",) and kind == "list_type" and isinstance(error["input"], dict):
        return "must be written [[scenario]], with two pairs of brackets."
    near = _near_literal(error) if kind == "literal_error" else ""
    return f"{describe_error(error)}.{near}"


def _missing(table: Any, key: str) -> str:
    """What to say of a key that is not there, with a key that may have been meant for it."""
    settings = table.get("settings", {}) if isinstance(table, dict) else {}
    if key == "name":
        near = difflib.get_close_matches("tasks", settings, n=1, cutoff=0.6)
        text = f"is missing, and cannot be made of {_given_tasks(settings)}."
    else:
        near = difflib.get_close_matches(key, settings, n=1, cutoff=0.6)
        text = "is missing."
    known = near and near[0] not in ("task", "tasks")
    return (
        f"{text} Is {near[0]!r} meant for {'it' if key != 'name' else 'tasks'}?" if known else text
    )


def _given_tasks(settings: Mapping[str, Any]) -> str:
    """What a scenario without a name has in the place of its tasks, and what belongs there."""
    for key, wanted in (("tasks", "a list of names of tasks"), ("task", "the name of a task")):
        if key in settings:
            return f"{key} = {format_value(settings[key])}, which must be {wanted}"
    return "the scenario's tasks, as it has neither `task` nor `tasks`"


def _near_literal(error: Any) -> str:
    expected = [
        word.strip("'") for word in error["ctx"]["expected"].replace(" or ", ", ").split(", ")
    ]
    near = nearest(str(error["input"]), expected)
    return "" if "Available:" in near else near


def _keys(model: type[BaseModel], path: Sequence[str | int]) -> dict[str, list[str]]:
    """Keys that may stand in the table at `path`, for each kind of table that it can be.

    The kinds go by pydantic's tags; a table of one kind only has an empty one.
    """
    here: Any = model
    for part in path:
        here = here.model_fields[str(part)].annotation if _is_model(here) else get_args(here)[-1]
    return {tag: list(kind.model_fields) for tag, kind in _models(here)}


def _models(annotation: Any) -> list[tuple[str, type[BaseModel]]]:
    """The models in a union with their tags, whatever it is annotated with."""
    if _is_model(annotation):
        return [("", annotation)]
    tag = next((part.tag for part in get_args(annotation) if isinstance(part, Tag)), "")
    inner = [found for part in get_args(annotation) for found in _models(part)]
    return [(own or tag, model) for own, model in inner]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _joined(texts: Sequence[str]) -> str:
    """Alternatives of a union in one sentence, such as ``must be a or b, got 3``."""
    wanted = [text.removeprefix("must be ").partition(", got ")[0] for text in texts]
    if len(texts) > 1 and all(text.startswith("must be ") for text in texts):
        return f"must be {' or '.join(wanted)}, got {texts[0].partition(', got ')[2]}"
    return " ".join(texts)

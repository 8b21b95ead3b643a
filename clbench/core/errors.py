"""The errors a user can cause, and the plain words for values, types and pydantic's errors.

The command line prints each error as one line and exits with 2.
"""

import math
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError


class ClbenchError(Exception):
    """Base of all errors that a user can fix; the text says what is wrong, where, and how."""


class SuiteError(ClbenchError):
    """A suite or baseline file has an unknown key, a wrong type or a value out of range."""


class UnknownNameError(ClbenchError):
    """No method, shift, task, model, suite or scenario has that name."""


class SettingsError(ClbenchError):
    """The settings of a method or shift do not fit its declared fields."""


class ArgumentError(SettingsError, ValueError):
    """An argument of a function in Python is of a wrong type or value."""


class DataError(ClbenchError):
    """A data file or folder is missing, damaged, empty or incomplete."""


class ShiftError(ClbenchError):
    """A shift would leave an empty part, or a part with a single class."""


class ModelError(ClbenchError):
    """A checkpoint is missing, cannot be loaded safely, or has an unsupported architecture."""


class PluginError(ClbenchError):
    """A plug-in cannot be imported, or does not define what it should."""


class RunFolderError(ClbenchError):
    """The folder of a run is in use, holds cells of other settings, or cannot be written."""


class ClusterError(ClbenchError):
    """Ray died in the middle of a run; the finished cells are kept."""


class NonFiniteLossError(ClbenchError):
    """Training diverged: the loss became infinite or NaN. Only the cell fails."""


class SearchError(ClbenchError):
    """A search of learning rates has no complete trial."""


MOST_NAMES = 8
"""Longest list of names in a message; of a longer one, all but the first are counted."""
SHELL_NAMES = {"plugins": "plugin"}
"""Options whose name on the command line is not that of the argument in Python."""
_in_shell = ContextVar("in_shell", default=False)


def did_you_mean(name: str, candidates: Iterable[str], see: str = "") -> str:
    """Return a hint for the end of a message about an unknown `name`; it starts with a space.

    The hint is ``" Did you mean 'x'?"`` if a candidate is similar, else ``" Available: a, b."``.
    A list that is cut ends with `see`, the command that prints all of it.
    """
    names = sorted(set(candidates))
    if near := nearest(name, names):
        return near
    rest = ""
    if len(names) > MOST_NAMES:
        rest = f" ({see})" if see else ""
        names = sorted(names, key=lambda n: SequenceMatcher(None, name, n).ratio())[::-1]
        names[: MOST_NAMES - 2] = sorted(names[: MOST_NAMES - 2])
    return f" Available: {join_names(names)}{rest}."


def join_names(names: Iterable[str]) -> str:
    """Return names with commas, ``none`` without any; a long list ends with ``and 5 more``."""
    # The column names of a data file without a header are whole texts; keys of cells are shorter.
    short = [name if len(name) <= 80 else f"{name[:79]}…" for name in names]
    if len(short) > MOST_NAMES:
        return f"{', '.join(short[: MOST_NAMES - 2])} and {len(short) - MOST_NAMES + 2} more"
    return ", ".join(short) or "none"


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` with the one or two nearest names; empty if none is near."""
    lowered = {candidate.lower(): candidate for candidate in candidates}
    close = get_close_matches(name.lower(), lowered, n=2, cutoff=0.5)
    ratios = [SequenceMatcher(None, name.lower(), n).ratio() for n in close]
    near = [lowered[n] for n, ratio in zip(close, ratios, strict=True) if ratio > ratios[0] - 0.2]
    return f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""


WORDS = {
    "is missing": ("missing", "missing_argument"),
    "is an unknown key": ("extra_forbidden", "unexpected_keyword_argument"),
    "is not complete JSON": ("json_invalid",),
    "must be a whole number": ("int_type", "int_parsing", "int_parsing_size", "int_from_float"),
    "must be a number": ("float_type", "float_parsing"),
    "must be true or false": ("bool_type", "bool_parsing"),
    "must be a text in quotes": ("string_type", "string_unicode"),
    "must be a list in [brackets]": ("list_type", "tuple_type", "sequence_str"),
    "must be a table": ("model_type", "model_attributes_type", "dict_type", "dataclass_type"),
}
"""Requirements in plain words, each with the pydantic error types it stands for."""

MEMBERS = {
    "constrained-int": ("be", "be a whole number"),
    "constrained-float": ("be", "be a number"),
    "list[": ("have", "be a list in [brackets] with"),
}
"""What to write for the verb of a bound, by how pydantic names the member of a union."""

TYPES = {
    bool: "a boolean", int: "a whole number", float: "a number", str: "a text",
    list: "a list", dict: "an object", bytes: "bytes",
}  # fmt: skip


LONGEST = 2_000
"""Characters of a text from outside, such as the message of an error, that are shown."""


def describe_errors(
    error: ValidationError,
    data: Any = None,
    *,
    model: type[BaseModel] | None = None,
    table: str = "",
) -> list[str]:
    """Return one ``"[table] key: what is wrong, got value"`` per location with errors.

    `data` is the validated input; without it locations are those of pydantic. With `model`, the
    model it was validated against, a message about an unknown key suggests the nearest known
    one. `table`, such as ``[settings]``, replaces the table in front of every key.
    """
    grouped: dict[tuple[str | int, ...], list[Mapping[str, Any]]] = {}
    for entry in error.errors(include_url=False):
        path = _path(entry["loc"], data, missing=entry["type"] == "missing")
        grouped.setdefault(path, []).append(entry)
    texts = []
    for path, entries in grouped.items():
        if any(other[: len(path)] == path != other for other in grouped):
            continue  # the other members of a union; the value is wrong further inside
        location = f"{table} {_dotted(path)}".strip() if table else describe_path(path, data)
        if model is not None and entries[0]["type"] == "extra_forbidden":
            text = _unknown_key(entries[0], path, model)
        else:
            requirements = dict.fromkeys(_requirement(e, several=len(entries) > 1) for e in entries)
            text = " or ".join(requirements).replace(" or must be ", " or ") + _got(entries[0])
        found, key = entries[0]["input"], text.partition(" ")[0]
        if location.isidentifier() and isinstance(found, Mapping) and key in found:
            texts.append(f"[{location}] {text}")  # its keys do not fit together
        else:
            texts.append(f"{location}: {text}" if location else text)
    return texts


def describe_path(path: Sequence[str | int], data: Any = None) -> str:
    """Return a location as in a TOML file: ``[protocol] epochs``, ``[[scenario]] 2 'x' task``.

    `path` has keys and positions (from 0); `data`, the file's content, tells which are tables.
    """
    tables: list[str] = []
    rest, here = list(path), data
    while rest and len(tables) < 2 and isinstance(here, Mapping):
        here = here.get(rest[0])
        if not isinstance(here, Mapping):
            break
        tables.append(quote_key(str(rest.pop(0))))
    if tables and (rest or len(tables) == 2):
        return f"[{'.'.join(tables)}] {_dotted(rest)}".strip()
    match path, here:
        case [str(key), int(number), *keys], list() if not tables and number < len(here):
            if isinstance(entry := here[number], Mapping):
                name = f" {entry['name']!r}" if entry.get("name") else ""
                return f"[[{key}]] {number + 1}{name} {_dotted(keys)}".strip()
    return tables[0] if tables else _dotted(rest)


def printable(text: str, longest: int = LONGEST) -> str:
    """Return foreign text as one line that is safe to print and to show.

    Control characters, also those of the writing direction, are escaped as in Python; what is
    longer than `longest` characters is cut.
    """
    line = visible(" ".join(text[: 4 * longest].split()))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def visible(text: str) -> str:
    """Return text whose control characters, except for newlines, are escaped as in Python."""
    if text.isprintable():
        return text
    return "".join(
        c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def quote_key(key: str) -> str:
    """Return a key as TOML writes it, in quotes if it needs them."""
    return key if key.replace("-", "").replace("_", "").isalnum() else f'"{key}"'


def in_words(text: str) -> str:
    """Return a message from pydantic or typer in the words of our own messages."""
    text = re.sub(r"\b[A-Z]\w* should ", "must ", text)
    text = text.replace("an instance of Sequence", "a list in [brackets]")
    text = re.sub(r" after validation.*|, unable to parse.*", "", text)
    return text.replace("a valid integer", "a whole number").replace("a valid number", "a number")


def sentence(text: str) -> str:
    """Return a text with a full stop, unless it ends with one or a question mark."""
    return text if text.endswith((".", "?")) else f"{text}."


def display_path(path: Path) -> str:
    """Return a path as text, relative to the working directory if it lies inside."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def format_value(value: Any) -> str:
    """Return a value as a TOML file would write it, cut after 60 characters."""
    text = "nothing" if value is None else _repr(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= 60 else f"{text[:57]}…"


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # of a whole number; see sys.set_int_max_str_digits
        return "a number of too many digits"


def describe_type(value: object) -> str:
    """Return what a cell of a data file is: ``a whole number``, ``a list``, ``a text``."""
    if value is None:
        return "nothing"
    for kind, words in TYPES.items():
        if isinstance(value, kind):
            return words
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def count(number: int, noun: str) -> str:
    """Return ``1 row``, ``2 rows``, ``2 classes``."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def describe_missing(path: Path, kind: str = "file") -> str:
    """Return why `path` is missing: ``there is no such file``, or the target of a broken link."""
    if path.is_symlink():
        return f"is a link to {path.readlink()}, which does not exist"
    return f"there is no such {kind}"


def explain(error: BaseException) -> str:
    """Return one line: the message, and for errors that are not ours the place in the code."""
    text = error_text(error)
    if isinstance(error, ClbenchError):
        return text
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in Path(frame.filename).parts]
    for frame in (own or frames)[-1:]:
        line += f" ({Path(frame.filename).name}:{frame.lineno} in {frame.name})"
    return line


def error_text(error: BaseException) -> str:
    """Return the message of an error as one printable line."""
    try:
        return printable(str(error))
    except KeyboardInterrupt:
        raise
    except BaseException:  # plug-ins may define errors whose text raises
        return "(its message cannot be read)"


@contextmanager
def command_line() -> Iterator[None]:
    """Name options as in a shell inside the block."""
    token = _in_shell.set(True)
    try:
        yield
    finally:
        _in_shell.reset(token)


def named(name: str, value: object = None) -> str:
    """Return an option as its user writes it: ``--plugin FILE``, or ``plugins='FILE'`` in Python.

    Without a value, that is its name; messages about a wrong value begin with it.
    """
    if not _in_shell.get():
        return name if value is None else f"{name}={_repr(value)}"
    if value is None or isinstance(value, bool):
        return dashed(f"no_{name}" if value is False else name)
    return f"{dashed(name)} {value}"


def dashed(name: str) -> str:
    """Return the name of an option on the command line."""
    return f"--{SHELL_NAMES.get(name, name).rstrip('_').replace('_', '-')}"


def _path(location: Sequence[str | int], data: Any, *, missing: bool) -> tuple[str | int, ...]:
    """Return the location in `data`, without the names of union members that pydantic adds."""
    if data is None:
        return tuple(location)
    path, here = list[str | int](), data
    for position, part in enumerate(location, 1):
        if isinstance(here, type):
            break  # dict["str"] is a type, too
        try:
            here = here[part]
            path.append(part)
        except (TypeError, LookupError):
            # A key without a value has a default that is wrong; other parts are members of unions.
            if position == 1 or (missing and position == len(location)):
                path.append(part)
    return tuple(path)


def _dotted(path: Sequence[str | int]) -> str:
    parts = (f" item {p + 1}" if isinstance(p, int) else f".{quote_key(p)}" for p in path)
    return "".join(parts).removeprefix(".")


def _requirement(entry: Mapping[str, Any], *, several: bool) -> str:
    """Return what the value must be, in plain words; of `several` types, a bound names its own."""
    if isinstance(entry["input"], float) and math.isnan(entry["input"]):
        return "must be a finite number"
    if entry["type"] == "list_type" and isinstance(entry["input"], Mapping):
        return "must be a table with [[two pairs of brackets]]"
    for words, kinds in WORDS.items():
        if entry["type"] in kinds:
            return words
    text = in_words(str(entry.get("ctx", {}).get("error", entry["msg"])))
    begin = text[:1].lower() if text[1:2].islower() else text[:1]  # names such as R stay
    text = f"{begin}{text[1:]}".rstrip(".")
    for member, (verb, words) in MEMBERS.items() if several else ():
        if str(entry["loc"][-1]).startswith(member):
            text = re.sub(f"must {verb} (?=greater|less|at )", f"must {words} ", text)
    return text


def _got(entry: Mapping[str, Any]) -> str:
    """Return ``, got VALUE`` for a plain value, with the nearest allowed one."""
    value, kind = entry["input"], entry["type"]
    plain = isinstance(value, str | int | float | None) and value != ""
    if kind in ("missing", "json_invalid") or not plain:
        return ""
    allowed = re.findall(r"'([^']*)'", entry["ctx"]["expected"]) if kind == "literal_error" else []
    near = nearest(value, allowed) if isinstance(value, str) else ""
    return f", got {format_value(value)}" + (f".{near}" if near else "")


def _unknown_key(
    entry: Mapping[str, Any], path: Sequence[str | int], model: type[BaseModel]
) -> str:
    """Return what is wrong with an unknown key: misspelt, or in the wrong kind of table."""
    models = [model]
    for part in path[:-1]:
        fields = [m.model_fields[str(part)] for m in models if str(part) in m.model_fields]
        models = [m for field in fields for m in _models(field.annotation)] or models
    keys = {key for m in models for key in m.model_fields}
    if path[-1] in keys:
        kinds = ["table of this kind", *(str(part) for part in entry["loc"] if part not in path)]
        return f"does not belong in a {kinds[-1]}"
    return f"unknown key.{did_you_mean(str(path[-1]), keys)}"


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in an annotation, also those nested in unions and containers."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]

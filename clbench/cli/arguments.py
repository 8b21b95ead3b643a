"""Options of commands, those that dataclasses declare included, and the parsing of their texts."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from clbench.core.errors import SettingsError, dashed, did_you_mean
from clbench.core.options import Option, choices_of, members, options_of
from clbench.suite.read import packaged_files


def argument(metavar: str, text: str, names: Callable[[], Iterable[str]] | None = None) -> Any:
    """Return an argument without a name; a shell completes it to `names`, or else to files."""
    return typer.Argument(metavar=metavar, help=text, autocompletion=names)


SUITE = "A packaged suite (clbench list suites) or a suite file."
Suite = Annotated[str, argument("SUITE", SUITE, lambda: packaged_files("scenarios"))]


class Only:
    """The options of a dataclass that a command takes, and what None stands for if it differs."""

    def __init__(self, names: str, **defaults: str) -> None:
        self.names, self.defaults = names.split(), defaults


def command(function: Callable[..., int]) -> Callable[..., int]:
    """Turn a function of options and of dataclasses of options into a command for Typer.

    ``Annotated[int, Option(…)]`` is an option; ``Annotated[RunOptions, Only("model data")]`` are
    these two options of the dataclass, and `RunOptions` all of them.
    """
    hints, parameters = get_type_hints(function, include_extras=True), []
    parts: dict[str, tuple[Any, list[str]]] = {}
    shown: dict[str, tuple[Any, Option]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind, *extra = get_args(hints[name]) or (hints[name],)
        if isinstance(kind, type) and is_dataclass(kind):
            declared = options_of(kind)
            only = extra[0] if extra else Only(" ".join(declared))
            defaults = {field.name: field.default for field in fields(kind)}
            parts[name] = kind, only.names
            for field in only.names:
                hint, option = declared[field]
                option = replace(option, default=only.defaults.get(field, option.default))
                shown[field] = hint, option
                parameters.append(_parameter(field, hint, defaults[field], option))
        elif extra and isinstance(extra[0], Option):
            shown[name] = kind, extra[0]
            parameters.append(_parameter(name, kind, parameter.default, extra[0]))
        else:
            kept = parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name])
            parameters.append(kept)

    @wraps(function)
    def call(**words: Any) -> int:
        for name in shown:
            words[name] = _value(name, words[name], *shown[name])
        for name, (kind, names) in parts.items():
            values = {field: words.pop(field) for field in names}
            words[name] = kind(**{n: value for n, value in values.items() if value is not None})
        return function(**words)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _parameter(name: str, kind: Any, default: Any, option: Option) -> inspect.Parameter:
    """Return Typer's parameter for an option."""
    kinds, choices = members(kind), choices_of(kind)
    plain = [some for some in (str, bool, int, float) if some in kinds]
    is_text = option.read or choices or Path in kinds  # Typer reads an empty path as the dot
    read_as: Any = str if is_text else plain[0] if plain else list[str]
    text, names = option.text, dashed(name)
    if read_as == list[str] and "," not in option.metavar:
        text += " Repeatable."
    if isinstance(default, tuple):
        default = ",".join(map(str, default)) or None
        default = [default] if default and read_as == list[str] else default
    if default is None:
        read_as |= None
        text += f"  [default: {option.default}]" if option.default else ""
        names += f"/{dashed(f'no_{name}')}" if bool in kinds else ""
    metavar, group = option.metavar or "|".join(choices) or None, option.group or None
    info = typer.Option(names, metavar=metavar, help=text, rich_help_panel=group)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[read_as, info]
    )


def _value(name: str, given: Any, kind: Any, option: Option) -> Any:
    """Return the value of an option; lists of names are split at commas."""
    if given is not None and option.read:
        return option.read(given)
    if given is not None and (choices := choices_of(kind)):
        return choice(dashed(name), given, choices)
    if isinstance(given, str) and Path in members(kind):
        if not given:
            raise SettingsError(f"{dashed(name)}: is empty. Give a path, or leave it out.")
        return Path(given)
    if not isinstance(given, list) or "=" in option.metavar:
        return given
    is_files = option.metavar == "FILE"
    return [Path(text) for text in given] if is_files else words(dashed(name), given)


def choice(option: str, value: str, choices: Sequence[str]) -> str:
    """Return `value` if it is one of `choices`, else raise a SettingsError."""
    if value not in choices:
        raise SettingsError(f"{option} {value!r} is unknown.{did_you_mean(value, choices)}")
    return value


def words(option: str, values: Iterable[str] | None) -> list[str] | None:
    """Return the values of a repeatable option, split at commas; None if it is not given.

    Raises a SettingsError if the option is given but empty.
    """
    texts = list(values or ())
    if not texts:
        return None
    parts = [word.strip() for text in texts for word in text.split(",")]
    if not all(parts):
        raise SettingsError(f"{option} {','.join(texts)!r}: holds an empty name. Leave it out.")
    return parts

"""Options, declared once: fields of a dataclass that Python and the command line both offer.

A field whose type carries an `Option` feeds the constructor and the docstring of its class, the
signature and the docstring of functions such as `clbench.run`, and the command line.
"""

import inspect
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial, wraps
from types import UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from clbench.core import errors

A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """What an option does, and how help shows it.

    Attributes
    ----------
    text
        What it does, in sentences.
    metavar
        Stands for the value on the command line; empty for a flag, or for one of several words.
    group
        Heading above it in the help of a command.
    default
        What None stands for.
    read
        Returns the value of a text on the command line, or raises a SettingsError.
    """

    text: str
    metavar: str = ""
    group: str = ""
    default: str = ""
    read: Callable[[str], Any] | None = None


OF_SUITE = "the suite's"
what = partial(Option, group="What to run")
search = partial(Option, group="How to search")
how = partial(Option, group="How to train", default=OF_SUITE)
where = partial(Option, group="Where it runs")
DATA_FOLDER = where(
    "Folder with copies of hub repositories, such as DIR/glue.", "DIR", default="the hub"
)


def options_of(kind: type) -> dict[str, tuple[Any, Option]]:
    """Return type and declaration of each field of a dataclass that is an option, by name."""
    types, hints = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    return {
        name: (types[name], option)
        for name, hint in hints.items()
        for option in getattr(hint, "__metadata__", ())
        if type(option) is Option
    }


def members(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def choices_of(kind: Any) -> tuple[str, ...]:
    """Return the words that an option of this type may be; empty if it may be others."""
    return next((get_args(some) for some in members(kind) if get_origin(some) is Literal), ())


def check_types(options: Any) -> None:
    """Check a dataclass of options; a single value becomes a sequence of one.

    Raises a SettingsError for the first option that is not of its type, none of its words, or
    outside the range that its annotation names.
    """
    values = {}
    for name, (kind, _) in options_of(type(options)).items():
        value, kinds = getattr(options, name), {get_origin(k) or k for k in members(kind)}
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        if (Sequence in kinds or tuple in kinds) and type(value) not in kinds:
            value = tuple(value) if is_list else (value,)
            object.__setattr__(options, name, value)
        values[name] = value
    try:
        _model(type(options)).model_validate(values)  # type: ignore[arg-type]
    except ValidationError as problem:
        name, text = str(problem.errors()[0]["loc"][0]), errors.describe_errors(problem, values)[0]
        text = f"{errors.named(name)}{errors.sentence(text.removeprefix(name))}"
        raise errors.SettingsError(text) from problem


@cache
def _model(kind: Callable[..., Any]) -> type[BaseModel]:
    """Return a model of a dataclass of options, or of a function's arguments; converts nothing."""
    config = ConfigDict(strict=True, arbitrary_types_allowed=True)
    hints = dict[str, Any]()
    with suppress(NameError):  # a type that only type checkers import
        hints = get_type_hints(kind, include_extras=True)
    names = options_of(kind) if isinstance(kind, type) else hints.keys() - {"return"}
    fields: dict[str, Any] = {name: (hints[name], None) for name in hints if name in names}
    return create_model("Options", __config__=config, **fields)


def checks_arguments(function: F) -> F:
    """Make a public function or class refuse arguments that are not of their annotated types.

    It raises an ArgumentError, such as ``combine: pairs: must be a list, got 5``.
    """
    if isinstance(function, type):
        function.__init__ = checks_arguments(function.__init__)  # type: ignore[misc]
        return function
    plain = inspect.signature(function)
    name = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            values = plain.bind(*arguments, **keywords).arguments
        except TypeError:  # a missing argument, of which Python tells
            return function(*arguments, **keywords)
        try:
            _model(function).model_validate(values)
        except ValidationError as problem:
            text = errors.sentence(errors.describe_errors(problem, values)[0])
            raise errors.ArgumentError(f"{name}: {text}") from problem
        return function(*arguments, **keywords)

    return call  # type: ignore[return-value]


def takes(kind: Callable[P, A]) -> Callable[[Callable[[A], T]], Callable[P, T]]:
    """Turn a function of a dataclass into one of its fields, also for `help` and type checkers.

    The descriptions of the options replace ``{options}`` in its docstring.
    """

    def decorate(function: Callable[[A], T]) -> Callable[P, T]:
        assert isinstance(kind, type)
        plain = inspect.signature(described(kind))

        @wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> T:
            try:
                plain.bind(*arguments, **keywords)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            return function(kind(*arguments, **keywords))

        result = get_type_hints(function)["return"]
        call.__signature__ = plain.replace(return_annotation=result)  # type: ignore[attr-defined]
        call.__doc__ = _describe(kind, function.__doc__)
        return call

    return decorate


def described(kind: type[T]) -> type[T]:
    """Make `help` of a dataclass readable: descriptions for ``{options}``, and plain types."""
    kind.__doc__ = _describe(kind, kind.__doc__)
    signature, hints = inspect.signature(kind.__init__), get_type_hints(kind)
    parameters = signature.parameters.items()
    plain = [p.replace(annotation=hints.get(name, p.annotation)) for name, p in parameters]
    kind.__init__.__signature__ = signature.replace(parameters=plain)  # type: ignore[attr-defined]
    return kind


def _describe(kind: type, docstring: str | None) -> str:
    options, lines = options_of(kind), list[str]()
    for name in inspect.signature(kind).parameters:
        kind_of, option = options[name]
        text, words = option.text, choices_of(kind_of)
        if not all(word in text for word in words):
            text += f" One of {errors.join_names(words)}."
        text += f" By default {option.default}." if option.default else ""
        lines += [name, *(f"    {line}" for line in textwrap.wrap(text, 95))]
    return inspect.cleandoc(docstring or "").replace("{options}", "\n".join(lines))

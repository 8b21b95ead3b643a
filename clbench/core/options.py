"""Options, declared once: fields of a dataclass that Python and the command line both offer.

A field whose type carries an `Option` feeds the constructor and the docstring of its class, the
signature and the docstring of functions such as `clbench.run`, and the command line.
"""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar, get_args, get_type_hints

A = TypeVar("A")
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
        Stands for the value on the command line; empty for a flag.
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


def options_of(kind: type) -> dict[str, tuple[Any, Option]]:
    """Return type and declaration of each field of a dataclass that is an option, by name."""
    hints = get_type_hints(kind, include_extras=True).items()
    parts = {name: get_args(hint)[:2] for name, hint in hints if hasattr(hint, "__metadata__")}
    return {name: (pair[0], pair[1]) for name, pair in parts.items() if type(pair[1]) is Option}


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


def _describe(kind: type, text: str | None) -> str:
    options, lines = options_of(kind), list[str]()
    for name in inspect.signature(kind).parameters:
        _, option = options[name]
        default = f" By default {option.default}." if option.default else ""
        lines += [name, *(f"    {line}" for line in textwrap.wrap(option.text + default, 95))]
    return inspect.cleandoc(text or "").replace("{options}", "\n".join(lines))

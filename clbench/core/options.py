"""Options, declared once: fields of a dataclass that Python and the command line both offer.

A field whose type carries an `Option` feeds the constructor of its class, the signature and the
docstring of functions such as `clbench.run`, and the command line.
"""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
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
    """

    text: str
    metavar: str = ""
    group: str = ""
    default: str = ""


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
        plain, hints = inspect.signature(kind), get_type_hints(kind)
        parameters = [p.replace(annotation=hints[n]) for n, p in plain.parameters.items()]
        result = get_type_hints(function)["return"]
        options, texts = options_of(kind), list[str]()
        for name in plain.parameters:
            _, option = options[name]
            default = f" By default {option.default}." if option.default else ""
            texts += [name, *(f"    {line}" for line in textwrap.wrap(option.text + default, 95))]

        @wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> T:
            try:
                plain.bind(*arguments, **keywords)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            return function(kind(*arguments, **keywords))

        call.__signature__ = plain.replace(parameters=parameters, return_annotation=result)  # type: ignore[attr-defined]
        call.__doc__ = inspect.cleandoc(call.__doc__ or "").replace("{options}", "\n".join(texts))
        return call

    return decorate

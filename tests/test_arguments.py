"""Public functions and classes answer arguments of wrong types in one line."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

import pytest

import clbench
import clbench.conformance
import clbench.figures
import clbench.fisher
import clbench.hf
import clbench.search
from clbench.core.errors import ArgumentError, ClbenchError
from clbench.search import Trial, combine

MODULES = (
    *(clbench, clbench.conformance, clbench.figures, clbench.fisher, clbench.hf, clbench.search),
)
PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in MODULES
    for name in module.__all__
    if callable(getattr(module, name)) and not isinstance(getattr(module, name), ModuleType)
}
KEYWORDS_ONLY = {"Method", "Resources", "RunOptions", "Shift", "TrialRecord"}
"""Classes whose settings have names, so that Python itself refuses a positional value."""


@pytest.mark.parametrize("name", [n for n in PUBLIC if n.split(".")[-1] not in KEYWORDS_ONLY])
def test_arguments_of_wrong_types_raise_no_error_of_pythons_own(name: str) -> None:
    function = PUBLIC[name]
    if isinstance(function, type) and issubclass(function, Exception):
        return
    parameters = list(inspect.signature(function).parameters.values())
    needed = [p for p in parameters if p.default is p.empty] or parameters[:1]
    for value in (None, 5, "", [], object()):
        values = dict.fromkeys((p.name for p in needed if p.kind != p.VAR_KEYWORD), value)
        with warnings.catch_warnings(), suppress(ClbenchError):
            warnings.simplefilter("ignore")
            function(**values)


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        (combine, (5,), "combine: pairs: must be a list in [brackets], got 5."),
        (combine, ([],), "there must be at least one pair, and at least one trial in each"),
        (combine, ([[5]],), "combine: pairs item 1 item 1: must be an instance of Trial, got 5."),
        (Trial, ([1e-5] * 3, "a", 0.5), "Trial: p_o: must be a number, got 'a'."),
        (
            clbench.hf.protect,
            (5, "ewc"),
            "protect: trainer: must be an instance of Trainer, got 5.",
        ),
        (
            clbench.conformance.check,
            (5,),
            "check: method: must be a text in quotes or an instance of Baseline or a subclass of "
            "Method, got 5.",
        ),
        (
            clbench.conformance.check,
            (dict,),
            "check: method: must be a text in quotes or an instance of Baseline or a subclass of "
            "Method.",
        ),
        (
            clbench.figures.curves,
            (5,),
            "curves: results: must be an instance of Run or an instance of ReportData or a list "
            "in [brackets], got 5.",
        ),
    ],
)
def test_messages_name_function_and_argument(
    function: Callable[..., Any], arguments: tuple[Any, ...], text: str
) -> None:
    with pytest.raises(ArgumentError) as caught:
        function(*arguments)
    assert str(caught.value) == text
    assert isinstance(caught.value, ValueError)  # as Python's own functions raise


def test_a_missing_argument_is_still_a_type_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'pairs'"):
        combine()  # type: ignore[call-arg]

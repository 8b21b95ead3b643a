"""Global state is put back, and whatever user code raises becomes one line."""

from __future__ import annotations

import importlib
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from clbench.core.errors import DataError, PluginError, error_text, explain
from clbench.core.user_code import GlobalState, user_code

CHANGES: dict[str, Callable[[], object]] = {
    "torch's default type": lambda: torch.set_default_dtype(torch.float64),
    "torch's default device": lambda: torch.set_default_device("meta"),
    "torch's gradient mode": lambda: torch.set_grad_enabled(False),
    "torch's thread count": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "torch's random numbers": lambda: torch.rand(1),
    "NumPy's random numbers": lambda: np.random.rand(),  # noqa: NPY002
    "Python's random numbers": random.random,
    "the warning filters": lambda: warnings.simplefilter("ignore"),
    "the working folder": lambda: os.chdir("/"),
    "signal handlers": lambda: signal.signal(signal.SIGTERM, lambda *arguments: None),
}


@pytest.mark.parametrize(("name", "change"), CHANGES.items())
def test_a_change_of_global_state_is_put_back_and_named(
    name: str, change: Callable[[], object]
) -> None:
    outer = GlobalState()
    state = GlobalState()
    change()
    assert state.restore() == [name]
    assert outer.restore() == []


def test_what_an_import_changes_is_put_back_but_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hides_warnings.py").write_text("import warnings; warnings.simplefilter('ignore')")
    monkeypatch.syspath_prepend(tmp_path)
    filters = list(warnings.filters)
    state = GlobalState()
    importlib.import_module("hides_warnings")
    assert state.restore() == []
    assert list(warnings.filters) == filters


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Ending(BaseException):
    pass


class ExitingError(Exception):
    def __str__(self) -> str:
        sys.exit(4)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (Ending(), "Ending"),
        (GeneratorExit(), "GeneratorExit"),
        (StopIteration(1), "StopIteration: 1"),
        (UnreadableError(), "UnreadableError: (its message cannot be read)"),
        (ExitingError(), "ExitingError: (its message cannot be read)"),
        (ValueError("\x1b[31mred\nline"), "ValueError: \\x1b[31mred line"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_user_code_turns_every_error_into_one_line(error: BaseException, text: str) -> None:
    def hook() -> None:
        torch.set_default_dtype(torch.float64)
        raise error

    with pytest.raises(PluginError) as caught, user_code("method 'x'"):
        hook()
    assert str(caught.value).startswith(f"method 'x': {text} (test_user_code.py:")
    assert "\n" not in str(caught.value)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("error", [DataError("column 'x' is missing."), KeyboardInterrupt()])
def test_user_code_passes_errors_of_clbench_and_ctrl_c(error: BaseException) -> None:
    with pytest.raises(type(error)), user_code("method 'x'"):
        raise error


def test_long_messages_are_cut() -> None:
    assert len(error_text(ValueError("x" * 10**7))) == 2_000
    assert len(explain(ValueError("x" * 10**7))) < 2_100

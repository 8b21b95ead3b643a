"""Global state is put back, and whatever code of users raises becomes one line."""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn.modules import module

from clbench.boundary import GlobalState, error_text, explain, user_code
from clbench.errors import DataError, PluginError


def leave_a_hook() -> None:
    module.register_module_forward_hook(lambda *arguments: None)


CHANGES: dict[str, Callable[[], object]] = {
    "torch's default type": lambda: torch.set_default_dtype(torch.float64),
    "torch's default device": lambda: torch.set_default_device("meta"),
    "torch's gradient mode": lambda: torch.set_grad_enabled(False),
    "torch's thread count": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "torch's anomaly mode": lambda: torch.set_anomaly_enabled(True),
    "torch's deterministic mode": lambda: torch.use_deterministic_algorithms(True),
    "torch's matrix precision": lambda: torch.set_float32_matmul_precision("medium"),
    "torch's attention kernels": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "torch's autocast mode": lambda: torch.set_autocast_enabled("cpu", True),
    "torch's random numbers": lambda: torch.rand(1),
    "NumPy's random numbers": lambda: np.random.rand(),  # noqa: NPY002
    "Python's random numbers": random.random,
    "the recursion limit": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1),
    "the warning filters": lambda: warnings.simplefilter("ignore"),
    "the working folder": lambda: os.chdir("/"),
    "cuDNN's flags": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "oneDNN's flag": lambda: setattr(torch.backends.mkldnn, "enabled", False),
    "torch's global module hooks": leave_a_hook,
    "the environment": lambda: os.environ.update(CLBENCH_TEST="1"),
    "sys.path": lambda: sys.path.append("/nowhere"),
    "sys.stdout": lambda: setattr(sys, "stdout", sys.stderr),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_global_state_is_put_back_and_named(name: str) -> None:
    outer = GlobalState()
    state = GlobalState()
    CHANGES[name]()
    assert name in state.restore()  # torch may import modules that change more
    assert outer.restore() == []


def test_a_closed_stream_is_opened_again(capfd: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    sys.stdout = open(1, "w", closefd=False, encoding="utf-8")  # noqa: SIM115
    try:
        state = GlobalState()
        sys.stdout.close()
        state.restore()
        print("still here", flush=True)  # noqa: T201
    finally:
        sys.stdout = before
    assert capfd.readouterr().out == "still here\n"


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Ending(BaseException):
    pass


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (Ending(), "Ending"),
        (GeneratorExit(), "GeneratorExit"),
        (StopIteration(1), "StopIteration: 1"),
        (UnreadableError(), "UnreadableError: (its message cannot be read)"),
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
    assert str(caught.value).startswith(f"method 'x': {text} (test_boundary.py:")
    assert "\n" not in str(caught.value)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("error", [DataError("column 'x' is missing."), KeyboardInterrupt()])
def test_user_code_passes_errors_of_clbench_and_ctrl_c(error: BaseException) -> None:
    with pytest.raises(type(error)), user_code("method 'x'"):
        raise error


def test_long_messages_are_cut() -> None:
    assert len(error_text(ValueError("x" * 10**7))) == 2_000
    assert len(explain(ValueError("x" * 10**7))) < 2_100

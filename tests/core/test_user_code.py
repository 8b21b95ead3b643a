"""Global state is put back, and whatever user code raises becomes one line."""

from __future__ import annotations

import gc
import importlib
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules import module
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from clbench.core.errors import DataError, PluginError
from clbench.core.user_code import GlobalState, error_text, explain, user_code


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
    "torch's global hooks": leave_a_hook,
    "torch's modes": lambda: saved_tensors_hooks(lambda x: x, lambda x: x).__enter__(),
    "signal handlers": lambda: signal.signal(signal.SIGTERM, lambda *arguments: None),
    "garbage collection": gc.disable,
    "sys.excepthook": lambda: setattr(sys, "excepthook", None),
    "the environment": lambda: os.environ.update(CLBENCH_TEST="1"),
    "sys.path": lambda: sys.path.append("/nowhere"),
    "sys.stdout": lambda: setattr(sys, "stdout", sys.stderr),
}


class Stream:
    """A stream with the least that printing needs."""

    def write(self, text: str) -> int:
        return len(text)


GUARDS: list[Any] = []
MORE_CHANGES: list[tuple[str, Callable[[], object]]] = [
    ("torch's matrix precision", lambda: precision(torch.backends.mkldnn.matmul)),
    ("torch's matrix precision", lambda: precision(torch.backends)),
    ("torch's modes", lambda: TorchFunctionMode().__enter__()),
    ("torch's inference mode", lambda: GUARDS.append(torch._C._InferenceMode(True))),
    ("torch's autocast mode", lambda: torch.set_autocast_dtype("cpu", torch.float16)),
    ("torch's fast path of attention", lambda: torch.backends.mha.set_fastpath_enabled(False)),
    ("sys.stdin", lambda: setattr(sys, "stdin", None)),
    ("torch's modes", lambda: TorchDispatchMode().__enter__()),
    ("torch's global hooks", lambda: register_optimizer_step_post_hook(lambda *arguments: None)),
    ("NumPy's random numbers", lambda: np.random.set_bit_generator(np.random.PCG64(1))),
    ("the environment", lambda: setattr(os, "environ", {})),
    ("sys.path", lambda: setattr(sys, "path", [])),
    ("sys.stdout", lambda: setattr(sys, "stdout", Stream())),
]


def precision(holder: Any) -> None:
    holder.fp32_precision = "bf16"


@pytest.mark.parametrize(("name", "change"), [*CHANGES.items(), *MORE_CHANGES])
def test_a_change_of_global_state_is_put_back_and_named(
    name: str, change: Callable[[], object]
) -> None:
    outer = GlobalState()
    state = GlobalState()
    change()
    assert name in state.restore()  # torch may import modules that change more
    assert outer.restore() == []


@pytest.mark.parametrize("number", [1, 2])
def test_a_closed_file_of_the_process_is_opened_again(
    capfd: pytest.CaptureFixture[str], number: int
) -> None:
    state = GlobalState()
    os.close(number)
    assert state.restore() == [{1: "sys.stdout", 2: "sys.stderr"}[number]]
    os.write(number, b"still here")
    assert "still here" in capfd.readouterr()


def test_what_an_import_changes_is_put_back_but_not_named(tmp_path: Path) -> None:
    (tmp_path / "changes_the_environment.py").write_text("import os; os.environ['A_B'] = '1'")
    state = GlobalState()
    sys.path.append(str(tmp_path))
    importlib.import_module("changes_the_environment")
    assert state.restore() == []
    assert "A_B" not in os.environ


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

"""The boundary around user code: plug-ins, hooks, metrics, shifts and loaders of tasks.

Whatever such code raises becomes one line, and the settings of the process that plug-ins change are
put back.
"""

import os
import pickle
import random
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from clbench.core.errors import ClbenchError, PluginError, explain, join_names

WARNINGS = "the warning filters"
"""What importing a module may change for good."""
RANDOM = ("torch's random numbers", "NumPy's random numbers", "Python's random numbers")


class Setting(NamedTuple):
    """A setting of the process: its name in messages, how to read it, and how to set it."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


class GlobalState:
    """A snapshot of the settings of the process that plug-ins change.

    These are torch's default type and device, gradient mode and thread count; the random numbers of
    torch, NumPy and Python; the warning filters, the working folder, and the handlers of SIGINT and
    SIGTERM.

    Parameters
    ----------
    without
        Names of settings to leave as they are.
    """

    def __init__(self, *, without: Collection[str] = ()) -> None:
        settings = [*_python_settings(), *_torch_settings()]
        self._before = [(each, each.read()) for each in settings if each.name not in without]
        self._modules = len(sys.modules)

    def restore(self) -> list[str]:
        """Put everything back; return the names of the settings that had changed.

        If modules were imported meanwhile, the warning filters are put back but not named.
        """
        changed = {}
        for setting, before in self._before:
            if setting.read() != before:
                changed[setting.name] = True
                with suppress(Exception):  # what cannot be put back is still named
                    setting.write(before)
        if len(sys.modules) != self._modules:
            changed.pop(WARNINGS, None)
        return list(changed)


@contextmanager
def user_code(what: str, *, without: Collection[str] = ()) -> Iterator[None]:
    """Turn whatever user code raises into a PluginError, and put the process's settings back.

    Errors of clbench and Ctrl-C pass unchanged. `what` begins the message; `without` is that of
    `GlobalState`.
    """
    state = GlobalState(without=without)
    try:
        yield
    except (ClbenchError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(f"{what}: {explain(error)}") from error
    finally:
        state.restore()


@contextmanager
def unchanged(what: str) -> Iterator[None]:
    """Put the process's settings back, and raise a PluginError if user code has changed them.

    Drawing random numbers is allowed; their state is put back too. `what` begins the message.
    """
    state = GlobalState()
    try:
        yield
    finally:
        changed = [name for name in state.restore() if name not in RANDOM]
    if changed:
        raise PluginError(
            f"{what} changes {join_names(changed)} for the whole process. Undo this before "
            "it returns."
        )


def _python_settings() -> Iterator[Setting]:
    yield Setting(RANDOM[2], random.getstate, random.setstate)
    yield Setting(WARNINGS, lambda: list(warnings.filters), _write_warnings)
    yield Setting("the working folder", _read_folder, os.chdir)
    for number in (signal.SIGINT, signal.SIGTERM):
        handle = partial(signal.signal, number)
        yield Setting("signal handlers", partial(signal.getsignal, number), handle)


def _torch_settings() -> Iterator[Setting]:
    if "torch" not in sys.modules:  # nothing can have changed it, and its import takes a second
        return
    import numpy as np
    import torch

    def write_device(device: torch.device) -> None:
        torch.set_default_device(None if device.type == "cpu" else device)

    def read_numpy() -> bytes:  # arrays in a tuple cannot be compared
        return pickle.dumps(np.random.get_state(legacy=False))  # noqa: NPY002

    def write_numpy(state: bytes) -> None:
        np.random.set_state(pickle.loads(state))  # noqa: NPY002

    yield Setting("torch's default type", torch.get_default_dtype, torch.set_default_dtype)
    yield Setting("torch's default device", torch.get_default_device, write_device)
    yield Setting("torch's gradient mode", torch.is_grad_enabled, torch.set_grad_enabled)
    yield Setting("torch's thread count", torch.get_num_threads, torch.set_num_threads)
    yield Setting(RANDOM[0], _read_torch_random, _write_torch_random)
    yield Setting(RANDOM[1], read_numpy, write_numpy)


def _read_torch_random() -> tuple[bytes, ...]:
    import torch

    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += torch.cuda.get_rng_state_all()
    return tuple(state.numpy().tobytes() for state in states)


def _write_torch_random(states: tuple[bytes, ...]) -> None:
    import torch

    tensors = [torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in states]
    torch.set_rng_state(tensors[0])
    if tensors[1:]:
        torch.cuda.set_rng_state_all(tensors[1:])


def _write_warnings(filters: list[Any]) -> None:
    warnings.resetwarnings()  # also forgets which warnings were shown under the old filters
    warnings.filters[:] = filters  # type: ignore[index]


def _read_folder() -> Path | None:
    with suppress(OSError):  # it was removed
        return Path.cwd()
    return None

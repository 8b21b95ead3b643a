"""The boundary around user code: plug-ins, hooks, metrics, shifts, loaders of tasks, and callers.

Whatever such code raises becomes one line, and the settings of the process that plug-ins change are
put back. What clbench computes does not depend on the settings of its caller.
"""

import os
import pickle
import random
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from clbench.core.errors import ClbenchError, PluginError, SettingsError, explain, join_names

WARNINGS = "the warning filters"
"""What importing a module may change for good."""
RANDOM = ("torch's random numbers", "NumPy's random numbers", "Python's random numbers")
_ANY = object()


class Setting(NamedTuple):
    """A setting of the process: its name in messages, how to read it, and how to set it.

    `own` is its value wherever clbench computes, unless that may be any.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    own: Any = _ANY


class GlobalState:
    """A snapshot of the settings of the process that plug-ins and callers change.

    Those with names in `without` stay as they are.
    """

    def __init__(self, *, without: Collection[str] = ()) -> None:
        settings = [*_python_settings(), *_torch_settings()]
        self._before = [(each, each.read()) for each in settings if each.name not in without]
        self._modules = len(sys.modules)

    def become_own(self) -> None:
        """Set what clbench needs; raise a SettingsError for what cannot be changed."""
        for setting, before in self._before:
            if setting.own is _ANY or before == setting.own:
                continue
            if before is not None:
                setting.write(setting.own)
            if setting.read() != setting.own:
                raise SettingsError(
                    f"{setting.name}: clbench needs its own, and cannot change yours. Undo your "
                    "change before you call clbench."
                )

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


@contextmanager
def own_state() -> Iterator[None]:
    """Compute with clbench's own settings of torch inside the block, and put the caller's back.

    Otherwise scores would depend on a default type, an autocast or a hook of the caller. Raises a
    SettingsError if a setting cannot be changed.
    """
    import torch

    state, cpu = GlobalState(), torch.device("cpu")
    # Even that of the CPU costs time at each call of torch.
    device = nullcontext() if torch.get_default_device() == cpu else cpu
    try:
        state.become_own()
        with device, torch.inference_mode(mode=False):
            yield
    finally:
        state.restore()


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

    def read_precision() -> str | None:
        with suppress(RuntimeError):  # set through torch.backends, it cannot be read
            return torch.get_float32_matmul_precision()
        return None

    devices, kernels = ("cpu", "cuda", "mps"), torch.backends.cuda
    read: Callable[[], Any]
    write: Callable[[Any], object]
    read, write = torch.get_default_dtype, torch.set_default_dtype
    yield Setting("torch's default type", read, write, torch.float32)
    yield Setting("torch's default device", torch.get_default_device, write_device)
    yield Setting("torch's gradient mode", torch.is_grad_enabled, torch.set_grad_enabled, True)
    yield Setting("torch's thread count", torch.get_num_threads, torch.set_num_threads)
    yield Setting(RANDOM[0], _read_torch_random, _write_torch_random)
    yield Setting(RANDOM[1], read_numpy, write_numpy)
    write = torch.set_float32_matmul_precision
    yield Setting("torch's precision of products", read_precision, write, "highest")
    read, write = torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
    yield Setting("torch's deterministic algorithms", read, write, 0)
    for name in ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp"):
        read, write = getattr(kernels, f"{name}_enabled"), getattr(kernels, f"enable_{name}")
        yield Setting("torch's kernels for attention", read, write, True)
    # The weights that an outer autocast has cached would be those of earlier steps.
    caches = not any(map(torch.is_autocast_enabled, devices))
    read, write = torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled
    yield Setting("torch's autocast", read, write, caches)
    for device in devices:
        read = partial(torch.is_autocast_enabled, device)
        yield Setting("torch's autocast", read, partial(torch.set_autocast_enabled, device), False)
    for module in ("torch.nn.modules.module", "torch.optim.optimizer"):
        for name, hooks in vars(sys.modules[module]).items():
            if name.startswith("_global_") and isinstance(hooks, dict):
                yield Setting("torch's hooks of all modules", hooks.copy, partial(_fill, hooks), {})


def _fill(present: dict[Any, Any], values: dict[Any, Any]) -> None:
    present.clear()
    present.update(values)


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

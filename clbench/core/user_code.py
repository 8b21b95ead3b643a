"""The boundary around user code: plug-ins, hooks, metrics, shifts and loaders of tasks.

Whatever such code raises becomes one line, and the global state that it changes is put back.
"""

from __future__ import annotations

import gc
import os
import pickle
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from clbench.core.errors import ClbenchError, PluginError, join_names, printable

IMPORTS = ("the environment", "the warning filters", "sys.path")
"""What importing a module may change for good."""
RANDOM = ("torch's random numbers", "NumPy's random numbers", "Python's random numbers")
_GUARDS: list[Any] = []


class StateItem(NamedTuple):
    """A part of the global state: its name in messages, how to read it, and how to set it."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


class GlobalState:
    """A snapshot of the process-wide state that user code can change.

    It covers torch's default type and device, modes, flags, precision, threads and global hooks;
    the random numbers of torch, NumPy and Python; the environment, the warning filters, the
    working folder, ``sys.path``, signal handlers, garbage collection, and the standard streams.

    Parameters
    ----------
    without
        Names of parts to leave as they are.
    """

    def __init__(self, *, without: Collection[str] = ()) -> None:
        # Without torch nothing can have changed it, and its import takes a second.
        items = [item for item in _items("torch" in sys.modules) if item.name not in without]
        self._values = [(item, _value(item)) for item in items]
        self._modules = len(sys.modules)
        self._files = {number: _copy_file(number) for number in (1, 2)}

    def restore(self) -> list[str]:
        """Put everything back; return the names of the parts that had changed.

        If modules were imported meanwhile, changes of `IMPORTS` are put back but not named. Call it
        only once.
        """
        changed = []
        for number, saved in self._files.items():
            if saved is not None:
                if _file_of(number) != _file_of(saved):
                    os.dup2(saved, number)
                    changed.append({1: "sys.stdout", 2: "sys.stderr"}[number])
                os.close(saved)
        for item, before in self._values:
            if _value(item) != before:
                changed.append(item.name)
                with suppress(Exception):  # what cannot be put back is still named
                    item.write(before)
        imported = len(sys.modules) != self._modules
        names = dict.fromkeys(changed)
        return [name for name in names if not (imported and name in IMPORTS)]


@contextmanager
def user_code(what: str, *, without: Collection[str] = ()) -> Iterator[None]:
    """Turn whatever user code raises into a PluginError, and put the global state back.

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
    """Put the global state back, and raise a PluginError if user code has changed it.

    Drawing random numbers is allowed; their state is put back too. `what` begins the message.
    """
    state = GlobalState()
    changed: list[str] = []
    try:
        yield
    finally:
        changed += [name for name in state.restore() if name not in RANDOM]
    if changed:
        raise PluginError(
            f"{what} changes {join_names(changed)} for the whole process. Undo this before "
            "it returns."
        )


def explain(error: BaseException) -> str:
    """Return one line: the message, and for errors that are not ours the place in the code."""
    text = error_text(error)
    if isinstance(error, ClbenchError):
        return text
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in Path(frame.filename).parts]
    for frame in (own or frames)[-1:]:
        line += f" ({Path(frame.filename).name}:{frame.lineno} in {frame.name})"
    return line


def error_text(error: BaseException) -> str:
    """Return the message of an error as one printable line."""
    try:
        return printable(str(error))
    except KeyboardInterrupt:
        raise
    except BaseException:  # plug-ins may define errors whose text raises
        return "(its message cannot be read)"


def _value(item: StateItem) -> Any:
    try:
        return item.read()
    except Exception:  # torch refuses to read settings that contradict each other
        return object()  # equals nothing


def _copy_file(number: int) -> int | None:
    with suppress(OSError):
        return os.dup(number)
    return None


def _file_of(number: int) -> tuple[int, int] | None:
    with suppress(OSError):
        status = os.fstat(number)
        return status.st_dev, status.st_ino
    return None


@cache
def _items(with_torch: bool) -> tuple[StateItem, ...]:
    return (*(_torch_items() if with_torch else ()), *_python_items())


def _python_items() -> Iterator[StateItem]:
    yield StateItem(RANDOM[2], random.getstate, random.setstate)
    yield StateItem("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit)
    yield StateItem("the warning filters", lambda: list(warnings.filters), _write_warnings)
    yield StateItem("the working folder", _read_folder, _write_folder)
    yield _content("the environment", os, "environ")
    yield _content("sys.path", sys, "path")
    for name in ("stdin", "stdout", "stderr"):
        yield StateItem(f"sys.{name}", partial(_read_stream, name), partial(_write_stream, name))
    yield _attribute("sys.excepthook", sys, "excepthook")
    yield StateItem(
        "garbage collection", gc.isenabled, lambda on: gc.enable() if on else gc.disable()
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        read, write = partial(signal.getsignal, number), partial(signal.signal, number)
        yield StateItem("signal handlers", read, write)


def _attribute(name: str, holder: Any, attribute: str) -> StateItem:
    return StateItem(name, partial(getattr, holder, attribute), partial(setattr, holder, attribute))


def _content(name: str, holder: Any, attribute: str) -> StateItem:
    """Return the item of a list or mapping, which may be changed or replaced."""

    def read() -> tuple[Any, Any]:
        value = getattr(holder, attribute)
        return value, copy(value) if isinstance(value, list) else dict(value)

    def write(before: tuple[Any, Any]) -> None:
        value, content = before
        setattr(holder, attribute, value)
        value.clear()
        (value.extend if isinstance(value, list) else value.update)(content)

    return StateItem(name, read, write)


def _torch_items() -> Iterator[StateItem]:
    import torch
    from torch.backends import cuda, mha
    from torch.nn.modules import module
    from torch.optim import optimizer
    from torch.utils import deterministic

    backends = torch.backends
    modes: tuple[tuple[str, Callable[[], Any], Callable[[Any], object]], ...] = (
        ("default type", torch.get_default_dtype, torch.set_default_dtype),
        ("default device", torch.get_default_device, _write_device),
        ("gradient mode", torch.is_grad_enabled, torch.set_grad_enabled),
        ("thread count", torch.get_num_threads, torch.set_num_threads),
        ("anomaly mode", torch.is_anomaly_enabled, torch.set_anomaly_enabled),
        ("deterministic mode", _read_deterministic, _write_deterministic),
        ("inference mode", torch.is_inference_mode_enabled, _write_inference),
        ("fast path of attention", mha.get_fastpath_enabled, mha.set_fastpath_enabled),
        ("autocast mode", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
        ("attention kernels", cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
        ("attention kernels", cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
        ("attention kernels", cuda.math_sdp_enabled, cuda.enable_math_sdp),
        ("attention kernels", cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
    )
    for name, read, write in modes:
        yield StateItem(f"torch's {name}", read, write)
    for kind in ("cpu", "cuda"):
        autocast = partial(torch.set_autocast_enabled, kind)
        yield StateItem("torch's autocast mode", partial(torch.is_autocast_enabled, kind), autocast)
        read_type = partial(torch.get_autocast_dtype, kind)
        write_type = partial(torch.set_autocast_dtype, kind)
        yield StateItem("torch's autocast mode", read_type, write_type)
    yield StateItem("torch's matrix precision", _read_precision, _write_precision)
    for name, holder, flag in (
        ("torch's deterministic mode", deterministic, "fill_uninitialized_memory"),
        ("cuDNN's flags", backends.cudnn, "benchmark"),
        ("cuDNN's flags", backends.cudnn, "deterministic"),
        ("cuDNN's flags", backends.cudnn, "enabled"),
        ("oneDNN's flag", backends.mkldnn, "enabled"),
        ("torch's matrix precision", cuda.matmul, "allow_fp16_reduced_precision_reduction"),
        ("torch's matrix precision", cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    ):
        yield _attribute(name, holder, flag)
    for holder, prefix in ((module, "_global_"), (optimizer, "_global_optimizer_")):
        for key, hooks in vars(holder).items():
            if key.startswith(prefix) and isinstance(hooks, dict):
                yield _content("torch's global hooks", holder, key)
    yield StateItem("torch's modes", _read_modes, _write_modes)
    yield StateItem(RANDOM[0], _read_torch_random, _write_torch_random)
    yield StateItem(RANDOM[1], _read_numpy_random, _write_numpy_random)


def _read_deterministic() -> tuple[bool, bool]:
    import torch

    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _write_deterministic(state: tuple[bool, bool]) -> None:
    import torch

    torch.use_deterministic_algorithms(state[0], warn_only=state[1])


def _write_inference(on: bool) -> None:
    import torch

    # Only leaving the guard ends the mode, and a hook may keep it: a second one hides it for good.
    _GUARDS.append(torch._C._InferenceMode(on))


def _write_device(device: Any) -> None:
    import torch

    torch.set_default_device(None if device.type == "cpu" else device)


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


def _read_numpy_random() -> tuple[Any, bytes]:
    import numpy as np

    # The generator itself may be replaced, too. Its state as bytes can be compared.
    state = np.random.get_state(legacy=False)  # noqa: NPY002
    return np.random.get_bit_generator(), pickle.dumps(state)  # type: ignore[attr-defined]


def _write_numpy_random(before: tuple[Any, bytes]) -> None:
    import numpy as np

    np.random.set_bit_generator(before[0])  # type: ignore[attr-defined]
    np.random.set_state(pickle.loads(before[1]))  # noqa: NPY002


def _read_precision() -> list[Any]:
    import torch

    return [getattr(holder, "fp32_precision", None) for holder in _precision_holders()] + [
        torch.get_float32_matmul_precision()
    ]


def _write_precision(before: list[Any]) -> None:
    import torch

    torch.set_float32_matmul_precision(before[-1])
    for holder, value in zip(_precision_holders(), before, strict=False):
        if value is not None:  # versions before torch 2.9 have no such settings
            holder.fp32_precision = value


def _precision_holders() -> list[Any]:
    """Return what holds a setting for float32 products, general ones before special ones."""
    from torch import backends

    mkldnn, cudnn = backends.mkldnn, backends.cudnn
    general = [backends, mkldnn, cudnn, backends.cuda.matmul]
    return general + [
        part
        for holder, names in ((mkldnn, ("matmul", "conv", "rnn")), (cudnn, ("conv", "rnn")))
        for part in (getattr(holder, name, None) for name in names)
        if part is not None
    ]


def _read_modes() -> tuple[int, int, Any]:
    """Return the depths of torch's stacks of modes, and the hooks on saved tensors."""
    import torch

    core = torch._C
    hooks = core._autograd._top_saved_tensors_default_hooks(False)
    return core._len_torch_function_stack(), core._len_torch_dispatch_stack(), hooks


def _write_modes(before: tuple[int, int, Any]) -> None:
    import torch

    core = torch._C
    while core._len_torch_function_stack() > before[0]:
        core._pop_torch_function_stack()
    while core._len_torch_dispatch_stack() > before[1]:
        core._pop_torch_dispatch_stack(None)
    while _read_modes()[2] not in (None, before[2]):
        core._autograd._pop_saved_tensors_default_hooks()


def _write_warnings(filters: list[Any]) -> None:
    warnings.resetwarnings()  # also forgets which warnings were shown under the old filters
    warnings.filters[:] = filters  # type: ignore[index]


def _read_folder() -> Path | None:
    with suppress(OSError):  # it was removed
        return Path.cwd()
    return None


def _write_folder(folder: Path | None) -> None:
    if folder is not None:
        with suppress(OSError):
            os.chdir(folder)


def _read_stream(name: str) -> tuple[Any, bool]:
    stream = getattr(sys, name)
    return stream, getattr(stream, "closed", False)


def _write_stream(name: str, state: tuple[Any, bool]) -> None:
    stream, closed = state
    if getattr(stream, "closed", False) and not closed:
        # Closing Python's stream leaves the file of the process open.
        number = ("stdin", "stdout", "stderr").index(name)
        mode = "w" if number else "r"
        stream = open(number, mode, closefd=False, errors="replace")  # noqa: SIM115
    setattr(sys, name, stream)

"""The boundary around code of users: plug-ins, hooks, metrics, shifts and loaders of tasks.

Whatever such code raises becomes one line, and the global state that it changes is put back.
"""

from __future__ import annotations

import os
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from clbench.errors import ClbenchError, PluginError
from clbench.messages import printable

IMPORTS = ("the environment", "the warning filters", "sys.path")
"""What importing a module may change for good."""
RANDOM = ("torch's random numbers", "NumPy's random numbers", "Python's random numbers")


class StateItem(NamedTuple):
    """A part of the global state: its name in messages, how to read it, and how to set it."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


class GlobalState:
    """A snapshot of the process-wide state that code of users can change.

    It covers torch's default type and device, modes, flags, threads and global module hooks; the
    random numbers of torch, NumPy and Python; the environment, the warning filters, the working
    folder, ``sys.path`` and the standard streams.

    Parameters
    ----------
    without
        Names of parts to leave as they are.
    """

    def __init__(self, *, without: Collection[str] = ()) -> None:
        # Without torch nothing can have changed it, and its import takes a second.
        items = [item for item in _items("torch" in sys.modules) if item.name not in without]
        self._values = [(item, item.read()) for item in items]

    def restore(self) -> list[str]:
        """Put everything back; return the names of the parts that had changed."""
        changed = []
        for item, before in self._values:
            if item.read() != before:
                item.write(before)
                changed.append(item.name)
        return list(dict.fromkeys(changed))


@contextmanager
def user_code(what: str, *, without: Collection[str] = ()) -> Iterator[None]:
    """Turn whatever code of users raises into a PluginError, and put the global state back.

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
    except Exception:  # plug-ins may define errors whose text raises
        return "(its message cannot be read)"


@cache
def _items(with_torch: bool) -> tuple[StateItem, ...]:
    return (*(_torch_items() if with_torch else ()), *_python_items())


def _python_items() -> Iterator[StateItem]:
    yield StateItem(RANDOM[2], random.getstate, random.setstate)
    yield StateItem("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit)
    yield StateItem("the warning filters", lambda: list(warnings.filters), _write_warnings)
    yield StateItem("the working folder", _read_folder, _write_folder)
    yield StateItem("the environment", os.environ.copy, partial(_write_mapping, os.environ))
    write_path = partial(sys.path.__setitem__, slice(None))
    yield StateItem("sys.path", sys.path.copy, write_path)
    for name in ("stdout", "stderr"):
        yield StateItem(f"sys.{name}", partial(_read_stream, name), partial(_write_stream, name))


def _torch_items() -> Iterator[StateItem]:
    import torch
    from torch.backends import cuda
    from torch.nn.modules import module
    from torch.utils import deterministic

    backends = torch.backends
    modes: tuple[tuple[str, Callable[[], Any], Callable[[Any], object]], ...] = (
        ("default type", torch.get_default_dtype, torch.set_default_dtype),
        ("default device", torch.get_default_device, _write_device),
        ("gradient mode", torch.is_grad_enabled, torch.set_grad_enabled),
        ("thread count", torch.get_num_threads, torch.set_num_threads),
        ("anomaly mode", torch.is_anomaly_enabled, torch.set_anomaly_enabled),
        ("deterministic mode", _read_deterministic, _write_deterministic),
        (
            "matrix precision",
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
        ),
        ("attention kernels", cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
        ("attention kernels", cuda.math_sdp_enabled, cuda.enable_math_sdp),
        ("attention kernels", cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
    )
    for name, read, write in modes:
        yield StateItem(f"torch's {name}", read, write)
    for kind in ("cpu", "cuda"):
        autocast = partial(torch.set_autocast_enabled, kind)
        yield StateItem("torch's autocast mode", partial(torch.is_autocast_enabled, kind), autocast)
    for name, holder, flag in (
        ("torch's deterministic mode", deterministic, "fill_uninitialized_memory"),
        ("cuDNN's flags", backends.cudnn, "benchmark"),
        ("cuDNN's flags", backends.cudnn, "deterministic"),
        ("cuDNN's flags", backends.cudnn, "enabled"),
        ("oneDNN's flag", backends.mkldnn, "enabled"),
    ):
        yield StateItem(name, partial(getattr, holder, flag), partial(setattr, holder, flag))
    for key, hooks in vars(module).items():
        if key.startswith("_global_") and isinstance(hooks, dict):
            write = partial(_write_mapping, hooks)
            yield StateItem("torch's global module hooks", hooks.copy, write)
    yield StateItem(RANDOM[0], _read_torch_random, _write_torch_random)
    yield StateItem(RANDOM[1], _read_numpy_random, _write_numpy_random)


def _write_mapping(mapping: MutableMapping[Any, Any], content: MutableMapping[Any, Any]) -> None:
    mapping.clear()
    mapping.update(content)


def _read_deterministic() -> tuple[bool, bool]:
    import torch

    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _write_deterministic(state: tuple[bool, bool]) -> None:
    import torch

    torch.use_deterministic_algorithms(state[0], warn_only=state[1])


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


def _read_numpy_random() -> tuple[Any, ...]:
    import numpy as np

    name, keys, *rest = np.random.get_state()  # noqa: NPY002
    return (name, np.asarray(keys).tobytes(), *rest)


def _write_numpy_random(state: tuple[Any, ...]) -> None:
    import numpy as np

    name, keys, *rest = state
    np.random.set_state((name, np.frombuffer(keys, dtype=np.uint32), *rest))  # noqa: NPY002


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
    return stream, stream is not None and stream.closed


def _write_stream(name: str, state: tuple[Any, bool]) -> None:
    stream, closed = state
    if stream is not None and stream.closed and not closed:
        # Closing Python's stream leaves the file of the process open.
        number = {"stdout": 1, "stderr": 2}[name]
        stream = open(number, "w", closefd=False, errors="replace")  # noqa: SIM115
    setattr(sys, name, stream)

"""Run what models bring along, such as chat templates, in a child process with limits."""

import json
import multiprocessing
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from clbench.core.errors import error_text


class LimitError(Exception):
    """What runs in a child process failed, took too long or took too much memory."""


def bounded(function: Callable[[], Any], seconds: float, memory: int = 1 << 30) -> Any:
    """Return what `function` returns, plain JSON values, from a child with limits.

    It is for what models bring along and may never end, such as chat templates and regular
    expressions. The child is a copy of this process, may take `memory` more bytes, and can write no
    file. Without ``fork`` (Windows) the function runs here, without limits.

    Raises
    ------
    LimitError
        If it fails, dies, or is not done after `seconds`.
    """
    if not hasattr(os, "fork"):
        return function()
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=_answer, args=(function, memory, sender))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of copying a process with threads
        child.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            raise LimitError(f"it is not done after {seconds:.0f} seconds")
        answer = json.loads(receiver.recv_bytes())
    except EOFError as error:
        raise LimitError(f"its process died of more than {memory >> 20} MB or a crash") from error
    finally:
        child.kill()
        child.join()
        receiver.close()
    if "error" in answer:
        raise LimitError(answer["error"])
    return answer["value"]


def _answer(function: Callable[[], Any], memory: int, sender: Connection) -> None:
    """Send what `function` returns or raises; meant for a process of its own."""
    import resource

    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        with suppress(OSError):  # only Linux tells how much memory is taken
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            most = pages * resource.getpagesize() + memory
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        answer = {"value": function()}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error_text(error)}".removesuffix(": ")}
    sender.send_bytes(json.dumps(answer).encode())

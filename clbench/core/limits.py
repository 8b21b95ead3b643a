"""Run what models bring along, such as chat templates, in a process with limits."""

import json
import multiprocessing
import os
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from clbench.core.errors import error_text

MEMORY = 1 << 30
"""Bytes that the process may take."""


class LimitError(Exception):
    """A process failed, took too long or took too much memory."""


def bounded(function: Callable[[], Any], seconds: float) -> Any:
    """Return what `function` returns, plain JSON values, in a copy of this process.

    The copy can write no file. Windows has no such copies: the function runs here. Raises a
    LimitError if it fails, takes longer than `seconds` or more than `MEMORY`.
    """
    if not hasattr(os, "fork"):
        return function()
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=_answer, args=(function, seconds, sender))
    child.start()
    sender.close()
    failure, value = f"it takes more than {seconds:.0f} seconds", None
    if receiver.poll(seconds):
        failure = f"it crashes, or takes more than {MEMORY >> 20} MB"
        with suppress(EOFError):
            failure, value = json.loads(receiver.recv_bytes())
    child.kill()
    child.join()
    if failure:
        raise LimitError(failure)
    return value


def _answer(function: Callable[[], Any], seconds: float, sender: Connection) -> None:
    import resource

    for kind, most in ("CORE", 0), ("FSIZE", 0), ("CPU", int(seconds) + 1):
        resource.setrlimit(getattr(resource, f"RLIMIT_{kind}"), (most, most))
    with suppress(OSError):  # only Linux tells how much memory is taken
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        answer = ["", function()]
    except BaseException as error:
        answer = [f"{type(error).__name__}: {error_text(error)}".removesuffix(": "), None]
    sender.send_bytes(json.dumps(answer).encode())

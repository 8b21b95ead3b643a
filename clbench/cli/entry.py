"""Entry of the command line: exit codes, and faults as one line."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

STOPPED = 130
"""What a shell reports of a program that was interrupted."""

SIGNALS = ("SIGTERM", "SIGHUP")
"""Ways to end a program besides Ctrl-C, such as a cluster's or that of a closed terminal."""


BLOCKED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
"""What a disk or its rights may say anywhere; other faults of the system may be clbench's own."""

REWORDED = (
    (r"Input should be a valid integer(, .*)?$", "must be a whole number"),
    (r"Input should be greater than or equal to (\S+)$", r"must be at least \1"),
    (r"(\S+) is not a valid integer(?: range)?\.?$", r"must be a whole number, got \1"),
    (r"(\S+) is not in the range x>=(\d+)\.?$", r"must be at least \2, got \1"),
)
"""What typer or pydantic say of a value, and what is said instead."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments
        Without the program's name; those of the process by default.

    Returns
    -------
    int
        0 if all cells are well, 1 if some failed, 2 if the command or its input was wrong,
        130 if it was interrupted, 128 + n if signal n told it to end.
    """
    from typer import Abort, BadParameter

    from clbench.cli.app import app
    from clbench.errors import ClbenchError

    # typer has its own copy of click in some versions and the real one in others.
    usage_error: type[Exception] = BadParameter.__bases__[0]
    given = list(sys.argv[1:] if arguments is None else arguments)
    caught: list[int] = []
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A sign that the terminal cannot show becomes a question mark, no exception.
            stream.reconfigure(errors="replace")
    try:
        with _signals_as_interrupts(caught):
            code = app(given or ["--help"], prog_name="clbench", standalone_mode=False) or 0
    except ClbenchError as fault:
        return _complain(str(fault))
    except usage_error as fault:
        return _complain(_usage(fault))
    except (KeyboardInterrupt, Abort):
        code = STOPPED  # some versions of typer raise, others return it
    except BrokenPipeError:
        # Whoever read the output has gone, as with `| head`; Python would complain again
        # when it flushes at exit.
        _drop_output()
        return 0
    except OSError as fault:
        if fault.errno not in BLOCKED:
            raise
        if not fault.filename:
            _drop_output()
        where = f"{fault.filename}: " if fault.filename else "the output cannot be written: "
        return _complain(f"{where}{fault.strerror}. Free space or rights there.")
    if code == STOPPED:
        print("stopped; the same command goes on from here", file=sys.stderr)
        code = 128 + caught[0] if caught else STOPPED
    return int(code)


@contextmanager
def _signals_as_interrupts(caught: list[int]) -> Iterator[None]:
    """Let `SIGNALS` end the program as Ctrl-C does; `caught` receives the number."""

    def interrupt(number: int, frame: object) -> None:
        caught.append(number)
        raise KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in SIGNALS:
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            # One that is ignored, as under nohup, stays so.
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(text: str) -> int:
    print(f"error: {' '.join(text.split())}", file=sys.stderr)
    return 2


def _usage(fault: Exception) -> str:
    """A usage error of typer as one line that says where to look."""
    message = str(getattr(fault, "format_message", lambda: fault)()).strip()
    # What pydantic puts before a text of typer's own, in the versions of typer that use it.
    message = message.replace("Value error, ", "")
    for pattern, words in REWORDED:
        message = re.sub(pattern, words, message)
    path = getattr(getattr(fault, "ctx", None), "command_path", "clbench")
    end = "" if message.endswith((".", "?")) else "."
    return f"{message}{end} See {path} --help."

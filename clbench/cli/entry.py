"""Entry of the command line: exit codes, and faults as one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

STOPPED = 130
"""What a shell reports of a program that was interrupted."""


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
        130 if it was interrupted.
    """
    from typer import Abort, BadParameter

    from clbench.cli.app import app
    from clbench.errors import ClbenchError

    # typer has its own copy of click in some versions and the real one in others.
    usage_error: type[Exception] = BadParameter.__bases__[0]
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if code == STOPPED:
        print("stopped; the same command goes on from here", file=sys.stderr)
    return int(code)


def _complain(text: str) -> int:
    print(f"error: {' '.join(text.split())}", file=sys.stderr)
    return 2


def _usage(fault: Exception) -> str:
    """A usage error of typer as one line that says where to look."""
    message = str(getattr(fault, "format_message", lambda: fault)()).strip()
    # What pydantic puts before a text of typer's own, in the versions of typer that use it.
    message = message.replace("Value error, ", "")
    path = getattr(getattr(fault, "ctx", None), "command_path", "clbench")
    end = "" if message.endswith((".", "?")) else "."
    return f"{message}{end} See {path} --help."

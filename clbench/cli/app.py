"""The program: its verbs, its exit codes, and errors as one line."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import typer

from clbench.cli.audit import audit
from clbench.cli.check import check
from clbench.cli.combine import combine
from clbench.cli.list import listing
from clbench.cli.mend import mend
from clbench.cli.power import power
from clbench.cli.report import compare, report
from clbench.cli.run import run
from clbench.cli.search import search
from clbench.cli.tune import tune
from clbench.core.errors import ClbenchError

STOPPED = 130
"""Exit code of a program that is interrupted by Ctrl-C."""
SIGNALS = ("SIGTERM", "SIGHUP")
"""Handled like Ctrl-C; sent when a cluster ends a job or a terminal closes."""
USER_ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
)
"""System errors that the user can fix wherever they occur; others may be bugs."""

# Plain help is readable in logs and narrow windows, and takes a third of the time.
app = typer.Typer(
    name="clbench",
    help="Compare ways to fine-tune transformers by how much they forget, and at what cost.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for verb in (run, search, tune, listing, report, compare, power, check, combine, audit, mend):
    app.command("list" if verb is listing else verb.__name__)(verb)


@app.callback(invoke_without_command=True)
def _top(
    version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True),
) -> None:
    if version:
        from clbench.core import __version__

        typer.echo(f"clbench {__version__}")
        raise typer.Exit


class _LossyFile(io.FileIO):
    """Stderr that drops what cannot be written, as on a full disk."""

    def write(self, data: Any) -> int:
        with suppress(OSError):
            return super().write(data) or len(data)
        return len(data)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments
        Without the program's name; by default those of this process.

    Returns
    -------
    int
        0 if all cells finished, 1 if some failed, 2 if the command or its input is wrong,
        130 after Ctrl-C, 128 + n after signal n.
    """
    # Some versions of typer bring a copy of click, others use the real one.
    usage_error: type[Exception] = typer.BadParameter.__bases__[0]
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    signals: list[int] = []
    if isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr is sys.__stderr__:
        file = io.BufferedWriter(_LossyFile(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(file, sys.stderr.encoding, line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Print characters that the terminal lacks as question marks.
            stream.reconfigure(errors="replace")
    try:
        with _signals_as_interrupts(signals):
            code = app(arguments or ["--help"], prog_name="clbench", standalone_mode=False) or 0
    except ClbenchError as error:
        from clbench.core.user_code import error_text

        return _fail(error_text(error))
    except usage_error as error:
        verb = next((f" {c.name}" for c in app.registered_commands if c.name in arguments[:1]), "")
        path = getattr(getattr(error, "ctx", None), "command_path", f"clbench{verb}")
        text = str(getattr(error, "format_message", error.__str__)()).strip()
        from clbench.core.errors import in_words, sentence

        return _fail(f"{sentence(in_words(text))} See {path} --help.")
    except (KeyboardInterrupt, typer.Abort):
        code = STOPPED  # some versions of typer raise, others return it
    except BrokenPipeError:
        # The reader of stdout is gone, as with `| head`; keep Python from failing again at exit.
        _drop_output()
        return 0
    except (OSError, ImportError, MemoryError) as error:
        return _fail(_system_error(error))
    if code == STOPPED:
        print("stopped; run the same command again to resume", file=sys.stderr)
        code = 128 + signals[0] if signals else STOPPED
    return int(code)


def _system_error(error: OSError | ImportError | MemoryError) -> str:
    """Return one line on what the system lacks; re-raise an OSError that may be a bug."""
    if not isinstance(error, OSError):
        text = f"{type(error).__name__}: {[*str(error).splitlines(), ''][0]}".rstrip(": .")
        return f"{text}. Give it more memory (ulimit -v), or install clbench again."
    if (
        isinstance(error, FileNotFoundError) and not error.filename
    ):  # no working or temporary folder
        return f"{error.strerror}. Free some space there, or change to another folder."
    if error.errno not in USER_ERRORS:
        raise error
    if not error.filename:
        _drop_output()
    from clbench.core.files import remedy

    where = str(error.filename or "the output cannot be written")
    short = where if len(where) <= 80 else f"{where[:79]}…"
    return f"{short}: {error.strerror}. {remedy(error).capitalize()}."


@contextmanager
def _signals_as_interrupts(received: list[int]) -> Iterator[None]:
    """Handle `SIGNALS` like Ctrl-C inside the block, and add their numbers to `received`."""

    def interrupt(number: int, frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    main_thread = threading.current_thread() is threading.main_thread()
    numbers = [getattr(signal, name, None) for name in SIGNALS]  # Windows has no SIGHUP
    # An ignored signal, as under nohup, stays ignored.
    handled = [n for n in numbers if n and main_thread and signal.getsignal(n) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(text: str) -> int:
    from clbench.core.errors import printable  # not for --help: it takes a third of a second

    print(f"error: {printable(text)}", file=sys.stderr)
    return 2

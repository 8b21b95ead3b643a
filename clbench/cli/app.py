"""The program: its verbs, its exit codes, and errors as one line."""

import errno
import inspect
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pkgutil import resolve_name
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from clbench.core import __version__, errors
from clbench.core.files import check_working_folder, remedy

STOPPED = 130
"""Exit code of a program that is interrupted by Ctrl-C."""
SIGNALS = ("SIGTERM", "SIGHUP")
"""Handled like Ctrl-C; sent when a cluster ends a job or a terminal closes."""
USER_ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
)
"""System errors that the user can fix wherever they occur; others may be bugs."""
VERBS = {
    "What did my model forget?": {
        "audit": "Find out what fine-tuned models forgot of their base model.",
        "export": "Write an audit, or runs as a dataset, in a format to publish.",
        "mend": "Mix a model with its base model, to get back what it forgot.",
    },
    "Which method forgets least?": {
        "run": "Run a suite, or resume it: finished cells do not run again.",
        "report": "Write a report of runs: an offline page with figures and tables.",
        "compare": "Write one report that compares two runs.",
        "power": "Say how many seeds show a difference, from the spread of a run.",
        "tune": "Tune methods, each with the same number of trials.",
        "search": "Search learning rates by depth for a pair of tasks (BERTcL).",
        "combine": "Combine the learning rates of several searches into a baseline.",
    },
    "Publish": {
        "submit": "Write a run as a folder to publish.",
        "verify": "Check a submission, and train some of its cells again.",
        "board": "Write pages that compare the submissions to each suite.",
    },
    "Bring your own": {
        "list": "List suites, scenarios, methods, tasks and other names.",
        "schema": "Print the JSON Schema of audits, cells, submissions or suites.",
        "check": "Check that a method keeps its promises, on tiny tasks.",
    },
}
"""Verbs by the question that they answer; ``clbench.cli.VERB`` defines VERB."""
PLACES = {
    "mend": "audit:mend",
    "compare": "report:compare",
    "power": "report:power",
    "verify": "submit:verify",
    "board": "submit:board",
    "tune": "search:tune",
    "combine": "search:combine",
    "list": "extend:listing",
    "check": "extend:check",
}
"""Where the other verbs are defined."""
RESUMED = ("run", "tune", "search")
"""Verbs that go on from what is finished if they are repeated."""
GROUPS = ("What to run", "How to search", "How to train", "Where it runs")
SECTIONS = ("Arguments", *GROUPS, "Options")
"""The sections of a verb's help."""


class Verb(TyperCommand):
    """A verb, whose help has a section for each group of options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections; a group of one option stands under Options."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in SECTIONS}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                name, text = record
                if parameter.param_type_name == "argument":
                    sections["Arguments"].append((name.partition(" <")[0], text))
                else:
                    title = getattr(parameter, "rich_help_panel", None) or "Options"
                    sections[title].append((name, text))
        single = [title for title in GROUPS if len(sections[title]) == 1]
        sections["Options"][-1:-1] = [record for title in single for record in sections.pop(title)]
        _write(formatter, sections)


class Program(TyperGroup):
    """The program, whose help has a section for each question."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sections."""
        width = max(len(name) for verbs in VERBS.values() for name in verbs)
        rows = {
            title: [(name.ljust(width), text) for name, text in verbs.items()]
            for title, verbs in VERBS.items()
        }
        _write(formatter, rows)


def _write(formatter: Any, sections: dict[str, list[tuple[str, str]]]) -> None:
    for title, records in sections.items():
        if records:
            formatter.write(f"\n{title}{'' if title.endswith('?') else ':'}\n")
            with formatter.indentation():
                formatter.write_dl(records)


def program(verb: str) -> typer.Typer:
    """Return the program; only the module of `verb` is imported."""
    # Plain help is readable in logs and narrow windows, and takes a third of the time.
    app = typer.Typer(
        name="clbench",
        cls=Program,
        help="Compare ways to fine-tune transformers by how much they forget, and at what cost.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(invoke_without_command=True)(_top)
    for name in (name for verbs in VERBS.values() for name in verbs):
        function: Callable[..., Any] = _top
        if name == verb:
            function = resolve_name(f"clbench.cli.{PLACES.get(name, f'{name}:{name}')}")
        text, _, examples = (inspect.getdoc(function) or "").partition("\n\nFor example:\n\n")
        epilog = f"\b\nExamples:\n{examples}" if examples else None
        app.command(name, cls=Verb, help=text, epilog=epilog)(function)
    return app


def _top(
    version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True),
) -> None:
    if version:
        typer.echo(f"clbench {__version__}")
        raise typer.Exit


class _LossyFile(io.FileIO):
    """Stderr that drops what cannot be written, as on a full disk."""

    def write(self, data: Any) -> int:
        with suppress(OSError):
            return super().write(data) or len(data)
        return len(data)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default with the arguments of this process; return its exit code.

    It is 0 if all cells finished, 1 if some failed or an audit's gate did not pass, 2 if the
    command or its input is wrong, 3 if such a gate had nothing to check, 130 after Ctrl-C, and
    128 + n after signal n.
    """
    # Some versions of typer bring a copy of click, others use the real one.
    usage_error: type[Exception] = typer.BadParameter.__bases__[0]
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    signals: list[int] = []
    if isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr is sys.__stderr__:
        file = io.BufferedWriter(_LossyFile(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(file, sys.stderr.encoding, line_buffering=True)
    if sys.stdout is None or sys.stdout.closed:  # as after >&-
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Print characters that the terminal lacks as question marks.
            stream.reconfigure(errors="replace")
    verbs = {name for verbs in VERBS.values() for name in verbs}
    # Words that a shell wants to complete: typer reads them from the environment.
    shell = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    words = shell.split()[1:] if "_CLBENCH_COMPLETE" in os.environ else arguments
    verb = words[0] if words and words[0] in verbs else ""
    try:
        with _signals_as_interrupts(signals), errors.command_line():
            check_working_folder()
            app = program(verb)
            code = app(arguments or ["--help"], prog_name="clbench", standalone_mode=False) or 0
    except errors.ClbenchError as error:
        return _fail(errors.error_text(error))
    except usage_error as error:
        path = getattr(getattr(error, "ctx", None), "command_path", f"clbench {verb}".strip())
        text = str(getattr(error, "format_message", error.__str__)()).strip()
        return _fail(f"{errors.sentence(errors.in_words(text))} See {path} --help.")
    except (KeyboardInterrupt, typer.Abort):
        code = STOPPED  # some versions of typer raise, others return it
    except (OSError, ImportError, MemoryError) as error:
        return _fail(_system_error(error))
    if code == STOPPED:
        again = "; run the same command again to resume" if verb in RESUMED else ""
        print(f"stopped{again}", file=sys.stderr)
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
        drop_output()
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


def drop_output() -> None:
    """Send what is still printed to nowhere, which also keeps Python from failing at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(text: str) -> int:
    print(f"error: {errors.printable(text)}", file=sys.stderr)
    return 2

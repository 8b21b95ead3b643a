"""Run the command line in a forked process: warm, so it starts in milliseconds, and expendable."""

import ctypes
import fcntl
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

LIMIT = 40.0
"""Seconds in which a command must answer; a run that trains by then accepted its input."""
MEMORY = 4 << 30
"""Bytes that a process may take more than it has; a wrong length must not take the machine's."""
OUTPUT = 1 << 20
"""Bytes that a process may print."""
SERVER = get_context("forkserver")
SERVER.set_forkserver_preload([
    "pytest", "pyarrow.json", "sklearn.cluster", "safetensors.torch", "torch._dynamo",
    "transformers.models.auto.tokenization_auto", "transformers.models.bert.modeling_bert",
    "clbench.api", "clbench.cli.run", "clbench.cli.console", "clbench.runner.run_plan",
    "clbench.models.checkpoint", "clbench.report.files",
])  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its code (None: it hung; negative: a signal) and what it printed."""

    code: int | None
    out: str
    err: str
    interrupted: bool = False  # with Ctrl-C, as it trained

    def __str__(self) -> str:
        lines = [*self.out.splitlines()[-3:], *self.err.splitlines()[-12:]]
        return "\n".join([f"exit code {self.code}", *(ascii(line[:300])[1:-1] for line in lines)])


class Process:
    """`clbench WORDS` in `folder`, which prints to pipes: a limit of files does not meet these.

    `before` is called in the new process first. Its address space is limited, except for Ray, which
    needs much and hands the limit on.
    """

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        before: Callable[[], object] | None = None,
        *,
        limited: bool = True,
    ) -> None:
        pipes = [SERVER.Pipe(duplex=False) for _ in range(2)]
        self._ends = [end for end, _ in pipes]
        for end in self._ends:
            fcntl.fcntl(end.fileno(), fcntl.F_SETPIPE_SZ, OUTPUT)
            os.set_blocking(end.fileno(), False)  # a worker may outlive the process
        ends = [end for _, end in pipes]
        arguments = (words, folder, ends, before, limited)
        self._process = SERVER.Process(target=_call, args=arguments)
        self._process.start()
        for end in ends:
            end.close()

    def wait(self, seconds: float) -> bool:
        """Wait up to so many seconds for the end; return whether it came."""
        self._process.join(max(0.0, seconds))
        return self._process.exitcode is not None

    def interrupt(self) -> None:
        """Send what Ctrl-C sends."""
        os.kill(self._process.pid or 0, signal.SIGINT)

    def kill(self) -> None:
        """End the process and all that it started, as a crash would."""
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                kill(self._process.pid or 0, signal.SIGKILL)
        self.wait(10)

    def outcome(self, *, hung: bool = False, interrupted: bool = False) -> Outcome:
        """Return how it ended."""
        texts = []
        for end in self._ends:
            with os.fdopen(os.dup(end.fileno()), "rb", buffering=0) as file, end:
                texts.append((file.read(OUTPUT) or b"").decode("utf-8", "replace"))
        return Outcome(None if hung else self._process.exitcode, *texts, interrupted)


def command(
    words: Sequence[str],
    folder: Path,
    *,
    limit: float = LIMIT,
    before: Callable[[], object] | None = None,
) -> Outcome:
    """Run `clbench WORDS` to its end.

    After `limit` seconds a run in `folder`/out that has begun is interrupted; all else has hung.
    """
    begun = folder / "out" / "suite.json"
    earlier, process = stamp(begun), Process(words, folder, before)
    if process.wait(limit):
        return process.outcome()
    if stamp(begun) != earlier:
        process.interrupt()
        if process.wait(limit):
            return process.outcome(interrupted=True)
    process.kill()
    return process.outcome(hung=True)


def stamp(path: Path) -> int:
    """Return when a file was written; 0 if it does not exist."""
    return path.stat().st_mtime_ns if path.exists() else 0


def fill_disk(folder: Path, at: int, size: int) -> None:
    """Let files end after `size` bytes from write `at` on below the folder, with the cache."""
    os.environ["CLBENCH_CACHE"] = str(folder / "cache")
    writes = 0

    def watch(event: str, words: tuple[Any, ...]) -> None:
        nonlocal writes
        opens = event == "open" and isinstance(words[0], str)
        if opens and words[2] & (os.O_WRONLY | os.O_RDWR):
            writes += Path(words[0]).absolute().is_relative_to(folder)
            if writes == at:
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    sys.addaudithook(watch)


def _call(
    words: Sequence[str],
    folder: Path,
    ends: Sequence[Connection],
    before: Callable[[], object] | None,
    limited: bool,
) -> None:
    _enter(folder, ends, limited)
    if before:
        before()
    from clbench.cli.app import main

    try:
        code = main(list(words))
    except SystemExit as error:
        code = error.code
    assert code is None or isinstance(code, int), code
    sys.exit(code)


def _enter(folder: Path, ends: Sequence[Connection], limited: bool) -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the tests
    os.chdir(folder)
    os.environ |= {"HOME": str(folder.parent / "home"), "COLUMNS": "100"}
    for number, end in enumerate(ends, 1):
        os.dup2(end.fileno(), number)
    sys.stdout, sys.stderr = (
        open(number, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
        for number in (1, 2)
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if limited:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import torch

    torch.set_num_threads(1)

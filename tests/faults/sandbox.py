"""Run the command line in a forked process: warm, so it starts in milliseconds, and expendable."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

LIMIT = 40.0
"""Seconds in which a command must answer, or start to train."""
TRAINING = 3.0
"""Seconds of training after which a run is stopped as with Ctrl-C: its input was accepted."""
MEMORY = 4 << 30
"""Bytes that a process may take more than it has; a wrong length must not take the machine's."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its code (None: it hung; negative: a signal) and what it printed."""

    code: int | None
    out: str
    err: str
    seconds: float
    stopped: bool = False  # with Ctrl-C, as it trained

    def __str__(self) -> str:
        err = [line for line in self.err.splitlines() if line.strip(" ^~")]
        if "Traceback" in self.err:  # where in clbench, and the first error
            err = self.err.partition("Traceback")[2].splitlines()
            error = next((line for line in err[1:] if not line.startswith(" ")), "")
            err = [*[line for line in err if "/clbench/" in line][-2:], error]
        lines = err[-4:] if self.code == 2 else [*self.out.splitlines()[-3:], *err[-4:]]
        shown = [ascii(line[:300])[1:-1] for line in lines if line.strip()]
        return "\n".join([f"exit code {self.code} after {self.seconds:.1f} s", *shown])


class Process:
    """`clbench WORDS` in `folder`; what it prints goes to files beside the folder.

    Parameters
    ----------
    before
        Called in the new process first, such as to limit its resources.
    pipes
        Whether it prints to pipes, which the limit of a file's size does not meet.
    limited
        Whether its address space is limited; Ray needs much, and hands the limit on.
    """

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        before: Callable[[], object] = lambda: None,
        *,
        pipes: bool = False,
        limited: bool = True,
    ) -> None:
        self.limited = limited
        self.started = time.monotonic()
        self.pipes = [os.pipe() for _ in range(2)] if pipes else []
        self.files = [folder.with_name(f"{folder.name}.{name}") for name in ("out", "err")]
        self.code: int | None = None
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        ends = [os.open(path, flags, 0o644) for path in self.files]
        if self.pipes:
            ends = [os.dup(end) for _, end in self.pipes]
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                self._enter(folder, ends)
                before()
                code = _call(words)
            finally:
                os._exit(code & 255)
        for end in ends:
            os.close(end)

    def _enter(self, folder: Path, ends: Sequence[int]) -> None:
        os.setsid()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the campaign
        os.chdir(folder)
        for number, end in enumerate(ends, 1):
            os.dup2(end, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout = open(1, "w", closefd=False, encoding="utf-8")  # noqa: SIM115
        sys.stderr = open(  # noqa: SIM115
            2, "w", closefd=False, encoding="utf-8", errors="backslashreplace", buffering=1
        )
        if self.limited:
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def ended(self) -> bool:
        """Whether the process is gone; `code` is then set."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def wait(self, until: float) -> bool:
        """Wait up to `until` (of the monotonic clock) for the end; return whether it came."""
        while not self.ended():
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def kill(self) -> None:
        """End the process and all that it started, as a crash would."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.wait(time.monotonic() + 10)

    def outcome(self, *, hung: bool = False, stopped: bool = False) -> Outcome:
        """Return how it ended."""
        for path, (end, other) in zip(self.files, self.pipes, strict=False):
            os.close(other)
            path.write_bytes(os.read(end, 1 << 20))
            os.close(end)
        self.pipes = []
        out, err = (path.read_bytes().decode("utf-8", "replace") for path in self.files)
        seconds = time.monotonic() - self.started
        return Outcome(None if hung else self.code, out, err, seconds, stopped)


def command(
    words: Sequence[str],
    folder: Path,
    *,
    limit: float = LIMIT,
    training: float | None = None,
    before: Callable[[], object] = lambda: None,
    pipes: bool = False,
) -> Outcome:
    """Run `clbench WORDS` to its end; after `limit` seconds it counts as hung.

    With `training`, a run in `folder`/out that has begun is interrupted after so many seconds.
    """
    process = Process(words, folder, before, pipes=pipes)
    begun, stopped = folder / "out" / "suite.json", False
    before_time = begun.stat().st_mtime_ns if begun.exists() else 0
    end = process.started + limit
    while not process.wait(min(end, time.monotonic() + 0.1)):
        now = time.monotonic()
        now_time = begun.stat().st_mtime_ns if begun.exists() else 0
        if training is not None and not stopped and now_time != before_time:
            before_time, end = now_time, now + training
        if now < end:
            continue
        if training is None or stopped or not begun.exists():
            process.kill()
            return process.outcome(hung=True)
        os.kill(process.pid, signal.SIGINT)
        stopped, end = True, now + limit / 2
    return process.outcome(stopped=stopped)


def _call(words: Sequence[str]) -> int:
    """Return the exit code as the interpreter would, with the traceback of what gets through."""
    from clbench.cli.app import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    code: object = 1
    try:
        code = main(list(words))
    except SystemExit as error:
        code = error.code
    except BaseException:
        with suppress(ValueError):
            traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with suppress(ValueError, OSError):
            stream.flush()
    if isinstance(code, int) or code is None:
        return code or 0
    os.write(2, f"Traceback: SystemExit({code!r})\n".encode())
    return 1


def warm_up() -> None:
    """Import what commands need, so that forked processes share it."""
    import torch

    for name in (
        "pyarrow.parquet",
        "sklearn.cluster",
        "clbench.api",
        "clbench.cli.console",
        "clbench.runner.run_plan",
        "clbench.models.checkpoint",
        "clbench.report.files",
        "clbench.search",
    ):
        import_module(name)
    torch.set_num_threads(1)

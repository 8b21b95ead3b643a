"""A disk that is full from one write of a run on, by a limit of the size of files."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.cases import RUN, Trial
from faults.runs import LONG, finish
from faults.sandbox import command
from faults.verdict import faults


def at_write(folder: Path, act: Callable[[int], object]) -> Callable[[], None]:
    """Return what calls `act` with 1, 2, … as files below `folder` are opened for writing.

    It goes to the new process of a command, whose cache is below the folder, too.
    """

    def install() -> None:
        count = 0

        def watch(event: str, words: tuple[Any, ...]) -> None:
            nonlocal count
            if event != "open" or not isinstance(words[0], str) or not words[2]:
                return
            if words[2] & (os.O_WRONLY | os.O_RDWR) and Path(words[0]).absolute().is_relative_to(
                folder
            ):
                count += 1
                act(count)

        os.environ["CLBENCH_CACHE"] = str(folder / "cache")
        sys.addaudithook(watch)

    return install


def count_writes(folder: Path) -> int:
    """Return how many files a run of `folder` opens for writing."""
    counts = folder.with_name("writes")
    log = os.open(counts, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    hook = at_write(folder, lambda number: os.write(log, b"x"))
    outcome = command(RUN, folder, limit=LONG, before=hook)
    os.close(log)
    if outcome.code != 0:
        raise RuntimeError(f"an undisturbed run failed: {outcome}")
    return counts.stat().st_size


def full_disk(template: Path, folder: Path, at: int, size: int) -> Trial:
    """Let files end after `size` bytes from write `at` on; then make room and run again."""

    def fill(number: int) -> None:
        if number == at:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    outcome = command(RUN, folder, limit=LONG, before=at_write(folder, fill), pipes=True)
    problems = list(faults(outcome, trained=True))
    if outcome.code not in (0, 2):
        problems.append(f"exit code {outcome.code}")
    problems += [f"{path.name} is left" for path in folder.rglob("*.part")]
    problem, again = finish(folder, template, RUN)
    problems += [problem] if problem else []
    what = f"full from write {at} on, after {size} bytes"
    return Trial(1, what, "; ".join(problems), f"{outcome}\nagain: {again}")

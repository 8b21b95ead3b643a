"""Faults of real runs: kills, a full disk, two runners. Afterwards scores are equal to the bit."""

from __future__ import annotations

import csv
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from faults.cases import RUN, SUITE, Trial, toml
from faults.sandbox import Outcome, Process, command
from faults.verdict import faults

UNEQUAL = ("model", "train_seconds", "training_memory_mb", "peak_memory_mb", "search_seconds")
"""Columns of scores.csv that differ between equal runs in two folders."""
LONG = 400.0
"""Seconds in which a run must end, whatever happened to it."""
KILLS_OF_A_CELL = 2
"""Ray starts the cell of a dead worker again so often."""


MARK = """
import os
from pathlib import Path
import clbench

Path(__file__).with_name(f"ready-{os.getpid()}").touch()


@clbench.method("mark")
class Mark(clbench.Method):
    \"\"\"Registered, as a plug-in must register something.\"\"\"
"""
"""Shows which workers have imported what they need and begin with their cell."""
CELLS = 12
"""Cells of the longer run."""
KILLS, WORKER_KILLS, EVERY = 5, 50, 8
"""Kills of one run in this process; of workers; which of these hits the run itself."""


def write_suite(folder: Path, *, epochs: int) -> None:
    """Write a suite of two scenarios, three methods and two seeds: twelve cells."""
    scenarios = [
        SUITE["scenario"][0],
        {"name": "length", "shift": "sentence-length", "task": "mood"},
    ]
    suite = {
        **SUITE,
        "methods": ["vanilla", "ewc", "recadam"],
        "seeds": [0, 1],
        "protocol": {**SUITE["protocol"], "epochs": epochs},
        "scenario": scenarios,
    }
    (folder / "small.toml").write_text(toml(suite))


def scores(out: Path) -> list[dict[str, str]]:
    """Return the rows of scores.csv without times and memory."""
    with (out / "scores.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [{key: text for key, text in row.items() if key not in UNEQUAL} for row in rows]


def matrices(out: Path) -> dict[str, Any]:
    """Return all metrics and curves of the cells in a folder, by key."""
    cells = [json.loads(path.read_text()) for path in sorted((out / "cells").glob("*.json"))]
    return {
        cell["key"]: [cell["metrics"], cell["R"], [stage["curves"] for stage in cell["stages"]]]
        for cell in cells
    }


def finish(folder: Path, template: Path, words: list[str]) -> tuple[str, Outcome]:
    """Run the same command to its end; return how it differs from the undisturbed run."""
    outcome = command(words, folder, limit=LONG)
    if problems := list(faults(outcome)):
        return "; ".join(problems), outcome
    if outcome.code != 0:
        return f"exit code {outcome.code} when run again", outcome
    out = folder / "out"
    halves = [*out.rglob("*.part")]
    if halves:
        return f"{halves[0].name} is left", outcome
    if scores(out) != scores(template / "out"):
        return "other scores in scores.csv", outcome
    if matrices(out) != matrices(template / "out"):
        return "other metrics or curves, or another set of cells", outcome
    return "", outcome


def kill_runs(template: Path, folder: Path, rng: Random, seconds: float) -> Trial:
    """Kill a run at random moments, start it again each time, and let it finish at last."""
    where: list[str] = []
    for _ in range(KILLS):
        process = Process(RUN, folder)
        # A third of the whole, so that later kills meet later cells.
        if process.wait(time.monotonic() + rng.uniform(0.1, seconds / 3)):
            break
        process.kill()
        where.append(str(len(list((folder / "out" / "cells").glob("*.json")))))
    problem, outcome = finish(folder, template, RUN)
    return Trial(
        len(where), f"killed with {', '.join(where)} cells finished", problem, str(outcome)
    )


def kill_workers(template: Path, folder: Path, rng: Random, seconds: float) -> Trial:
    """Kill workers of a run at random moments of their cells, and sometimes the run itself.

    A worker's first seconds, in which it imports torch, do not count as moments of a cell.
    `seconds` is how long a cell takes. A run that ends is begun again in a new folder.
    """
    (folder / "mark.py").write_text(MARK)
    again = [*RUN, "--plugin", "mark.py"]
    words, where = [*again, "--workers", "2"], []
    runs, problem, outcome = 0, "", None
    while len(where) < WORKER_KILLS and runs < 10 and not problem:
        runs += 1
        shutil.rmtree(folder / "out", ignore_errors=True)
        process, kills = Process(words, folder, limited=False), dict[str, int]()
        due: dict[tuple[int, str], float] = {}
        end = time.monotonic() + LONG
        while not process.wait(time.monotonic() + 0.03):
            now = time.monotonic()
            if now > end:
                process.kill()
                return Trial(len(where), "hangs", "no end in time", str(process.outcome(hung=True)))
            cells = cells_of_workers(folder.parent)
            busy = {pid: key for pid, key in cells.items() if (folder / f"ready-{pid}").exists()}
            for item in busy.items():
                due.setdefault(item, now + rng.uniform(0, 1.1 * seconds))
            late = [
                (pid, key)
                for pid, key in busy.items()
                if due[pid, key] <= now and kills.get(key, 0) < KILLS_OF_A_CELL
            ]
            if not late or len(where) >= WORKER_KILLS:
                continue
            pid, key = late[0]
            if len(where) % EVERY == EVERY - 1:
                where.append("the run")
                process.kill()
                sweep(folder.parent)
                process, kills = Process(words, folder, limited=False), {}
                continue
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            end = now + LONG
            kills[key] = kills.get(key, 0) + 1
            where.append(key)
        problem = "; ".join(faults(process.outcome()))
        if not problem:
            problem, outcome = finish(folder, template, again)
    sweep(folder.parent)
    what = f"{runs} runs; killed workers in {', '.join(where)}"
    return Trial(len(where), what, problem, str(outcome or process.outcome()))


def cells_of_workers(work: Path) -> dict[int, str]:
    """Return the keys of the cells that Ray's workers of this campaign run, by process."""
    titles = {pid: _read(pid, "cmdline") for pid in ours(work)}
    return {
        pid: title.removeprefix("ray::").rstrip("\0 ")
        for pid, title in titles.items()
        if title.startswith("ray::") and "--seed" in title
    }


def ours(work: Path) -> set[int]:
    """Return the processes that were started with the cache of this campaign.

    Ray's workers write their title over their environment: they are the children of such ones.
    """
    mark = f"CLBENCH_CACHE={work / 'cache'}\0"
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    own = {pid for pid in pids if mark in _read(pid, "environ")}
    parents = {pid: _read(pid, "stat").rpartition(")")[2].split()[1:2] for pid in pids}
    return own | {pid for pid in pids if parents[pid] and int(parents[pid][0]) in own}


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def sweep(work: Path) -> None:
    """End what a killed run left of Ray."""
    own = {os.getpid(), os.getppid()}
    for _ in range(20):
        rays = [pid for pid in ours(work) - own if "ray" in _read(pid, "cmdline")]
        if not rays:
            return
        for pid in rays:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.2)


def fill_disk(at: int, size: int, below: Path) -> Callable[[], None]:
    """Return a hook: from the write number `at` below a folder, files end after `size` bytes."""
    count = 0

    def watch(event: str, words: tuple[Any, ...]) -> None:
        nonlocal count
        if event == "open" and _writes_below(words, below):
            count += 1
            if count != at:
                return
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    return lambda: sys.addaudithook(watch)


def _writes_below(words: tuple[Any, ...], folder: Path) -> bool:
    path, _, flags = words
    writes = flags is not None and flags & (os.O_WRONLY | os.O_RDWR)
    return bool(writes) and isinstance(path, str) and path.startswith(str(folder))


def count_writes(folder: Path) -> int:
    """Return how many files a run of `folder` opens for writing."""
    counts = folder.with_name("writes")

    def install() -> None:
        def watch(event: str, words: tuple[Any, ...]) -> None:
            if event == "open" and _writes_below(words, folder):
                os.write(log, b"x")

        log = os.open(counts, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        sys.addaudithook(watch)

    outcome = command(RUN, folder, limit=LONG, before=install)
    assert outcome.code == 0, outcome
    return len(counts.read_bytes())


def full_disk(template: Path, folder: Path, at: int, size: int) -> Trial:
    """Let the disk be full from one write on; then make room and run again."""
    what = f"full from write {at} on, after {size} bytes"
    outcome = command(RUN, folder, limit=LONG, before=fill_disk(at, size, folder), pipes=True)
    problems = list(faults(outcome, trained=True))
    if outcome.code not in (0, 2):
        problems.append(f"exit code {outcome.code}")
    problems += [f"{path.name} is left" for path in folder.rglob("*.part")]
    problem, again = finish(folder, template, RUN)
    problems += [problem] if problem else []
    return Trial(1, what, "; ".join(problems), f"{outcome}\nagain: {again}")


def two_runners(template: Path, folder: Path, delay: float) -> Trial:
    """Start the same command twice; one works, the other is refused in a line."""
    first = Process(RUN, folder)
    first.wait(time.monotonic() + delay)
    files = [path.rename(path.with_suffix(".first")) for path in first.files]
    second = command(RUN, folder, limit=LONG)
    first.wait(time.monotonic() + LONG)
    first.files = files
    outcomes = [first.outcome(), second]
    problems = [problem for outcome in outcomes for problem in faults(outcome)]
    codes = sorted(outcome.code or 0 for outcome in outcomes)
    if codes != [0, 2]:
        problems.append(f"exit codes {codes}")
    if not any("in use" in outcome.err for outcome in outcomes):
        problems.append("no one is told that the folder is in use")
    problem, again = finish(folder, template, RUN)
    problems += [problem] if problem else []
    what = f"a second run after {delay:.2f} s"
    return Trial(1, what, "; ".join(problems), "\n".join(map(str, [*outcomes, again])))

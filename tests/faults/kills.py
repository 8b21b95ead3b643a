"""Kills of runs and of their workers, at random moments."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from random import Random

from faults.cases import RUN, Trial
from faults.runs import LONG, finish
from faults.sandbox import Process
from faults.verdict import faults

KILLS, WORKER_KILLS, EVERY = 5, 50, 8
"""Kills of one run in this process; of workers; which of these hits the run itself."""
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
        seen: dict[tuple[int, str], tuple[float, float]] = {}  # when, and how long it may live
        end = time.monotonic() + LONG
        while not process.wait(time.monotonic() + 0.05):
            now = time.monotonic()
            if now > end:
                process.kill()
                return Trial(len(where), "hangs", "no end in time", str(process.outcome(hung=True)))
            cells = cells_of_workers(folder.parent)
            busy = {pid: key for pid, key in cells.items() if (folder / f"ready-{pid}").exists()}
            for item in busy.items():
                seen.setdefault(item, (now, rng.uniform(0, 1.1 * seconds)))
            late = [
                (pid, key)
                for pid, key in busy.items()
                if sum(seen[pid, key]) <= now and kills.get(key, 0) < KILLS_OF_A_CELL
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
            where.append(f"{key} after {seen[pid, key][1]:.1f} s")
        outcome = process.outcome()
        problem = "; ".join(faults(outcome))
        if not problem:
            problem, outcome = finish(folder, template, again)
    sweep(folder.parent)
    what = f"{runs} runs; killed workers in {', '.join(where)}"
    return Trial(len(where), what, problem, str(outcome))


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
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)

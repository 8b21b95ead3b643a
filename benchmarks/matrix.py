"""Measure what a matrix of thousands of cells costs besides training.

    python benchmarks/matrix.py [--cells 10000] [--workers 2]

A plug-in replaces training by a made-up outcome, with curves of realistic length; everything else
is real: plan, executor, cell files, scores.csv, table. A fifth of the matrix runs in one process,
then all of it on workers. For both, the seconds a cell and the memory at the start, in the middle
and at the end are printed, and how much longer the second half takes than the first: nothing may
grow with the square of the cells. Peers are the same cell files written and flushed by a loop, and
as many Ray tasks that do nothing. Finally, the finished run is repeated in a new process, which
prints its table.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from machine import make_parser, write_json

import clbench
from clbench.core.files import write_atomically
from clbench.results.cell import CellResult
from clbench.results.store import Store
from clbench.runner.resources import Resources, connected
from clbench.runner.run_state import Listener

STUB = '''
"""Cells without training."""

import clbench
from clbench.runner.cell_runner import CellRunner, CellScores
from clbench.training.protocol import StageRecord

POINTS = 24


@clbench.method("stub")
class Stub(clbench.Method):
    """Registered because a plug-in registers something."""


def run(runner):
    tasks, stages, rows = runner.scenario.scenario.tasks, [], []
    for last in range(len(tasks)):
        noise = (hash((runner.cell.seed, last)) % 1000) / 1e5
        steps = list(range(1, POINTS + 1))
        curves = {
            "step": steps,
            "loss": [0.7 / step + noise for step in steps],
            "lr": [1e-3 / step + noise for step in steps],
            "scores": {
                task.name: [[step, 0.5 + step / 100 + noise] for step in steps]
                for task in tasks[: last + 1]
            },
        }
        stages.append(
            StageRecord(
                task=tasks[last].name, rows=500, steps=48, epochs=3.0, examples=1500, tokens=27000,
                train_seconds=0.1, eval_seconds=0.2, memory_mb=100.0, curves=curves,
            )
        )
        rows.append([
            {metric: 0.5 + noise + task / 10 for metric in tasks[task].metrics}
            if task <= last else None
            for task in range(len(tasks))
        ])
    correct = [[None] * len(tasks) for _ in tasks]
    return CellScores(stages, rows, correct, [], [], {}, [])


CellRunner.run = run
'''

SUITE = """
name = "matrix"
methods = ["vanilla", "frozen", "ewc", "l2-sp", "recadam"]
seeds = {seeds}

[protocol]
model = "tiny"
epochs = 1
max_length = 32
limit = 20
curve_points = 24
"""
SCENARIO = """
[[scenario]]
name = "scenario-{number}"
shift = "dataset"
tasks = ["synthetic/sentiment", "synthetic/acceptability"]
"""
METHODS, SCENARIOS = 5, 10


class Meter(Listener):
    """Records when cells finish, and the memory of this process at some of them."""

    def __init__(self, cells: int) -> None:
        self._process = psutil.Process()
        self._marks = {1, cells // 2, cells}
        self.times: list[float] = []
        self.memory: list[tuple[float, float]] = []

    def cell_finished(self, result: CellResult) -> None:
        """Record the time, and at the start, in the middle and at the end the memory."""
        assert result.status == "ok", result.reason
        self.times.append(time.perf_counter())
        if len(self.times) in self._marks:
            workers = [p for p in self._process.children(recursive=True) if _is_worker(p)]
            here = self._process.memory_info().rss / 1e6
            there = sum(p.memory_info().rss for p in workers) / 1e6
            self.memory.append((here, there))

    def seconds(self, part: slice) -> float:
        """Return the seconds from the first to the last of some cells."""
        times = self.times[part]
        return times[-1] - times[0]


def _is_worker(process: psutil.Process) -> bool:
    """Whether a process is a worker of Ray, which shows its task as ``ray::NAME``."""
    try:
        title = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return title.startswith("ray::") and "Agent" not in title


def measure(name: str, run: Callable[[Listener], object], cells: int) -> dict[str, float]:
    """Run the matrix, print what it took and return it."""
    meter, writes = Meter(cells), 0
    write = Store.write_scores

    def counted(store: Store, text: str) -> None:
        nonlocal writes
        writes += 1
        write(store, text)

    Store.write_scores = counted  # type: ignore[method-assign]
    started = time.perf_counter()
    try:
        run(meter)
    finally:
        Store.write_scores = write  # type: ignore[method-assign]
    whole = time.perf_counter() - started
    assert len(meter.times) == cells
    half = cells // 2
    first, second = meter.seconds(slice(half)), meter.seconds(slice(-half, None))
    cell = (first + second) / (2 * (half - 1))
    print(
        f"{name}: {cells} cells in {whole:.1f} s, the first after {meter.times[0] - started:.1f} s"
    )
    print(f"  {1e3 * cell:.2f} ms a cell; the second half takes {second / first:.2f} x the first")
    for moment, (here, there) in zip(("start", "middle", "end"), meter.memory, strict=True):
        workers = f", workers {there:.0f} MB" if there else ""
        print(f"  memory at the {moment}: {here:.0f} MB{workers}")
    print(f"  scores.csv was written {writes} times")
    return {"seconds": whole, "cell": cell, "halves": second / first, "writes": writes}


def plain_tasks(workers: int, count: int) -> float:
    """Return the seconds a task of Ray tasks that do nothing, as many at a time as workers."""
    with connected(Resources(workers=workers, threads=1)) as ray:
        nothing = ray.remote(num_cpus=1)(lambda: None)
        ray.get([nothing.remote() for _ in range(workers)])
        started, tasks = time.perf_counter(), set()
        for _ in range(count):
            if len(tasks) == workers:
                ready, rest = ray.wait(list(tasks))
                ray.get(ready)
                tasks = set(rest)
            tasks.add(nothing.remote())
        ray.get(list(tasks))
        return (time.perf_counter() - started) / count


def plain_files(folder: Path, source: Path, count: int) -> float:
    """Return the seconds a file of writing and flushing a cell's text."""
    folder.mkdir()
    text = next(source.glob("*.json")).read_text(encoding="utf-8")
    started = time.perf_counter()
    for number in range(count):
        write_atomically(folder / f"{number}.json", text)
    return (time.perf_counter() - started) / count


def resumed(command: list[str]) -> float:
    """Return the seconds of a command in a new process."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__, turns=1, device=False)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    args = parse()
    seeds = max(args.cells // (METHODS * SCENARIOS), 1)
    cells, measured = seeds * METHODS * SCENARIOS, {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        suite, plugin = folder / "matrix.toml", folder / "stub.py"
        scenarios = "".join(SCENARIO.format(number=n) for n in range(SCENARIOS))
        suite.write_text(SUITE.format(seeds=list(range(seeds))) + scenarios, encoding="utf-8")
        plugin.write_text(STUB, encoding="utf-8")
        workers = f"{args.workers} workers"
        setups: dict[str, dict[str, Any]] = {
            "one process": {"seeds": list(range(max(seeds // 5, 1)))},
            workers: {"seeds": list(range(seeds)), "workers": args.workers},
        }
        for setup, options in setups.items():

            def run(listener: Listener, setup: str = setup, options: Any = options) -> None:
                clbench.run(
                    suite,
                    out=folder / setup,
                    plugins=[plugin],
                    threads=1,
                    references=False,
                    listener=listener,
                    **options,
                )

            measured[setup] = measure(setup, run, len(options["seeds"]) * METHODS * SCENARIOS)
        sizes = [path.stat().st_size for path in (folder / "one process" / "cells").iterdir()]
        print(f"a cell file has {statistics.mean(sizes) / 1e3:.1f} kB")
        files = plain_files(folder / "files", folder / "one process" / "cells", cells // 10)
        tasks = plain_tasks(args.workers, cells // 10)
        for setup, peer, what in (
            ("one process", files, "writing the files"),
            (workers, tasks, "Ray tasks that do nothing"),
        ):
            ratio = measured[setup]["cell"] / peer
            print(f"{setup}: {ratio:.2f} x {what} ({1e3 * peer:.2f} ms each)")
        # Without the plug-in, which imports the engine; it decides no score of these methods.
        command = [sys.executable, "-m", "clbench", "run", str(suite)]
        seconds = resumed([*command, "--out", str(folder / workers)])
        print(f"the finished run, repeated with its table: {seconds:.1f} s")
        write_json(args, {**measured, "files": files, "tasks": tasks, "resume": seconds})


if __name__ == "__main__":
    main()

"""Measure time and memory of a report of many cells.

    python benchmarks/report.py [--cells 2000] [--from RUN]

Copies the cells of a run, by default of a part of quick, under other scenarios and seeds until
there are enough. Writes a report in a process of its own and prints its time, its peak memory
(drawing processes included) and the size of the page; then the same with the drawing in one
process. Matrix products play no part.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

import clbench
from clbench.results.store import Store

WORK = """
import sys
from clbench.cli import main
sys.exit(main(["report", sys.argv[1]]))
"""
EVERY = 0.25
"""Seconds between measurements of memory, each of which takes some milliseconds."""


def report(folder: Path, processors: int | None = None) -> tuple[float, float]:
    """Return seconds and megabytes of a report; memory pages that processes share count once."""
    environment = dict(os.environ)
    if processors is not None:
        environment["LOKY_MAX_CPU_COUNT"] = str(processors)
    started = time.perf_counter()
    work = psutil.Popen(
        [sys.executable, "-c", WORK, str(folder)], stdout=subprocess.DEVNULL, env=environment
    )
    peak = 0.0
    while work.poll() is None:
        with contextlib.suppress(psutil.Error):  # a process has just ended
            processes = [work, *work.children(recursive=True)]
            peak = max(peak, sum(p.memory_full_info().pss for p in processes) / 1e6)
        time.sleep(EVERY)
    return time.perf_counter() - started, peak


def copies(source: Path, target: Path, count: int) -> int:
    """Write `count` copies of the cells of `source`; return the number of scenarios."""
    cells: list[dict[str, Any]] = [
        json.loads(cell.to_json()) for cell in Store(source).read().cells
    ]
    (target / "cells").mkdir(parents=True)
    suite = Store(source).read_suite()
    scenarios = []
    written = 0
    for number in itertools.count():
        for cell in cells:
            if written == count:
                suite["scenario"] = [{"name": name, "shift": "dataset"} for name in scenarios]
                Store(target).write_suite(suite)
                return len(scenarios)
            scenario = f"{cell['scenario']}-{number // 20}"
            if scenario not in scenarios:
                scenarios.append(scenario)
            seed = cell["seed"] + 100 * (number % 20)
            key = f"{scenario}--{cell['baseline']}--seed{seed}"
            copy = {**cell, "scenario": scenario, "seed": seed, "key": key}
            (target / "cells" / f"{key}.json").write_text(json.dumps(copy))
            written += 1
    raise AssertionError


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, default=2_000)
    parser.add_argument("--from", dest="source", type=Path, help="a run's folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        source = args.source
        if source is None:
            source = Path(name) / "quick"
            clbench.run("quick", seeds=[0], methods=["vanilla", "recadam"], limit=100, out=source)
        folder = Path(name) / "many"
        scenarios = copies(source, folder, args.cells)
        size = sum(path.stat().st_size for path in (folder / "cells").iterdir()) / 1e6
        print(f"{args.cells} cells of {scenarios} scenarios, {size:.0f} MB")
        seconds = {}
        for drawing, processors in (("by default", None), ("in one process", 1)):
            seconds[drawing], peak = report(folder, processors)
            print(f"drawing {drawing}: {seconds[drawing]:.1f} s, {peak:.0f} MB")
        first, second = seconds.values()
        print(f"drawing in one process takes {second / first:.2f} x the time")
        page = folder / "report" / "index.html"
        print(f"page {page.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

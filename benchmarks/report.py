"""Seconds and memory of a report of many cells.

    python benchmarks/report.py [--cells 10000] [--from RUN]

Copies the cells of a run, the built-in quick one by default, under other scenarios and seeds until
there are enough, writes a report in a process of its own, and says how long it took, how much
memory it held at most, and how large the page is.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import clbench
from clbench.results.store import Store

WORK = """
import sys, time, resource
started = time.perf_counter()
from clbench.cli import main
code = main(["report", sys.argv[1]])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"seconds {time.perf_counter() - started:.1f} peak {peak:.0f}", file=sys.stderr)
sys.exit(code)
"""


def copies(source: Path, target: Path, count: int) -> int:
    """Cells of `source` under new scenarios and seeds, `count` of them."""
    cells: list[dict[str, Any]] = [
        json.loads(path.read_text()) for path in sorted((source / "cells").glob("*.json"))
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
            made = {**cell, "scenario": scenario, "seed": seed, "key": key}
            (target / "cells" / f"{key}.json").write_text(json.dumps(made))
            written += 1
    raise AssertionError


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--from", dest="source", type=Path, help="a run's folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        source = args.source
        if source is None:
            source = Path(name) / "quick"
            clbench.run("quick", out=source, workers=2)
        folder = Path(name) / "many"
        scenarios = copies(source, folder, args.cells)
        size = sum(path.stat().st_size for path in (folder / "cells").iterdir()) / 1e6
        print(f"{args.cells} cells of {scenarios} scenarios, {size:.0f} MB")
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", WORK, str(folder)], stdout=subprocess.DEVNULL, check=False,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        print(
            done.stderr.splitlines()[-1], f"(whole process {time.perf_counter() - started:.1f} s)"
        )
        page = folder / "report" / "index.html"
        print(f"page {page.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

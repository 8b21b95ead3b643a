"""Cells a minute in one process and on workers.

    python benchmarks/parallel.py [--workers 2] [--turns 3]

A small suite on the built-in model, in each turn once in one process with all the cores, once in
one process with one thread, which is one worker of several, and once on all workers with a thread
each, into fresh folders; Ray's start and the making of the rows count. Medians of cells a minute
are compared, and the ratios within each turn. The scores at equal threads are compared too.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import clbench

SUITE = """
name = "parallel"
methods = ["vanilla", "recadam", "l2-sp"]
seeds = {seeds}

[protocol]
model = "tiny"
epochs = 3
batch_size = 32
max_length = 64
lr = 5e-4
warmup = 0.3
clip_norm = 1.0
limit = {limit}
curve_points = 3
curve_rows = 50

[[scenario]]
name = "sentiment-acceptability"
shift = "dataset"
tasks = ["synthetic/sentiment", "synthetic/acceptability"]
"""


def timed(suite: Path, folder: Path, **where: Any) -> tuple[float, dict[str, dict[str, float]]]:
    """Seconds of a run, and its scores by cell."""
    started = time.perf_counter()
    run = clbench.run(suite, out=folder, **where)
    seconds = time.perf_counter() - started
    assert not run.failed, run.failed[0].reason
    return seconds, {cell.key: dict(cell.scores) for cell in run.cells}  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=4, help="seeds, each with three methods")
    parser.add_argument("--limit", type=int, default=450)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        suite = folder / "parallel.toml"
        suite.write_text(SUITE.format(seeds=list(range(args.seeds)), limit=args.limit))
        timed(suite, folder / "warm", seeds=[0])  # rows are tokenised and kept
        places: dict[str, dict[str, Any]] = {
            "one process": {},
            "one thread": {"threads": 1},
            f"{args.workers} workers": {"workers": args.workers, "threads": 1},
        }
        rates: dict[str, list[float]] = {place: [] for place in places}
        for turn in range(args.turns):
            order = list(places.items())
            for place, where in order if turn % 2 else order[::-1]:
                seconds, scores = timed(suite, folder / f"{place} {turn}", **where)
                rates[place].append(60 * len(scores) / seconds)
                print(
                    f"turn {turn + 1}: {place:12} {rates[place][-1]:6.2f} cells a minute",
                    flush=True,
                )
        for place, values in rates.items():
            print(f"{place:12} median {statistics.median(values):6.2f} cells a minute")
        *single, together = rates
        for alone in single:
            ratios = [b / a for a, b in zip(rates[alone], rates[together], strict=True)]
            print(
                f"{together} are {statistics.median(ratios):.2f} x {alone} "
                f"(turns {', '.join(f'{ratio:.2f}' for ratio in ratios)})"
            )
        same = {"seeds": [0], "threads": 1}
        _, here = timed(suite, folder / "equal", **same)
        _, there = timed(suite, folder / "equal on workers", **same, workers=args.workers)
        print("scores at one thread a cell are " + ("equal" if here == there else "NOT equal"))


if __name__ == "__main__":
    main()

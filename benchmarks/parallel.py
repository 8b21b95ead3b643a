"""Cells a minute in one process and on workers.

    python benchmarks/parallel.py [--workers 2] [--turns 3]

A small suite on the built-in model, in each turn once in this command's way of one process and once
on workers, into fresh folders; Ray's start and the making of the rows count. In one process a cell
has all the cores, on workers its share of them: what a user gets without and with ``--workers``.
Medians of cells a minute are compared, and the ratio within each turn. The scores at equal
threads are compared too.
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
        rates: dict[str, list[float]] = {"one process": [], f"{args.workers} workers": []}
        for turn in range(args.turns):
            places: list[tuple[str, dict[str, Any]]] = [
                ("one process", {}),
                (f"{args.workers} workers", {"workers": args.workers}),
            ]
            for place, where in places if turn % 2 else places[::-1]:
                seconds, scores = timed(suite, folder / f"{place} {turn}", **where)
                rates[place].append(60 * len(scores) / seconds)
                print(
                    f"turn {turn + 1}: {place:12} {rates[place][-1]:6.2f} cells a minute",
                    flush=True,
                )
        alone, side_by_side = rates.values()
        for place, values in rates.items():
            print(f"{place:12} median {statistics.median(values):6.2f} cells a minute")
        ratios = [b / a for a, b in zip(alone, side_by_side, strict=True)]
        print(
            f"{args.workers} workers are {statistics.median(ratios):.2f} x one process "
            f"(turns {', '.join(f'{ratio:.2f}' for ratio in ratios)})"
        )
        same = {"seeds": [0], "threads": 1}
        _, here = timed(suite, folder / "equal", **same)
        _, there = timed(suite, folder / "equal on workers", **same, workers=args.workers)
        print("scores at one thread a cell are " + ("equal" if here == there else "NOT equal"))


if __name__ == "__main__":
    main()

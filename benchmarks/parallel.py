"""Compare cells per minute in one process and on workers.

    python benchmarks/parallel.py [--workers 2] [--turns 2]

Each turn runs a small suite on the built-in model, in fresh folders: in one process with all cores,
in one process with one thread (like a single worker), and on all workers with a thread each.
Medians of cells per minute are compared, and ratios within each turn: of whole runs, with Ray's
start and the preparation of the rows, and from the first to the last finished cell, as in a long
run. The share of matrix products counts training on real tokens as useful work and compares it with
products on all cores. Finally, the scores of one process and of the workers are compared at equal
threads.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from machine import MatrixProducts, compare, example_flops, make_parser, turns, write_json

import clbench
from clbench.results.cell import CellResult
from clbench.runner.run_state import Listener

SUITE = """
name = "parallel"
methods = ["vanilla", "recadam", "l2-sp"]
seeds = {seeds}

[protocol]
model = "tiny"
epochs = 2
batch_size = 32
max_length = 64
lr = 5e-4
warmup = 0.3
clip_norm = 1.0
limit = {limit}
curve_points = 0

[[scenario]]
name = "sentiment-acceptability"
shift = "dataset"
tasks = ["synthetic/sentiment", "synthetic/acceptability"]
"""
LENGTH = 20
"""Approximate number of tokens in a row."""


class Finishes(Listener):
    """Records when cells finish."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def cell_finished(self, result: CellResult) -> None:
        """Record the time."""
        self.times.append(time.perf_counter())


def timed(suite: Path, folder: Path, **options: Any) -> tuple[float, float, Any]:
    """Run the suite; return its cells a minute, those after the first cell, and the run."""
    finishes = Finishes()
    started = time.perf_counter()
    run = clbench.run(suite, out=folder, listener=finishes, references=False, **options)
    seconds = time.perf_counter() - started
    assert not run.failed, run.failed[0].reason
    first, *_, last = finishes.times
    return 60 * len(run.cells) / seconds, 60 * (len(run.cells) - 1) / (last - first), run


def main() -> None:
    parser = make_parser(__doc__, turns=2, device=False)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=2, help="seeds, each with three methods")
    parser.add_argument("--limit", type=int, default=200, help="rows of a task")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        suite = folder / "parallel.toml"
        suite.write_text(SUITE.format(seeds=list(range(args.seeds)), limit=args.limit))
        same = {"seeds": [0], "threads": 1}
        *_, here = timed(suite, folder / "equal", **same)  # also fills the cache of tokenised rows
        setups: dict[str, dict[str, Any]] = {
            "one thread": {"threads": 1},
            "one process": {},
            f"{args.workers} workers": {"workers": args.workers, "threads": 1},
        }
        rates: dict[str, list[float]] = {name: [] for name in setups}
        later: dict[str, list[float]] = {name: [] for name in setups}
        tokens, cores = 0.0, os.cpu_count() or 1
        products = MatrixProducts(torch.device("cpu"), 32 * LENGTH, 192, 768)
        for turn in turns(args):
            torch.set_num_threads(cores)
            products.measure()
            order = list(setups.items())
            for setup, options in order if turn % 2 else order[::-1]:
                rate, after, run = timed(suite, folder / f"{setup} {turn}", **options)
                rates[setup].append(rate)
                later[setup].append(after)
                trained = [s.tokens for cell in run.cells for s in cell.stages if not s.cached]
                tokens = sum(trained) / len(run.cells)
                print(
                    f"turn {turn + 1}: {setup:12} {rate:6.2f} cells a minute, "
                    f"{after:6.2f} after the first cell"
                )
        flops = tokens * example_flops("tiny", LENGTH) / LENGTH

        def share(_: str, rate: float) -> str:
            return products.share(rate / 60 * flops)

        print("\nwhole runs:", end="")
        ratios = compare(rates, "one thread", "cells a minute", share)
        print("\nafter the first cell:", end="")
        later_ratios = compare(later, "one thread", "cells a minute", share)
        *_, there = timed(suite, folder / "equal on workers", **same, workers=args.workers)
        scores = [[(cell.key, dict(cell.scores)) for cell in run.cells] for run in (here, there)]
        equal = "equal" if scores[0] == scores[1] else "NOT equal"
        print(f"scores at one thread per cell are {equal}")
        write_json(
            args,
            {
                "cells_per_minute": rates,
                "ratios": ratios,
                "after_first_cell": later,
                "ratios_after_first_cell": later_ratios,
            },
        )


if __name__ == "__main__":
    main()

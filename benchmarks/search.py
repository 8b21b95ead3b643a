"""Compare the search for learning rates with a random search of as many epochs.

    python benchmarks/search.py [--trials 8] [--turns 1] [--workers 2] [--limit 200] [--figure F]

For each seed, on a synthetic pair with the built-in model: Bayesian optimisation with early
stopping, then random rates without early stopping for as many epochs. Both begin with the flat
rate. Regret is the best reward of any trial of a seed minus the best so far, as a function of the
share of epochs spent, with trials in the order in which they were proposed. At the end, the chosen
rates are scored on the split that no search saw. The defaults only show that the program works; a
comparison needs 30 trials, 3 seeds and 900 rows (``--minutes 600``). It compares scores at equal
epochs, not times, so matrix products play no part.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import make_parser, turns, write_json

import clbench
from clbench.runner.resources import Resources
from clbench.search import SearchSettings, make_search, search
from clbench.suite.options import RunOptions

SCENARIO = "sentiment-acceptability"
SHARES = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0)


def curve(trials: Sequence[Any], budget: int) -> list[float]:
    """Return the best reward of complete trials at each of `SHARES`; NaN before the first."""
    spent, best, points = 0, math.nan, []
    for trial in trials:
        spent += len(trial.epochs)
        if trial.status == "complete":
            best = float(np.fmax(best, trial.epochs[-1].reward))
        points.append((spent, best))
    # The best so far only rises, so the last point within a share has it.
    return [
        next((best for used, best in reversed(points) if used <= share * budget), math.nan)
        for share in SHARES
    ]


def run_search(folder: Path, seed: int, args: argparse.Namespace, **settings: Any) -> Any:
    """Run a search and return its outcome."""
    search_settings = SearchSettings(seed=seed, **settings)
    plan = make_search("quick", SCENARIO, search_settings, RunOptions(out=folder, limit=args.limit))
    return search(plan, resources=Resources(workers=args.workers, threads=1))


def mean(values: Sequence[float]) -> str:
    """Return mean and deviation, or a dash where some seed has no complete trial yet."""
    if any(map(math.isnan, values)):
        return "-"
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):7.4f} ±{spread:.4f}"


def main() -> None:
    parser = make_parser(__doc__, turns=1, device=False)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=int, default=200, help="rows of a task")
    parser.add_argument("--figure", type=Path, help="draw the regret curves into this file")
    args = parser.parse_args()
    regrets: dict[str, list[list[float]]] = {"bayes + asha": [], "random": []}
    scores: dict[str, list[float]] = {"flat": [], "bayes + asha": [], "random": []}
    saved_shares = []
    with tempfile.TemporaryDirectory() as name:
        for seed in turns(args):
            folder = Path(name) / f"seed{seed}"
            bayes = run_search(folder / "bayes", seed, args, trials=args.trials)
            budget = int(bayes.cost.epochs)
            whole = len(bayes.best.epochs)
            saved_shares.append(1.0 - budget / (args.trials * whole))
            equal = {"searcher": "random", "scheduler": "none", "trials": round(budget / whole)}
            random = run_search(folder / "random", seed, args, **equal)
            best = max(outcome.best.epochs[-1].reward for outcome in (bayes, random))
            for label, outcome in (("bayes + asha", bayes), ("random", random)):
                regrets[label].append([best - value for value in curve(outcome.trials, budget)])
                print(
                    f"seed {seed}: {label:12} {len(outcome.trials):3} trials, "
                    f"{outcome.cost.epochs:4.0f} epochs, "
                    f"best {outcome.best.epochs[-1].reward:.4f}, {outcome.cost.seconds:5.0f} s",
                    flush=True,
                )
            files = [folder / "bayes" / "bertcl.toml", folder / "random" / "bertcl.toml"]
            for label, method in zip(scores, ["vanilla", *map(str, files)], strict=True):
                run = clbench.run(
                    "quick",
                    scenarios=[SCENARIO],
                    methods=[method],
                    seeds=[100 + 10 * seed + i for i in range(args.turns)],
                    limit=args.limit,
                    out=folder / f"run {label}",
                    workers=args.workers,
                    threads=1,
                    references=False,
                )
                scores[label].append(float(run.frame["p"].mean()))
    print(
        f"\nregret of p_o + p_s on held-out rows, mean ± deviation over {len(saved_shares)} seeds"
    )
    print("share of epochs " + "".join(f"{share:>16.0%}" for share in SHARES))
    for label, rows in regrets.items():
        columns = list(zip(*rows, strict=True))
        print(f"{label:16}" + "".join(f"{mean(column):>16}" for column in columns))
    print(
        f"\nepochs that early stopping saved: {', '.join(f'{share:.0%}' for share in saved_shares)}"
    )
    print("\np_o + p_s on the reported split")
    for label, values in scores.items():
        print(f"{label:16}{mean(values)}")
    write_json(args, {"regrets": regrets, "scores": scores, "saved": saved_shares})
    if args.figure is not None:
        draw(regrets, args.figure)


def draw(regrets: dict[str, list[list[float]]], path: Path) -> None:
    """Draw the mean regret and that of each seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for (label, rows), color in zip(regrets.items(), ("#0072b2", "#d55e00"), strict=True):
        for row in rows:
            axes.plot(SHARES, row, lw=0.8, alpha=0.5, color=color)
        axes.plot(SHARES, np.mean(rows, axis=0), "o-", lw=2.5, color=color, label=label)
    axes.set_xlabel("share of the epochs")
    axes.set_ylabel("regret of p_o + p_s")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=200)


if __name__ == "__main__":
    main()

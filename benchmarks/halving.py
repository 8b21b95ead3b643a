"""Compare rules that stop the trials of a search early, on recorded curves.

    python benchmarks/halving.py [--orders 1000] [--searches 20] [--curves FILE] [--csv FILE]
    python benchmarks/halving.py --record FOLDER... [--curves FILE]

Successive halving (grace 1, reduction 2) on curves of trials that all ran to their end, by rule:

none         trains every trial to the end
both stages  compares trials after 1, 2, 4 … epochs of a trial; on D_o the reward is p_o alone
D_s only     compares trials after 1, 2, 4 … epochs on D_s, by p_o + p_s

The rows "+ gap" extrapolate: the searcher learns from a stopped trial's reward plus the mean gain
of complete trials from there on.

Replay: the trials in random orders, as by a searcher that learns nothing. Epochs per trial; the
regret of the best complete trial at equal budgets of epochs, against the best p = p_o + p_s of all
trials; and how well the rewards that a searcher would learn from agree with the p that the trials
would have had: Spearman's rank correlation, and the share of the truly best quarter in the quarter
with the best of those rewards.

Searches: tree-structured Parzen estimators (hyperopt, as in ``clbench search``) on a surrogate, a
forest of randomised trees from the logarithms of the rates to the curve, plus noise of 0.01. Trials
and regret at the middle budget, with standard errors.

``--csv`` writes both tables to a file, `results/halving/table.csv` for the documentation, with the
regret at the middle budget.

``--record`` writes the curves of the search folders given, of searches with ``--scheduler none
--searcher random``, one for each pair of tasks.
"""

from __future__ import annotations

import argparse
import bisect
import csv
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from hyperopt import fmin, hp, tpe
from scipy.stats import spearmanr
from sklearn.ensemble import ExtraTreesRegressor

from clbench.search import SearchFolder

CURVES = Path(__file__).parents[1] / "results" / "halving" / "curves.csv"
FIELDS = ("pair", "trial", "stage", "epoch", "p_o", "p_s", "rates")
RULES = {
    "none": False,
    "both stages": False,
    "both stages + gap": True,
    "D_s only": False,
    "D_s only + gap": True,
}
"""Rules, and whether they extrapolate."""
NOISE = 0.01
"""Standard deviation of the noise of rewards in searches."""
BUDGETS = (10, 20, 25)
"""Budgets, in complete trials."""
Rewards = npt.NDArray[np.float64]
Table = dict[str, dict[str, float]]  # columns by rule


def record(folders: Sequence[Path], path: Path) -> None:
    """Write the curves of complete trials."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        for folder in map(SearchFolder, folders):
            pair = folder.content()["scenario"]
            for trial in folder.read():
                if trial.status == "complete":
                    for epoch in trial.epochs:
                        scores = [f"{score:.4f}" for score in epoch.scores]
                        scores += [""] * (2 - len(scores))
                        is_first = epoch is trial.epochs[0]
                        rates = " ".join(f"{rate:.4g}" for rate in trial.rates) if is_first else ""
                        numbers = [trial.number, epoch.stage, epoch.epoch]
                        writer.writerow([pair, *numbers, *scores, rates])


def read(path: Path) -> dict[str, tuple[Rewards, Rewards, int]]:
    """Return by pair rewards, shape (trials, epochs), log rates, and the epochs on D_o."""
    rewards: dict[str, dict[str, list[float]]] = {}
    rates: dict[str, list[list[float]]] = {}
    first: dict[str, int] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            reward = float(row["p_o"]) + float(row["p_s"] or 0.0)
            rewards.setdefault(row["pair"], {}).setdefault(row["trial"], []).append(reward)
            if row["stage"] == "0":
                first[row["pair"]] = int(row["epoch"])
            if row["rates"]:
                rates.setdefault(row["pair"], []).append([float(x) for x in row["rates"].split()])
    return {
        pair: (np.array(list(curves.values())), np.log(rates[pair]), first[pair])
        for pair, curves in rewards.items()
    }


def rungs(rule: str, epochs: int, first: int) -> list[int]:
    """Return the epochs of a trial, from 1, after which a rule compares it with others."""
    if rule == "none":
        return []
    start, count = (first, epochs - first) if rule.startswith("D_s") else (0, epochs)
    powers = [2**n for n in range(count.bit_length()) if 2**n < count]
    return [start + power for power in powers]


class Halving:
    """Asynchronous successive halving (Li et al. 2020, algorithm 2), one trial after another."""

    def __init__(self, at: Sequence[int], *, gap: bool) -> None:
        self._at, self._gap = at, gap
        self._seen: dict[int, list[float]] = {epoch: [] for epoch in at}
        self._complete: list[Rewards] = []

    def length(self, curve: Rewards) -> int:
        """Return how many epochs a trial with that curve is trained for."""
        for epoch in self._at:
            reward, others = curve[epoch - 1], self._seen[epoch]
            is_weak = bool(others) and reward < statistics.median(others)
            bisect.insort(others, reward)
            if is_weak:
                return epoch
        self._complete.append(curve)
        return len(curve)

    def learned(self, curve: Rewards, length: int) -> float:
        """Return the reward that the searcher gets for a trial of that length."""
        reward = float(curve[length - 1])
        if self._gap and self._complete:
            reward += statistics.fmean(c[-1] - c[length - 1] for c in self._complete)
        return reward


def regrets(rewards: Rewards, lengths: Sequence[int]) -> list[float]:
    """Return the regret of the best complete trial at each of `BUDGETS`."""
    epochs, best = rewards.shape[1], rewards[:, -1].max()
    spent = np.cumsum(lengths)
    complete = np.where(np.array(lengths) == epochs, rewards[:, -1], -np.inf)
    found = np.maximum.accumulate(complete)
    ends = [int(np.searchsorted(spent, budget * epochs, side="right")) for budget in BUDGETS]
    return [float(best - found[end - 1]) for end in ends]


def agreement(values: Sequence[float], final: Rewards) -> tuple[float, float]:
    """Return Spearman's correlation, and the overlap of the best quarters."""
    quarter = len(final) // 4
    best, seen = np.argsort(-final)[:quarter], np.argsort(-np.array(values))[:quarter]
    return float(spearmanr(values, final).statistic), len({*best} & {*seen}) / quarter


def replay(rewards: Rewards, first: int, orders: int) -> Table:
    """Print and return a table of the rules on the trials in random orders."""
    trials, epochs = rewards.shape
    heads = [f"regret at {budget * epochs}" for budget in BUDGETS]
    print(f"{'rule':18s} epochs/trial  {'  '.join(heads)}  Spearman  best quarter")
    table: Table = {}
    for rule, gap in RULES.items():
        rng = np.random.default_rng(0)
        rows = []
        for _ in range(orders):
            order = rewards[rng.permutation(trials)]
            halving = Halving(rungs(rule, epochs, first), gap=gap)
            lengths = [halving.length(curve) for curve in order]
            values = [halving.learned(c, n) for c, n in zip(order, lengths, strict=True)]
            rows.append(
                [np.mean(lengths), *regrets(order, lengths), *agreement(values, order[:, -1])]
            )
        length, *regret, correlation, overlap = np.mean(rows, axis=0)
        columns = [
            f"{value:.4f}".rjust(len(head)) for value, head in zip(regret, heads, strict=True)
        ]
        ends = f"{correlation:8.2f}  {overlap:12.0%}"
        print(f"{rule:18s} {length:12.2f}  {'  '.join(columns)}  {ends}")
        middle = float(regret[len(BUDGETS) // 2])
        table[rule] = {"epochs": length, "replay_regret": middle, "spearman": correlation}
    return table


def search(
    model: ExtraTreesRegressor, halving: Halving, bounds: Rewards, budget: int, seed: int
) -> tuple[float, int]:
    """Return the p of the trial that a search on the surrogate chooses, and its trials."""
    rng, spent, trials, best, chosen = np.random.default_rng(seed), 0, 0, -np.inf, np.nan
    space = {f"rate{n}": hp.uniform(f"rate{n}", *ends) for n, ends in enumerate(bounds)}

    def objective(point: dict[str, float]) -> float:
        nonlocal spent, trials, best, chosen
        curve = model.predict([[point[name] for name in space]])[0]
        noisy = curve + rng.normal(0.0, NOISE, len(curve))
        length = halving.length(noisy)
        spent, trials = spent + length, trials + 1
        if length == len(curve) and spent <= budget and noisy[-1] > best:
            best, chosen = noisy[-1], curve[-1]
        return -halving.learned(noisy, length)

    fmin(
        objective, space, algo=tpe.suggest, max_evals=100 * budget,
        rstate=np.random.default_rng(seed), show_progressbar=False,
        early_stop_fn=lambda trials, *rest: (spent >= budget, rest),
    )  # fmt: skip
    return float(chosen), trials


def searches(rewards: Rewards, rates: Rewards, first: int, count: int) -> Table:
    """Print and return a table of the rules in searches on a surrogate."""
    epochs = rewards.shape[1]
    budget = BUDGETS[len(BUDGETS) // 2] * epochs
    model = ExtraTreesRegressor(60, min_samples_leaf=2, random_state=0).fit(rates, rewards)
    bounds = np.stack([rates.min(axis=0), rates.max(axis=0)], axis=1)
    points = np.random.default_rng(0).uniform(*bounds.T, (5000, len(bounds)))
    best = model.predict(points)[:, -1].max()
    print(f"{'rule':18s} trials  regret at {budget}")
    table: Table = {}
    for rule, gap in RULES.items():
        at = rungs(rule, epochs, first)
        runs = [search(model, Halving(at, gap=gap), bounds, budget, s) for s in range(count)]
        found, trials = np.array(runs).T
        error = found.std(ddof=1) / count**0.5
        regret = best - found.mean()
        print(f"{rule:18s} {trials.mean():6.0f}  {regret:.4f} ±{error:.4f}")
        table[rule] = {"search_regret": regret, "search_error": error}
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--orders", type=int, default=1000, help="random orders of the trials")
    parser.add_argument("--searches", type=int, default=20, help="searches for each rule")
    parser.add_argument("--curves", type=Path, default=CURVES, help="file of the recorded curves")
    parser.add_argument("--record", type=Path, nargs="+", help="search folders to write it from")
    parser.add_argument("--csv", type=Path, help="also write the tables to this file")
    args = parser.parse_args()
    if args.record:
        record(args.record, args.curves)
    rows = []
    for pair, (rewards, rates, first) in read(args.curves).items():
        trials, epochs = rewards.shape
        final = rewards[:, -1]
        print(
            f"{pair}: {trials} trials of {first} + {epochs - first} epochs, p from "
            f"{final.min():.3f} to {final.max():.3f}, median {np.median(final):.3f}\n"
        )
        replayed = replay(rewards, first, args.orders)
        print()
        searched = searches(rewards, rates, first, args.searches)
        print()
        rows += [{"pair": pair, "rule": r} | replayed[r] | searched[r] for r in RULES]
    if args.csv:
        pd.DataFrame(rows).round(4).to_csv(args.csv, index=False, lineterminator="\n")


if __name__ == "__main__":
    main()

"""Simulate how often audits of logs err, and time one.

    python benchmarks/logs.py skew [--draws 10000]
    python benchmarks/logs.py runs [--draws 400]
    python benchmarks/logs.py time [--items 100000] [--folder DIR]

`skew` draws paired differences of scores whose mean is known, from skewed and rare ones to nearly
normal ones, and prints how often an interval misses the mean: that of a paired t test,
and that of logs (`mean_change` with the largest difference), at the levels of one and of ten tests.

`runs` draws repeated runs of two models that are equal by design, audits them, and prints how many
audits have a false *forgot* or *gained*: by the items' differences alone, and with the noise of the
runs. A share of the items flips from run to run; the log-odds of all items of a run are shifted by
a normal number of that standard deviation, in all tasks or in the first one only.

`time` writes logs of lm-eval for two models, audits them, and prints the processor's seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from clbench.audit.changes import judge, mean_change
from clbench.audit.logs.audit import audit_logs
from clbench.audit.logs.noise import RunNoise
from clbench.audit.logs.scores import LoggedScores
from clbench.audit.settings import MARGIN

SIZES = (50, 100, 200, 500)
LEVELS = (0.95, 0.995)
RUNS = ((2, 1), (2, 2), (3, 3), (5, 5))
TASKS = ((500,), (500,) * 5, (200, 1000, 200, 1000, 200))


def differences(n: int, rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray, float]]:
    """Yield kinds of differences, and their means; the first two are of scores without a range."""
    yield "exponential", 0.2 * rng.exponential(size=n), 0.2
    yield "lognormal", 0.1 * rng.lognormal(size=n), 0.1 * np.exp(0.5)
    part, other, kind = rng.beta(2, 2, n), rng.beta(2, 2, n), rng.random(n)
    for share in (0.02, 0.05, 0.1):
        yield f"{share:.0%} gain", np.where(kind < share, part, 0.0), share / 2
    for up, down in ((0.15, 0.05), (0.4, 0.2)):
        both = np.where(kind < up, part, np.where(kind < up + down, -other, 0.0))
        yield f"{up:.0%} gain, {down:.0%} lose", both, (up - down) / 2


def skew(draws: int) -> None:
    """Print how often intervals miss."""
    rng = np.random.default_rng(0)
    print("differences, items, level, misses of t, misses of logs' interval, its width / that of t")
    for n in SIZES:
        found: dict[tuple[str, float], list[np.ndarray]] = {}
        for _ in range(draws):
            for kind, drawn, mean in differences(n, rng):
                largest = 1.0 if "gain" in kind else float(np.abs(drawn).max())
                samples = [mean_change(np.zeros(n), drawn, most) for most in (None, largest)]
                for level in LEVELS:
                    ends = np.array([sample.interval(level) for sample in samples])
                    missed = (ends[:, 0] > mean) | (ends[:, 1] < mean)
                    found.setdefault((kind, level), []).append(
                        np.array([*missed, *(ends @ [-1, 1])])
                    )
        for (kind, level), rows in found.items():
            t, own, width, wide = np.mean(rows, axis=0)
            print(f"{kind}, {n}, {level}, {t:.2%}, {own:.2%}, {wide / max(width, 1e-9):.2f}")


def logged(task: int, runs: np.ndarray) -> LoggedScores:
    """Return the item scores of runs, shape (runs, n)."""
    keys = tuple(map(str, range(runs.shape[1])))
    more = {"runs": runs, "inputs": {}, "made": {}}
    return LoggedScores(str(task), "behaviour", runs.mean(axis=0), keys, **more)  # type: ignore[arg-type]


def draw(
    sizes: Sequence[int], runs: Sequence[int], noisy: float, shifts: Sequence[float], seed: int
) -> list[tuple[LoggedScores, LoggedScores]]:
    """Return the scores of two models with the same chances."""
    rng = np.random.default_rng(seed)
    pairs = []
    for task, (n, shift) in enumerate(zip(sizes, shifts, strict=True)):
        chance = np.where(rng.random(n) < noisy, rng.random(n), rng.random(n) < 0.6)
        chance = np.clip(chance, 1e-9, 1.0 - 1e-9)
        odds = np.log(chance / (1.0 - chance))
        one, two = (
            rng.random((r, n)) < 1 / (1 + np.exp(-odds - shift * rng.standard_normal((r, 1))))
            for r in runs
        )
        pairs.append((logged(task, one.astype(float)), logged(task, two.astype(float))))
    return pairs


def runs(draws: int) -> None:
    """Print the shares of false alarms."""
    print("items of tasks, runs, noisy share, shift, false alarms by items, with the runs' noise")
    for sizes in TASKS:
        for counts in RUNS:
            for noisy in (0.05, 0.3):
                for shift in (0.0, 0.2, 0.6, -0.6)[: None if len(sizes) > 1 else 3]:
                    shifts = [max(shift, -shift if i == 0 else 0.0) for i in range(len(sizes))]
                    false = np.zeros(2)
                    for seed in range(draws):
                        pairs = draw(sizes, counts, noisy, shifts, seed)
                        noise = RunNoise.of(pairs)
                        plain = [mean_change(a.scores, b.scores, 1.0) for a, b in pairs]
                        wide = [noise.add(s, pair) for s, pair in zip(plain, pairs, strict=True)]
                        for i, samples in enumerate((plain, wide)):
                            words = {
                                c.word for c in judge(dict(enumerate(samples)), MARGIN).values()
                            }
                            false[i] += not words.isdisjoint({"forgot", "gained"})
                    where = f"{-shift:g} in the first" if shift < 0 else f"{shift:g}"
                    alone, own = false / draws
                    print(
                        f"{sizes}, {counts}, {noisy}, {where}, {alone:.1%}, {own:.1%}", flush=True
                    )


def write(folder: Path, items: int, seed: int) -> None:
    """Write the logs of one run of lm-eval: a task of four choices, with few-shot prompts."""
    folder.mkdir()
    rng = random.Random(seed)
    prompt, stamp = "An example of a question and its answer. " * 20, "2026-01-01T00-00-00.000000"
    arguments = {f"gen_args_{k}": {"arg_0": prompt, "arg_1": " A"} for k in range(4)}
    answers = [[["-1.25", "False"]]] * 4
    with (folder / f"samples_mmlu_{stamp}.jsonl").open("w", encoding="utf-8") as file:
        for i in range(items):
            hits = {"acc": float(rng.random() < 0.6), "acc_norm": float(rng.random() < 0.6)}
            row = {"doc_id": i, "doc": {"question": prompt[:200]}, "target": "0", "filter": "none"}
            row |= {"arguments": arguments, "resps": answers, "metrics": [*hits]}
            row |= {"doc_hash": f"{i:064d}", "prompt_hash": f"{i:064x}", "target_hash": "0" * 64}
            file.write(json.dumps(row | hits) + "\n")
    (folder / f"results_{stamp}.json").write_text(json.dumps({"n-shot": {"mmlu": 5}}))


def timed(items: int, parent: Path | None) -> None:
    """Print how long the logs of two models take."""
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folders = [Path(name) / model for model in ("base", "tuned")]
        for seed, folder in enumerate(folders):
            write(folder, items, seed)
        size = sum(file.stat().st_size for folder in folders for file in folder.iterdir())
        start = time.process_time()
        audit_logs(str(folders[0]), [str(folders[1])])
        seconds = time.process_time() - start
    print(f"two logs of {items:,} items, {size / 1e6:.0f} MB: {seconds:.1f} s of processor time")


def main() -> None:
    """Run one of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("skew", "runs", "time"))
    parser.add_argument("--draws", type=int)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="where logs are written for a while")
    arguments = parser.parse_args()
    if arguments.what == "time":
        timed(arguments.items, arguments.folder)
    elif arguments.what == "skew":
        skew(arguments.draws or 10_000)
    else:
        runs(arguments.draws or 400)


if __name__ == "__main__":
    main()

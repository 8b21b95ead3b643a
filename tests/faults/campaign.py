"""Run the cases of every kind, judge the answers, and print one table."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from faults import disk, kills, models, options, plugins, results, runs, suites
from faults.cases import RUN, Case, Trial, fresh, make_folder
from faults.sandbox import command, warm_up
from faults.verdict import try_case

SEED = 20
EPOCHS = 6
"""Passes of the runs that are killed: about a second a cell."""
INPUTS: dict[str, tuple[int, Callable[[int, Random, Path], Case]]] = {
    "suites": (120, suites.suite),
    "baselines": (60, suites.baseline),
    "data": (110, suites.data),
    "models": (90, models.model),
    "cells": (120, results.cell),
    "logs": (45, results.log),
    "plug-ins": (120, plugins.plugin),
    "options": (120, options.option),
}
"""How many malformed inputs of each kind there are, and what writes one."""
FAULTS = {"worker-kills": 1, "kills": 12, "full-disk": 40, "two-runners": 8, "node-loss": 1}
"""Tasks of each kind of fault. One may have several kills, and a disk is full at as many writes as
a run has."""
SHARE = 4
"""Inputs of each kind in the small part."""


@dataclass(frozen=True)
class Templates:
    """Valid folders to copy: with a suite; with finished runs of it; with a longer run.

    `seconds` is the time of the longer run, `writes` the number of files of the short one.
    """

    inputs: Path
    runs: Path
    long: Path
    seconds: float
    writes: int


def make_templates(folder: Path, *, epochs: int) -> Templates:
    """Write the valid folders; runs are finished in two of them, the longer one timed."""
    inputs, short, long = folder / "inputs", folder / "runs", folder / "long"
    inputs.mkdir()
    make_folder(inputs)
    fresh(inputs, long)
    runs.write_suite(long, epochs=epochs)
    seconds = _finished(RUN, long)
    fresh(inputs, short)
    for out in ("out", "out2"):
        _finished([*RUN[:3], out, *RUN[4:]], short)
    writes = disk.count_writes(fresh(inputs, folder / "counted"))
    return Templates(inputs, short, long, seconds, writes)


def _finished(words: list[str], folder: Path) -> float:
    outcome = command(words, folder, limit=runs.LONG)
    if outcome.code != 0:
        raise RuntimeError(f"an undisturbed run failed: {outcome}")
    return outcome.seconds


def try_task(kind: str, number: int, seed: int, templates: Templates, folder: Path) -> Trial:
    """Run task `number` of a kind in `folder`, the same for the same seed."""
    rng, long = Random(f"{seed}/{kind}/{number}"), templates.long
    if kind in INPUTS:
        finished = kind in ("cells", "logs", "options")
        fresh(templates.runs if finished else templates.inputs, folder)
        return try_case(INPUTS[kind][1](number, rng, folder), folder, templates.runs)
    if kind == "full-disk":
        fresh(templates.inputs, folder)
        return disk.full_disk(templates.runs, folder, number + 1, (0, 700)[number % 2])
    fresh(long, folder)
    shutil.rmtree(folder / "out")
    if kind == "kills":
        return kills.kill_runs(long, folder, rng, templates.seconds)
    if kind == "worker-kills":
        return kills.kill_workers(long, folder, rng, templates.seconds / runs.CELLS)
    if kind == "two-runners":
        return runs.two_runners(long, folder, rng.uniform(0, templates.seconds) * (number > 1))
    return lose_nodes()


def lose_nodes() -> Trial:
    """Lose a worker, then a node, in the middle of a cell; in a process of its own, for Ray."""
    outcome = subprocess.run(
        [sys.executable, "-m", "helpers.node_loss"], capture_output=True, text=True, check=False
    )
    answers = [line.split("\t") for line in outcome.stdout.splitlines() if line.count("\t") == 2]
    problems = [f"{kind}: {happened}" for kind, well, happened in answers if well != "True"]
    if outcome.returncode or not answers:
        problems.append(f"exit code {outcome.returncode}")
    output = f"{outcome.stdout}{outcome.stderr}"
    return Trial(2, "a worker, then a node lost in a cell", "; ".join(problems), output)


def tasks_of(only: str | None, *, share: bool) -> list[tuple[str, int]]:
    """Return the tasks by kind and number: all, those of a kind, one, or a small part."""
    counts = FAULTS | {kind: count for kind, (count, _) in INPUTS.items()}
    if share:
        inputs = [(kind, range(SHARE // 2, counts[kind], counts[kind] // SHARE)) for kind in INPUTS]
        tasks = [(kind, n) for kind, numbers in inputs for n in numbers]
        return [("kills", 0), ("full-disk", 2), ("two-runners", 0), *tasks]
    tasks = [(kind, n) for kind, count in counts.items() for n in range(count)]
    return [(kind, n) for kind, n in tasks if only in (None, kind, f"{kind}-{n}")]


Answers = list[tuple[str, Trial]]


def run_tasks(
    tasks: Sequence[tuple[str, int]], seed: int, work: Path, *, jobs: int, epochs: int
) -> Answers:
    """Return kinds and trials, from `jobs` processes; print failures as they come."""
    templates = make_templates(work, epochs=epochs)
    words = [
        (kind, n, seed, templates, work / f"{kind}-{n}")
        for kind, n in tasks
        if kind != "full-disk" or n < templates.writes
    ]
    answers = []
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for kind, name, trial in pool.imap_unordered(_task, words):
            answers.append((kind, trial))
            if trial.problem:
                lines = [f"LOST {name} (--seed {seed} --only {name})", trial.what, trial.problem]
                lines += trial.output.splitlines()
                print("\n    ".join(ascii(line)[1:-1] for line in lines), flush=True)
    return answers


def _task(words: tuple[str, int, int, Templates, Path]) -> tuple[str, str, Trial]:
    kind, *_, folder = words
    try:
        trial = try_task(*words)
    except Exception as error:
        trial = Trial(1, "", f"{type(error).__name__} in the campaign: {error}")
    shutil.rmtree(folder, ignore_errors=True)
    return kind, folder.name, trial


def table(answers: Answers, seconds: float) -> str:
    """Return the table: kind of fault, tried, well answered, lost."""
    lines = [f"{'kind of fault':<16}{'tried':>7}{'well answered':>15}{'lost':>6}"]
    for kind in (*dict.fromkeys(kind for kind, _ in answers), "all"):
        trials = [trial for own, trial in answers if kind in (own, "all")]
        tried = sum(trial.count for trial in trials)
        lost = sum(trial.count for trial in trials if trial.problem)
        lines.append(f"{kind:<16}{tried:>7}{tried - lost:>15}{lost:>6}")
    return "\n".join([*lines, f"{seconds / 60:.1f} minutes"])


def environment(work: Path) -> None:
    """Keep the campaign away from the user's home, cache and network."""
    os.environ |= {
        "CLBENCH_CACHE": str(work / "cache"),
        "HOME": str(work / "home"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "LOKY_MAX_CPU_COUNT": "1",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "100",
    }


def main() -> int:
    """Run the campaign; 1 if anything was not well answered."""
    parser = argparse.ArgumentParser(prog="faults", description="Malformed inputs and faults.")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", help="a kind such as data, or a task of it such as data-17")
    parser.add_argument("--share", action="store_true", help="a small part, for every day")
    parser.add_argument("--jobs", type=int, default=2)
    words = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        work = Path(name)
        environment(work)
        warm_up()
        tasks = tasks_of(words.only, share=words.share)
        epochs = 2 if words.share else EPOCHS
        answers = run_tasks(tasks, words.seed, work, jobs=words.jobs, epochs=epochs)
    print(table(answers, time.monotonic() - started))
    return int(any(trial.problem for _, trial in answers) or not answers)

"""Run the cases of every kind, judge the answers, and print one table."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from faults import models, options, plugins, results, runs, suites
from faults.cases import RUN, Case, fresh, make_folder
from faults.sandbox import TRAINING, command, warm_up
from faults.verdict import (
    dry_faults,
    faults,
    file_faults,
    output_faults,
    snapshot,
)

SEED = 20
EPOCHS = 6
"""Passes of the runs that are killed: about a second a cell."""
SHARE = 6
"""Inputs of each kind in the small part."""
KILLS = 5
"""Kills of one run, at most."""


@dataclass(frozen=True)
class Answer:
    """What came of a task: `problem` is empty if all its `count` faults were well answered."""

    kind: str
    name: str
    what: str
    problem: str = ""
    output: str = ""
    count: int = 1


@dataclass(frozen=True)
class Templates:
    """Valid folders to copy: with a suite; with finished runs of it; with a longer run.

    `vanilla` is a cell, `seconds` the time of the longer run, `writes` those of the short one.
    """

    inputs: Path
    runs: Path
    long: Path
    vanilla: dict[str, Any]
    seconds: float
    writes: int


Generator = Callable[[int, Random, Path], Case]
INPUTS = {
    "suites": 120,
    "baselines": 60,
    "data": 110,
    "models": 90,
    "cells": 120,
    "logs": 45,
    "plug-ins": 110,
    "options": 120,
}
"""Malformed inputs of each kind in the whole campaign."""
FAULTS = {"kills of workers": 1, "kills": 12, "full disk": 60, "two runners": 8, "node loss": 1}
"""Tasks of each kind of fault; one has several kills, and a disk no more than there are writes."""


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
    writes = runs.count_writes(fresh(inputs, folder / "counted"))
    path = short / "out" / "cells" / "pair--vanilla--seed0.json"
    return Templates(inputs, short, long, json.loads(path.read_text()), seconds, writes)


def _finished(words: list[str], folder: Path) -> float:
    outcome = command(words, folder, limit=runs.LONG)
    if outcome.code != 0:
        raise RuntimeError(f"an undisturbed run failed: {outcome}")
    return outcome.seconds


def case_of(kind: str, number: int, seed: int, templates: Templates, folder: Path) -> Case:
    """Write case `number` of a kind into `folder`, the same for the same seed."""
    rng = Random(f"{seed}/{kind}/{number}")
    finished = kind in ("cells", "logs", "options")
    fresh(templates.runs if finished else templates.inputs, folder)
    generators: dict[str, Generator] = {
        "suites": suites.suite,
        "baselines": suites.baseline,
        "data": suites.data,
        "models": models.model,
        "cells": results.cell,
        "logs": results.log,
        "plug-ins": lambda *words: plugins.plugin(*words, templates.vanilla),
        "options": options.option,
    }
    return generators[kind](number, rng, folder)


def answer(kind: str, number: int, seed: int, templates: Templates, folder: Path) -> Answer:
    """Run one case and judge it; its folder is removed if it was well answered."""
    case = case_of(kind, number, seed, templates, folder)
    outputs: list[str] = []
    try:
        problems = list(_problems(case, folder, outputs))
    except Exception as error:
        problems = [f"{type(error).__name__} while judging: {error}"]
    result = Answer(
        kind, f"{kind}-{number}", case.what, "; ".join(dict.fromkeys(problems)), "\n".join(outputs)
    )
    shutil.rmtree(folder, ignore_errors=True)
    return result


def _problems(case: Case, folder: Path, outputs: list[str]) -> Iterator[str]:
    """Yield what is wrong with how the commands of a case answered."""
    before = snapshot(folder)
    dry = None
    if case.dry:
        dry = command([*case.words, "--dry-run"], folder)
        outputs.append(f"--dry-run: {dry}")
        yield from faults(dry)
        yield from file_faults(before, snapshot(folder), dry.code, ())
        if dry.code is None:  # nor would the run answer
            return
    begun = folder / "out" / "suite.json"
    earlier = begun.exists() and begun.stat().st_mtime_ns
    outcome = command(case.words, folder, training=TRAINING)
    outputs.append(str(outcome))
    files = snapshot(folder)
    yield from faults(outcome)
    yield from file_faults(before, files, outcome.code, case.writes)
    yield from output_faults(folder, files)
    if dry is not None:
        now = begun.exists() and begun.stat().st_mtime_ns
        yield from dry_faults(dry, outcome, now != earlier)
    if case.refused and outcome.code in (0, 130):
        yield f"accepted (exit code {outcome.code})"
    if case.seen and case.seen not in outcome.err:
        yield f"{case.seen} is not named"
    yield from case.checks(folder)


def trial(kind: str, number: int, seed: int, templates: Templates, folder: Path) -> runs.Trial:
    """Disturb a run as task `number` of a kind of fault says."""
    rng, long = Random(f"{seed}/{kind}/{number}"), templates.long
    if kind == "full disk":
        fresh(templates.inputs, folder)
        return runs.full_disk(templates.runs, folder, number + 1, (0, 700)[number % 2])
    fresh(long, folder)
    shutil.rmtree(folder / "out")
    if kind == "kills":
        return runs.kill_runs(long, folder, rng, templates.seconds, KILLS)
    if kind == "kills of workers":
        return runs.kill_workers(long, folder, rng, templates.seconds / 12, 50, 6)
    if kind == "two runners":
        delay = 0.0 if number < 2 else rng.uniform(0, templates.seconds)
        return runs.two_runners(long, folder, delay)
    return _node_loss()(long, folder, rng)


def _node_loss() -> Callable[[Path, Path, Random], runs.Trial]:
    """Return what loses nodes of a cluster; its own module, as it needs one."""
    from faults import nodes  # type: ignore[attr-defined]

    return nodes.lose_nodes  # type: ignore[no-any-return]


def share() -> list[tuple[str, int]]:
    """Return the tasks of a small part: some of each kind of input, and a fault of each kind."""
    inputs = [
        (kind, n)
        for kind, count in INPUTS.items()
        for n in range(SHARE // 2, count, count // SHARE)
    ]
    return [("kills", 0), ("full disk", 2), ("two runners", 0), *inputs]


def run_tasks(
    tasks: Sequence[tuple[str, int]], seed: int, work: Path, *, jobs: int, epochs: int
) -> list[Answer]:
    """Return the answers to numbered tasks of kinds, from `jobs` processes; print failures."""
    templates = make_templates(work, epochs=epochs)
    words = [
        (kind, n, seed, templates, work / f"{kind.replace(' ', '-')}-{n}")
        for kind, n in tasks
        if kind != "full disk" or n < templates.writes
    ]
    answers = []
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for result in pool.imap_unordered(_task, words):
            answers.append(result)
            if result.problem:
                print(describe(result, seed), flush=True)
    return answers


def _task(words: tuple[str, int, int, Templates, Path]) -> Answer:
    kind, *_, folder = words
    if kind in INPUTS:
        return answer(*words)
    try:
        result = trial(*words)
    except Exception as error:
        result = runs.Trial(1, "", f"{type(error).__name__} in the campaign: {error}")
    shutil.rmtree(folder, ignore_errors=True)
    count = result.count or bool(result.problem)
    return Answer(kind, folder.name, result.what, result.problem, result.output, count)


def describe(result: Answer, seed: int) -> str:
    """Return a failure as a reader repeats it."""
    lines = [f"LOST {result.name} (--seed {seed} --only {result.name})", result.what]
    lines += [result.problem, *result.output.splitlines()]
    return "\n    ".join(ascii(line)[1:-1] for line in lines)


def table(answers: Sequence[Answer], seconds: float) -> str:
    """Return the table: kind of fault, tried, well answered, lost."""
    lines = [f"{'kind of fault':<36}{'tried':>7}{'well answered':>15}{'lost':>6}"]
    kinds = dict.fromkeys(result.kind for result in answers)
    for kind in [*kinds, "all"]:
        own = [result for result in answers if kind in (result.kind, "all")]
        tried = sum(result.count for result in own)
        lost = sum(result.count for result in own if result.problem)
        lines.append(f"{kind:<36}{tried:>7}{tried - lost:>15}{lost:>6}")
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
    parser = argparse.ArgumentParser(description="Malformed inputs and faults.")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", help="a kind such as data, or a case such as data-17")
    parser.add_argument("--share", action="store_true", help="a small part, for every day")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        work = Path(name)
        environment(work)
        warm_up()
        tasks = [(kind, n) for kind, count in (FAULTS | INPUTS).items() for n in range(count)]
        if find_spec("faults.nodes") is None:
            tasks.remove(("node loss", 0))
        chosen = arguments.only and arguments.only.replace(" ", "-")
        names = {task: task[0].replace(" ", "-") for task in tasks}
        tasks = [t for t in tasks if chosen in (None, names[t], f"{names[t]}-{t[1]}")]
        if arguments.share:
            tasks = share()
        epochs = 2 if arguments.share else EPOCHS
        answers = run_tasks(tasks, arguments.seed, work, jobs=arguments.jobs, epochs=epochs)
    print(table(answers, time.monotonic() - started))
    return int(any(result.problem for result in answers) or not answers)


if __name__ == "__main__":
    sys.exit(main())

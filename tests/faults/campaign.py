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
from pathlib import Path
from random import Random
from typing import Any

from faults import models, options, plugins, results, suites
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


@dataclass(frozen=True)
class Answer:
    """What came of one case: `problem` is empty if it was well answered."""

    kind: str
    name: str
    what: str
    problem: str = ""
    output: str = ""


@dataclass(frozen=True)
class Templates:
    """Valid folders to copy: one with a suite, one with finished runs as well."""

    inputs: Path
    runs: Path
    vanilla: dict[str, Any]


Generator = Callable[[int, Random, Path], Case]
COUNTS = {
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


def make_templates(folder: Path) -> Templates:
    """Write the valid folders; a run is finished in one of them."""
    inputs, runs = folder / "inputs", folder / "runs"
    inputs.mkdir()
    make_folder(inputs)
    shutil.copytree(inputs, runs)
    for out in ("out", "out2"):
        outcome = command([*RUN[:3], out, *RUN[4:]], runs)
        assert outcome.code == 0, outcome
    path = runs / "out" / "cells" / "pair--vanilla--seed0.json"
    return Templates(inputs, runs, json.loads(path.read_text()))


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
    problems = list(_problems(case, folder, outputs))
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


def run_cases(
    kinds: dict[str, Sequence[int]], seed: int, work: Path, *, jobs: int, show: bool = False
) -> list[Answer]:
    """Return the answers to the numbered cases of each kind, from `jobs` processes."""
    templates = make_templates(work)
    tasks = [(kind, n, seed, templates, work) for kind, numbers in kinds.items() for n in numbers]
    answers = []
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for result in pool.imap_unordered(_task, tasks):
            answers.append(result)
            if show and result.problem:
                print(describe(result, seed), flush=True)
    return answers


def _task(words: tuple[Any, ...]) -> Answer:
    kind, number, seed, templates, work = words
    return answer(kind, number, seed, templates, work / f"{kind}-{number}")


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
        lost = sum(bool(result.problem) for result in own)
        lines.append(f"{kind:<36}{len(own):>7}{len(own) - lost:>15}{lost:>6}")
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
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        work = Path(name)
        environment(work)
        warm_up()
        kinds: dict[str, Sequence[int]] = {}
        for kind, count in COUNTS.items():
            numbers = [n for n in range(count) if arguments.only in (None, kind, f"{kind}-{n}")]
            if numbers:
                kinds[kind] = numbers
        answers = run_cases(kinds, arguments.seed, work, jobs=arguments.jobs, show=True)
    print(table(answers, time.monotonic() - started))
    return int(any(result.problem for result in answers) or not answers)


if __name__ == "__main__":
    sys.exit(main())

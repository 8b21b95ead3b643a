"""Runs that must end as an undisturbed one does, with scores equal to the bit."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any

from faults.cases import RUN, SUITE, Trial, toml
from faults.sandbox import Outcome, Process, command
from faults.verdict import faults

CELLS = 12
"""Cells of the longer run."""
UNEQUAL = ("model", "train_seconds", "training_memory_mb", "peak_memory_mb", "search_seconds")
"""Columns of scores.csv that differ between equal runs in two folders."""
LONG = 400.0
"""Seconds in which a run must end, whatever happened to it."""


def write_suite(folder: Path, *, epochs: int) -> None:
    """Write a suite of two scenarios, three methods and two seeds: twelve cells."""
    scenarios = [
        SUITE["scenario"][0],
        {"name": "length", "shift": "sentence-length", "task": "mood"},
    ]
    suite = {
        **SUITE,
        "methods": ["vanilla", "ewc", "recadam"],
        "seeds": [0, 1],
        "protocol": {**SUITE["protocol"], "epochs": epochs},
        "scenario": scenarios,
    }
    (folder / "small.toml").write_text(toml(suite))


def scores(out: Path) -> list[dict[str, str]]:
    """Return the rows of scores.csv without times and memory."""
    with (out / "scores.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [{key: text for key, text in row.items() if key not in UNEQUAL} for row in rows]


def matrices(out: Path) -> dict[str, Any]:
    """Return all metrics and curves of the cells in a folder, by key."""
    cells = [json.loads(path.read_text()) for path in sorted((out / "cells").glob("*.json"))]
    return {
        cell["key"]: [cell["metrics"], cell["R"], [stage["curves"] for stage in cell["stages"]]]
        for cell in cells
    }


def finish(folder: Path, template: Path, words: list[str]) -> tuple[str, Outcome]:
    """Run the same command to its end; return how it differs from the undisturbed run."""
    outcome = command(words, folder, limit=LONG)
    if problems := list(faults(outcome)):
        return "; ".join(problems), outcome
    if outcome.code != 0:
        return f"exit code {outcome.code} when run again", outcome
    out = folder / "out"
    halves = [*out.rglob("*.part")]
    if halves:
        return f"{halves[0].name} is left", outcome
    if scores(out) != scores(template / "out"):
        return "other scores in scores.csv", outcome
    if matrices(out) != matrices(template / "out"):
        return "other metrics or curves, or another set of cells", outcome
    return "", outcome


def two_runners(template: Path, folder: Path, delay: float) -> Trial:
    """Start the same command twice; one works, the other is refused in a line."""
    first = Process(RUN, folder)
    first.wait(time.monotonic() + delay)
    files = [path.rename(path.with_suffix(".first")) for path in first.files]
    second = command(RUN, folder, limit=LONG)
    first.wait(time.monotonic() + LONG)
    first.files = files
    outcomes = [first.outcome(), second]
    problems = [problem for outcome in outcomes for problem in faults(outcome)]
    codes = sorted(outcome.code or 0 for outcome in outcomes)
    if codes != [0, 2]:
        problems.append(f"exit codes {codes}")
    if not any("in use" in outcome.err for outcome in outcomes):
        problems.append("no one is told that the folder is in use")
    problem, again = finish(folder, template, RUN)
    problems += [problem] if problem else []
    what = f"a second run after {delay:.2f} s"
    return Trial(1, what, "; ".join(problems), "\n".join(map(str, [*outcomes, again])))

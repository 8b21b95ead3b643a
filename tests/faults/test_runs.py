"""Disturbed runs: killed, with a full disk, beside another; each must end as an undisturbed one."""

import shutil
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest
from helpers.node_loss import node_loss
from helpers.workspace import measured

import clbench
from faults.sandbox import Outcome, Process, command, fill_disk
from faults.spoil import RUN, SUITE, is_campaign, write_suite
from faults.verdict import Judge, Templates, faults, fresh

pytestmark = pytest.mark.slow
EPOCHS = 6 if is_campaign() else 2
"""With six, a cell takes about a second."""
CELLS = 12
UNEQUAL = ["model", "train_seconds", "training_memory_mb", "peak_memory_mb", "search_seconds"]
"""Columns of scores.csv that differ between equal runs in two folders."""
LongRun = tuple[Path, float]
LONG = 400.0
"""Seconds in which a run must end, whatever happened to it."""
MORTAL = """
import os
import signal
import threading
import time
from pathlib import Path
from random import uniform

import clbench

here = Path(__file__).parent


def title():
    return Path("/proc/self/cmdline").read_text().removeprefix("ray::").rstrip("\\0 ")


def watch():
    last = ""
    while True:
        cell = title()
        if cell != last and "--seed" in cell and len(list(here.glob(f"killed-{{cell}}-*"))) < 2:
            time.sleep(uniform(0, {seconds}))
            if title() == cell:
                (here / f"killed-{{cell}}-{{os.getpid()}}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        last = cell
        time.sleep(0.02)


threading.Thread(target=watch, daemon=True).start()


@clbench.method("mortal")
class Mortal(clbench.Method):
    \"\"\"Registered, as a plug-in must register something.\"\"\"
"""
"""Kills Ray's workers in their cells. Ray starts the cell of a dead worker again, twice."""


@pytest.fixture(scope="session")
def long_run(templates: Templates, tmp_path_factory: pytest.TempPathFactory) -> LongRun:
    """The folder of a run of two scenarios, three methods and two seeds, and its seconds."""
    folder = fresh(templates.inputs, tmp_path_factory.mktemp("long") / "run")
    write_suite(
        folder,
        methods=["vanilla", "ewc", "recadam"],
        seeds=[0, 1],
        protocol={**SUITE["protocol"], "epochs": EPOCHS},
        scenario=[*SUITE["scenario"], {"shift": "sentence-length", "task": "mood"}],
    )
    started = time.monotonic()
    assert command(RUN, folder, limit=LONG).code == 0
    return folder, time.monotonic() - started


def _start(judge: Judge, long_run: LongRun) -> Path:
    """Return the folder of the long run before it began."""
    folder = fresh(long_run[0], judge.folder)
    shutil.rmtree(folder / "out")
    return folder


def _results(out: Path) -> tuple[str, dict[str, Any]]:
    """Return scores.csv without times and memory, and what must be equal in equal cells."""
    scores = pd.read_csv(out / "scores.csv").drop(columns=UNEQUAL)
    return scores.to_csv(), measured(clbench.load_run(out))


def _assert_well(outcome: Outcome, folder: Path, *, trained: bool = False) -> None:
    problems = list(faults(outcome, trained=trained))
    assert problems == [], f"{problems}\n{outcome}"
    assert not list(folder.rglob("*.part"))


def _assert_ends_as(undisturbed: Path, folder: Path, words: list[str]) -> None:
    """Run the same command to its end."""
    outcome = command(words, folder, limit=LONG)
    _assert_well(outcome, folder)
    assert outcome.code == 0, outcome
    assert _results(folder / "out") == _results(undisturbed / "out")


@pytest.mark.parametrize("number", range(8 if is_campaign() else 1))
def test_a_run_killed_five_times_goes_on(judge: Judge, long_run: LongRun, number: int) -> None:
    folder, rng = _start(judge, long_run), Random(number)
    for _ in range(5):
        process = Process(RUN, folder)
        # A third of the whole, so that later kills meet later cells.
        if process.wait(rng.uniform(0.1, long_run[1] / 3)):
            break
        process.kill()
        judge.tried += 1
    _assert_ends_as(long_run[0], folder, RUN)


@pytest.mark.skipif(not is_campaign(), reason="takes minutes: a part of `make faults`")
def test_a_run_outlives_its_workers(judge: Judge, long_run: LongRun) -> None:
    """Workers are killed in their cells, and after eight of them the run itself."""
    folder, words = _start(judge, long_run), [*RUN, "--plugin", "mortal.py"]
    (folder / "mortal.py").write_text(MORTAL.format(seconds=1.1 * long_run[1] / CELLS))
    started = time.monotonic()
    while judge.tried < 24 and time.monotonic() < started + 3 * LONG:
        shutil.rmtree(folder / "out", ignore_errors=True)
        process = Process([*words, "--workers", "2"], folder, limited=False)
        while not process.wait(0.1) and time.monotonic() < started + 4 * LONG:
            if len(list(folder.glob("killed-*"))) >= 8:
                process.kill()
                judge.tried += 1 + _count(folder)
                process = Process([*words, "--workers", "2"], folder, limited=False)
        hung = not process.wait(0)
        process.kill()
        judge.tried += _count(folder)
        _assert_well(process.outcome(hung=hung), folder)
        _assert_ends_as(long_run[0], folder, words)


def _count(folder: Path) -> int:
    """Return how many workers were killed since the last call."""
    return len([path.unlink() for path in folder.glob("killed-*")])


def test_a_lost_worker_or_node_costs_only_its_cells(judge: Judge) -> None:
    answers = node_loss()
    judge.tried = len(answers)
    assert [kind for kind, _, _ in answers] == [
        "worker killed in the middle of a cell",
        "node lost in the middle of a cell",
    ]
    assert all(right for _, right, _ in answers), answers


@pytest.mark.parametrize("at", range(1, 25) if is_campaign() else [3])
def test_a_full_disk(judge: Judge, templates: Templates, at: int) -> None:
    folder, size = judge.fresh(), 700 * (at % 2)
    outcome = command(RUN, folder, limit=LONG, before=partial(fill_disk, folder, at, size))
    judge.tried += 1
    _assert_well(outcome, folder, trained=True)
    assert outcome.code in (0, 2), outcome
    _assert_ends_as(templates.runs, folder, RUN)  # there is room again


@pytest.mark.parametrize("number", range(8 if is_campaign() else 1))
def test_of_two_runs_one_is_refused(judge: Judge, long_run: LongRun, number: int) -> None:
    folder, delay = _start(judge, long_run), Random(number).uniform(0, long_run[1] / 2)
    first = Process(RUN, folder)
    first.wait(delay * (number > 1))  # two start at once
    second = command(RUN, folder, limit=LONG)
    first.wait(LONG)
    outcomes = [first.outcome(), second]
    judge.tried += 1
    for outcome in outcomes:
        _assert_well(outcome, folder)
    assert sorted(outcome.code or 0 for outcome in outcomes) == [0, 2], outcomes
    assert any("in use" in outcome.err for outcome in outcomes), outcomes
    _assert_ends_as(long_run[0], folder, RUN)

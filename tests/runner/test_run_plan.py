"""Whole runs: killed at random moments they resume with equal scores; finished ones do nothing.

``CLBENCH_KILLS`` sets the number of kills; a few are enough for every day.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from helpers.workspace import Steps, Workspace, measured

from clbench.cli import main
from clbench.measure.rows import PreparedScenario
from clbench.runner import run_plan
from clbench.runner.prepare import ScenarioPreparer
from clbench.runner.run_state import Listener

KILLS = int(os.environ.get("CLBENCH_KILLS", "2"))
SEEDS = ["--seeds", "0-1"]
SCENARIOS = ["--scenarios", "mood-thing", "--scenarios", "three"]


def command(world: Workspace, out: str) -> list[str]:
    program = [sys.executable, "-m", "clbench", "run", str(world.suite), "--out", out]
    return [
        *program,
        "--plugin",
        str(world.plugin),
        "--methods",
        "vanilla,frozen",
        "--no-references",
        *SEEDS,
        *SCENARIOS,
    ]


def scores(folder: Path) -> dict[str, Any]:
    cells = {}
    for path in (folder / "cells").glob("*.json"):
        cell = json.loads(path.read_text(encoding="utf-8"))
        curves = [stage["curves"] for stage in cell["stages"]]
        cells[cell["key"]] = (cell["status"], cell["R"], cell["scores"], curves)
    return cells


@pytest.mark.slow
def test_a_run_killed_at_random_moments_resumes_with_equal_scores(world: Workspace) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    started = time.monotonic()
    subprocess.run(command(world, "whole"), check=True, **quiet)
    length = time.monotonic() - started
    rng, moments = random.Random(KILLS), list[int]()

    def finished() -> int:
        return len(list((world.folder / "broken" / "cells").glob("*.json")))

    for _ in range(KILLS):
        process = subprocess.Popen(command(world, "broken"), **quiet)
        enough = finished() + (rng.randrange(2) if moments else 1)
        while process.poll() is None and finished() < enough:
            time.sleep(0.005)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=rng.random() * length / 16)
            break  # it came to its end
        process.send_signal(signal.SIGKILL)
        process.wait()
        moments.append(finished())
    assert any(0 < number < 8 for number in moments), moments
    subprocess.run(command(world, "broken"), check=True, **quiet)
    assert scores(world.folder / "broken") == scores(world.folder / "whole")
    assert len(scores(world.folder / "whole")) == 8
    parts = list((world.folder / "broken").rglob("*.part"))
    assert not parts


def test_a_finished_run_trains_nothing(world: Workspace) -> None:
    first = world.run(epochs=1)
    steps = Steps()
    assert measured(world.run(epochs=1, listener=steps)) == measured(first)
    assert (steps.steps, steps.pending) == (0, 0)


def test_a_note_says_that_preparing_takes_long(
    world: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = ScenarioPreparer.prepare

    def slow(self: ScenarioPreparer, *arguments: Any) -> PreparedScenario:
        time.sleep(0.3)
        return prepare(self, *arguments)

    monkeypatch.setattr(ScenarioPreparer, "prepare", slow)
    told: list[str] = []
    listener = Listener()
    listener.note = told.append  # type: ignore[method-assign]
    monkeypatch.setattr(run_plan, "PATIENCE", 60.0)
    world.run("soon", epochs=1, listener=listener)
    assert not any("still" in note for note in told)
    monkeypatch.setattr(run_plan, "PATIENCE", 0.01)
    world.run("late", epochs=1, listener=listener)
    assert [note for note in told if note.startswith("mood-thing: still preparing")]


def cut_weights(size: int) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        weights = folder / "model" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:size])

    return edit


def one_class(folder: Path) -> None:
    (folder / "mood.csv").write_text("text,label\n" + "good film,up\n" * 20)


def many_clusters(folder: Path) -> None:
    suite = folder / "small.toml"
    table = (
        '[[scenario]]\nname = "mood-thing"\nshift = "embedding-cluster"\ntask = "mood"\nk = 900\n'
    )
    suite.write_text(suite.read_text().partition("[[scenario]]")[0] + table)


def small_memory(folder: Path) -> None:
    table = '\n[baseline.small]\nof = "icarl"\nsettings = { memory = 3 }\n'
    suite = folder / "small.toml"
    head, methods, rest = suite.read_text().partition('methods = ["')
    suite.write_text(f'{head}{methods}small", "{rest}{table}')


def broken_check(folder: Path) -> None:
    plugin = folder / "opposite.py"
    plugin.write_text(
        f"{plugin.read_text()}\n\n@clbench.method('broken')\nclass Broken(clbench.Method):\n"
        "    def check_tasks(self, tasks):\n        return tasks[99]\n"
    )
    suite = folder / "small.toml"
    suite.write_text(suite.read_text().replace('methods = ["', 'methods = ["broken", "'))


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (broken_check, "broken, on mood-thing"),
        (
            small_memory,
            "small, on mood-thing: memory = 3 is too small: each of 4 classes needs an exemplar.",
        ),
        (cut_weights(0), "model.safetensors is incomplete"),
        (cut_weights(7), "model.safetensors is incomplete"),
        (cut_weights(-1), "model.safetensors is incomplete"),
        (lambda folder: (folder / "model" / "tokenizer.json").write_text("{"), "its tokenizer"),
        (lambda folder: (folder / "mood-dev.csv").write_text("text,label\n"), "has no rows"),
        (one_class, "has the label 'up' on every row"),
        (many_clusters, "k = 900 is too large: its train rows allow at most 80"),
    ],
)
def test_a_dry_run_refuses_what_a_run_refuses(
    world: Workspace,
    edit: Callable[[Path], object],
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    edit(world.folder)
    arguments = ["run", "small.toml", "--plugin", "opposite.py", "--scenarios", "mood-thing"]
    assert main([*arguments, "--out", "out", "--dry-run"]) == 2
    dry = capsys.readouterr().err
    assert text in dry
    assert main([*arguments, "--out", "out"]) == 2
    assert capsys.readouterr().err == dry
    assert not (world.folder / "out").exists()


def test_a_dry_run_embeds_nothing_and_writes_nothing(
    world: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clbench.runner.prepare.embed_rows", None)
    before = set(world.folder.rglob("*"))
    for scenario in ("mood-thing", "mood-length"):
        arguments = ["run", "small.toml", "--plugin", "opposite.py", "--scenarios", scenario]
        assert main([*arguments, "--dry-run"]) == 0
    assert {path for path in world.folder.rglob("*") if "__pycache__" not in path.parts} == before

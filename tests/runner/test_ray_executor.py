"""Cells on Ray: on this machine, and on a cluster of two nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.node_loss import Cluster
from helpers.workspace import Steps, Workspace, measured

from clbench.core.errors import ClbenchError
from clbench.runner.ray_worker import WorkerSetup

pytestmark = pytest.mark.slow
METHODS = ["vanilla", "ewc", "recadam"]


class Watch(Steps):
    """Counts concurrent cells, and calls a hook at the first result."""

    def __init__(self) -> None:
        super().__init__()
        self.running: set[str] = set()
        self.most = 0
        self.at_first_result: Any = None

    def cell_started(self, cell: Any) -> None:
        self.running.add(cell.key)
        self.most = max(self.most, len(self.running))

    def cell_finished(self, result: Any) -> None:
        super().cell_finished(result)
        self.running.discard(result.key)
        if self.at_first_result is not None and len(self.finished) == 1:
            self.at_first_result()


DEADLY = """
import os
from pathlib import Path
from types import SimpleNamespace

import clbench


@clbench.method("deadly-later")
class DeadlyLater(clbench.Method):
    \"\"\"Trains a first stage for others, and ends its process in the second one.\"\"\"

    def acts_in(self, index):
        return index > 0

    def before_step(self, stage):
        os._exit(9)


@clbench.method("deadly")
class Deadly(clbench.Method):
    \"\"\"Ends its process as often as the file says.\"\"\"

    lives: str

    def acts_in(self, index):
        return True

    def after_step(self, stage):
        lives = int(Path(self.lives).read_text())
        if lives:
            Path(self.lives).write_text(str(lives - 1))
            os._exit(9)
"""


def test_a_cluster_gives_the_scores_of_one_process(
    world: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster()
    try:
        scores_are_those_of_one_process(world, cluster)
    finally:
        cluster.nodes.shutdown()


def scores_are_those_of_one_process(world: Workspace, cluster: Cluster) -> None:
    options: dict[str, Any] = {"methods": METHODS, "seeds": [0, 1], "threads": 1, "epochs": 1}
    alone = measured(world.run("alone", **options))
    watch = Watch()
    nodes = world.run("nodes", **options, address=cluster.address, listener=watch)
    assert measured(nodes) == alone
    assert watch.most == 2
    first = [(c.seed, c.baseline) for c in nodes.cells if not c.stages[0].cached]
    # Vanilla or EWC trained the stage that they share, once a seed; RecAdam its own.
    assert len(first) == 4
    assert {"recadam"} < {baseline for _, baseline in first}


def test_a_worker_that_dies_is_started_again_twice(world: Workspace) -> None:
    plugin = world.write("deadly.py", DEADLY)
    world.write("lives.txt", "99")
    world.write(
        "deadly.toml",
        'method = "deadly"\ndescription = "Dies."\n[settings]\nlives = "lives.txt"\n'
        '[sources]\nlives = "this test"\n',
    )
    watch = Watch()
    run = world.run(
        methods=["deadly.toml", "vanilla"],
        plugins=[world.plugin, plugin],
        workers=2,
        epochs=1,
        listener=watch,
    )
    deadly, vanilla = run.cells
    assert vanilla.status == "ok"
    assert deadly.status == "failed"
    assert deadly.reason == (
        "its worker or node was lost 3 times (Ray: WorkerCrashedError). It may have run "
        "out of memory, or the method may exit; run the cell without workers to see more."
    )
    assert Path("lives.txt").read_text() == "96"
    again = [note for note in watch.notes if "its worker died" in note]
    assert [note.partition(":")[0] for note in again] == ["mood-thing--deadly--seed0"] * 2


def test_cells_that_wait_for_a_cell_that_dies_train_the_first_stage(world: Workspace) -> None:
    plugin = world.write("deadly.py", DEADLY)
    run = world.run(
        methods=["deadly-later", "vanilla", "ewc"],
        plugins=[world.plugin, plugin],
        workers=2,
        threads=1,
        epochs=1,
    )
    assert [cell.status for cell in run.cells] == ["failed", "ok", "ok"]


def test_an_interruption_keeps_what_is_finished_and_ends_the_workers(world: Workspace) -> None:
    watch = Watch()

    def interrupt() -> None:
        raise KeyboardInterrupt

    watch.at_first_result = interrupt
    options: dict[str, Any] = {"methods": METHODS, "seeds": [0, 1], "threads": 1, "epochs": 1}
    with pytest.raises(KeyboardInterrupt):
        world.run(**options, workers=2, listener=watch)
    files = list((world.folder / "out" / "cells").glob("*.json"))
    assert len(files) >= 1
    steps = Steps()
    run = world.run(**options, listener=steps)
    assert steps.pending == 6 - len(files)
    assert measured(run) == measured(world.run("alone", **options))


def test_workers_that_do_not_see_the_folder_are_sent_the_shared_stage(
    world: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = WorkerSetup.of
    monkeypatch.setattr(WorkerSetup, "of", lambda *options: replace(setup(*options), lock="other"))
    text = world.suite.read_text(encoding="utf-8")
    world.suite.write_text(text.replace('precision = "float32"\n', ""), encoding="utf-8")
    with world.suite.open("a", encoding="utf-8") as file:
        file.write('[baseline.quarter]\nof = "wise-ft"\nsettings = { alpha = 0.25 }\n')
        file.write('sources = { alpha = "this test" }\n')
    methods = ["ewc", "wise-ft", "quarter"]
    options: dict[str, Any] = {"methods": methods, "threads": 1, "epochs": 1}
    watch = Watch()
    run = world.run(**options, workers=2, listener=watch)
    assert sum(note.startswith("Precision: ") for note in watch.notes) == 1
    assert {cell.baseline: [stage.cached for stage in cell.stages] for cell in run.cells} == {
        "ewc": [True, False],
        "wise-ft": [False, False],  # leads, as it trains the most stages for others
        "quarter": [True, True],
    }
    assert not (run.path / "stages").exists()
    assert measured(run) == measured(world.run("alone", **options))


def test_wrong_resources_are_refused_in_one_line(world: Workspace) -> None:
    for options, text in (
        ({"address": "127.0.0.1:1"}, "address='127.0.0.1:1': Ray cannot be reached"),
        ({"workers": 2, "device": "cuda:0"}, "cuda"),
        ({"workers": 2, "gpus": 0.5}, "gpus: Ray sees no GPU"),
    ):
        with pytest.raises(ClbenchError) as caught:
            world.run("never", **options)
        assert text in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not (world.folder / "never").exists()


def test_a_script_s_own_method_reaches_the_workers(world: Workspace) -> None:
    import subprocess
    import sys

    script = world.write(
        "script.py",
        "import clbench\n\n\n"
        "@clbench.method('mine')\n"
        "class Mine(clbench.Method):\n"
        "    def after_step(self, stage):\n"
        "        stage.record('mine', 1.0)\n\n\n"
        "if __name__ == '__main__':\n"
        f"    run = clbench.run({str(world.suite)!r}, out='scripted', workers=2, threads=1,\n"
        f"                      methods=['mine'], scenarios=['mood-thing'], epochs=1,\n"
        f"                      references=False,\n"
        f"                      plugins=[{str(world.plugin)!r}])\n"
        "    print([(c.status, c.reason, len(c.stages[0].curves['mine'])) for c in run.cells])\n",
    )
    process = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True
    )
    assert process.stdout.startswith("[('ok', None, "), process.stdout

"""Losses of a worker and of a node in the middle of a cell, on a cluster of this machine."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from helpers.workspace import Steps, Workspace, make_toy_scenario, measured

SLOW = """
import os
import time
from pathlib import Path

import ray

import clbench


@clbench.method("slow")
class Slow(clbench.Method):
    \"\"\"As vanilla, in no hurry; writes the process and node of each cell into files.\"\"\"

    def acts_in(self, index):
        return True

    def after_step(self, stage):
        if stage.index and ray.is_initialized():
            place = Path(f"place-{stage.seed}")
            node = ray.get_runtime_context().get_node_id()
            place.with_suffix(".part").write_text(f"{os.getpid()} {node}")
            place.with_suffix(".part").replace(place)
        time.sleep(0.15 * stage.index)  # so that progress is reported, which it is once a second
        until = time.monotonic() + 300.0
        # No cell ends before the loss, for a finished one is not tried again.
        while stage.index and stage.step > stage.steps // 2 and not Path("lost").exists():
            if time.monotonic() > until:
                raise RuntimeError("no loss in 300 s")
            time.sleep(0.05)
"""


class Loss(Steps):
    """Calls `act` with a cell, once, when `cells` cells are in the middle of their second stage.

    `act` returns the keys of the cells that this loses.
    """

    def __init__(self, cells: int, act: Callable[[Any, list[Any]], list[str]]) -> None:
        super().__init__()
        self.lost: list[str] = []
        self._cells = cells
        self._act = act
        self._in_the_middle: dict[str, Any] = {}

    def progress(self, cell: Any, stage: int, stages: int, step: int, steps: int) -> None:
        super().progress(cell, stage, stages, step, steps)
        if stage == stages:
            self._in_the_middle[cell.key] = cell
        running = [c for key, c in self._in_the_middle.items() if key not in self.finished]
        if not self.lost and len(running) == self._cells:
            self.lost = self._act(running[-1], running)
            Path("lost").touch()

    def again(self) -> list[str]:
        """Return the keys of the cells that were tried again, one for each time."""
        return [note.partition(":")[0] for note in self.notes if "its worker died" in note]


class Cluster:
    """Two nodes with a core each, in processes of this machine."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as Nodes

        self.small = {"num_cpus": 1, "object_store_memory": 100_000_000}
        self.nodes = Nodes(initialize_head=True, head_node_args={**self.small, "num_cpus": 0})
        self.added = [self.nodes.add_node(**self.small) for _ in range(2)]
        self.nodes.wait_for_nodes()

    @property
    def address(self) -> str:
        return str(self.nodes.address)

    def lose(self, node_id: str) -> None:
        node = next(node for node in self.added if node.node_id == node_id)
        self.nodes.remove_node(node, allow_graceful=False)


def node_loss() -> list[tuple[str, bool, str]]:
    """Return for each kind of loss whether it cost only one cell's time, and what happened."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    here = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="clbench-loss-") as name:
        os.chdir(name)
        try:
            world = make_toy_scenario(Path(name))
            world.write("slow.py", SLOW)
            cluster = Cluster()
            try:
                return _losses(world, cluster)
            finally:
                cluster.nodes.shutdown()
        finally:
            os.chdir(here)


def _losses(world: Workspace, cluster: Cluster) -> list[tuple[str, bool, str]]:
    def kill_worker(cell: Any, running: list[Any]) -> list[str]:
        os.kill(int(_place(cell)[0]), signal.SIGKILL)
        return [cell.key]

    def lose_node(cell: Any, running: list[Any]) -> list[str]:
        node = _place(cell)[1]
        cluster.lose(node)
        # A node may start a second cell while its first one waits for rows.
        lost = [other for other in running if _place(other)[1] == node]
        # Its workers may outlive it here by seconds, in which a cell can end and be returned.
        for other in lost:
            with suppress(ProcessLookupError):
                os.kill(int(_place(other)[0]), signal.SIGKILL)
        return [other.key for other in lost]

    options: dict[str, Any] = {
        "methods": ["slow"],
        "seeds": [0, 1, 2],
        "plugins": [world.plugin, world.folder / "slow.py"],
        "threads": 1,
        "epochs": 2,
    }
    Path("lost").touch()
    expected = measured(world.run("undisturbed", **options))
    answers = []
    # The node last: the cluster does not get it back.
    losses: dict[str, Callable[[Any, list[Any]], list[str]]] = {
        "worker killed in the middle of a cell": kill_worker,
        "node lost in the middle of a cell": lose_node,
    }
    for number, (kind, act) in enumerate(losses.items()):
        Path("lost").unlink()
        loss = Loss(2, act)
        run = world.run(f"loss-{number}", **options, address=cluster.address, listener=loss)
        again, equal = loss.again(), measured(run) == expected
        right = sorted(again) == sorted(loss.lost) != []
        happened = (
            f"tried again: {', '.join(again) or 'none'}; scores {'' if equal else 'not '}equal"
        )
        answers.append((kind, right and equal and not run.failed, happened))
    return answers


def _place(cell: Any) -> list[str]:
    """Return the process and the node of a running cell."""
    return Path(f"place-{cell.seed}").read_text().split()

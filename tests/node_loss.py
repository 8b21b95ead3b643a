"""Losses of a worker and of a node in the middle of a cell, on a cluster of this machine."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workspace import Steps, Workspace, make_toy_scenario, measured

SLOW = """
import os
import time
from pathlib import Path

import clbench


@clbench.method("slow")
class Slow(clbench.Method):
    \"\"\"As vanilla, in no hurry; writes the process of each cell into a file.\"\"\"

    def acts_in(self, index):
        return True

    def after_step(self, stage):
        Path(f"process-{stage.seed}").write_text(str(os.getpid()))
        # The last stage must go on after the driver has heard of it, which takes a second or two.
        time.sleep(0.15 * stage.index)
"""


class Loss(Steps):
    """Calls `act` with a cell, once, when `cells` cells are in the middle of their second stage."""

    def __init__(self, cells: int, act: Callable[[Any], object]) -> None:
        super().__init__()
        self.lost: str | None = None
        self._cells = cells
        self._act = act
        self._in_the_middle: dict[str, Any] = {}

    def progress(self, cell: Any, stage: int, stages: int, step: int, steps: int) -> None:
        super().progress(cell, stage, stages, step, steps)
        if stage == stages:
            self._in_the_middle[cell.key] = cell
        running = [c for key, c in self._in_the_middle.items() if key not in self.finished]
        if self.lost is None and len(running) == self._cells:
            self.lost = running[-1].key
            self._act(running[-1])

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

    def lose_one(self) -> None:
        self.nodes.remove_node(self.added.pop(), allow_graceful=False)


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
    def kill_worker(cell: Any) -> None:
        os.kill(int(Path(f"process-{cell.seed}").read_text()), signal.SIGKILL)

    options: dict[str, Any] = {
        "methods": ["slow"],
        "seeds": [0, 1, 2],
        "plugins": [world.plugin, world.folder / "slow.py"],
        "threads": 1,
        "epochs": 2,
    }
    expected = measured(world.run("undisturbed", **options))
    answers = []
    # The node last: the cluster does not get it back.
    losses: dict[str, Callable[[Any], object]] = {
        "worker killed in the middle of a cell": kill_worker,
        "node lost in the middle of a cell": lambda cell: cluster.lose_one(),
    }
    for number, (kind, act) in enumerate(losses.items()):
        loss = Loss(2, act)
        run = world.run(f"loss-{number}", **options, address=cluster.address, listener=loss)
        again, equal = loss.again(), measured(run) == expected
        # A lost node may have run either of the two cells.
        right = again == [loss.lost] if act is kill_worker else len(again) == 1
        happened = (
            f"tried again: {', '.join(again) or 'none'}; scores {'' if equal else 'not '}equal"
        )
        answers.append((kind, right and equal and not run.failed, happened))
    return answers


if __name__ == "__main__":
    for answer in node_loss():
        print(*answer, sep="\t")  # noqa: T201

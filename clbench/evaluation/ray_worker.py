"""What runs in a worker: one cell, with rows that the driver made ready."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clbench.errors import PluginError

if TYPE_CHECKING:
    import torch

    from clbench.evaluation.prepare import PreparedScenario
    from clbench.evaluation.stage_cache import Entry
    from clbench.results.cell import CellResult
    from clbench.suite.plan import Cell, Plan
    from clbench.suite.schema import ScenarioSpec

TELL_EVERY = 1.0
"""Seconds between a worker's messages on how far its cell is."""
PASSED_ON = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HOME", "TOKENIZERS_PARALLELISM")
"""Variables of the driver's environment that a worker takes over where it has none."""

Entries = dict[str, "Entry"]


@dataclass(frozen=True)
class WorkerSetup:
    """What every cell of a run needs in a worker.

    Attributes
    ----------
    plan
        The run's, without its cells; its folder absolute.
    threads
        Processor threads of a cell.
    version
        Of clbench on the driver.
    folder, lock
        The driver's working directory, and the text of the run's lock file: where a worker
        finds the same text, it sees the run's folder.
    path, environment
        The driver's ``sys.path`` and some of its variables.
    plugins
        Content of the plug-in files by their paths.
    registered
        Methods and models that were registered in the driver's own script, by registry.
    """

    plan: Plan
    threads: int
    version: str
    folder: str
    lock: str
    path: tuple[str, ...]
    environment: Mapping[str, str]
    plugins: Mapping[str, bytes]
    registered: Mapping[str, Mapping[str, Any]]


class InMemoryStageCache:
    """Trained stages in memory, for a worker that does not see the run's folder.

    Parameters
    ----------
    entries
        To begin with.
    """

    def __init__(self, entries: Entries | None = None) -> None:
        self.entries: Entries = dict(entries or {})

    def load(self, digest: str, device: torch.device) -> Entry | None:
        """The entry of that recipe, or None."""
        return self.entries.get(digest)

    def save(self, digest: str, entry: Entry) -> str | None:
        """Keep a copy, on the CPU, of an entry that others can use; never refuses."""
        from dataclasses import replace

        if not entry.state:
            weights = {name: w.detach().to("cpu", copy=True) for name, w in entry.weights.items()}
            self.entries[digest] = replace(entry, weights=weights)
        return None

    def drop(self, digest: str) -> None:
        """Forget an entry."""
        self.entries.pop(digest, None)


class RemoteListener:
    """Stands for the listener: tells the board, not too often."""

    def __init__(self, board: Any) -> None:
        self._board = board
        self._spoke = 0.0

    def progress(self, cell: Cell, stage: int, stages: int, step: int, steps: int) -> None:
        """Tell how far the cell is."""
        if time.monotonic() - self._spoke >= TELL_EVERY:
            self._spoke = time.monotonic()
            self._board.tell.remote(cell.key, (stage, stages, step, steps))

    def point(self, cell: Cell, stage: int, step: int, values: Mapping[str, float]) -> None:
        """Tell a point of a curve."""
        self._board.add.remote(cell.key, (stage, step, dict(values)))


Point = tuple[int, int, dict[str, float]]


class ProgressActor:
    """An actor that remembers how far each running cell is, and the points of curves."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[int, int, int, int]] = {}
        self._points: list[tuple[str, Point]] = []

    def tell(self, key: str, position: tuple[int, int, int, int]) -> None:
        """Remember a position."""
        self._latest[key] = position

    def add(self, key: str, point: Point) -> None:
        """Remember a point: stage, step and values."""
        self._points.append((key, point))

    def read(self) -> tuple[dict[str, tuple[int, int, int, int]], list[tuple[str, Point]]]:
        """Positions by cell, and points, that were told since the last time."""
        (latest, self._latest), (points, self._points) = (self._latest, {}), (self._points, [])
        return latest, points


class _Given:
    """The one scene that the driver sent."""

    def __init__(self, scene: PreparedScenario) -> None:
        self._scene = scene

    def scene(self, spec: ScenarioSpec) -> PreparedScenario:
        """It, whatever is asked for."""
        return self._scene


def warm_up() -> None:
    """Import what cells need: seconds, while the driver makes the rows ready."""
    import transformers.modeling_utils
    import transformers.models.auto.modeling_auto  # noqa: F401

    import clbench.evaluation.run_plan
    import clbench.models.checkpoint  # noqa: F401


def work(
    parcel: WorkerSetup,
    cell: Cell,
    scene: list[Any],
    first: Entries | None,
    leads: bool,
    board: Any,
) -> tuple[CellResult, Entries | None]:
    """Run a cell.

    Parameters
    ----------
    parcel, cell
        What to run.
    scene
        The reference to its scene in a list, so that it is read when plug-ins are loaded.
    first
        The first stage that it shares with others, if one of them sent it.
    leads
        Whether others wait for its first stage.
    board
        Handle of the `ProgressActor`.

    Returns
    -------
    tuple
        The result, and the first stage for the others if they cannot find it in the folder.
    """
    _prepare(parcel)
    import ray

    from clbench.evaluation.run_cell import run_cell
    from clbench.evaluation.run_plan import compute_settings, thread_count
    from clbench.evaluation.stage_cache import StageCache

    rows = _Given(ray.get(scene[0]))
    with thread_count(parcel.threads):
        setting = compute_settings(parcel.plan)
        if _sees(parcel):
            cache = StageCache(parcel.plan.out / "stages")
            return run_cell(cell, rows, setting, cache, RemoteListener(board)), None
        memory = InMemoryStageCache(first)
        result = run_cell(cell, rows, setting, memory, RemoteListener(board))
        return result, memory.entries if leads else None


def _prepare(parcel: WorkerSetup) -> None:
    """Make this process what the driver is."""
    import clbench

    if clbench.__version__ != parcel.version:
        raise PluginError(
            f"a worker has clbench {clbench.__version__}, the driver {parcel.version}. Install "
            "the same version on all nodes."
        )
    for name, value in parcel.environment.items():
        os.environ.setdefault(name, value)
    if Path(parcel.folder).is_dir():
        os.chdir(parcel.folder)
    sys.path += [entry for entry in parcel.path if entry not in sys.path]
    _load_plugins(parcel.plugins)
    _register(parcel.registered)


def _load_plugins(plugins: Mapping[str, bytes]) -> None:
    """Load the driver's plug-ins; a node that has not the same file gets one."""
    from tempfile import TemporaryDirectory

    from clbench.suite.plugins import load_plugin

    for path, content in plugins.items():
        file = Path(path)
        if file.is_file() and file.read_bytes() == content:
            load_plugin(file)
            continue
        with TemporaryDirectory(prefix="clbench-plugin-") as folder:
            copy = Path(folder) / file.name
            copy.write_bytes(content)
            load_plugin(copy)


def _register(registered: Mapping[str, Mapping[str, Any]]) -> None:
    from clbench.suite.plugins import registries

    for registry in registries():
        for name, entry in registered.get(registry.kind, {}).items():
            registry.add(name, entry, replace=True)


def _sees(parcel: WorkerSetup) -> bool:
    """Whether this node sees the run's folder."""
    try:
        return (parcel.plan.out / ".lock").read_text(encoding="utf-8") == parcel.lock
    except OSError:
        return False

"""Run a cell in a Ray worker, on the rows that the driver prepared."""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from clbench.core import __version__
from clbench.core.errors import PluginError
from clbench.core.files import LOCK
from clbench.results.cell import CellResult
from clbench.runner.run_state import Listener
from clbench.suite.plan import Cell, Plan
from clbench.suite.plugins import load_content, registries

PROGRESS_SECONDS = 1.0
"""Minimum time between two progress messages of a cell."""
VARIABLES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HOME", "TOKENIZERS_PARALLELISM")
"""Environment variables that a worker takes over from the driver unless it has its own."""


@dataclass(frozen=True)
class WorkerSetup:
    """The data that a worker needs for every cell of a run.

    Attributes
    ----------
    plan, threads
        The run's plan without cells and with an absolute folder; CPU threads per cell.
    version, folder, path, environment
        The driver's version of clbench, working directory, ``sys.path`` and some variables.
    lock
        Text of the run's lock file; a worker that reads the same text shares the run's folder.
    plugins
        Contents of the plug-in files by path.
    registered
        Methods, metrics and models that the user's script registered, by registry and name.
    sharing
        For `StageCache`.
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
    sharing: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, threads: int) -> Self:
        """Return the setup; called in the driver.

        Raises
        ------
        PluginError
            If a method or model of the user's script cannot be pickled.
        """
        return cls(
            plan=replace(plan, cells=(), plugins=(), out=plan.out.resolve()),
            threads=threads,
            version=__version__,
            folder=str(Path.cwd()),
            lock=(plan.out / LOCK).read_text(encoding="utf-8"),
            path=tuple(sys.path),
            environment={name: os.environ[name] for name in VARIABLES if name in os.environ},
            plugins={str(plugin.path): plugin.path.read_bytes() for plugin in plan.plugins},
            registered={
                # Shifts and tasks are not needed: rows are prepared in the driver.
                registry.kind: _entries_of_script(registry)
                for registry in registries()
                if registry.kind in ("method", "metric", "model")
            },
        )

    def apply(self) -> None:
        """Apply the driver's paths, variables, plug-ins and registered classes to this worker.

        Raises
        ------
        PluginError
            If the worker has another version of clbench.
        """
        if __version__ != self.version:
            raise PluginError(
                f"a worker has clbench {__version__}, the driver {self.version}. Install "
                "the same version on all nodes."
            )
        for name, value in self.environment.items():
            os.environ.setdefault(name, value)
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        sys.path += [entry for entry in self.path if entry not in sys.path]
        for path, content in self.plugins.items():
            load_content(Path(path), content)
        for registry in registries():
            for name, entry in self.registered.get(registry.kind, {}).items():
                registry.add(name, entry, replace=True)

    @property
    def sees_folder(self) -> bool:
        """Whether this worker can access the run's folder."""
        try:
            return (self.plan.out / LOCK).read_text(encoding="utf-8") == self.lock
        except OSError:
            return False


def _entries_of_script(registry: Any) -> dict[str, Any]:
    """Return the entries of the user's script or notebook, which workers cannot import."""
    from ray import cloudpickle

    modules = ("__main__", "__mp_main__")
    names = [n for n in registry.names() if registry.where(n).partition(":")[0] in modules]
    entries = {name: registry.get(name) for name in names}
    for name, entry in entries.items():
        try:
            cloudpickle.dumps(entry)
        except Exception as error:
            raise PluginError(
                f"{registry.kind} {name!r} cannot be sent to workers ({type(error).__name__}: "
                f"{error}). Put it into a file and give that file as a plug-in."
            ) from error
    return entries


class ProgressActor:
    """A Ray actor that queues the events of workers until the driver reads them."""

    def __init__(self) -> None:
        self._events: list[tuple[str, str, tuple[Any, ...]]] = []

    def add(self, key: str, event: str, *values: Any) -> None:
        """Add an event of the cell `key`: ``started``, ``progress`` or ``point``."""
        self._events.append((key, event, values))

    def read(self) -> list[tuple[str, str, tuple[Any, ...]]]:
        """Return and clear the events since the last call."""
        events, self._events = self._events, []
        return events


class RemoteListener(Listener):
    """Reports a cell's progress to a `ProgressActor`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._last = 0.0

    def progress(self, cell: Cell, stage: int, stages: int, step: int, steps: int) -> None:
        """Report the position, at most once every `PROGRESS_SECONDS`."""
        if time.monotonic() - self._last >= PROGRESS_SECONDS:
            self._last = time.monotonic()
            self._actor.add.remote(cell.key, "progress", stage, stages, step, steps)

    def point(self, cell: Cell, stage: int, step: int, values: Mapping[str, float]) -> None:
        """Report a point of a curve."""
        self._actor.add.remote(cell.key, "point", stage, step, dict(values))


def warm_up() -> None:
    """Import the modules that cells need, which takes seconds; rows are prepared meanwhile."""
    import transformers.modeling_utils
    import transformers.models.auto.modeling_auto  # noqa: F401


def run_in_worker(
    setup: WorkerSetup,
    cell: Cell,
    scenario: list[Any],
    shared: dict[str, bytes] | None,
    leads: bool,
    actor: Any,
) -> tuple[CellResult, dict[str, bytes] | None]:
    """Return a cell's result, and the files of its first stages if others need them from here.

    `scenario` holds one reference to the prepared scenario, resolved after plug-ins are loaded. A
    cell that `leads` trains stages for others, and returns their files if the worker cannot access
    the run's folder; `shared` holds such files. `actor` is the handle of the `ProgressActor`.
    """
    actor.add.remote(cell.key, "started")
    setup.apply()
    import ray
    import sklearn.metrics  # noqa: F401 - so that no cell's scoring waits for it

    from clbench.runner.run_plan import computing, run_cell
    from clbench.runner.stage_cache import StageCache

    prepared, folder = ray.get(scenario[0]), setup.plan.out / "stages"
    stages = TemporaryDirectory(prefix="clbench-stages-")
    with computing(setup.plan, setup.threads) as compute, stages as temporary:
        if not setup.sees_folder:
            folder = Path(temporary)
            for name, content in (shared or {}).items():
                (folder / name).write_bytes(content)
        cache = StageCache(folder, setup.sharing, keeps_last=setup.plan.keep_stages)
        result = run_cell(cell, lambda cell: prepared, compute, cache, RemoteListener(actor))
        if leads and folder == Path(temporary):
            return result, {file.name: file.read_bytes() for file in folder.iterdir()}
    return result, None

"""The cells of one run on their way through the workers of Ray."""

from __future__ import annotations

import time
from collections.abc import Generator, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from clbench.errors import ClbenchError, SettingsError
from clbench.evaluation import worker_setup
from clbench.evaluation.cell_resources import CellResources, alive
from clbench.evaluation.listener import Listener
from clbench.evaluation.prepare import ScenarioPreparer
from clbench.evaluation.ray_turns import TRIES, Turns
from clbench.evaluation.ray_worker import ProgressActor, work
from clbench.evaluation.run_cell import explain, failed
from clbench.methods.base import METHODS
from clbench.results.cell import CellResult
from clbench.suite.plan import Cell, Plan

POLL = 0.5
"""Seconds between looks at the workers."""
PATIENCE = 60.0
"""Seconds without a node that could run a cell after which the user hears of it."""


@dataclass
class Running:
    """A cell in a worker."""

    cell: Cell
    scene: Any
    entries: Any


class Flow:
    """One run's cells on their way through the workers."""

    def __init__(
        self,
        ray: Any,
        plan: Plan,
        pending: Sequence[Cell],
        builder: ScenarioPreparer,
        listener: Listener,
        needs: CellResources,
        workers: int | None,
    ) -> None:
        self._ray = ray
        self._plan = plan
        self._builder = builder
        self._listener = listener
        self._needs = needs
        self._workers = workers
        self._turns = Turns(pending, _shared_stage)
        self._running: dict[Any, Running] = {}
        self._scenes: dict[str, Any] = {}
        self._firsts: dict[Hashable, Any] = {}
        self._left = {cell.key: cell for cell in pending}
        self._idle_since: float | None = None
        self._parcel = ray.put(worker_setup.pack(plan, needs))
        self._task = ray.remote(num_returns=2, max_retries=0)(work)
        self._board = ray.remote(num_cpus=0, max_restarts=-1)(ProgressActor).remote()
        self._reading: Any = None

    def run(self) -> Generator[CellResult, None, None]:
        """The results as they come; after an interruption those that are there already."""
        try:
            while self._turns or self._running:
                yield from self._fill()
                for reference in self._ready(POLL):
                    yield from self._collect(reference)
                self._tell()
        except KeyboardInterrupt:
            for reference in self._ready(0):
                yield from self._collect(reference)
            raise

    def stop(self) -> None:
        """End what still runs."""
        for reference in self._running:
            with suppress(Exception):  # it may have ended meanwhile, or its node be gone
                self._ray.cancel(reference, force=True)
        self._running.clear()

    def _ready(self, seconds: float) -> list[Any]:
        if not self._running:
            return []
        self._ray.wait(list(self._running), timeout=seconds)  # until one is there
        ready, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        return list(ready)

    def _fill(self) -> Iterator[CellResult]:
        """Start what may start; yields the results of cells whose rows cannot be made."""
        room = self._room()
        while len(self._running) < room:
            cell = self._turns.take()
            if cell is None:
                return
            self._listener.cell_started(cell)
            try:
                scene = self._scene(cell)
            except Exception as fault:  # as in a run without workers, it is this cell's failure
                self._turns.finished(cell, well=False)
                self._forget(cell)
                yield failed(cell, explain(fault))
                continue
            self._submit(cell, scene)

    def _submit(self, cell: Cell, scene: Any) -> None:
        first = self._firsts.get(self._turns.group(cell))
        options = {"num_cpus": self._needs.threads, "num_gpus": self._needs.gpus, "name": cell.key}
        result, entries = self._task.options(**options).remote(
            self._parcel, cell, [scene], first, self._turns.leads(cell), self._board
        )
        self._running[result] = Running(cell, scene, entries)

    def _collect(self, reference: Any) -> Iterator[CellResult]:
        running = self._running.pop(reference)
        cell = running.cell
        try:
            result: CellResult = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as fault:
            _complain(fault)
            result = failed(cell, explain(fault.cause or fault))
        except self._ray.exceptions.RayError as fault:
            self._firsts.pop(self._turns.group(cell), None)
            self._turns.lost(self._turns.group(cell))
            left = self._turns.died(cell)
            why = _death(fault)
            if left:
                again = f"{left} more time" + ("s" if left > 1 else "")
                self._listener.note(f"{cell.key}: {why}; it may be tried {again}.")
                return
            result = failed(
                cell,
                f"{why}, {TRIES} times. A process that ends so was killed, perhaps for its "
                "memory, or ended itself; without --workers it may tell more.",
            )
        well = result.status == "ok"
        if well and self._turns.leads(cell):
            self._firsts[self._turns.group(cell)] = running.entries
        self._turns.finished(cell, well=well)
        self._forget(cell)
        yield result

    def _room(self) -> int:
        if self._workers is not None:
            return self._workers
        fitting = self._needs.fitting(alive(self._ray))
        now = time.monotonic()
        if fitting:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > PATIENCE:
            self._listener.note(f"No node has {self._needs} for a cell; waiting for one.")
            self._idle_since = now
        return max(1, fitting)

    def _scene(self, cell: Cell) -> Any:
        name = cell.scenario.name
        if name not in self._scenes:
            self._scenes[name] = self._ray.put(self._builder.scene(cell.scenario))
        return self._scenes[name]

    def _forget(self, cell: Cell) -> None:
        """Let go of what no cell to come can use."""
        self._left.pop(cell.key, None)
        name, group = cell.scenario.name, self._turns.group(cell)
        if not any(other.scenario.name == name for other in self._left.values()):
            self._scenes.pop(name, None)
        if group in self._firsts and not self._turns.awaited(group):
            del self._firsts[group]

    def _tell(self) -> None:
        """Pass on how far the running cells are."""
        try:
            if self._reading is None:
                self._reading = self._board.read.remote()
            ready, _ = self._ray.wait([self._reading], timeout=0)
            if not ready:
                return
            positions, points = self._ray.get(self._reading)
            self._reading = None
        except self._ray.exceptions.RayError:
            self._reading = None  # its node left; it starts anew elsewhere
            return
        cells = {running.cell.key: running.cell for running in self._running.values()}
        for key, position in positions.items():
            if key in cells:
                self._listener.progress(cells[key], *position)
        for key, point in points:
            if key in cells:
                self._listener.point(cells[key], *point)


def _shared_stage(cell: Cell) -> Hashable | None:
    """Scenario and seed, if the cell's first stage is trained as vanilla trains it."""
    if cell.reference_of not in (None, 0):
        return None
    try:
        acts = METHODS.get(cell.baseline.method)(**cell.baseline.settings).acts_in(0)
    except Exception:
        return None  # the cell will fail with this as its reason
    return None if acts else (cell.scenario.name, cell.seed)


def _death(fault: BaseException) -> str:
    """Why a worker is gone, in a few words."""
    words = {
        "OutOfMemoryError": "its node ran out of memory",
        "NodeDiedError": "its node left",
        "WorkerCrashedError": "its worker died",
        "ObjectLostError": "what it needed was lost with a node",
        "OwnerDiedError": "what it needed was lost with a node",
    }
    name = type(fault).__name__
    return words.get(name, f"its worker was lost ({name})")


def _complain(fault: Any) -> None:
    """Stop the run where a node is not as this one: no cell would do there.

    Raises
    ------
    ClbenchError
        That of the worker, or one that names what the node lacks.
    """
    cause = fault.cause
    if isinstance(cause, ClbenchError):
        raise cause
    if isinstance(cause, ModuleNotFoundError) and (cause.name or "").startswith("clbench"):
        raise SettingsError(
            "A node of the cluster has no clbench, or another version of it. Install the same "
            "version on all nodes."
        ) from fault

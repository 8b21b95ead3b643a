"""Cells as tasks of Ray: on this machine, or on a cluster that is already there."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import clbench
from clbench.errors import ClbenchError, PluginError, SettingsError
from clbench.evaluation.cells import explain, failed
from clbench.evaluation.listener import Listener
from clbench.evaluation.scenes import SceneBuilder
from clbench.methods.registry import METHODS
from clbench.parallel.place import Place, cores
from clbench.parallel.turns import TRIES, Turns
from clbench.parallel.worker import PASSED_ON, Board, Parcel, warm_up, work
from clbench.results.cell import CellResult
from clbench.suite.plan import Cell, Plan
from clbench.suite.plugins import registries
from clbench.training.device import resolve_device

POLL = 0.5
"""Seconds between looks at the workers."""
CONNECT_SECONDS = 10.0
"""Seconds in which a cluster must answer."""
PATIENCE = 60.0
"""Seconds without a node that could run a cell after which the user hears of it."""


@dataclass(frozen=True)
class Needs:
    """What a cell takes of a node."""

    threads: int
    gpus: float

    def fitting(self, nodes: Sequence[dict[str, Any]]) -> int:
        """Cells that these nodes can run at a time."""
        return sum(self._on(node.get("Resources", {})) for node in nodes)

    def _on(self, resources: dict[str, float]) -> int:
        room = int(resources.get("CPU", 0) // self.threads)
        return min(room, int(resources.get("GPU", 0) / self.gpus)) if self.gpus else room

    def __str__(self) -> str:
        cores = f"{self.threads} core{'s' if self.threads > 1 else ''}"
        return f"{cores} and {self.gpus:g} GPU" if self.gpus else cores


@dataclass
class Running:
    """A cell in a worker."""

    cell: Cell
    scene: Any
    entries: Any


class Workers:
    """Runs cells in workers of Ray.

    A worker that dies costs only its cell, which is tried again, twice; so does a node that
    leaves. Results come to this process and are written by it.

    Parameters
    ----------
    place
        How many, where, and what each gets.
    """

    def __init__(self, place: Place) -> None:
        self.place = place

    def device(self, plan: Plan) -> torch.device:
        """The plan's on this machine; the best there is if a cluster trains."""
        here = resolve_device(plan.device if self.place.address is None else "auto")
        if self.place.address is None and self.place.gpus and here.type == "cpu":
            raise SettingsError("--gpus: there is no GPU that the workers could share.")
        return here

    @contextmanager
    def ready(self, plan: Plan) -> Iterator[None]:
        """Start Ray or join the cluster, and leave it at the end.

        Raises
        ------
        SettingsError
            If there is no such cluster, or none of its nodes can ever run a cell.
        """
        with _connected(self.place) as self._ray:
            self._needs = self._needed(plan)
            _check_room(self._ray, self._needs)
            if self.place.address is None and not self._needs.gpus:
                # Meanwhile this process makes the rows ready.
                warm = self._ray.remote(num_cpus=self._needs.threads, max_retries=0)(warm_up)
                self._warm = [warm.remote() for _ in range(self.place.workers or 1)]
            yield

    def results(
        self, plan: Plan, pending: Sequence[Cell], builder: SceneBuilder, listener: Listener
    ) -> Generator[CellResult, None, None]:
        """The results in the order in which they come.

        Raises
        ------
        PluginError
            If a method of the user's script cannot be sent to workers.
        ClbenchError
            If a node has another version of clbench.
        """
        workers = self.place.workers
        wanted = (workers or 1) * self._needs.threads
        if self.place.address is None and wanted > cores():
            listener.note(
                f"{workers} workers of {self._needs.threads} threads share {cores()} cores, which "
                "slows all of them."
            )
        flow = _Flow(self._ray, plan, pending, builder, listener, self._needs, workers)
        try:
            yield from flow.run()
        finally:
            flow.stop()

    def _needed(self, plan: Plan) -> Needs:
        kind = plan.device.partition(":")[0]
        if kind == "auto":
            kind = "cuda" if self._ray.cluster_resources().get("GPU", 0) else "cpu"
        if kind == "mps":
            raise SettingsError(
                "--device mps: has one GPU that workers cannot share. Leave out --workers."
            )
        if plan.device.startswith("cuda:"):
            raise SettingsError(
                f"--device {plan.device}: Ray chooses the GPU of a worker. Give --device cuda."
            )
        gpus = (self.place.gpus or self._share()) if kind == "cuda" else 0.0
        if self.place.gpus and not gpus:
            raise SettingsError("--gpus: there is no GPU that the workers could share.")
        threads = self.place.threads_here if self.place.address is None else self.place.threads
        return Needs(threads or 1, gpus)

    def _share(self) -> float:
        """GPUs of a cell unless the user says: one, or less where workers outnumber them."""
        there = float(self._ray.cluster_resources().get("GPU", 0))
        workers = self.place.workers
        if self.place.address is not None or not workers or not 0 < there < workers:
            return 1.0
        return math.floor(1e4 * there / workers) / 1e4


class _Flow:
    """One run's cells on their way through the workers."""

    def __init__(
        self,
        ray: Any,
        plan: Plan,
        pending: Sequence[Cell],
        builder: SceneBuilder,
        listener: Listener,
        needs: Needs,
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
        self._parcel = ray.put(_parcel(plan, needs))
        self._task = ray.remote(num_returns=2, max_retries=0)(work)
        self._board = ray.remote(num_cpus=0, max_restarts=-1)(Board).remote()
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
        fitting = self._needs.fitting(_alive(self._ray))
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
            positions = self._ray.get(self._reading)
            self._reading = None
        except self._ray.exceptions.RayError:
            self._reading = None  # its node left; it starts anew elsewhere
            return
        cells = {running.cell.key: running.cell for running in self._running.values()}
        for key, position in positions.items():
            if key in cells:
                self._listener.progress(cells[key], *position)


def _shared_stage(cell: Cell) -> Hashable | None:
    """Scenario and seed, if the cell's first stage is trained as vanilla trains it."""
    if cell.reference_of not in (None, 0):
        return None
    try:
        acts = METHODS.get(cell.baseline.method)(**cell.baseline.settings).acts_in(0)
    except Exception:
        return None  # the cell will fail with this as its reason
    return None if acts else (cell.scenario.name, cell.seed)


def _parcel(plan: Plan, needs: Needs) -> Parcel:
    lock = plan.out / ".lock"
    return Parcel(
        plan=replace(plan, cells=(), plugins=(), out=plan.out.resolve()),
        threads=needs.threads,
        version=clbench.__version__,
        folder=str(Path.cwd()),
        lock=lock.read_text(encoding="utf-8"),
        path=tuple(sys.path),
        environment={name: os.environ[name] for name in PASSED_ON if name in os.environ},
        plugins={str(plugin.path): plugin.path.read_bytes() for plugin in plan.plugins},
        registered=_own_registrations(plan),
    )


def _own_registrations(plan: Plan) -> dict[str, dict[str, Any]]:
    """What a script or notebook registered, which workers could not import.

    Raises
    ------
    PluginError
        If such an entry cannot be sent.
    """
    from ray import cloudpickle

    plugins = {plugin.module for plugin in plan.plugins}
    found: dict[str, dict[str, Any]] = {}
    for registry in registries():
        if registry.kind not in ("method", "model"):
            continue  # shifts and tasks have done their work when rows are sent
        for name in registry.names():
            module = registry.where(name).partition(":")[0]
            if module.partition(".")[0] == "clbench" or module in plugins:
                continue
            entry = registry.get(name) if module in ("__main__", "__mp_main__") else None
            if entry is None:
                continue
            try:
                cloudpickle.dumps(entry)
            except Exception as fault:
                raise PluginError(
                    f"{registry.kind} {name!r} cannot be sent to workers "
                    f"({type(fault).__name__}: {fault}). Put it into a file and give it as "
                    "--plugin."
                ) from fault
            found.setdefault(registry.kind, {})[name] = entry
    return found


@contextmanager
def _connected(place: Place) -> Iterator[Any]:
    """Ray, started here or joined; what was started or joined is left again."""
    # Set before the import: nothing is reported to anyone, and no notice printed about GPUs.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # each is handled here
    import ray

    if ray.is_initialized():
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    with _own_signals():
        try:
            if place.address is None:
                ray.init(
                    address="local",
                    num_cpus=(place.workers or 1) * place.threads_here,
                    include_dashboard=False,
                    _node_ip_address="127.0.0.1",
                    **quiet,
                )
            else:
                _check_listening(place.address)
                ray.init(address=place.address, **quiet)
        except (ConnectionError, RuntimeError, ValueError, OSError) as fault:
            where = "this machine" if place.address is None else f"--address {place.address}"
            lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
            raise SettingsError(
                f"{where}: Ray cannot be reached or started: {lines[0] if lines else fault}"
            ) from fault
    try:
        with _no_echo(ray):
            yield ray
    finally:
        ray.shutdown()


@contextmanager
def _no_echo(ray: Any) -> Iterator[None]:
    """Keep Ray from printing of each death what a note of this run says already.

    It goes to stdout, among results, and Ray has no setting for it.
    """
    module, switch = ray._private.worker, "_worker_logs_enabled"
    if not hasattr(module, switch):
        yield
        return
    before = getattr(module, switch)
    setattr(module, switch, False)
    try:
        yield
    finally:
        setattr(module, switch, before)


def _check_listening(address: str) -> None:
    """Raise ConnectionError where nobody answers; Ray would try for many minutes."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "auto")
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return  # auto without an address, or a form that Ray itself will judge
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as fault:
        raise ConnectionError(f"{fault}. Does `ray status` show the cluster?") from fault


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this program's ways to end, which Ray replaces by its own."""
    main = threading.current_thread() is threading.main_thread()
    names = ("SIGTERM", "SIGINT", "SIGHUP") if main else ()
    numbers_ = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers_}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


def _alive(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node.get("Alive")]


def _check_room(ray: Any, needs: Needs) -> None:
    nodes = _alive(ray)
    if needs.fitting(nodes):
        return
    if needs.gpus and not any(node.get("Resources", {}).get("GPU") for node in nodes):
        raise SettingsError("No node has a GPU that Ray knows of. Leave out --device cuda.")
    largest = max((node.get("Resources", {}).get("CPU", 0) for node in nodes), default=0)
    gpus = max((node.get("Resources", {}).get("GPU", 0) for node in nodes), default=0)
    raise SettingsError(
        f"A cell takes {needs}, but no node has that: the largest has {largest:g} cores"
        f"{f' and {gpus:g} GPUs' if needs.gpus else ''}. "
        f"Lower {'--threads or --gpus' if needs.gpus else '--threads'}."
    )


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

"""Run cells as Ray tasks, on this machine or on a cluster."""

from collections import Counter, OrderedDict
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch

from clbench.core.errors import ClbenchError, ClusterError, SettingsError, explain, named
from clbench.results.cell import CellResult
from clbench.runner.cell_stages import stage_groups, stages_to_share
from clbench.runner.prepare import ScenarioPreparer
from clbench.runner.ray_worker import ProgressActor, WorkerSetup, run_in_worker, warm_up
from clbench.runner.resources import (
    RETRIES,
    LocalServers,
    Resources,
    cell_resources,
    connected,
    cores,
)
from clbench.runner.run_plan import Executor, failed
from clbench.runner.run_state import Listener
from clbench.suite.plan import Cell, Plan
from clbench.training.device import precision_note

POLL_SECONDS = 0.5
"""Time between two polls of the workers' progress."""


class RayExecutor(Executor):
    """Runs cells as Ray tasks.

    In a group of cells that share a first stage, one cell leads: it trains that stage, and later
    ones that others can use, while the others wait. No more cells are submitted than can run at
    once.

    If a worker dies or a node leaves, Ray restarts its running cell, at most twice. Results come
    to this process, which writes them.
    """

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self._tasks: dict[Any, tuple[Cell, bool]] = {}
        self._scenarios: dict[Hashable, Any] = {}
        self._stages: dict[Hashable, Any] = {}
        self._starts: Counter[str] = Counter()
        self._left: Counter[Hashable] = Counter()
        self._without_node = False

    def device(self, plan: Plan) -> torch.device:
        """Return the plan's device, or this machine's best one if a cluster trains."""
        return self.resources.device_here(plan.device)

    @contextmanager
    def ready(self, plan: Plan) -> Iterator[None]:
        """Start Ray or join the cluster; disconnect at the end.

        Raises
        ------
        SettingsError
            If the cluster does not answer, or no node is large enough for a cell.
        """
        with connected(self.resources) as self._ray:
            self._cell = cell_resources(self._ray, self.resources, plan.device)
            if self.resources.address is None and not self._cell.gpus:
                warm = self._ray.remote(num_cpus=self._cell.threads)(warm_up)
                self._warm = [warm.remote() for _ in range(self.resources.workers or 1)]
            self._servers = LocalServers(self._ray, self.resources)
            yield

    def results(
        self, plan: Plan, pending: Sequence[Cell], preparer: ScenarioPreparer, listener: Listener
    ) -> Generator[CellResult, None, None]:
        """Yield the results as they arrive; after Ctrl-C only those already available.

        Raises
        ------
        PluginError
            If a method of the user's script cannot be sent to workers.
        ClbenchError
            If a node has another version of clbench.
        """
        ray, threads, workers = self._ray, self._cell.threads, self.resources.workers or 1
        self._preparer, self._listener = preparer, listener
        sharing = stages_to_share(pending)
        self._waiting = OrderedDict((cell.key, cell) for cell in _leaders_first(pending, sharing))
        self._groups = stage_groups(pending)
        self._left.update(map(_rows_of, pending))
        self._left.update(self._groups.values())
        if self.resources.address is None and workers * threads > cores():
            listener.note(
                f"{workers} workers with {threads} threads each share {cores()} cores, which slows "
                f"them down. Lower {named('workers')} or {named('threads')}."
            )
        trains_here = pending and self.resources.address is None  # else each node chooses
        if trains_here and (text := precision_note(plan.protocol.precision, preparer.device)):
            listener.note(text)
        self._out = plan.out
        self._require_ray()
        self._setup = ray.put(replace(WorkerSetup.of(plan, threads), sharing=sharing))
        # On this node, so that it is not lost with another one. A soft affinity would pass over
        # a node without CPUs for cells, as many clusters' head nodes are.
        node = ray.get_runtime_context().get_node_id()
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        actor = ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy=here)(ProgressActor)
        self._progress = actor.remote()
        self._run = ray.remote(
            num_returns=2, max_retries=RETRIES, num_cpus=threads, num_gpus=self._cell.gpus
        )(run_in_worker)
        try:
            while self._waiting or self._tasks:
                yield from self._submit()
                ready, _ = ray.wait(list(self._tasks), timeout=POLL_SECONDS)
                self._require_ray()
                self._report()
                for reference in ready:
                    yield self._collect(reference)
        except Exception:
            self._require_ray()  # its death may be the cause of any error
            raise
        except KeyboardInterrupt:
            ready, _ = ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)
            for reference in ready:
                yield self._collect(reference)
            raise
        finally:
            for reference in self._tasks:
                with suppress(Exception):  # the task may have ended, or its node may be gone
                    ray.cancel(reference, force=True)

    def _require_ray(self) -> None:
        """Raise a ClusterError if Ray died on this machine.

        Call it before storing or fetching an object: without its servers, Ray's library then ends
        this process with exit code 1 and no message.
        """
        if not self._servers.alive():
            self._tasks.clear()  # nothing is left to cancel
            raise ClusterError(
                "Ray died on this machine, killed or out of memory. Finished cells are kept in "
                f"{self._out}; repeat the same command to run the others."
            )

    def _submit(self) -> Iterator[CellResult]:
        """Submit the cells that fit; yield a failed result if a scenario cannot be prepared."""
        room = self._room()
        while len(self._tasks) < room:
            training = {self._groups[cell.key] for cell, leads in self._tasks.values() if leads}
            # Only cells of the groups in training are passed over, so this is quick.
            ready = (c for c in self._waiting.values() if self._groups[c.key] not in training)
            if (cell := next(ready, None)) is None:
                return
            rows, group = _rows_of(cell), self._groups[cell.key]
            del self._waiting[cell.key]
            self._left.subtract([rows, group])
            self._listener.cell_started(cell)
            try:
                if rows not in self._scenarios:
                    prepared = self._preparer.prepare(cell.scenario, cell.seed)
                    self._require_ray()
                    self._scenarios[rows] = self._ray.put(prepared)
            except Exception as error:
                self._require_ray()
                yield failed(cell, explain(error))
                continue
            scenario, shared = self._scenarios[rows], self._stages.get(group)
            leads = bool(group and self._left[group] and shared is None)
            result, stage = self._run.options(name=cell.key).remote(
                self._setup, cell, [scenario], shared, leads, self._progress
            )
            self._tasks[result] = cell, leads
            if leads:
                self._stages[group] = stage
            # Release the data that no later cell can use.
            if not self._left[group]:
                self._stages.pop(group, None)
            if not self._left[rows]:
                del self._scenarios[rows]

    def _room(self) -> int:
        """Return how many cells can run at once."""
        if self.resources.workers or self.resources.address is None:
            return self.resources.workers or 1
        room = self._cell.capacity(self._ray.nodes())
        if not room and not self._without_node:
            self._listener.note(f"No node has {self._cell} for a cell; waiting for one.")
        self._without_node = not room
        return max(1, room)

    def _collect(self, reference: Any) -> CellResult:
        """Return the result of a task that has ended, or a failed one if the worker was lost."""
        self._require_ray()
        (cell, leads), errors = self._tasks.pop(reference), self._ray.exceptions
        try:
            result: CellResult = self._ray.get(reference)
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, ClbenchError):
                raise cause from None  # no cell can run on a node with another version
            if isinstance(cause, ModuleNotFoundError) and f"{cause.name}".startswith("clbench"):
                raise SettingsError(
                    "A node of the cluster has no clbench, or another version of it. Install the "
                    "same version on all nodes."
                ) from error
            result = failed(cell, explain(cause or error))
        except errors.RayError as error:
            result = failed(
                cell,
                f"its worker or node was lost {1 + RETRIES} times (Ray: {type(error).__name__}). "
                "It may have run out of memory, or the method may exit; run the cell without "
                f"{named('workers')} to see more.",
            )
        if leads and result.status != "ok":
            self._stages.pop(self._groups[cell.key], None)  # another cell will train it
        return result

    def _report(self) -> None:
        """Pass the workers' events on to the listener."""
        events: list[Any] = []
        with suppress(self._ray.exceptions.RayError):  # its process died; Ray starts it again
            events = self._ray.get(self._progress.read.remote())
        cells = {cell.key: cell for cell, _ in self._tasks.values()}
        for key, event, values in events:
            if event != "started" and key in cells:
                getattr(self._listener, event)(cells[key], *values)
            elif key in cells:
                self._starts[key] += 1
                if self._starts[key] > 1:
                    self._listener.note(
                        f"{key}: its worker died or its node left; attempt {self._starts[key]} of "
                        f"{1 + RETRIES} has started."
                    )


def _rows_of(cell: Cell) -> Hashable:
    """Return what identifies the prepared scenario of a cell."""
    return "rows", cell.scenario.name, cell.protocol.subset_seed(cell.seed)


def _leaders_first(cells: Sequence[Cell], sharing: Mapping[str, int]) -> list[Cell]:
    """Return `cells` with those first, in each scenario and seed, that share the most stages."""
    blocks: dict[tuple[str, int], int] = {}
    for cell in cells:
        blocks.setdefault((cell.scenario.name, cell.seed), len(blocks))
    return sorted(
        cells,
        key=lambda cell: (blocks[cell.scenario.name, cell.seed], -sharing.get(cell.key, 1)),
    )

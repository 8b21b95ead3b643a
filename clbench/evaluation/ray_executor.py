"""Cells as tasks of Ray: on this machine, or on a cluster that is already there."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import torch

from clbench.errors import SettingsError
from clbench.evaluation.cell_resources import check_room, needed
from clbench.evaluation.listener import Listener
from clbench.evaluation.prepare import ScenarioPreparer
from clbench.evaluation.ray_scheduling import Flow
from clbench.evaluation.ray_session import connected
from clbench.evaluation.ray_worker import warm_up
from clbench.evaluation.resources import Resources, cores
from clbench.results.cell import CellResult
from clbench.suite.plan import Cell, Plan
from clbench.training.device import resolve_device


class RayExecutor:
    """Runs cells in workers of Ray.

    A worker that dies costs only its cell, which is tried again, twice; so does a node that
    leaves. Results come to this process and are written by it.

    Parameters
    ----------
    place
        How many, where, and what each gets.
    """

    def __init__(self, place: Resources) -> None:
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
        with connected(self.place) as self._ray:
            self._needs = needed(self._ray, self.place, plan.device)
            check_room(self._ray, self._needs)
            if self.place.address is None and not self._needs.gpus:
                # Meanwhile this process makes the rows ready.
                warm = self._ray.remote(num_cpus=self._needs.threads, max_retries=0)(warm_up)
                self._warm = [warm.remote() for _ in range(self.place.workers or 1)]
            yield

    def results(
        self, plan: Plan, pending: Sequence[Cell], builder: ScenarioPreparer, listener: Listener
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
        flow = Flow(self._ray, plan, pending, builder, listener, self._needs, workers)
        try:
            yield from flow.run()
        finally:
            flow.stop()

"""What a cell takes of a node, and what the nodes have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clbench.errors import SettingsError
from clbench.evaluation.resources import Resources


@dataclass(frozen=True)
class CellResources:
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


def alive(ray: Any) -> list[dict[str, Any]]:
    """The nodes that are there now, as Ray describes them."""
    return [node for node in ray.nodes() if node.get("Alive")]


def check_room(ray: Any, needs: CellResources) -> None:
    """Refuse needs that no node can ever meet.

    Raises
    ------
    SettingsError
        With what a cell takes and what the nodes have.
    """
    nodes = alive(ray)
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


def needed(ray: Any, place: Resources, device: str) -> CellResources:
    """What a cell takes, by what the user says and what the nodes have.

    Parameters
    ----------
    ray
        Connected.
    place
        Where cells run.
    device
        As the user gives it: ``auto``, ``cpu``, ``cuda`` …

    Raises
    ------
    SettingsError
        If workers cannot share the device, or GPUs are asked for and there are none.
    """
    kind = device.partition(":")[0]
    if kind == "auto":
        kind = "cuda" if ray.cluster_resources().get("GPU", 0) else "cpu"
    if kind == "mps":
        raise SettingsError(
            "--device mps: has one GPU that workers cannot share. Leave out --workers."
        )
    if device.startswith("cuda:"):
        raise SettingsError(
            f"--device {device}: Ray chooses the GPU of a worker. Give --device cuda."
        )
    gpus = (place.gpus or _share(ray, place)) if kind == "cuda" else 0.0
    if place.gpus and not gpus:
        raise SettingsError("--gpus: there is no GPU that the workers could share.")
    threads = place.threads_here if place.address is None else place.threads
    return CellResources(threads or 1, gpus)


def _share(ray: Any, place: Resources) -> float:
    """GPUs of a cell unless the user says: one, or less where workers outnumber them."""
    there = float(ray.cluster_resources().get("GPU", 0))
    workers = place.workers
    if place.address is not None or not workers or not 0 < there < workers:
        return 1.0
    return math.floor(1e4 * there / workers) / 1e4

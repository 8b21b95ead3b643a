"""What a cell takes of a node, and what the nodes have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clbench.errors import SettingsError


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


def alive(ray: Any) -> list[dict[str, Any]]:
    """The nodes that are there now, as Ray describes them."""
    return [node for node in ray.nodes() if node.get("Alive")]


def check_room(ray: Any, needs: Needs) -> None:
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

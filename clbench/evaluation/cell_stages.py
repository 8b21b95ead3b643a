"""Which trained stages of a cell are in the cache, and which of them stay there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from clbench.evaluation.prepare import PreparedScenario
from clbench.evaluation.sharing import vanilla_stages
from clbench.evaluation.stage_cache import CachedStage, StageCache
from clbench.evaluation.stage_digest import stage_digest
from clbench.methods.base import Method
from clbench.methods.vanilla import Vanilla
from clbench.suite.plan import Cell
from clbench.training.protocol import Protocol

if TYPE_CHECKING:
    from clbench.evaluation.outcome import ComputeSettings


@dataclass(frozen=True)
class CellStages:
    """The cached stages of a cell, by position, counted from 0.

    Attributes
    ----------
    cell, scenario, method
        What is trained.
    protocol
        The cell's protocol at the rate of its method.
    compute
        Device and precision.
    cache
        The folder of stages; None caches none.
    tasks
        Number of the task of each stage.
    """

    cell: Cell
    scenario: PreparedScenario
    method: Method
    protocol: Protocol
    compute: ComputeSettings
    cache: StageCache | None
    tasks: tuple[int, ...]

    @cached_property
    def vanilla_stages(self) -> int:
        """How many of the first stages vanilla's training serves."""
        return vanilla_stages(self.method, len(self.tasks)) if self.tasks[0] == 0 else 0

    def is_shared(self, position: int) -> bool:
        """Whether vanilla's training serves this stage."""
        return position < self.vanilla_stages

    def resumable(self) -> list[int]:
        """Return the positions of cached stages with all that the method needs to go on."""
        is_vanilla = isinstance(self.method, Vanilla)
        return [
            position
            for position in range(len(self.tasks))
            if self._is_cached(position) and (is_vanilla or not self.is_shared(position))
        ]

    def any(self) -> bool:
        """Whether the cache has a file of a resumable stage."""
        return self.cache is not None and any(
            self.cache.has(self._digest(position)) for position in self.resumable()
        )

    def load(self, position: int) -> CachedStage | None:
        """Return a stage from the cache, or None if it is missing or damaged."""
        if self.cache is None:
            return None
        return self.cache.load(self._digest(position), self.compute.device)

    def save(self, position: int, stage: CachedStage) -> str | None:
        """Add a trained stage to the cache; return a note for the user if that fails."""
        if self.cache is None or not self._is_cached(position):
            return None
        of_run = position > 0 and self._is_kept(position) and not self._is_last_kept(position)
        return self.cache.save(self._digest(position), stage, of_run=of_run)

    def drop_own(self) -> None:
        """Remove the stages that no other cell can use."""
        for position in range(len(self.tasks)):
            if self.cache is not None and self._is_cached(position) and not self._is_kept(position):
                self.cache.drop(self._digest(position))

    def _is_cached(self, position: int) -> bool:
        """Whether to cache a stage; the last one is only cached for other cells."""
        if self.cache is None:
            return False
        return position < len(self.tasks) - 1 or self._is_kept(position)

    def _is_kept(self, position: int) -> bool:
        """Whether the cache keeps this stage for other cells when this one is done."""
        usable = 0 if self.cache is None else self.cache.sharing.get(self.cell.key, 0)
        return position < max(usable, min(1, self.vanilla_stages)) or self._is_last_kept(position)

    def _is_last_kept(self, position: int) -> bool:
        """Whether the run keeps this stage for longer sequences."""
        keeps = self.cache is not None and self.cache.keeps_last
        return keeps and position == len(self.tasks) - 1

    def _digest(self, position: int) -> str:
        """Return the digest of everything that decides the weights after a stage."""
        return stage_digest(
            self.cell,
            self.scenario,
            self.protocol,
            self.compute.identity,
            stages=self.tasks[: position + 1],
            shared=self.is_shared(position),
            needs_length=self.method.needs_length,
        )

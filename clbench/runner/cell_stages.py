"""Which trained stages of a cell are in the cache, and which of them stay there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from clbench.measure.rows import PreparedScenario
from clbench.methods.base import Method
from clbench.methods.vanilla import Vanilla
from clbench.runner.sharing import vanilla_stages
from clbench.runner.stage_cache import CachedStage, StageCache
from clbench.runner.stage_digest import stage_digest
from clbench.suite.plan import Cell
from clbench.training.protocol import Protocol

if TYPE_CHECKING:
    from clbench.runner.outcome import ComputeSettings


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
        cache = self.cache
        return cache is not None and any(
            cache.has(digest) for position in self.resumable() for digest in self._digests(position)
        )

    def load(self, position: int) -> CachedStage | None:
        """Return a stage from the cache, or None if it is missing or damaged."""
        if self.cache is None:
            return None
        digests = self._digests(position)
        for number, digest in enumerate(digests):
            if stage := self.cache.load(digest, self.compute.device):
                return replace(stage, grows=number < len(digests) - 1)
        return None

    def save(self, position: int, stage: CachedStage) -> str | None:
        """Add a trained stage to the cache; return a note for the user if that fails."""
        if self.cache is None or not self._is_cached(position):
            return None
        of_run = position > 0 and self._is_kept(position) and not self._is_last_kept(position)
        digest = self._digests(position)[0 if stage.grows else -1]
        return self.cache.save(digest, stage, of_run=of_run)

    def drop_own(self) -> None:
        """Remove the stages that no other cell can use."""
        for position in range(len(self.tasks)):
            if self.cache is not None and self._is_cached(position) and not self._is_kept(position):
                for digest in self._digests(position):
                    self.cache.drop(digest)

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

    def _digests(self, position: int) -> list[str]:
        """Return the digests of everything that decides the weights after a stage.

        If a head grows, the first one leaves out how far it will; the last one does not.
        """
        whole = self.method.needs_outputs and not self.is_shared(position)
        grown = {} if whole else self.scenario.shown(self.tasks[position] + 1)
        return [
            stage_digest(
                self.cell,
                self.scenario,
                self.protocol,
                self.compute.identity,
                stages=self.tasks[: position + 1],
                shared=self.is_shared(position),
                needs_length=self.method.needs_length,
                grown=outputs,
            )
            for outputs in ([grown, {}] if grown else [{}])
        ]

"""The trained stages of a cell: their identity, which are cached, and who can share them."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from clbench.core import __version__, files
from clbench.core.errors import ClbenchError
from clbench.core.user_code import user_code
from clbench.measure.relearning import RELEARN
from clbench.measure.rows import PreparedScenario
from clbench.methods.base import Method, Vanilla, at_rate
from clbench.runner.stage_cache import KEPT, OF_RUN, CachedStage, StageCache, recipe_digest
from clbench.suite.plan import Cell
from clbench.suite.validation import stages_of
from clbench.tasks.task import Task
from clbench.training.device import Precision
from clbench.training.protocol import Protocol


@dataclass(frozen=True)
class ComputeSettings:
    """Device and precision, which affect the last digits of a result.

    `identity` describes them, with threads and versions, as plain JSON values.
    """

    device: torch.device
    precision: Precision
    identity: Mapping[str, Any]


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

    @property
    def is_vanilla(self) -> bool:
        """Whether the method is vanilla itself; a subclass may change the model in `setup`."""
        return getattr(self.method, "observed", type(self.method)) is Vanilla

    def is_shared(self, position: int) -> bool:
        """Whether vanilla's training serves this stage."""
        return position < self.vanilla_stages

    def resumable(self) -> list[int]:
        """Return the positions of cached stages with all that the method needs to go on."""
        return [
            position
            for position in range(len(self.tasks))
            if self._is_cached(position) and (self.is_vanilla or not self.is_shared(position))
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
        prefix = OF_RUN if position > 0 and self._is_kept(position) else ""
        prefix = KEPT if self._is_last_kept(position) else prefix
        digest = self._digests(position)[0 if stage.grows else -1]
        return self.cache.save(digest, stage, prefix)

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
        return [self._digest(position, outputs) for outputs in ([grown, {}] if grown else [{}])]

    def _digest(self, position: int, grown: Mapping[str, int]) -> str:
        """Return the digest of what decides the weights; `grown` are the outputs that count."""
        cell, protocol, stages = self.cell, self.protocol, self.tasks[: position + 1]
        recipe, every, ids = cell.recipe, self.scenario.scenario.tasks, self.scenario.vocabulary
        tasks, shared = every[: stages[-1] + 1], self.is_shared(position)
        scorers = self.scenario.scorers if cell.reference_of is None else ()
        measured = bool(protocol.capability_rows)
        # Only plug-in metrics have a digest.
        codes = [recipe.get("metrics")]
        codes += [task.get("metric_code") for task in recipe.get("tasks", {}).values()]
        others = {"corpus", "lm_eval", *RELEARN}
        return recipe_digest(
            {
                "clbench": [__version__, recipe.get("version")],
                "numerics": dict(self.compute.identity),
                "protocol": protocol.model_dump(mode="json", exclude=others),
                "corpus": recipe.get("corpus") if scorers or measured or not shared else None,
                "asked": recipe.get("capability_tasks") if measured else None,
                "model": recipe.get("model"),
                "scenario": cell.scenario.series,
                "heads": {task.head: grown.get(task.head, task.outputs) for task in tasks},
                # The history holds scores for classes of the task's own, too.
                "grown": [list(task.own) for task in tasks] if grown else None,
                "vocabulary": None if ids is None else files.digest(ids.tobytes()),
                "seed": cell.seed,
                "stages": [[i, tasks[i].name, tasks[i].train.digest] for i in stages],
                "seen": [tasks[i].seen for i in stages],
                "templates": [_template_of(tasks[i]) for i in stages]
                if protocol.is_language_model
                else None,
                "scored": [[tasks[i].scored.digest, *tasks[i].metrics] for i in stages],
                "metric_code": codes if any(codes) else None,
                # The history holds scores of extra columns, which depend on the shift's settings.
                "columns": recipe.get("scenario") if scorers else None,
                # The history holds scores of probes on later tasks, too.
                "probed": [task.train.digest for task in every] if protocol.probe_rows else None,
                # Own answers are right by the first metric.
                "right_by": [tasks[i].metrics[0] for i in stages]
                if self.method.writes_answers and not shared
                else None,
                "method": None if shared else recipe.get("method"),
                "length": len(every) if self.method.needs_length and not shared else None,
            }
        )


def _template_of(task: Task) -> dict[str, Any]:
    template = task.effective_template
    answers = [template.answer(label) for label in task.labels]
    return {"prompt": template.prompt, "answers": answers, "labels": list(task.labels)}


def vanilla_stages(method: Method, stages: int) -> int:
    """Return how many of the first `stages` vanilla's training serves.

    In these stages the method trains as vanilla does, from the weights that vanilla has.
    """
    first = next((index for index in range(stages) if method.acts_in(index)), stages)
    if method.only_consolidates:
        return min(stages, first + 1)
    return first if type(method) is Vanilla else min(stages, first, 1)


def stage_groups(cells: Sequence[Cell]) -> dict[str, Hashable | None]:
    """Return scenario, seed and rate of each cell that vanilla's first stage serves, or None."""
    return {
        key: (cell.scenario.name, cell.seed, rate) if stages else None
        for key, (cell, rate, stages) in _vanilla_stages(cells).items()
    }


def stages_to_share(cells: Sequence[Cell]) -> dict[str, int]:
    """Return for each cell how many of its first stages another one of `cells` can use.

    A stage serves cells with the same seed and the same tasks so far, in orders of one sequence,
    too: those with the same baseline, and while vanilla's training serves both, any at the same
    rate. Cells are left out for which that is at most the first stage, unless it is of an order.
    """
    counts: Counter[Hashable] = Counter()
    stages: dict[str, list[Hashable]] = {}
    for key, (cell, rate, vanilla) in _vanilla_stages(cells).items():
        if cell.reference_of is None:
            stages[key] = list(_stage_keys(cell, rate, vanilla))
            counts.update(stages[key])
    shared = {}
    for cell in cells:
        usable = sum(counts[stage] > 1 for stage in stages.get(cell.key, ()))
        if usable > ("order" not in cell.scenario.settings):
            shared[cell.key] = usable
    return shared


def _stage_keys(cell: Cell, rate: float | None, vanilla: int) -> Iterator[Hashable]:
    """Yield what decides each stage of a cell, as far as cells of one run differ."""
    spec = cell.scenario
    tasks = spec.task_names if "order" in spec.settings else (spec.name,) * stages_of(spec)
    for position in range(len(tasks)):
        method = rate if position < vanilla else cell.baseline.name
        yield spec.series, cell.seed, tasks[: position + 1], position < vanilla, method


def _vanilla_stages(cells: Sequence[Cell]) -> dict[str, tuple[Cell, float | None, int]]:
    """Return for each cell its flat rate and `vanilla_stages`."""
    numbers: dict[tuple[str, str], int] = {}
    rates: dict[tuple[str, str], float] = {}
    result: dict[str, tuple[Cell, float | None, int]] = {}
    for cell in cells:
        scenario, baseline = cell.scenario, cell.baseline
        kind = scenario.name, baseline.name
        if kind not in numbers:
            numbers[kind] = 0  # after an error: the cells will fail with it
            with suppress(ClbenchError), user_code("acts_in"):
                method = baseline.build()
                stages = stages_of(scenario) if cell.reference_of is None else 1
                rates[kind] = at_rate(method, cell.protocol).lr
                numbers[kind] = vanilla_stages(method, stages)
        usable = cell.reference_of in (None, 0)
        result[cell.key] = cell, rates.get(kind), numbers[kind] if usable else 0
    return result

"""Trains one model on one scenario with one method, and fills the score matrix."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

import clbench
from clbench.errors import PluginError
from clbench.evaluation.listener import Listener
from clbench.evaluation.prepare import PreparedScenario
from clbench.evaluation.stage_cache import (
    CachedStage,
    InMemoryStageCache,
    StageCache,
    recipe_digest,
)
from clbench.methods.base import Method
from clbench.methods.vanilla import Vanilla
from clbench.models.classifier import Classifier, build_classifier
from clbench.seeds import stream_seed
from clbench.suite.plan import Cell
from clbench.tasks.metrics import score
from clbench.training import hook_checks
from clbench.training.device import Precision
from clbench.training.dropout import install
from clbench.training.engine import ENGINE_CURVES, Probe, Trace, train_stage
from clbench.training.stage import Context, Stage

Row = list[dict[str, float] | None]
EpochScores = Callable[[int, int, Row], None]


@dataclass(frozen=True)
class ComputeSettings:
    """What decides the digits of a result besides the recipe.

    Attributes
    ----------
    device, precision
        Where and in which numbers to train.
    identity
        Device, threads and versions, as plain JSON values.
    """

    device: torch.device
    precision: Precision
    identity: Mapping[str, Any]


@dataclass(frozen=True)
class StageOutcome:
    """What a stage measured: the training, a row of R, and the time that scoring it took."""

    trace: Trace
    row: Row
    eval_seconds: float
    cached: bool


@dataclass(frozen=True)
class Outcome:
    """What a cell measured; `before` is the row of R of extra columns before training."""

    stages: list[StageOutcome]
    notes: list[str]
    before: Row | None


class RowScorer:
    """Scores the model for a row of R: the tasks seen so far, or only that of a reference."""

    def __init__(
        self, cell: Cell, scenario: PreparedScenario, method: Method, context: Context
    ) -> None:
        self._reference = cell.reference_of is not None
        self._scenario = scenario
        self._method = method
        self._context = context

    def row(self, index: int, *, curve: bool = False) -> Row:
        """Return all metrics after stage `index`; with `curve` of the rows for curves only."""
        context = self._context
        data = self._scenario.curve if curve else self._scenario.scored
        row: Row = [None] * len(data)
        for j in self._seen(index):
            with hook_checks.scoring(self._method.scoring(j)):
                outputs = context.outputs(data[j])
            metrics = self._scenario.scenario.tasks[j].metrics
            row[j] = score(metrics, outputs, data[j].rows.labels)
        return [*self.columns(part=curve), *row]

    def by_name(self, row: Row) -> dict[str, float]:
        """Return the main scores in a row of R by the names of their columns."""
        scenario = self._scenario.scenario
        named = zip(scenario.columns, scenario.main_scores(row), strict=True)
        return {name: score for (name, _), score in named if score is not None}

    def curve_tokens(self, index: int) -> int:
        """Return the tokens, without padding, that a point of the curves of a stage scores."""
        rows = sum(int(self._scenario.curve[j].rows.lengths.sum()) for j in self._seen(index))
        return rows + sum(scorer.part_tokens for scorer in self._scenario.scorers)

    def _seen(self, index: int) -> Iterable[int]:
        return [index] if self._reference else range(index + 1)

    def columns(self, *, part: bool = False) -> Row:
        """Return the metrics of the columns before those of the tasks; None in a reference."""
        context = self._context
        return [
            None
            if self._reference
            else scorer.score(
                context.model.backbone,
                part=part,
                precision=context.precision,
                device=context.device,
            )
            for scorer in self._scenario.scorers
        ]


class CellRunner:
    """Runs one cell.

    Parameters
    ----------
    cell, scenario, method
        What to run, its rows, and a new instance with its settings.
    compute
        Device and precision.
    cache
        Trained stages to resume from and to add to; None keeps none.
    listener
        Hears of steps and points of curves.
    after_epoch
        Called after each pass over the rows with the stage, its number of passes and a row of R
        that is scored on all rows, not on the part for curves.
    model
        The model to train; by default what `start_model` returns.

    Raises
    ------
    PluginError
        If the cell is a reference for a task that the scenario lacks.
    """

    def __init__(
        self,
        cell: Cell,
        scenario: PreparedScenario,
        method: Method,
        compute: ComputeSettings,
        cache: StageCache | InMemoryStageCache | None = None,
        listener: Listener | None = None,
        *,
        after_epoch: EpochScores | None = None,
        model: Classifier | None = None,
    ) -> None:
        self._cell = cell
        self._scenario = scenario
        self._method = method
        self._compute = compute
        self._cache = cache
        self._listener = listener or Listener()
        self._after_epoch = after_epoch
        self._model = model
        self._outcomes: list[StageOutcome] = []
        # A reference trains one task of the scenario, with the streams of its stage there.
        only = cell.reference_of
        self._stages = list(range(len(scenario.train))) if only is None else [only]
        self._scorers = scenario.scorers if only is None else ()
        if any(not 0 <= stage < len(scenario.train) for stage in self._stages):
            raise PluginError(
                f"scenario {cell.scenario.name!r} has {len(scenario.train)} tasks, so there is no "
                f"task {only} to refer to. A shift's `k` must be its number of parts."
            )

    @property
    def context(self) -> Context:
        """The model and its settings, once `run` has been called."""
        return self._context

    def run(self) -> Outcome:
        """Train and score all stages, resuming after the last cached one."""
        before = self._load()
        notes: list[str] = []
        for position in range(self._resume(), len(self._stages)):
            stage = self._stage(position)
            trace = self._train(stage, position)
            refusal = self._save(position, trace)
            if refusal is not None and refusal not in notes:
                notes.append(refusal)
            self._finish(stage, trace, cached=False)
        for position in range(len(self._stages) - 1):
            if self._cache is not None and not self._is_shared(position):
                self._cache.drop(self._digest(position))  # only this cell could use it
        return Outcome(self._outcomes, [*notes, *self._context.notes], before)

    def _load(self) -> Row | None:
        """Load the model and let the method set up; return the row of R before training."""
        protocol, cell = self._cell.protocol, self._cell
        model, self._model = self._model or start_model(cell, self._scenario), None
        model.to(self._compute.device)
        self._context = context = Context(
            model=model,
            model_name=protocol.model,
            revision=protocol.revision,
            protocol=protocol,
            device=self._compute.device,
            precision=self._compute.precision,
            seed=cell.seed,
            scenario=cell.scenario.name,
            stages=len(self._scenario.train),
            masks=None,
        )
        self._scorer = RowScorer(cell, self._scenario, self._method, context)
        row: Row | None = None
        if self._scorers:
            self._pretrained = context.snapshot()
            columns = self._scorer.columns()
            for scorer, values in zip(self._scorers, columns, strict=True):
                context.note(scorer.describe(values))
            row = [*columns, *[None] * len(self._scenario.scored)]
        before = _versions(model)
        self._method.setup(context)
        if not self._method.acts_in(0) and _versions(model) != before:
            raise PluginError(
                f"method {self._method.name!r} changes the model in setup, yet acts_in(0) says "
                "that stage 0 is trained as by vanilla. Let acts_in return True."
            )
        context.masks = install(model, model.backbone, self._compute.device)
        self._setup_notes = len(context.notes)
        return row

    def _stage(self, position: int) -> Stage:
        context = {name: getattr(self._context, name) for name in Context.__dataclass_fields__}
        index = self._stages[position]
        stage = Stage(**context, index=index, tasks=self._scenario.train[: index + 1])
        stage.reads_earlier_rows = self._method.keeps_rows
        stage.heads = frozenset([stage.data.head])
        return stage

    def _train(self, stage: Stage, position: int) -> Trace:
        cell, listener, after_epoch = self._cell, self._listener, self._after_epoch
        passes = itertools.count(1)

        def score_epoch() -> None:
            assert after_epoch is not None
            after_epoch(position, next(passes), self._scorer.row(stage.index))

        def score_curve() -> dict[str, float]:
            return self._scorer.by_name(self._scorer.row(stage.index, curve=True))

        def record_drift() -> None:
            # A method that adds weights to the backbone, as adapters do, has no drift.
            if self._scorers and (
                self._pretrained.keys() == stage.model.backbone_parameters().keys()
            ):
                stage.record("drift", stage.squared_distance(self._pretrained).sqrt())

        return train_stage(
            stage,
            self._method if self._method.acts_in(stage.index) else Vanilla(),
            probe=Probe(score_curve, self._scorer.curve_tokens(stage.index), record_drift),
            progress=partial(listener.progress, cell, position + 1, len(self._stages)),
            points=partial(listener.point, cell, position + 1),
            after_epoch=None if after_epoch is None else score_epoch,
        )

    def _finish(self, stage: Stage, trace: Trace, *, cached: bool) -> None:
        """Let the method consolidate, then score a row of R."""
        if cached:
            stage.step = stage.steps = stage.total_steps = trace.steps
            stage.log = {k: v for k, v in trace.curves.items() if k not in ENGINE_CURVES}
        self._method.after_stage(stage)
        trace.curves.update(stage.log)
        started = time.perf_counter()
        row = self._scorer.row(stage.index)
        if self._cell.protocol.curve_points and not trace.curves["scores"]:
            # The stage was too short to be scored within: join the rows of R around it.
            start = self._scorer.by_name(self._outcomes[-1].row) if self._outcomes else {}
            trace.curves["scores"] = {
                name: [*([[0, start[name]]] if name in start else []), [trace.steps, score]]
                for name, score in self._scorer.by_name(row).items()
            }
        self._outcomes.append(StageOutcome(trace, row, time.perf_counter() - started, cached))

    def _is_shared(self, position: int) -> bool:
        """Whether other methods that do not act in the first stage can use this stage."""
        return position == 0 == self._stages[0] and not self._method.acts_in(0)

    def _is_cached(self, position: int) -> bool:
        """Whether to cache a stage; after the last one the cell's result follows at once."""
        return position < len(self._stages) - 1 or self._is_shared(position)

    def _digest(self, position: int) -> str:
        """Return the digest of everything that decides the weights after a stage."""
        recipe, shared = self._cell.recipe, self._is_shared(position)
        tasks, vocabulary = self._scenario.scenario.tasks, self._scenario.vocabulary
        stages = self._stages[: position + 1]
        # Only plug-in metrics have a digest.
        codes = [recipe.get("metrics")]
        codes += [task.get("metric_code") for task in recipe.get("tasks", {}).values()]
        return recipe_digest(
            {
                **({"metric_code": codes} if any(codes) else {}),
                "clbench": clbench.__version__,
                "numerics": dict(self._compute.identity),
                "protocol": self._cell.protocol.model_dump(mode="json", exclude={"corpus"}),
                "corpus": recipe.get("corpus") if self._scorers or not shared else None,
                "model": recipe.get("model"),
                "scenario": self._cell.scenario.name,
                "heads": {task.head: task.outputs for task in tasks},
                "vocabulary": None if vocabulary is None else len(vocabulary),
                "seed": self._cell.seed,
                "stages": [[i, tasks[i].name, tasks[i].train.digest] for i in stages],
                "scored": [[tasks[i].validation.digest] for i in stages],
                # The history holds scores of columns, which depend on the shift's settings.
                "columns": recipe.get("scenario") if self._scorers else None,
                "method": None if shared else recipe.get("method"),
            }
        )

    def _save(self, position: int, trace: Trace) -> str | None:
        """Add a trained stage to the cache; return why that is impossible."""
        if self._cache is None or not self._is_cached(position):
            return None
        stage = CachedStage(
            dict(self._context.model.state_dict()),
            {} if self._is_shared(position) else self._method.state(),
            trace,
            [[asdict(stage.trace), stage.row, stage.eval_seconds] for stage in self._outcomes],
            self._context.notes[self._setup_notes :],
        )
        return self._cache.save(self._digest(position), stage)

    def _resume(self) -> int:
        """Load the latest cached stage; return the number of the next one."""
        for position in reversed(range(len(self._stages))):
            if self._cache is None or not self._is_cached(position):
                continue
            stage = self._cache.load(self._digest(position), self._context.device)
            if stage is None:
                continue
            self._context.model.load_state_dict(stage.weights)
            if stage.state:
                self._method.load_state(stage.state)
            for note in stage.notes:
                self._context.note(note)
            for trace, row, seconds in stage.history:
                self._outcomes.append(StageOutcome(Trace(**trace), row, seconds, True))
            self._finish(self._stage(position), stage.trace, cached=True)
            return position + 1
        return 0


def start_model(cell: Cell, scenario: PreparedScenario) -> Classifier:
    """Return the pretrained model with the cell's heads, before any training; on the CPU.

    Raises
    ------
    ModelError
        If the model cannot be loaded.
    """
    protocol = cell.protocol
    return build_classifier(
        protocol.model,
        revision=protocol.revision,
        heads={task.head: task.outputs for task in scenario.scenario.tasks},
        head_seed=lambda head: stream_seed("head", head, cell.seed, cell.scenario.name),
        pooling=protocol.pooling,
        head_dropout=protocol.head_dropout,
        vocabulary=scenario.vocabulary,
    )


def _versions(model: torch.nn.Module) -> list[tuple[str, int, int]]:
    """Return what changes whenever a weight is replaced or written to."""
    return [(name, id(value), value._version) for name, value in model.named_parameters()]

"""Train one model on one scenario with one method, and fill the score matrix R."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any

import torch

from clbench.core.errors import PluginError
from clbench.measure.capabilities import Measures
from clbench.measure.rows import BEFORE, LinearProbes, PreparedScenario, ProbeRow, Row, RowScorer
from clbench.methods.base import Method, Vanilla, at_rate
from clbench.models.classifier import TaskModel
from clbench.runner.cell_model import capabilities_of, last_scores, start_model
from clbench.runner.cell_stages import CellStages
from clbench.runner.listener import Listener
from clbench.runner.outcome import ComputeSettings, Outcome, StageOutcome
from clbench.runner.stage_cache import CachedStage, StageCache, holds_tensors
from clbench.suite.plan import Cell
from clbench.training.dropout import install
from clbench.training.engine import ENGINE_CURVES, Probe, Trace, train_stage
from clbench.training.memory import bytes_held
from clbench.training.stage import Context, Stage

EpochScores = Callable[[int, int, Row], None]


@dataclass(eq=False)
class CellRunner:
    """Runs one cell.

    Parameters
    ----------
    cell, scenario, method, compute
        The cell, its scenario, a new instance of its method, and device and precision.
    cache
        Trained stages to resume from and to add to.
    listener
        Called with steps and points of curves.
    after_epoch
        Called after each pass over the rows with the stage, the number of the pass, and a row of R
        over all rows.
    model
        The model to train; by default what `start_model` returns.

    Raises
    ------
    PluginError
        If the cell is a reference for a task that the scenario lacks.
    """

    cell: Cell
    scenario: PreparedScenario
    method: Method
    compute: ComputeSettings
    cache: StageCache | None = None
    listener: Listener = field(default_factory=Listener)
    _: KW_ONLY
    after_epoch: EpochScores | None = None
    model: TaskModel | None = None

    def __post_init__(self) -> None:
        self._outcomes: list[StageOutcome] = []
        self._probes_before: ProbeRow = []
        self._capabilities_before: Measures = {}
        self._grows = True  # whether a head that grows further could go on from here
        self._zero_shot: list[float] = []  # the base model's scores on all tasks
        self._protocol = at_rate(self.method, self.cell.protocol)
        # A reference trains one task, with the random streams of its stage in the scenario.
        task, count = self.cell.reference_of, len(self.scenario.train)
        self._stages = list(range(count)) if task is None else [task]
        self._scorers = self.scenario.scorers if task is None else ()
        if task is not None and task >= count:
            raise PluginError(
                f"scenario {self.cell.scenario.name!r} has {count} tasks, so task {task} (from 0) "
                "has no reference. A shift's `k` must be its number of parts."
            )
        self._stored = CellStages(
            self.cell,
            self.scenario,
            self.method,
            self._protocol,
            self.compute,
            self.cache,
            tuple(self._stages),
        )

    def run(self) -> Outcome:
        """Train and score all stages, resuming after the latest cached one; sets `context`."""
        shared = [] if self._stored.any() else self._shared_stages()
        before = self._load(probe=True)
        notes: list[str] = []
        start = self._resume()
        if not start:
            for start, (entry, cached) in enumerate(shared or self._shared_stages(), 1):
                self._adopt(start - 1, entry, cached=cached)
        del shared
        for position in range(start, len(self._stages)):
            stage = self._stage(position)
            held = self._begin(stage)
            trace = self._train(stage, position)
            trace.memory_bytes += held
            note = self._stored.save(position, self._to_cache(position, trace))
            if note is not None and note not in notes:
                notes.append(note)
            self._finish(stage, trace, cached=False)
        self._stored.drop_own()
        notes += self.context.notes
        return Outcome(
            self._outcomes,
            notes,
            before,
            self._probes_before,
            self._capabilities_before,
            last_scores(self.cell, self.scenario, self.context),
        )

    def _shared_stages(self) -> list[tuple[CachedStage, bool]]:
        """Load or train the first stages that vanilla's training serves; say which were loaded.

        They are trained on a model that this method never sees: what `setup` does to modules, such
        as adding hooks or adapters, then cannot affect them.
        """
        count = self._stored.vanilla_stages
        shared: list[tuple[CachedStage, bool]] = []
        if isinstance(self.method, Vanilla):
            return shared
        while len(shared) < count and (stored := self._stored.load(len(shared))):
            shared.append((stored, True))
        if len(shared) == count:
            return shared
        vanilla = Vanilla(lr=self.method.lr, lr_multiple=self.method.lr_multiple)
        runner = replace(self, method=vanilla, model=None)
        runner._load()
        for position, (entry, _) in enumerate(shared):
            runner._adopt(position, entry, cached=True)
        for position in range(len(shared), count):
            stage = runner._stage(position)
            trace = runner._train(stage, position)
            entry = runner._to_cache(position, trace)
            if note := self._stored.save(position, entry):
                entry.notes.append(note)
            weights = {name: value.clone() for name, value in entry.weights.items()}
            shared.append((replace(entry, weights=weights), False))
            if position + 1 < count:
                runner._finish(stage, trace, cached=False)
        return shared

    def _load(self, *, probe: bool = False) -> Row | None:
        """Load the model and set the method up; return the row of R before training, or None.

        With `probe`, the pretrained model is probed first.
        """
        protocol, cell = self._protocol, self.cell
        model, self.model = self.model or start_model(cell, self.scenario), None
        model.to(self.compute.device)
        self.context = context = Context(
            model=model,
            model_name=protocol.model,
            revision=protocol.revision,
            protocol=protocol,
            device=self.compute.device,
            precision=self.compute.precision,
            seed=cell.seed,
            scenario=cell.scenario.series,
            stages=len(self.scenario.train),
            masks=None,
        )
        self._scorer = RowScorer(self.scenario, self.method, context, cell.reference_of)
        self._probes = LinearProbes(self.scenario, self.method, context)
        if probe and self._is_probed:
            self._probes_before = self._probes.row(BEFORE)
        self._capabilities = capabilities_of(cell, self.scenario, context, self.method)
        if self._capabilities is not None:
            self._capabilities_before = self._capabilities.measure(1)
            self._zero_shot = [self._untrained(j) for j in range(len(self.scenario.scored))]
            self._capabilities_before["average"] = fmean(self._zero_shot)
        row: Row | None = None
        if self._scorers:
            self._pretrained = context.snapshot()
            columns = self._scorer.extra_columns()
            for scorer, values in zip(self._scorers, columns, strict=True):
                context.note(scorer.describe(values))
            row = [*columns, *[None] * len(self.scenario.scored)]
        model.shown = self.scenario.shown(1)
        with self._model_unchanged("setup", 0):
            self.method.setup(context)
        for note in self.scenario.notes:
            context.note(note)
        if not protocol.gradient_checkpointing:  # which draws dropout twice, from torch's state
            context.masks = install(model, model.backbone, self.compute.device)
        self._setup_notes = len(context.notes)
        return row

    def _untrained(self, task: int) -> float:
        """Return the main score of a task that the method has not been trained on."""
        return RowScorer(self.scenario, Vanilla(), self.context, None).main_score(task)

    @property
    def _is_probed(self) -> bool:
        return bool(self.scenario.probed) and self.cell.reference_of is None

    def _stage(self, position: int) -> Stage:
        context = {name: getattr(self.context, name) for name in Context.__dataclass_fields__}
        index = self._stages[position]
        stage = Stage(**context, index=index, tasks=self.scenario.train[: index + 1])
        stage.reads_earlier_rows = self.method.keeps_rows
        stage.heads = frozenset([stage.data.head])
        stage.shown_before = self.scenario.shown(index)
        self.context.model.shown = self.scenario.shown(index + 1)
        return stage

    def _begin(self, stage: Stage) -> int:
        """Begin a stage of a method that only consolidates; return the bytes that it holds."""
        if not self.method.only_consolidates or not self.method.acts_in(stage.index):
            return 0
        with self._model_unchanged("before_stage", stage.index):
            self.method.before_stage(stage)
        return bytes_held(self.method)

    @contextmanager
    def _model_unchanged(self, hook: str, index: int) -> Iterator[None]:
        """Raise a PluginError if `hook` changes the model and vanilla trains stage `index`."""
        before = _versions(self.context.model)
        yield
        if _versions(self.context.model) == before:
            return
        start = f"method {self.method.name!r} changes the model in {hook}, but "
        if self.method.only_consolidates:
            raise PluginError(
                f"{start}declares only_consolidates, so stage {index} would be trained as by "
                "vanilla. Remove only_consolidates, or return True from acts_in for the stage "
                "after which it changes the model."
            )
        if not self.method.acts_in(index):
            raise PluginError(
                f"{start}acts_in({index}) is False, so stage {index} would be trained as by "
                f"vanilla. Return True from acts_in({index})."
            )

    def _train(self, stage: Stage, position: int) -> Trace:
        cell, listener, after_epoch = self.cell, self.listener, self.after_epoch
        acts = self.method.acts_in(stage.index)
        passes = itertools.count(1)

        def score_epoch() -> None:
            assert after_epoch is not None
            after_epoch(position, next(passes), self._scorer.row(stage.index))

        def score_curve() -> dict[str, float]:
            return self._scorer.by_name(self._scorer.row(stage.index, curve=True))

        def record_drift() -> None:
            # Drift is undefined if the method adds weights to the backbone, such as adapters.
            if self._scorers and (
                self._pretrained.keys() == stage.model.backbone_parameters().keys()
            ):
                stage.record("drift", stage.squared_distance(self._pretrained).sqrt())

        tokens = self._scorer.curve_tokens(stage.index)
        return train_stage(
            stage,
            Vanilla() if self.method.only_consolidates or not acts else self.method,
            probe=Probe(score_curve, tokens, record_drift),
            progress=partial(listener.progress, cell, position + 1, len(self._stages)),
            points=partial(listener.point, cell, position + 1),
            after_epoch=None if after_epoch is None else score_epoch,
        )

    def _finish(self, stage: Stage, trace: Trace, *, cached: bool) -> None:
        """Let the method consolidate, then score a row of R."""
        following = len(self._outcomes) + 1
        checked = following < len(self._stages) and self._stored.is_shared(following)
        with self._model_unchanged("after_stage", following) if checked else nullcontext():
            start = time.perf_counter()
            self.method.after_stage(stage)
            trace.train_seconds += time.perf_counter() - start
        trace.curves.update(stage.log)
        start = time.perf_counter()
        correct: list[str | None] = []
        row = self._scorer.row(stage.index, correct=correct)
        probes = self._probes.row(stage.index) if self._is_probed else []
        measures: Measures = {}
        if self._capabilities is not None:
            measures = self._capabilities.measure(stage.index + 1)
            if (task := stage.index + 1) < len(self._zero_shot):
                measures["ahead"] = self._untrained(task) - self._zero_shot[task]
        seconds = time.perf_counter() - start
        if self.cell.protocol.curve_points and not trace.curves["scores"]:
            # The stage was too short for a point: take the rows of R before and after it.
            before = self._scorer.by_name(self._outcomes[-1].row) if self._outcomes else {}
            trace.curves["scores"] = {
                name: [*([[0, before[name]]] if name in before else []), [trace.steps, score]]
                for name, score in self._scorer.by_name(row).items()
            }
        self._outcomes.append(StageOutcome(trace, row, seconds, cached, correct, probes, measures))

    def _to_cache(self, position: int, trace: Trace) -> CachedStage:
        """Return the stage that was just trained as an entry of the cache."""
        # Heads of later tasks are as they were drawn; another sequence may not have them.
        used = {task.head for task in self.scenario.train[: self._stages[position] + 1]}
        later = self.context.model.heads_but(used)
        weights = {n: v for n, v in self.context.model.state_dict().items() if n not in later}
        state = {} if self._stored.is_shared(position) else self.method.state()
        outputs = self.context.model.growing_outputs()
        self._grows = self._grows and bool(outputs) and not holds_tensors(state)
        if self._grows:
            weights |= {name: weights[name][:count] for name, count in (outputs or {}).items()}
        return CachedStage(
            weights,
            state,
            trace,
            [
                [
                    asdict(stage.trace),
                    stage.row,
                    stage.eval_seconds,
                    stage.correct,
                    stage.probes,
                    stage.capabilities,
                ]
                for stage in self._outcomes
            ],
            self.context.notes[self._setup_notes :],
            self._grows,
        )

    def _resume(self) -> int:
        """Load the latest cached stage; return the position of the next one."""
        for position in reversed(self._stored.resumable()):
            if stored := self._stored.load(position):
                self._adopt(position, stored, cached=True)
                return position + 1
        return 0

    def _fit(self, row: list[Any]) -> list[Any]:
        """Return a row of another scenario that begins alike, as long as the rows of this one."""
        width = len(self._scorers) + len(self.scenario.scored)
        return [*row, *[None] * width][:width]

    def _adopt(self, position: int, stored: CachedStage, *, cached: bool) -> None:
        """Continue from a stage that was trained elsewhere."""
        stage, trace = self._stage(position), stored.trace
        if self._stored.is_shared(position):
            trace = replace(trace, memory_bytes=trace.memory_bytes + self._begin(stage))
        self._grows = stored.grows
        self.context.model.load_some(stored.weights)
        if stored.state:
            self.method.load_state(stored.state)
        for note in stored.notes:
            self.context.note(note)
        history = stored.history[len(self._outcomes) :]
        for facts, row, seconds, correct, probes, measures in history:
            rows = self._fit(row), seconds, True, self._fit(correct), probes, measures
            outcome = StageOutcome(Trace(**facts), *rows)
            self._outcomes.append(outcome)
        stage.step = stage.steps = stage.total_steps = trace.steps
        stage.log = {k: v for k, v in trace.curves.items() if k not in ENGINE_CURVES}
        self._finish(stage, trace, cached=cached)


def _versions(model: torch.nn.Module) -> list[tuple[str, int, int]]:
    """Return values that change whenever a weight is replaced or written to."""
    return [(name, id(value), value._version) for name, value in model.named_parameters()]

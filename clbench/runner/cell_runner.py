"""Train one model on one scenario with one method, and fill the score matrix R."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from clbench.core.errors import PluginError
from clbench.core.shapes import only_shapes
from clbench.measure.capabilities import Capabilities, Measures
from clbench.measure.divergence import Divergence
from clbench.measure.pretraining_scorer import HarnessScores, harness_scores
from clbench.measure.relearning import relearn
from clbench.measure.rows import BEFORE, LinearProbes, PreparedScenario, ProbeRow, Row, RowScorer
from clbench.measure.untrained import scores_of_base, untrained_score
from clbench.methods.base import Method, Vanilla, at_rate
from clbench.models.classifier import TaskModel
from clbench.runner.cell_stages import CellStages, ComputeSettings
from clbench.runner.run_state import Listener
from clbench.runner.stage_cache import CachedStage, ScoredStage, StageCache
from clbench.runner.start import start_model
from clbench.suite.plan import Cell
from clbench.training.context import Context
from clbench.training.dropout import install
from clbench.training.engine import ENGINE_CURVES, Probe, train_stage
from clbench.training.memory import bytes_held, walk
from clbench.training.protocol import StageRecord
from clbench.training.stage import Stage


@dataclass(frozen=True)
class CellScores:
    """What a cell's file holds when all stages are done, in fields of the same names.

    `metrics` are the rows of R with all metrics.
    """

    stages: list[StageRecord]
    metrics: list[Row]
    correct: list[list[str | None]]
    probes: list[ProbeRow]
    capabilities: list[Measures]
    untrained: list[float]
    lm_eval: HarnessScores
    relearning: dict[str, Any]
    notes: list[str]


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
    after_epoch: Callable[[int, int, Row], None] | None = None
    model: TaskModel | None = None

    def __post_init__(self) -> None:
        self._scored: list[ScoredStage] = []
        self._probes_before: list[ProbeRow] = []
        self._capabilities: Capabilities | None = None
        self._divergence: Divergence | None = None
        self._capabilities_before: list[Measures] = []
        self._untrained: list[float] = []
        self._grows = True  # whether a head that grows further could go on from here
        self._protocol = at_rate(self.method, self.cell.protocol)
        # A reference trains one task, with the random streams of its stage in the scenario.
        task, count = self.cell.reference_of, len(self.scenario.train)
        self._stages = list(range(count)) if task is None else [task]
        self._scorers = self.scenario.scorers if task is None else ()
        self._is_probed = bool(self.scenario.probed) and task is None
        if task is not None and task >= count:
            raise PluginError(
                f"scenario {self.cell.scenario.name!r} has {count} tasks, so task {task} (from 0) "
                "has no reference. A shift's `k` must be its number of parts."
            )
        work = self.cell, self.scenario, self.method, self._protocol
        self._stored = CellStages(*work, self.compute, self.cache, tuple(self._stages))

    def run(self) -> CellScores:
        """Train and score all stages, resuming after the latest cached one; sets `context`."""
        shared = [] if self._stored.any() else self._shared_stages()
        self._load(probe=True)
        notes: dict[str, None] = {}
        start = self._resume()
        if not start:
            for start, (entry, cached) in enumerate(shared or self._shared_stages(), 1):
                self._adopt(start - 1, entry, cached=cached)
        del shared
        for position in range(start, len(self._stages)):
            stage = self._stage(position)
            record = self._train(stage, position)
            if note := self._stored.save(position, self._to_cache(position, record)):
                notes[note] = None
            self._finish(stage, record, cached=False)
        lm_eval: HarnessScores = {}
        model, writer, protocol = self.context.model, self.scenario.writer, self._protocol
        if protocol.lm_eval and writer is not None and self.cell.reference_of is None:
            size = protocol.eval_batch_size
            lm_eval = harness_scores(model, writer.tokenizer, protocol.lm_eval, batch_size=size)
        relearning: dict[str, Any] = {}
        if protocol.relearn_rows and len(self._stages) > 1:
            old = self._scorer.by_name(self._scored[0].metrics)[self.scenario.train[0].name]
            relearning = relearn(self.scenario, self.method, self.context, self.cell.protocol, old)
        self._stored.drop_own()  # not before: one of these measures may fail
        stages, last = self._scored, len(self._before) + len(self._scored) - 1
        correct = [[None] * len(row) for row in self._before] + [each.correct for each in stages]
        return CellScores(
            stages=[each.record for each in stages],
            metrics=self._before + [each.metrics for each in stages],
            correct=[
                [text if i in (j, last) else None for j, text in enumerate(row)]
                for i, row in enumerate(correct)
            ],
            probes=self._probes_before + [each.probes for each in stages if each.probes],
            capabilities=self._capabilities_before
            + [each.capabilities for each in stages if each.capabilities],
            untrained=self._untrained,
            lm_eval=lm_eval,
            relearning=relearning,
            notes=[*notes, *self.context.notes],
        )

    def _shared_stages(self) -> list[tuple[CachedStage, bool]]:
        """Load or train the first stages that vanilla's training serves; say which were loaded.

        They are trained on a model that this method never sees: what `setup` does to modules, such
        as adding hooks or adapters, then cannot affect them.
        """
        count = 0 if self._stored.is_vanilla else self._stored.vanilla_stages
        shared: list[tuple[CachedStage, bool]] = []
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
            record = runner._train(stage, position)
            entry = runner._to_cache(position, record)
            if note := self._stored.save(position, entry):
                entry.notes.append(note)
            weights = {name: value.clone() for name, value in entry.weights.items()}
            shared.append((replace(entry, weights=weights), False))
            if position + 1 < count:
                runner._finish(stage, record, cached=False)
        return shared

    def _load(self, *, probe: bool = False) -> None:
        """Load the model, measure it, and set the method up; with `probe`, probe it first."""
        protocol, cell, scenario = self._protocol, self.cell, self.scenario
        model, self.model = self.model or start_model(cell, scenario), None
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
            stages=len(scenario.train),
            masks=None,
        )
        self._scorer = RowScorer(scenario, self.method, context, cell.reference_of)
        self._probes = LinearProbes(scenario, self.method, context)
        if probe and self._is_probed:
            self._probes_before = [self._probes.row(BEFORE)]
        data, writer = scenario.capabilities, scenario.writer
        if data is not None and writer is not None and cell.reference_of is None:
            scoring = self.method.scoring
            self._capabilities = Capabilities(data, context, scenario.curve, writer, scoring)
            measures, self._untrained = self._capabilities.of_base(
                lambda: scores_of_base(scenario, context)
            )
            self._capabilities_before = [measures]
        if scenario.gold and writer is not None and cell.reference_of is None:
            self._divergence = Divergence(scenario.gold, context, writer, self.method.scoring)
            self._capabilities_before = self._capabilities_before or [{}]
        self._before: list[Row] = []
        if self._scorers:
            self._pretrained = context.snapshot()
            scores = self._scorer.extra_columns()
            for scorer, values in zip(self._scorers, scores, strict=True):
                context.note(scorer.describe(values))
            self._before = [[*scores, *[None] * len(scenario.scored)]]
        model.shown = scenario.shown(1)
        with self._model_unchanged("setup", 0):
            self.method.setup(context)
        for note in scenario.notes:
            context.note(note)
        if not protocol.gradient_checkpointing:  # which draws dropout twice, from torch's state
            context.masks = install(model, model.backbone, self.compute.device)
        self._setup_notes = len(context.notes)

    def _stage(self, position: int) -> Stage:
        context = {name: getattr(self.context, name) for name in Context.__dataclass_fields__}
        index = self._stages[position]
        stage = Stage(**context, index=index, tasks=self.scenario.train[: index + 1])
        stage.reads_earlier_rows = self.method.keeps_rows
        stage.heads = frozenset([stage.data.head])
        stage.shown_before = self.scenario.shown(index)
        self.context.model.shown = self.scenario.shown(index + 1)
        return stage

    def _begin(self, stage: Stage) -> tuple[float, float]:
        """Begin a stage of a method that only consolidates; return megabytes held, and seconds."""
        if not self.method.only_consolidates or not self.method.acts_in(stage.index):
            return 0.0, 0.0
        with self._model_unchanged("before_stage", stage.index):
            start = time.perf_counter()
            self.method.before_stage(stage)
            seconds = time.perf_counter() - start
        return bytes_held(self.method) / 1e6, seconds

    @contextmanager
    def _model_unchanged(self, hook: str, index: int) -> Iterator[None]:
        """Raise a PluginError if `hook` changes the model and vanilla trains stage `index`."""
        before = _versions(self.context.model)
        yield
        if _versions(self.context.model) == before:
            return
        reason, remedy = f"acts_in({index}) is False", f"Return True from acts_in({index})."
        if self.method.only_consolidates:
            reason = "declares only_consolidates"
            remedy = (
                "Remove only_consolidates, or return True from acts_in for the stage after which "
                "it changes the model."
            )
        elif self.method.acts_in(index):
            return
        raise PluginError(
            f"method {self.method.name!r} changes the model in {hook}, but {reason}, so stage "
            f"{index} would be trained as by vanilla. {remedy}"
        )

    def _train(self, stage: Stage, position: int) -> StageRecord:
        cell, listener, after_epoch = self.cell, self.listener, self.after_epoch
        acts = self.method.acts_in(stage.index)
        passes = itertools.count(1)

        def score_curve() -> dict[str, float]:
            return self._scorer.by_name(self._scorer.row(stage.index, curve=True)[0])

        def record_drift() -> None:
            # Drift is undefined if the method adds weights to the backbone, such as adapters.
            weights = stage.model.backbone_parameters()
            if self._scorers and self._pretrained.keys() == weights.keys():
                stage.record("drift", stage.squared_distance(self._pretrained).sqrt())

        held, seconds = self._begin(stage)
        record = train_stage(
            stage,
            Vanilla() if self.method.only_consolidates or not acts else self.method,
            probe=Probe(score_curve, self._scorer.curve_tokens(stage.index), record_drift),
            progress=partial(listener.progress, cell, position + 1, len(self._stages)),
            points=partial(listener.point, cell, position + 1),
            after_epoch=after_epoch
            and (lambda: after_epoch(position, next(passes), self._scorer.row(stage.index)[0])),
        )
        record.memory_mb = ((record.memory_mb or 0.0) + held) or None
        record.train_seconds += seconds
        return record

    def _finish(self, stage: Stage, record: StageRecord, *, cached: bool) -> None:
        """Let the method consolidate, then score a row of R."""
        following = len(self._scored) + 1
        checked = following < len(self._stages) and self._stored.is_shared(following)
        with self._model_unchanged("after_stage", following) if checked else nullcontext():
            start = time.perf_counter()
            self.method.after_stage(stage)
            record.train_seconds += time.perf_counter() - start
        record.cached = cached
        record.curves.update(stage.log)
        start = time.perf_counter()
        row, correct = self._scorer.row(stage.index)
        probes = self._probes.row(stage.index) if self._is_probed else []
        measures: Measures = {}
        if self._capabilities is not None:
            measures = self._capabilities.measure(stage.index + 1)
            if (task := stage.index + 1) < len(self._untrained):
                shown = self.scenario.shown(task + 1)
                score = untrained_score(self.scenario, self.context, task, shown)
                measures["ahead"] = score - self._untrained[task]
        if self._divergence is not None:
            measures |= self._divergence.measure(stage.index)
        record.eval_seconds += time.perf_counter() - start
        if self.cell.protocol.curve_points and not record.curves["scores"]:
            # The stage was too short for a point: take the rows of R before and after it.
            before = self._scorer.by_name(self._scored[-1].metrics) if self._scored else {}
            record.curves["scores"] = {
                name: [*([[0, before[name]]] if name in before else []), [record.steps, score]]
                for name, score in self._scorer.by_name(row).items()
            }
        self._scored.append(ScoredStage(record, row, correct, probes, measures))

    def _to_cache(self, position: int, record: StageRecord) -> CachedStage:
        """Return the stage that was just trained as an entry of the cache."""
        # Heads of later tasks are as they were drawn; another sequence may not have them.
        used = {task.head for task in self.scenario.train[: self._stages[position] + 1]}
        later = self.context.model.heads_but(used)
        weights = {n: v for n, v in self.context.model.state_dict().items() if n not in later}
        state = {} if self._stored.is_shared(position) else self.method.state()
        outputs = self.context.model.growing_outputs()
        has_tensors = any(not isinstance(value, list) for value in walk([state], skip=()))
        self._grows = self._grows and bool(outputs) and not has_tensors
        if self._grows:
            weights |= {name: weights[name][:count] for name, count in (outputs or {}).items()}
        return CachedStage(
            weights,
            state,
            record.model_copy(deep=True),  # consolidation and scoring are not in it yet
            self._scored.copy(),
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
        stage, record = self._stage(position), stored.record.model_copy(deep=True)
        if self._stored.is_shared(position):
            held, seconds = self._begin(stage)
            record.memory_mb = ((record.memory_mb or 0.0) + held) or None
            record.train_seconds += seconds
        self._grows = stored.grows
        self.context.model.load_some(stored.weights)
        if stored.state:
            self.method.load_state(stored.state)
        for note in stored.notes:
            self.context.note(note)
        for each in stored.history[len(self._scored) :]:
            each.record.cached = True
            metrics, correct = self._fit(each.metrics), self._fit(each.correct)
            self._scored.append(replace(each, metrics=metrics, correct=correct))
        stage.step = stage.steps = stage.total_steps = record.steps
        stage.log = {k: v for k, v in record.curves.items() if k not in ENGINE_CURVES}
        self._finish(stage, record, cached=cached)


def _versions(model: torch.nn.Module) -> list[tuple[str, int, int, str]]:
    """Return values that change whenever a weight is replaced or written to.

    PyTorch does not count what is written through ``.data``; that changes the sum, nearly always.
    """

    def total(value: torch.Tensor) -> str:
        return "" if only_shapes() else str(value.detach().sum(dtype=torch.float32).item())

    return [(n, id(v), v._version, total(v)) for n, v in model.named_parameters()]

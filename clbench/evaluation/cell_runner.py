"""Carries one model through one scenario with one method, and fills the score matrix."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

import clbench
from clbench.errors import PluginError
from clbench.evaluation.prepare import PreparedScenario
from clbench.evaluation.stage_cache import Entry, Stages, recipe_digest
from clbench.methods.base import Method
from clbench.methods.vanilla import Vanilla
from clbench.models.classifier import Classifier, build_classifier
from clbench.seeds import stream_seed
from clbench.suite.plan import Cell
from clbench.tasks.metrics import score
from clbench.training import hook_checks
from clbench.training.device import Precision
from clbench.training.dropout import install
from clbench.training.engine import ENGINE_CURVES, Trace, train_stage
from clbench.training.scoring import outputs_of
from clbench.training.stage import Context, Stage

Row = list[dict[str, float] | None]
StageProgress = Callable[[int, int, int], None]
StagePoints = Callable[[int, int, Mapping[str, float]], None]
EpochScores = Callable[[int, int, Row], None]


@dataclass(frozen=True)
class ComputeSettings:
    """What besides the recipe decides the digits of a result.

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


@dataclass
class Outcome:
    """What came out of a cell.

    Attributes
    ----------
    rows
        R with all metrics: ``rows[i][j]`` for task j after stage i, None where not scored.
    before
        The row of the pretraining where it is the first task, which comes before the others.
    traces
        One for each stage; `cached` says which were not trained now.
    eval_seconds
        Time of scoring after each stage.
    notes
        Lines for the reader of the result.
    """

    rows: list[Row]
    traces: list[Trace]
    cached: list[bool]
    eval_seconds: list[float]
    notes: list[str]
    before: Row | None = None


class CellRunner:
    """One cell on its way through the stages.

    Parameters
    ----------
    cell, scene
        What to run, and its rows.
    method
        Fresh, with the cell's settings.
    numerics
        Device and precision.
    cache
        Trained stages.
    progress
        Told (stage, steps done, steps in all).
    points
        Told (stage, step, values) at the points of curves; see `train_stage`.
    after_epoch
        Told (stage, epochs done in it, row of R) after each pass over the rows; every scored
        row counts for it, not a part as for curves.
    model
        To begin with, as `start_model` makes it; it is trained. None makes one.
    """

    def __init__(
        self,
        cell: Cell,
        scene: PreparedScenario,
        method: Method,
        numerics: ComputeSettings,
        cache: Stages,
        progress: StageProgress | None = None,
        *,
        points: StagePoints | None = None,
        after_epoch: EpochScores | None = None,
        model: Classifier | None = None,
    ) -> None:
        self._cell = cell
        self._scene = scene
        self._method = method
        self._numerics = numerics
        self._cache = cache
        self._progress = progress
        self._points = points
        self._after_epoch = after_epoch
        self._start = model
        self._outcome = Outcome([], [], [], [], [])
        # A reference trains one task of the scenario, with the streams of its stage there.
        only = cell.reference_of
        self._stages = list(range(len(scene.train))) if only is None else [only]
        if any(not 0 <= stage < len(scene.train) for stage in self._stages):
            raise PluginError(
                f"scenario {cell.scenario.name!r} has {len(scene.train)} tasks, so there is no "
                f"task {only} to refer to. A shift's `k` must be its number of parts."
            )

    def run(self) -> Outcome:
        """Train and score all stages, going on from the last one that was trained before."""
        self._context = self._load()
        first = self._resume()
        for position in range(first, len(self._stages)):
            stage = self._stage(position)
            trace = self._train(stage, position)
            self._keep(position, trace)
            self._close(stage, trace, cached=False)
        self._tidy()
        self._outcome.notes += self._context.notes
        return self._outcome

    @property
    def _numbers(self) -> dict[str, Any]:
        return {"precision": self._numerics.precision, "device": self._numerics.device}

    @property
    def context(self) -> Context:
        """Model and settings, from `run` on."""
        return self._context

    def _load(self) -> Context:
        protocol, cell = self._cell.protocol, self._cell
        model, self._start = self._start or start_model(cell, self._scene), None
        model.to(self._numerics.device)
        alone = cell.reference_of is not None
        self._pretraining = None if alone else self._scene.pretraining
        context = Context(
            model=model,
            model_name=protocol.model,
            revision=protocol.revision,
            protocol=protocol,
            device=self._numerics.device,
            precision=self._numerics.precision,
            seed=cell.seed,
            scenario=cell.scenario.name,
            stages=len(self._scene.train),
            masks=None,
        )
        if self._pretraining is not None:
            self._origin = context.snapshot()
            known = self._pretraining.of(model.backbone, **self._numbers)
            self._outcome.before = [known, *[None] * len(self._scene.scored)]
            context.note(self._pretraining.told(known))
        before = _versions(model)
        self._method.setup(context)
        if not self._method.acts_in(0) and _versions(model) != before:
            raise PluginError(
                f"method {self._method.name!r} changes the model in setup, yet acts_in(0) says "
                "that stage 0 is trained as by vanilla. Let acts_in return True."
            )
        context.masks = install(model, model.backbone, self._numerics.device)
        self._told_before = len(context.notes)
        return context

    def _resume(self) -> int:
        """Load the latest stage that was trained before; the number of the next one."""
        for position in reversed(range(len(self._stages))):
            if not self._kept(position):
                continue
            digest = recipe_digest(self._recipe(position))
            entry = self._cache.load(digest, self._context.device)
            if entry is None:
                continue
            self._context.model.load_state_dict(entry.weights)
            if entry.state:
                self._method.load_state(entry.state)
            for note in entry.notes:
                self._context.note(note)
            for trace, row, seconds in entry.history:
                self._outcome.traces.append(Trace(**trace))
                self._outcome.rows.append(row)
                self._outcome.cached.append(True)
                self._outcome.eval_seconds.append(seconds)
            self._close(self._stage(position), entry.trace, cached=True)
            return position + 1
        return 0

    def _stage(self, position: int) -> Stage:
        context = {name: getattr(self._context, name) for name in Context.__dataclass_fields__}
        index = self._stages[position]
        stage = Stage(**context, index=index, tasks=self._scene.train[: index + 1])
        stage.reads_earlier_rows = self._method.keeps_rows
        stage.heads = frozenset([stage.data.head])
        return stage

    def _train(self, stage: Stage, position: int) -> Trace:
        acting = self._method if self._method.acts_in(stage.index) else Vanilla()
        report = self._progress

        def progress(step: int, steps: int) -> None:
            if report is not None:
                report(position, step, steps)

        def probe() -> dict[str, float]:
            scenario = self._scene.scenario
            known = scenario.main_scores(self._score(stage.index, curve=True))
            if self._pretraining is not None:
                self._record_drift(stage)
            return {
                name: score
                for (name, _), score in zip(scenario.columns, known, strict=True)
                if score is not None
            }

        return train_stage(
            stage,
            acting,
            probe=probe,
            progress=progress,
            points=None if self._points is None else partial(self._points, position),
            after_epoch=self._epoch_teller(stage, position),
        )

    def _epoch_teller(self, stage: Stage, position: int) -> Callable[[], None] | None:
        """What scores the model after an epoch and tells it, if anyone wants to know."""
        tell, epochs = self._after_epoch, itertools.count(1)
        if tell is None:
            return None
        return lambda: tell(position, next(epochs), self._score(stage.index))

    def _close(self, stage: Stage, trace: Trace, *, cached: bool) -> None:
        """Let the method consolidate, then fill a row of R."""
        if cached:
            stage.step = stage.steps = stage.total_steps = trace.steps
            stage.log = {k: v for k, v in trace.curves.items() if k not in ENGINE_CURVES}
        self._method.after_stage(stage)
        trace.curves.update(stage.log)
        started = time.perf_counter()
        row = self._score(stage.index)
        self._outcome.eval_seconds.append(time.perf_counter() - started)
        self._outcome.rows.append(row)
        self._outcome.traces.append(trace)
        self._outcome.cached.append(cached)

    def _record_drift(self, stage: Stage) -> None:
        """Add the distance to the pretrained weights to the curves, whatever the method is.

        A method that puts other weights beside them, as adapters do, has none.
        """
        if self._origin.keys() == stage.model.backbone_parameters().keys():
            stage.record("drift", stage.squared_distance(self._origin).sqrt())

    def _score(self, index: int, *, curve: bool = False) -> Row:
        """All metrics of the tasks seen up to stage `index`, None for the others.

        Parameters
        ----------
        index
            Of the stage.
        curve
            Score the rows for points of curves only.
        """
        context = self._context
        data = self._scene.curve if curve else self._scene.scored
        row: Row = [None] * len(data)
        seen = range(index + 1) if self._cell.reference_of is None else [index]
        for j in seen:
            with hook_checks.context(self._method.scoring(j)):
                outputs = outputs_of(
                    context.model,
                    data[j],
                    context.protocol.eval_batch_size,
                    context.precision,
                    context.device,
                )
            row[j] = score(self._scene.scenario.tasks[j].metrics, outputs, data[j].rows.labels)
        if self._scene.pretraining is not None:
            kept = self._pretraining
            backbone = context.model.backbone
            row.insert(0, None if kept is None else kept.of(backbone, part=curve, **self._numbers))
        return row

    # Trained stages that are kept

    def _plain(self, position: int) -> bool:
        """Whether any method that does not act in the first stage could use this entry."""
        return position == 0 == self._stages[0] and not self._method.acts_in(0)

    def _kept(self, position: int) -> bool:
        """A last stage need not be kept, as the cell's result follows at once."""
        return position < len(self._stages) - 1 or self._plain(position)

    def _recipe(self, position: int) -> dict[str, Any]:
        recipe = self._cell.recipe
        tasks = self._scene.scenario.tasks
        stages = self._stages[: position + 1]
        reads_corpus = self._pretraining is not None or not self._plain(position)
        return {
            "clbench": clbench.__version__,
            "numerics": dict(self._numerics.identity),
            "protocol": self._cell.protocol.model_dump(mode="json", exclude={"corpus"}),
            "corpus": recipe.get("corpus") if reads_corpus else None,
            "model": recipe.get("model"),
            "scenario": self._cell.scenario.name,
            "heads": {task.head: task.outputs for task in tasks},
            "vocabulary": None if self._scene.vocabulary is None else len(self._scene.vocabulary),
            "seed": self._cell.seed,
            "stages": [[stage, tasks[stage].name, tasks[stage].train.digest] for stage in stages],
            "scored": [[tasks[stage].validation.digest] for stage in stages],
            # Kept rows hold its scores, which go with the scenario's number of texts.
            "pretraining": None if self._pretraining is None else recipe.get("scenario"),
            "method": None if self._plain(position) else recipe.get("method"),
        }

    def _keep(self, position: int, trace: Trace) -> None:
        if not self._kept(position):
            return
        plain = self._plain(position)
        outcome = self._outcome
        history = [
            [asdict(trace), row, seconds]
            for trace, row, seconds in zip(
                outcome.traces, outcome.rows, outcome.eval_seconds, strict=True
            )
        ]
        entry = Entry(
            dict(self._context.model.state_dict()),
            {} if plain else self._method.state(),
            trace,
            history,
            self._context.notes[self._told_before :],
        )
        refused = self._cache.save(recipe_digest(self._recipe(position)), entry)
        if refused is not None and refused not in outcome.notes:
            outcome.notes.append(refused)

    def _tidy(self) -> None:
        """Drop the entries that only this cell, now finished, could have used."""
        for position in range(len(self._stages)):
            if self._kept(position) and not self._plain(position):
                self._cache.drop(recipe_digest(self._recipe(position)))


def start_model(cell: Cell, scene: PreparedScenario) -> Classifier:
    """The pretrained model with the cell's heads, as it is before anything is trained; on the CPU.

    Raises
    ------
    ModelError
        If the model cannot be loaded.
    """
    protocol = cell.protocol
    return build_classifier(
        protocol.model,
        revision=protocol.revision,
        heads={task.head: task.outputs for task in scene.scenario.tasks},
        head_seed=lambda head: stream_seed("head", head, cell.seed, cell.scenario.name),
        pooling=protocol.pooling,
        head_dropout=protocol.head_dropout,
        vocabulary=scene.vocabulary,
    )


def _versions(model: torch.nn.Module) -> list[tuple[str, int, int]]:
    """Changes whenever a weight is replaced or written to."""
    return [(name, id(value), value._version) for name, value in model.named_parameters()]

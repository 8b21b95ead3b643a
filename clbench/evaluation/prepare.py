"""Scenarios made ready for training: rows loaded, shifted, tokenised; kept between cells."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from clbench.cache import cache_dir, write_atomically
from clbench.errors import ModelError, ShiftError
from clbench.evaluation.pretraining import PretrainingScore, pretraining_score
from clbench.models.checkpoint import load_backbone, load_config, load_tokenizer
from clbench.models.embed import embed_rows
from clbench.models.encoding import EncodedRows, encode, vocabulary_of
from clbench.models.families import usable_length
from clbench.models.locate import model_identity
from clbench.results.output_folder import as_folder_error
from clbench.seeds import numpy_stream
from clbench.shifts.build import build_scenario
from clbench.shifts.scenario import Scenario
from clbench.suite.schema import ScenarioSpec
from clbench.tasks.corpus import read_corpus
from clbench.tasks.registry import load_task
from clbench.tasks.task import IntArray, Rows, Task, stratified
from clbench.training.batches import TaskData
from clbench.training.protocol import Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from clbench.tasks.spec import OwnTaskSpec

KEPT = 4
"""Scenes kept in memory; cells come scenario by scenario."""


@dataclass(frozen=True)
class PreparedScenario:
    """A scenario ready for training.

    Attributes
    ----------
    scenario
        Tasks, split and report.
    train, scored, curve
        For each task its training rows, the rows that R is scored on, and a stratified
        subset of those for the points of curves.
    vocabulary
        Ids of the tokens that the rows can meet, ascending; None if the table is not cut.
    pretraining
        Scores the first column of R, where the pretraining is the first task; else None.
    """

    scenario: Scenario
    train: tuple[TaskData, ...]
    scored: tuple[TaskData, ...]
    curve: tuple[TaskData, ...]
    vocabulary: IntArray | None
    pretraining: PretrainingScore | None = None


class ScenarioPreparer:
    """Makes scenes for one model and protocol.

    Parameters
    ----------
    protocol
        Model, limits and lengths.
    data, base, own
        Where tasks come from: mirror of the hub, folder of the suite, own tasks.
    device
        Where embeddings are computed.
    saved
        Folder for the fitted splits and reports; None saves none.
    """

    def __init__(
        self,
        protocol: Protocol,
        *,
        data: Path | None,
        base: Path,
        own: Mapping[str, OwnTaskSpec],
        device: torch.device,
        saved: Path | None,
    ) -> None:
        self.protocol = protocol
        self._base = base
        self._data = data
        self._own = own
        self._device = device
        self._saved = saved
        self._scenes: OrderedDict[str, PreparedScenario] = OrderedDict()
        self._tasks: OrderedDict[str, Task] = OrderedDict()
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._backbone: PreTrainedModel | None = None

    def scene(self, spec: ScenarioSpec) -> PreparedScenario:
        """The scene of `spec`, from memory if it was made lately.

        Raises
        ------
        ClbenchError
            If the data, the shift or the model do not allow it.
        """
        if spec.name in self._scenes:
            self._scenes.move_to_end(spec.name)
            return self._scenes[spec.name]
        scenario = build_scenario(spec, self)
        self._backbone = None
        if self._saved is not None:
            _save(self._saved / f"{spec.name}.json", scenario)
        scene = self.ready(scenario)
        self._scenes[spec.name] = scene
        while len(self._scenes) > KEPT:
            self._scenes.popitem(last=False)
        return scene

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.protocol.model, self.protocol.revision)
        return self._tokenizer

    @property
    def max_length(self) -> int:
        """Tokens of a row at most: the protocol's, or fewer if the model takes fewer."""
        config = load_config(self.protocol.model, self.protocol.revision)
        usable = usable_length(config)
        return self.protocol.max_length if usable is None else min(self.protocol.max_length, usable)

    # What a shift may ask for (clbench.shifts.base.ShiftContext).

    @property
    def seed(self) -> int:
        """The protocol's `data_seed`."""
        return self.protocol.data_seed

    @property
    def base(self) -> Path:
        """Folder of the suite file."""
        return self._base

    def task(self, name: str) -> Task:
        """The task of that name, limited, with a tuning split if that is what is scored."""
        if name not in self._tasks:
            task = load_task(name, data=self._data, base=self._base, own=self._own)
            task = task.scored_by(self.protocol.task_metric.get(name))
            task = task.limited(self.protocol.limit, self.seed)
            if self.protocol.score_on == "tuning":
                task = task.with_tuning(self.protocol.tuning_fraction, self.seed)
            self._tasks[name] = task
            while len(self._tasks) > KEPT:
                self._tasks.popitem(last=False)
        return self._tasks[name]

    def lengths(self, rows: Rows) -> IntArray:
        """Tokens of each row without specials and without cutting; shape (n,)."""
        total = np.zeros(len(rows), dtype=np.int64)
        for column in (rows.first, rows.second):
            if column is not None:
                ids = self.tokenizer(
                    list(column),
                    add_special_tokens=False,
                    truncation=False,
                    return_attention_mask=False,
                    verbose=False,
                )["input_ids"]
                total += np.fromiter((len(row) for row in ids), np.int64, len(rows))
        return total

    def embed(self, rows: Rows) -> npt.NDArray[np.float32]:
        """Pooled embeddings of the frozen pretrained encoder; shape (n, h)."""
        protocol = self.protocol
        if self._backbone is None:
            self._backbone = load_backbone(protocol.model, protocol.revision)
        return embed_rows(
            self._backbone,
            self.tokenizer,
            rows,
            self.max_length,
            self._device,
            protocol.pooling,
            identity=model_identity(protocol.model, protocol.revision),
            cache=cache_dir("embeddings"),
        )

    def held_out_texts(self, count: int) -> list[str]:
        """At most `count` texts of the protocol's corpus that no method sees."""
        return read_corpus(self.protocol.corpus, count, self.seed, held_out=True)

    def ready(self, scenario: Scenario) -> PreparedScenario:
        """`scenario` with its rows tokenised, however it was built; keeps nothing.

        The embedding table is not cut where the pretraining is scored: its texts need the
        whole vocabulary, and weights that start at random are recalled in all of its rows.
        """
        protocol = self.protocol
        texts = scenario.pretraining
        train = [self._encode(task.train) for task in scenario.tasks]
        scored = [self._encode(self._scored_rows(task)) for task in scenario.tasks]
        vocabulary = None
        if protocol.trim_embeddings and texts is None:
            tokenizer = self.tokenizer
            size = load_config(protocol.model, protocol.revision).vocab_size
            _check_ids([*train, *scored], size, protocol.model)
            vocabulary = vocabulary_of([*train, *scored], tokenizer.all_special_ids, size)
            train = [rows.remap(vocabulary) for rows in train]
            scored = [rows.remap(vocabulary) for rows in scored]
        pad = int(self.tokenizer.pad_token_id)
        if vocabulary is not None:
            pad = int(np.searchsorted(vocabulary, pad))
        curve = [
            rows.take(self._curve_rows(task, rows))
            for task, rows in zip(scenario.tasks, scored, strict=True)
        ]

        def data(parts: list[EncodedRows]) -> tuple[TaskData, ...]:
            return tuple(
                TaskData(i, task.name, task.head, task.regression, rows, pad)
                for i, (task, rows) in enumerate(zip(scenario.tasks, parts, strict=True))
            )

        score = None if texts is None else pretraining_score(texts, protocol, self._device)
        return PreparedScenario(scenario, data(train), data(scored), data(curve), vocabulary, score)

    def _scored_rows(self, task: Task) -> Rows:
        if self.protocol.score_on == "validation":
            return task.validation
        if task.tuning is None:
            raise ShiftError(
                f"task {task.name!r}: its shift has lost the tuning split, which "
                "score_on = 'tuning' scores. Keep `tuning` of the task that it is made of."
            )
        return task.tuning

    def _encode(self, rows: Rows) -> EncodedRows:
        return encode(rows, self.tokenizer, self.max_length, cache=cache_dir("tokens"))

    def _curve_rows(self, task: Task, rows: EncodedRows) -> IntArray:
        rng = numpy_stream("curve", task.name, self.seed)
        return stratified(rows.labels, self.protocol.curve_rows, rng, task.regression)


def _check_ids(parts: list[EncodedRows], size: int, model: str) -> None:
    largest = max((int(part.ids.max()) for part in parts if len(part.ids)), default=0)
    if largest >= size:
        raise ModelError(
            f"model {model!r}: its tokenizer gives token {largest}, but its embeddings end at "
            f"{size - 1}. Tokenizer and weights do not belong together."
        )


def _save(path: Path, scenario: Scenario) -> None:
    content: dict[str, Any] = {
        "name": scenario.name,
        "shift": scenario.shift,
        "settings": dict(scenario.settings),
        "tasks": [task.name for task in scenario.tasks],
        "report": scenario.report.to_json(),
    }
    with as_folder_error(path):
        write_atomically(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
        if scenario.split is not None:
            scenario.split.save(path.with_suffix(".split.json"))
        if scenario.picture:
            text = json.dumps(scenario.picture, allow_nan=False)
            write_atomically(path.with_suffix(".picture.json"), text + "\n")

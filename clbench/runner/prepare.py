"""Prepare scenarios for training: load, shift and tokenise the rows."""

import json
from collections.abc import Hashable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import torch

from clbench.core.errors import DataError, ModelError, ShiftError
from clbench.core.files import plain, write_atomically
from clbench.core.seeds import numpy_stream
from clbench.core.user_code import WARNINGS, user_code
from clbench.measure.capabilities import capability_data
from clbench.measure.pretraining_scorer import check_harness, make_scorer
from clbench.measure.rows import PreparedScenario, check_probe_rows, embed_rows
from clbench.measure.writer import Writer
from clbench.models.answering import check_packing, stop_tokens
from clbench.models.checkpoint import (
    code_notes,
    load_backbone,
    load_config,
    load_generator,
    load_tokenizer,
)
from clbench.models.encoding import EncodedRows, encode, vocabulary_of
from clbench.models.families import attention_window, usable_length
from clbench.models.locate import model_identity
from clbench.models.prompts import PromptEncoder
from clbench.shifts.scenario import Scenario, build_scenario
from clbench.suite.plan import Plan
from clbench.suite.schema import ScenarioSpec
from clbench.tasks.corpus import read_corpus, texts_for_trials
from clbench.tasks.metrics import floor_score
from clbench.tasks.registry import load_column, load_task
from clbench.tasks.sampling import stratified, whole_groups
from clbench.tasks.spec import OwnTaskSpec
from clbench.tasks.task import IntArray, Rows, Task
from clbench.training.batches import TaskData
from clbench.training.protocol import Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

R = TypeVar("R", Rows, EncodedRows)
MOST_IN_MEMORY = 4
"""Scenarios and tasks to keep in memory; cells run scenario by scenario."""


@dataclass(eq=False)
class ScenarioPreparer:
    """Prepares scenarios for one model and protocol; the `ShiftContext` of their shifts.

    Parameters
    ----------
    protocol, device
        The protocol of all cells, and the device for embeddings.
    data, base, own
        Sources of tasks: the copy of the hub, the suite's folder, the suite's own tasks.
    output
        Folder for fitted splits and reports; None saves none.
    """

    protocol: Protocol
    _: KW_ONLY
    data: Path | None
    base: Path
    own: Mapping[str, OwnTaskSpec]
    device: torch.device
    output: Path | None = None

    @classmethod
    def of(cls, plan: Plan, device: torch.device, output: Path | None = None) -> Self:
        """Return the preparer of a plan's scenarios."""
        return cls(
            plan.protocol,
            data=plan.data,
            base=plan.suite.base,
            own=plan.suite.file.task,
            device=device,
            output=output,
        )

    def __post_init__(self) -> None:
        self.seed = self.protocol.data_seed
        self._subset: int | None = None
        self._prepared: dict[Hashable, PreparedScenario] = {}
        self._tasks: dict[Hashable, Task] = {}
        self._saved: set[str] = set()

    def prepare(self, spec: ScenarioSpec, seed: int = 0) -> PreparedScenario:
        """Return the scenario of `spec`, from memory if it was prepared recently.

        `seed` is that of the cell; it matters only where the protocol draws rows for each seed.

        Raises
        ------
        ClbenchError
            If the data, the shift or the model do not allow it.
        """
        self._subset = self.protocol.subset_seed(seed)
        key = spec.name, self._subset
        if key not in self._prepared:
            scenario = self._build(spec)
            self.__dict__.pop("_backbone", None)
            if self.output is not None and spec.name not in self._saved:
                _save(self.output / f"{spec.name}.json", scenario)
                self._saved.add(spec.name)
            _keep(self._prepared, key, self.tokenise(scenario))
        return self._prepared[key]

    def _build(self, spec: ScenarioSpec, *, severity: bool = True) -> Scenario:
        """Build a scenario; raise a ShiftError if each seed would divide other rows of a task."""
        with user_code(f"scenario {spec.name!r} cannot be built", without=[WARNINGS]):
            scenario = build_scenario(spec.name, spec.shift, spec.settings, self, severity=severity)
        if self._subset is not None and scenario.split is not None:
            raise ShiftError(
                f"scenario {scenario.name!r}: subset = 'seed' would divide task "
                f"{scenario.split.task!r} differently for every seed, so that seeds would be "
                "scored on different rows. Use subset = 'fixed'."
            )
        return scenario

    def check_model(self) -> tuple[str, ...]:
        """Load the model's tokenizer and weights, and return notes on them.

        Raises a ModelError if they cannot be used.
        """
        check_harness(self.protocol.lm_eval)
        _ = self._backbone, self.tokenizer, self._prompts
        name = self.protocol.model
        return code_notes(load_config(name, self.protocol.revision), name)

    def tokenise(self, scenario: Scenario) -> PreparedScenario:
        """Return `scenario` with its rows tokenised.

        With `trim_embeddings` in the protocol, the vocabulary is cut to the tokens of the rows,
        unless there are extra columns, whose texts need all of it.
        """
        protocol, tasks = self.protocol, scenario.tasks
        # Other rows for every seed would fill the disk.
        is_cached = self._subset is None
        train = [self._encode(t, t.train, to_train=True, cache=is_cached) for t in tasks]
        scored = [self._encode(t, self._scored_rows(t), to_train=False) for t in tasks]
        pad, vocabulary = int(self.tokenizer.pad_token_id), None
        trims = protocol.trim_embeddings and not scenario.extra_columns
        if trims and not protocol.is_language_model:
            size = load_config(protocol.model, protocol.revision).vocab_size
            specials = self.tokenizer.all_special_ids
            vocabulary = vocabulary_of([*train, *scored], specials, size)
            train = [rows.remap(vocabulary) for rows in train]
            scored = [rows.remap(vocabulary) for rows in scored]
            pad = int(np.searchsorted(vocabulary, pad))

        def some(parts: list[EncodedRows], count: int, use: str) -> list[EncodedRows]:
            each = zip(tasks, parts, strict=True)
            return [self._sample(task, rows, count, use) for task, rows in each]

        def data(parts: list[EncodedRows]) -> tuple[TaskData, ...]:
            predicts = [task.regression and not protocol.is_language_model for task in tasks]
            return tuple(
                TaskData(
                    *(i, task.name, task.head, predicts[i], rows.lock(), pad),
                    metric=task.metrics[0] if task.free_text else "",
                )
                for i, (task, rows) in enumerate(zip(tasks, parts, strict=True))
            )

        probed: tuple[TaskData, ...] = ()
        if (count := protocol.probe_rows) is not None:
            check_probe_rows(count, tasks)
            probed = data(some(train, count, "probe"))
        scorers = tuple(
            (make_scorer if column.scorer == "pretraining" else column.scorer)(
                protocol, self.device, **column.settings
            )
            for column in scenario.extra_columns
        )
        floors = [*map(self._floor, tasks, train, scored)]
        prompts, writer, capabilities, gold = self._prompts, None, None, list[EncodedRows]()
        asked: list[Any] = []
        if prompts is not None:
            stops = tuple(stop_tokens(prompts.tokenizer))
            writer = Writer(prompts.tokenizer, stops, prompts.max_answer, protocol.answer_by)
            capabilities = capability_data(self, protocol, prompts, scenario, self.data, self.own)
            asked = [each.rows for each in capabilities.tasks] if capabilities else []
            if protocol.kl_rows:
                gold = [self._gold(prompts, task, protocol.kl_rows) for task in tasks]
        return PreparedScenario(
            scenario,
            data(train),
            data(scored),
            data(some(scored, protocol.curve_rows, "curve")),
            vocabulary,
            scorers,
            (*[None] * len(scorers), *floors),
            probed,
            writer,
            tuple(dict.fromkeys(note for rows in (*train, *scored, *asked) for note in rows.notes)),
            capabilities,
            data(gold) if gold else (),
        )

    def _sample(self, task: Task, rows: R, count: int, use: str) -> R:
        """Return a stratified sample of the rows of a task, drawn from the stream `use`.

        It is of whole groups if the task's score is of groups.
        """
        rng = numpy_stream(use, task.name, self.seed)
        if rows.groups is not None and task.metrics[0] in task.group_metrics:
            return rows.take(whole_groups(rows.groups, count, rng))
        return rows.take(stratified(rows.labels, count, rng, task.regression))

    def _floor(self, task: Task, train: EncodedRows, scored: EncodedRows) -> float | None:
        """Return the score of a task without a model; None where it has none."""
        if task.own or task.free_text or self.protocol.answer_by == "generation":
            return None
        classes = len(task.labels) or 1
        return floor_score(task.metrics[0], train.labels, scored.labels, classes, scored.groups)

    def _gold(self, prompts: PromptEncoder, task: Task, count: int) -> EncodedRows:
        """Return `count` scored rows with their right answers, as for training."""
        rows = self._sample(task, self._scored_rows(task), count, "kl rows")
        choices = prompts.encode(task, rows, to_train=False)
        return replace(prompts.encode(task, rows, to_train=True), names=choices.names)

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The model's tokenizer."""
        protocol = self.protocol
        plain = protocol.is_language_model
        return load_tokenizer(protocol.model, protocol.revision, plain=plain)

    @cached_property
    def _prompts(self) -> PromptEncoder | None:
        """The encoder of prompts and answers; None without a language model.

        A ModelError says if the tokenizer has no end token, or no usable chat template that is
        asked for, or if packed rows would be read differently.
        """
        protocol, tokenizer = self.protocol, self.tokenizer
        if not protocol.is_language_model:
            return None
        config = load_config(protocol.model, protocol.revision)
        encodes = bool(getattr(config, "is_encoder_decoder", False))
        window = attention_window(config) if protocol.packing else None
        chat = bool(tokenizer.chat_template) if protocol.chat is None else protocol.chat
        try:
            if protocol.packing and encodes:
                raise ModelError("packing is for decoders. Set packing = false in [protocol].")
            if window is not None and window < self.max_length:
                raise ModelError(
                    f"packing needs rows within its attention window of {window} tokens, and "
                    f"max_length = {self.max_length}. Set packing = false in [protocol]."
                )
            options = self.max_length, protocol.answer_length, chat, encodes
            return PromptEncoder(tokenizer, *options, list_answers=protocol.list_answers)
        except ModelError as error:
            raise ModelError(f"model {protocol.model!r}: {error}") from error

    @property
    def _encodes(self) -> bool:
        """Whether prompts go to the encoder of an encoder-decoder."""
        return self._prompts is not None and self._prompts.encoder_decoder

    @property
    def max_length(self) -> int:
        """Maximum tokens of a row: the protocol's number, or the model's if that is smaller."""
        longest = self.protocol.max_length
        config = load_config(self.protocol.model, self.protocol.revision)
        return min(longest, usable_length(config) or longest)

    # The rest of clbench.shifts.base.ShiftContext.

    def task(self, name: str) -> Task:
        """Return the task called `name`, limited, with a tuning split if the protocol scores it."""
        key = name, self._subset
        if key not in self._tasks:
            protocol = self.protocol
            whole = load_task(name, data=self.data, base=self.base, own=self.own)
            if protocol.score_on != "tuning":
                whole = replace(whole, tuning=None)
            task = whole.scored_by(protocol.task_metric.get(name))
            task = task.limited(**protocol.limits)
            if protocol.score_on == "tuning" and whole.tuning is None:
                task = task.with_tuning(protocol.tuning_fraction, self.seed)
            if self._subset is not None:
                # Tuning rows of a loader are none of the training rows, whatever their index.
                own = replace(task, tuning=None) if whole.tuning is not None else task
                drawn = own.redrawn(whole.train, self.seed, self._subset)
                task = replace(task, train=drawn.train)
            _keep(self._tasks, key, task)
        return self._tasks[key]

    def column(self, name: str, column: str) -> Mapping[str, Mapping[int, str]]:
        """Return the cells of a column of a task by split and `Rows.index`."""
        return load_column(name, column, data=self.data, base=self.base, own=self.own)

    def lengths(self, rows: Rows) -> IntArray:
        """Return the number of tokens of each row, uncut and without special ones; shape (n,)."""
        total = np.zeros(len(rows), dtype=np.int64)
        for texts in rows.texts:
            ids = self.tokenizer(
                list(texts),
                add_special_tokens=False,
                truncation=False,
                return_attention_mask=False,
                verbose=False,
            )["input_ids"]
            total += np.fromiter((len(row) for row in ids), np.int64, len(rows))
        return total

    def embed(self, rows: Rows) -> np.typing.NDArray[np.float32]:
        """Return pooled embeddings of the frozen pretrained encoder; shape (n, h)."""
        protocol = self.protocol
        points = embed_rows(
            self._backbone,
            self.tokenizer,
            rows,
            self.max_length,
            self.device,
            "mean" if self._encodes else protocol.pooling,
            identity=model_identity(protocol.model, protocol.revision),
        )
        if not np.isfinite(points).all():
            raise ModelError(
                f"model {protocol.model!r}: its embeddings are not finite numbers. Check its "
                "weights, or use another model."
            )
        return points

    def held_out_texts(self, count: int) -> list[str]:
        """Return at most `count` texts of the protocol's corpus that no method sees.

        Trials of a tuning are scored on others than reported runs.
        """
        if self.protocol.score_on == "tuning":
            return texts_for_trials(self.protocol.corpus, count, self.seed)
        return read_corpus(self.protocol.corpus, count, self.seed, held_out=True)

    @cached_property
    def _backbone(self) -> "PreTrainedModel":
        protocol = self.protocol
        if not protocol.is_language_model:
            return load_backbone(protocol.model, protocol.revision)
        model: Any = load_generator(protocol.model, protocol.revision)
        if protocol.packing and not self._encodes:
            check_packing(model, protocol.model)
        backbone: PreTrainedModel = model.get_encoder() if self._encodes else model.base_model
        return backbone

    def _encode(self, task: Task, rows: Rows, *, to_train: bool, cache: bool = True) -> EncodedRows:
        if self._prompts is not None:
            return self._prompts.encode(task, rows, to_train=to_train)
        if task.free_text:
            raise DataError(
                f"task {task.name!r} has texts to write, not classes. Set head = 'language-model' "
                "in [protocol]."
            )
        return encode(rows, self.tokenizer, self.max_length, cache=cache)

    def _scored_rows(self, task: Task) -> Rows:
        rows: Rows | None = getattr(task, self.protocol.score_on)
        if rows is None:
            raise ShiftError(
                f"task {task.name!r}: its shift has dropped the tuning split, which "
                "score_on = 'tuning' needs. Give the part the `tuning` rows of its task."
            )
        return rows


def _keep(items: dict[Hashable, Any], name: Hashable, value: Any) -> None:
    """Add `value` to `items`, and drop the oldest one beyond `MOST_IN_MEMORY`."""
    items[name] = value
    if len(items) > MOST_IN_MEMORY:
        del items[next(iter(items))]


def _save(path: Path, scenario: Scenario) -> None:
    content: dict[str, Any] = {
        "name": scenario.name,
        "shift": scenario.shift,
        "settings": dict(scenario.settings),
        "tasks": [task.name for task in scenario.tasks],
        "report": scenario.report.to_json(),
    }
    write_atomically(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
    for suffix, part in ((".split.json", scenario.split), (".picture.json", scenario.picture)):
        if not part:
            path.with_suffix(suffix).unlink(missing_ok=True)
    if scenario.split is not None:
        scenario.split.save(path.with_suffix(".split.json"))
    if scenario.picture:
        text = json.dumps(plain(scenario.picture))
        write_atomically(path.with_suffix(".picture.json"), text + "\n")

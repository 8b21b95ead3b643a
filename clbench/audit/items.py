"""Rows of tasks on which models are audited, by probes of their features and their own heads."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel

from clbench.audit.models import AuditedModel, are_placeholders, same_names
from clbench.audit.scores import SEPARATOR, Bools, ItemScores, Part, keys_of
from clbench.audit.settings import FEWEST_ROWS, check_count
from clbench.core.errors import DataError, ModelError, NonFiniteLossError, named
from clbench.core.seeds import numpy_stream
from clbench.measure.rows import embed_rows, fit_classes, map_rows
from clbench.models import checkpoint, encoding, families, prompts
from clbench.models.answer_scores import AnswerScorer
from clbench.suite.read import read_tasks
from clbench.tasks.general import at_hand
from clbench.tasks.hub import data_folder
from clbench.tasks.registry import hub_source, load_task, task_identity, template_identity
from clbench.tasks.spec import OwnTaskTable
from clbench.tasks.task import Rows, Task

DEFAULT_TASKS = (
    "synthetic/sentiment",
    "synthetic/acceptability",
    "synthetic/paraphrase",
    "synthetic/entailment3",
)
"""Built-in tasks that need no download: one sentence and two, meaning and grammar."""
BUILT_IN = (
    "These tasks are built-in sentences of generated English, as no others were named or at hand: "
    f"they show damage, not what is lost of what people ask for. Give {named('data', 'DIR')} with "
    "copies of real tasks, or a connection to the hub."
)
REAL_TASKS = ("glue/sst2", "glue/cola", "glue/mrpc", "glue/rte")
"""What models without a language-model head are probed on where rows can be had."""
FOLDS = 5
MAX_LENGTH = 128
"""Tokens after which a row is cut."""

Ints = np.typing.NDArray[np.int64]
Values = TypeVar("Values", bound=np.typing.NDArray[Any])


@dataclass(frozen=True)
class Items:
    """Rows of a task, the same for all models.

    Attributes
    ----------
    task
        The task.
    rows
        Validation rows, and training rows where these are too few.
    folds
        Shape (n,): the fold in which a probe predicts each row, fitted on all others.
    chance
        Share of the most frequent class.
    training
        How many of the rows are training rows of the task.
    """

    task: Task
    rows: Rows
    folds: Ints
    chance: float
    training: int = 0

    @property
    def name(self) -> str:
        """The task's name."""
        return self.task.name

    @classmethod
    def of(cls, task: Task, count: int, seed: int) -> Self:
        """Return at most `count` rows of a task, stratified by class.

        Raises a DataError if the task is no classification, or has too few rows or classes.
        """
        if not task.labels or task.train.choices:
            kind = "is multiple choice" if task.train.choices else "has no classes"
            raise DataError(f"task {task.name!r} {kind}. Choose a classification task.")
        rng = numpy_stream("audit", task.name, seed)
        rows = task.validation.sample(count, rng)
        training = 0
        if len(rows) < count:
            more = task.train.sample(count - len(rows), rng)
            rows, training = Rows.joined([rows, more]), len(more)
        return cls._in_folds(task, rows, rng, training)

    @classmethod
    def _in_folds(cls, task: Task, rows: Rows, rng: np.random.Generator, training: int) -> Self:
        """Return rows of a task with every class spread evenly over the folds."""
        _, sizes = np.unique(rows.labels, return_counts=True)
        if len(rows) < FEWEST_ROWS:
            raise DataError(
                f"task {task.name!r}: {len(rows)} rows are too few, at least {FEWEST_ROWS} are "
                f"needed, and as many again for mend. Use more rows ({named('rows')}), or another "
                "task."
            )
        if len(sizes) < 2:
            raise DataError(
                f"task {task.name!r}: all {len(rows)} rows have the same class. Choose another."
            )
        order = rng.permutation(len(rows))
        by_class = order[np.argsort(rows.labels[order], kind="stable")]
        folds = np.empty(len(rows), dtype=np.int64)
        folds[by_class] = np.arange(len(rows)) % FOLDS
        return cls(task, rows, folds, int(sizes.max()) / len(rows), training)

    def split(self, count: int) -> "tuple[Items, Items]":
        """Return two parts: `count` rows, or half of them if there are fewer, and the rest.

        Raises a DataError as `of`.
        """
        labels, rng = self.rows.labels, numpy_stream("audit split", self.name, 0)
        first = self.rows.drawn(min(count, len(labels) // 2), rng)
        rest = np.setdiff1d(np.arange(len(labels)), first)
        start = len(labels) - self.training  # the training rows are the last ones
        one, two = (
            self._in_folds(self.task, self.rows.take(at), rng, int((at >= start).sum()))
            for at in (first, rest)
        )
        return one, two


def load_items(
    names: Sequence[str], *, data: str | Path | None, rows: int, extra: int = 0, seed: int = 0
) -> list[Items]:
    """Return the items of tasks by name; a file (``*.toml``) stands for its own tasks.

    Each has at most `rows` rows, and `extra` ones for another purpose; `data` is a folder with
    copies of hub repositories. Raises a ClbenchError if one of them is wrong, or a task is.
    """
    check_count("rows", rows, FEWEST_ROWS)
    check_count("seed", seed)
    folder = data_folder(data)
    items: dict[str, Items] = {}
    for name in names:
        tasks, own, base = tables_of(name)
        for each in tasks:
            task = load_task(each, data=folder, base=base, own=own)
            if task.name in items:
                raise DataError(
                    f"{name}: task {task.name!r} is given more than once; name each task only once."
                )
            items[task.name] = Items.of(task, rows + extra, seed)
    return list(items.values())


def tables_of(name: str) -> tuple[list[str], dict[str, OwnTaskTable], Path]:
    """Return the tasks that a name stands for, and the tables and the folder of its file."""
    if not name.endswith(".toml"):
        return [name], {}, Path.cwd()
    if not (own := read_tasks(name)):
        raise DataError(f"{name}: has no task of its own ([task.NAME]) to probe.")
    return [*own], own, Path(name).resolve().parent


def contents_of(names: Sequence[str], data: Path | None) -> Iterator[Any]:
    """Yield what decides the rows, prompts and answers of tasks by name, without loading them."""
    for tasks, own, base in map(tables_of, names):
        for each in tasks:
            yield task_identity(each, data=data, base=base, own=own), template_identity(each, own)


def default_tasks(base: str, data: str | Path | None = None) -> tuple[str, ...]:
    """Return the tasks on which to audit a model, if none are named.

    That is ``general`` for decoders with a language-model head, else `REAL_TASKS`, as far as they
    are in `data` or on the hub; and `DEFAULT_TASKS` if none of them is.
    """
    folder, kind = data_folder(data), ""
    with suppress(ModelError):  # said where the model is loaded
        kind = str((checkpoint.load_config(base).architectures or [""])[0])
    if kind.endswith(("ForCausalLM", "LMHeadModel")):
        return ("general",) if at_hand(folder) else DEFAULT_TASKS
    found: list[str] = []
    for name in REAL_TASKS:  # of one repository, which is waited for once
        with suppress(DataError), offline(name != REAL_TASKS[0] and not found):
            load_task(name, data=folder, base=Path.cwd(), own={})
            found.append(name)
    return tuple(found) or DEFAULT_TASKS


@contextmanager
def offline(wanted: bool) -> Iterator[None]:
    """Read data sets from copies and the cache alone inside the block, if `wanted`."""
    from datasets import config

    own = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = own or wanted
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = own


def length_of(model: AuditedModel) -> int:
    """Return the tokens after which a text is cut for this model."""
    return min(MAX_LENGTH, families.usable_length(model.backbone.config) or MAX_LENGTH)


def hits(model: AuditedModel, items: Items, part: Part, device: torch.device) -> Bools:
    """Return which rows a model gets right, shape (n,)."""
    right: Bools = predict(model, items, part, device) == items.rows.labels
    return right


def scores(model: AuditedModel, items: Items, part: Part, device: torch.device) -> ItemScores:
    """Return which rows a model gets right; parameters as in `predict`."""
    rows, predicted = items.rows, predict(model, items, part, device)
    inputs = tuple(SEPARATOR.join(map(str, row)) for row in zip(*rows.texts, strict=True))
    names = items.task.labels
    return ItemScores(
        items.name,
        part,
        (predicted == rows.labels).astype(np.float64),
        keys_of(inputs),
        chance=items.chance,
        choices=len(names),
        texts=inputs,
        answers=tuple(names[label] for label in rows.labels),
        said=tuple(names[label] for label in predicted),
        unit="rows",
        source=hub_source(items.task),
    )


def predict(model: AuditedModel, items: Items, part: Part, device: torch.device) -> Ints:
    """Return the class that a model predicts for each row, shape (n,).

    For ``features`` by `probe`; for ``behaviour`` by its own head, which `has_head_for` these
    items, or by the answers of a decoder.
    """
    if part == "features":
        return probe(model, items, device)
    order = class_order(model, items)
    return answer(model, items, device) if order is None else classify(model, items, order, device)


def has_head_for(model: AuditedModel, items: Items, *, generic: bool = True) -> bool:
    """Whether a model can do a task itself, as `class_order` says; decoders can do any."""
    return model.answers or class_order(model, items, generic=generic) is not None


def probe(model: AuditedModel, items: Items, device: torch.device) -> Ints:
    """Return the class that a linear probe predicts for each row, shape (n,).

    The probe is a logistic regression on the mean of the last hidden states, fitted on the other
    folds; the model is frozen.
    """
    vectors = embed_rows(
        model.encoder, model.tokenizer, items.rows, length_of(model), device, "mean"
    )
    finite(vectors, model)
    predicted = np.empty(len(items.rows), dtype=np.int64)
    for fold in range(FOLDS):
        inside = items.folds == fold
        labels = items.rows.labels[~inside]
        fitted = fit_classes(vectors[~inside], labels, len(items.task.labels))
        predicted[inside] = fitted(vectors[inside]).argmax(1)
    return predicted


def class_order(model: AuditedModel, items: Items, *, generic: bool = True) -> list[int] | None:
    """Return the output of a model's classification head for each class of a task.

    None if the head is not that task's: its classes have other names. With `generic`, a head
    whose classes have no names (``LABEL_0``) has those of any task of as many classes.
    """
    own, names = model.classes, items.task.labels
    order = same_names(names, own)
    if order is None and generic and are_placeholders(own) and len(own) == len(names):
        return list(range(len(own)))
    return order


def classify(model: AuditedModel, items: Items, order: Sequence[int], device: torch.device) -> Ints:
    """Return the class that a model's own head predicts for each row, shape (n,)."""
    encoded = encoding.encode(items.rows, model.tokenizer, length_of(model))
    network, pad = model.model.to(device), int(model.tokenizer.pad_token_id)
    with padding(network, pad):
        logits = map_rows(
            lambda inputs: network(**inputs).logits[:, list(order)], encoded, pad, device
        )
    return np.asarray(finite(logits, model).argmax(1), np.int64)


@contextmanager
def padding(network: PreTrainedModel, pad: int) -> Iterator[None]:
    """Let a decoder whose configuration names no padding find the last token of padded rows."""
    config = network.config.get_text_config()
    own = config.pad_token_id
    config.pad_token_id = pad if own is None else own
    try:
        yield
    finally:
        config.pad_token_id = own


def answer(model: AuditedModel, items: Items, device: torch.device) -> Ints:
    """Return the class whose answer a decoder finds most probable for each row, shape (n,)."""
    rows, pad = prompted(model, items.task, items.rows), int(model.tokenizer.pad_token_id or 0)
    scorer = AnswerScorer(model.model.to(device), pad_id=pad)
    scores = finite(map_rows(scorer, rows, pad, device), model)
    return np.asarray(scores.argmax(1), np.int64)


def prompted(
    model: AuditedModel, task: Task, rows: Rows, *, to_train: bool = False
) -> encoding.PromptRows:
    """Return rows of a task as prompts with answers to choose from, or to train on."""
    chat = bool(model.tokenizer.chat_template)
    remedy = "Correct it, or remove it: without one, prompts are plain text."
    options = length_of(model), 1, chat, model.is_encoder_decoder, remedy
    try:
        return prompts.PromptEncoder(model.tokenizer, *options).encode(
            task, rows, to_train=to_train
        )
    except ModelError as error:
        raise ModelError(f"model {model.name!r}, on {task.name}: {error}") from error


def finite(values: Values, model: AuditedModel) -> Values:
    """Return outputs of a model; a NonFiniteLossError if they are not finite, as weights may be."""
    if not np.isfinite(values).all():
        raise NonFiniteLossError(
            f"model {model.name!r}: its outputs are not finite numbers, though its weights are. "
            "Check its config.json, or use a checkpoint from before its training diverged."
        )
    return values

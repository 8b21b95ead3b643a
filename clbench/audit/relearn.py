"""Real or spurious forgetting: what a few rows of a lost task bring back was never forgotten."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from clbench.audit import ability, items
from clbench.audit.changes import Change, judge
from clbench.audit.comparison import Comparison, sample
from clbench.audit.models import AuditedModel
from clbench.audit.scores import Floats, Paired
from clbench.core.errors import DataError, count, named
from clbench.core.seeds import numpy_stream
from clbench.fisher.language import HEAD_LR
from clbench.models import encoding
from clbench.models.answering import AnsweringModel
from clbench.models.classifier import evaluating
from clbench.tasks.sampling import stratified
from clbench.training.writing import prompt_rows

STEPS, BATCH = 40, 8
"""Steps, as in the study of ``docs/findings.md``, and rows in each."""
PARTS = ("tuned", "base", "left")
"""The changes of a relearned task."""
LENGTH = 128
"""Tokens of a general question from its end, so that the steps stay few seconds."""


@dataclass(frozen=True)
class Lesson:
    """How a task is relearned.

    Attributes
    ----------
    rows
        Returns rows to train a model on, and the outputs of its head for the classes; None in place
        of these if it answers in words.
    score
        Returns a model's scores of the items.
    """

    rows: Callable[[AuditedModel], tuple[encoding.EncodedRows, list[int] | None]]
    score: Callable[[AuditedModel], Floats]


def lesson(task: items.Items, rows: int, seed: int, device: torch.device) -> Lesson:
    """Return how the behaviour in a task is relearned on training rows that are not scored.

    Raises a DataError if there are fewer.
    """
    scored, train = {*zip(*task.rows.texts, strict=True)}, task.task.train
    texts = enumerate(zip(*train.texts, strict=True))
    free = np.array([i for i, text in texts if text not in scored], dtype=np.int64)
    if len(free) < rows:
        raise DataError(
            f"{named('relearn', rows)}: task {task.name!r} has {len(free)} training rows that are "
            "not scored. Relearn on fewer."
        )
    rng = numpy_stream("relearned rows", task.name, seed)
    few = train.take(rng.permutation(free[stratified(train.labels[free], rows, rng)]))

    def encoded(model: AuditedModel) -> tuple[encoding.EncodedRows, list[int] | None]:
        if (order := items.class_order(model, task)) is None:
            return items.prompted(model, task.task, few, to_train=True), None
        return encoding.encode(few, model.tokenizer, items.length_of(model)), order

    return Lesson(encoded, lambda m: items.hits(m, task, "behaviour", device).astype(np.float64))


def general_lesson(
    asked: Sequence[ability.Asked],
    rows: int,
    data: Path | None,
    seed: int,
    device: torch.device,
    *,
    form: bool = False,
) -> Lesson:
    """Return how general tasks are relearned together on questions that are not asked.

    With `form`, the form of written answers is scored, else whether they are right. Raises a
    DataError if a task has too few questions.
    """
    prompts, answers = [], []
    for number, each in enumerate(asked):
        task, read = each.task, each.tokenizer
        wanted = len(range(number, rows, len(asked)))
        known = {question.text for question in each.questions}
        more = task.questions(data, len(each.questions) + wanted, seed)
        few = [question for question in more if question.text not in known][:wanted]
        if len(few) < wanted:
            raise DataError(
                f"{named('relearn', rows)}: task {task.name!r} has {len(few)} questions that are "
                "not asked. Relearn on fewer."
            )
        for one in few:
            prompt, answer = one.prompts[0][0], f" {task.solution(one.row)}"
            if task.ending:  # the choices stand in the prompts
                prompt, answer = one.prompts[0][one.right], one.answers[0]
            prompts.append(read(prompt)["input_ids"][-LENGTH:])
            answers.append(read(answer, add_special_tokens=False)["input_ids"])

    def score(model: AuditedModel) -> Floats:
        found = [ability.answer(model, each, device).marks[:, int(form)] for each in asked]
        return np.concatenate(found)

    def encoded(model: AuditedModel) -> tuple[encoding.EncodedRows, list[int] | None]:
        rows = prompt_rows(prompts, answers)
        return replace(rows, encoder_decoder=model.is_encoder_decoder), None

    return Lesson(encoded, score)


@dataclass(frozen=True)
class Relearned:
    """What training on a few rows brings back of a lost task.

    Attributes
    ----------
    tuned, base
        Changes of the tuned and of the base model by the same training.
    left
        The tuned model minus the base model, both trained: below 0 is what was forgotten.
    """

    title: str
    rows: int
    tuned: Change
    base: Change
    left: Change

    @property
    def word(self) -> str:
        """Whether a loss is left, and whether the tuned model gained by the training."""
        if self.left.word == "forgot":
            return "partly forgotten" if self.tuned.word == "gained" else "forgotten"
        return "not forgotten" if self.tuned.word == "gained" else "unclear"

    def __str__(self) -> str:
        return (
            f"{self.word}  {self.title}: {count(self.rows, 'row')} bring back {self.tuned} (base "
            f"model: {self.base}), which leaves {self.left}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        changes = {name: getattr(self, name).to_json() for name in PARTS}
        return {"task": self.title, "rows": self.rows, "word": self.word, **changes}


@dataclass
class Relearner:
    """Trains copies of models by lessons, which have the task and part of a measure as keys."""

    base: AuditedModel
    lessons: dict[tuple[str, str], Lesson]
    rows: int
    rate: float
    margin: float
    tell: Callable[[str], None]
    _controls: dict[tuple[str, str], Floats] = field(default_factory=dict)

    def __call__(self, model: AuditedModel, comparison: Comparison) -> tuple[Relearned, ...]:
        """Return what a tuned model regains of lost tasks; all changes are one family."""
        samples = {}
        for each in comparison.measures:
            what, pair = (each.task, each.part), each.paired
            if what not in self.lessons or each.change.word != "forgot":
                continue
            if what not in self._controls:
                self._controls[what] = self._scored(self.base, what)
            base, tuned = self._controls[what], self._scored(model, what)
            both = (pair.tuned, tuned), (pair.base, base), (base, tuned)
            for part, scores in zip(PARTS, both, strict=True):
                samples[each.title, part] = sample(each.measure, Paired(pair.keys, *scores))
        changes = judge(samples, self.margin)
        return tuple(
            Relearned(title, self.rows, *(changes[title, part] for part in PARTS))
            for title in dict.fromkeys(title for title, _ in samples)
        )

    def _scored(self, model: AuditedModel, what: tuple[str, str]) -> Floats:
        """Return the scores of a copy of a model that is trained by a lesson."""
        self.tell(f"{model.name}: {what[0]} relearned on {count(self.rows, 'row')}")
        own = self.lessons[what]
        return own.score(trained(model, *own.rows(model), self.rate))


def missing(comparison: Comparison, relearned: Sequence[Relearned]) -> str:
    """Return a note on losses that are not relearned, or on that there are none; else nothing."""
    done = {each.title for each in relearned}
    lost = [m for m in comparison.measures if m.change.word == "forgot" and m.part != "features"]
    if rest := [each.title for each in lost if each.title not in done]:
        return f"Lost, but not relearned: {'; '.join(rest)}."
    return "" if done else "Nothing to relearn: no loss in behaviour or an axis is shown."


def trained(
    model: AuditedModel, rows: encoding.EncodedRows, order: list[int] | None, rate: float
) -> AuditedModel:
    """Return a copy of a model that is trained on a few rows, without dropout."""
    network: Any = copy.deepcopy(model.model)
    speaks, device = order is None, network.device
    forward: Any = AnsweringModel(network) if speaks else lambda inputs, _: network(**inputs).logits
    body = {id(value) for value in (network if speaks else network.base_model).parameters()}
    groups: list[dict[str, Any]] = [{"params": [], "lr": rate}, {"params": [], "lr": HEAD_LR}]
    for value in network.parameters():
        groups[id(value) not in body]["params"].append(value)
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / STEPS)
    pad = int(model.tokenizer.pad_token_id or 0)
    with evaluating(network, trained=network.parameters()), items.padding(network, pad):
        for step in range(STEPS):
            at = np.unique(np.arange(step * BATCH, (step + 1) * BATCH) % len(rows))
            inputs, labels = rows.collate(at, pad)
            logits = forward({name: value.to(device) for name, value in inputs.items()}, "")
            logits = logits if speaks else logits[:, order]
            loss = cross_entropy(logits.flatten(0, -2), labels.to(device).flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return replace(model, model=network)

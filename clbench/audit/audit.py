"""Audit tuned models against their base: language, features, behaviour, and where they moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch

from clbench.audit.changes import UNCHANGED, Flips, Floats, Sample, judge, mean_change
from clbench.audit.drift import drift, groups_of, put_back
from clbench.audit.items import (
    DEFAULT_TASKS,
    FEWEST_ROWS,
    Ints,
    Items,
    answer,
    class_order,
    classify,
    load_items,
    probe,
)
from clbench.audit.language import LanguageLoss
from clbench.audit.models import AuditedModel, digest_of, load_base, load_tuned
from clbench.audit.outcome import (
    Audit,
    Between,
    Comparison,
    Flipped,
    LanguageChange,
    ModelAudit,
    Part,
    PutBack,
    TaskChange,
)
from clbench.core.errors import DataError, SettingsError
from clbench.models.locate import resolve
from clbench.tasks.corpus import corpus_name, read_corpus, resolve_corpus
from clbench.training.device import resolve_device

TEXTS = 300
"""Held-out texts of the language loss."""
DRIFT_TEXTS = 200
"""Texts on which hidden states are compared."""
MOST_SHOWN = 20
"""Flipped items of each kind that are kept to be read."""
MARGIN = 0.02
"""Largest change that does not matter, in accuracy and in nats."""
LANGUAGE = "language"

Key = tuple[Part, str]


def audit(
    base: str,
    tuned: Sequence[str],
    *,
    tasks: Sequence[str] = DEFAULT_TASKS,
    data: str | Path | None = None,
    corpus: str = "built-in",
    rows: int = 500,
    margin: float = MARGIN,
    localise: bool = False,
    device: str = "auto",
    seed: int = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> Audit:
    """Return what tuned models lost of their base model.

    Parameters
    ----------
    base, tuned
        Built-in models, folders, or names on the hub; tuned ones may be PEFT adapters in folders.
    tasks
        Tasks to probe: names, or suite files for all of their own tasks.
    data
        Folder with copies of hub repositories, such as ``data/glue``.
    corpus
        ``built-in``, ``wiki40b/en``, or a file with one text per line, of which a tenth is read.
    rows
        Most rows of each task.
    margin
        Largest change that does not matter, in accuracy and in nats.
    localise
        Whether to restore the base model's weights in one group of layers at a time, and score
        again.
    device
        ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
    seed
        Seed of rows, folds and masks.
    tell
        Called with a line on what is being done.

    Raises
    ------
    ClbenchError
        If a model cannot be loaded safely or is not of the base model's kind, a task cannot be
        probed, or the corpus is too short; all of it before any long work.
    """
    names = [base, *tuned]
    if not tuned:
        raise SettingsError("there is no tuned model to audit. Name at least one.")
    if rows < FEWEST_ROWS:
        raise SettingsError(f"--rows {rows}: must be {FEWEST_ROWS} or more.")
    folders = [resolve(name) or name for name in tuned]
    if twice := [
        name for name, each in zip(tuned, folders, strict=True) if folders.count(each) > 1
    ]:
        raise SettingsError(f"model {twice[0]!r} is given twice. Name each tuned model once.")
    if not 0.0 < margin < 1.0:
        raise SettingsError(f"margin {margin:g}: must be between 0 and 1, such as {MARGIN}.")
    where = resolve_device(device)
    corpus = resolve_corpus(corpus, Path.cwd(), "--corpus")
    folder = None if data is None else Path(data)
    items = list(load_items(tasks, data=folder, count=rows, seed=seed))
    given = [each.name for each in items]
    if repeated := sorted({name for name in given if given.count(name) > 1}):
        raise DataError(f"--tasks names {', '.join(repeated)} more than once. Name each task once.")
    tell("loading models")
    first = load_base(base)
    models = [load_tuned(name, first) for name in tuned]
    tell("preparing texts")
    auditor = Auditor(
        first,
        items,
        LanguageLoss(first, corpus, TEXTS, seed, where),
        read_corpus(corpus, DRIFT_TEXTS, seed, held_out=True),
        where,
        margin,
        tuple(tasks) != DEFAULT_TASKS,
        tell,
    )
    seen = [auditor.look(model) for model in (first, *models)]
    audits = []
    for model, after in zip(models, seen[1:], strict=True):
        tell(f"{model.name}: weights and hidden states")
        layers = drift(first, model, auditor.texts, where)
        regained = tuple(auditor.put_back(model, after)) if localise else ()
        comparison = auditor.compare(seen[0], after)
        notes = (*first.notes, *model.notes, *auditor.without_behaviour(model, comparison))
        audits.append(ModelAudit(model.name, comparison, tuple(layers), regained, notes))
    return Audit(
        base,
        tuple(audits),
        tuple(
            Between(names[1 + i], names[1 + j], auditor.compare(seen[1 + i], seen[1 + j]))
            for i, j in combinations(range(len(models)), 2)
        ),
        {
            "tasks": [each.name for each in items],
            "rows": rows,
            "corpus": corpus_name(corpus),
            "margin": margin,
            "seed": seed,
        },
        tuple(
            f"{each.name}: {each.training} of the {len(each.rows)} rows are from its training set; "
            "a model tuned on them looks better than it is."
            for each in items
            if each.training
        ),
    )


@dataclass(frozen=True)
class Seen:
    """What a model predicts for each row of each task, its loss for each text, and its weights."""

    predictions: dict[Key, Ints]
    losses: Floats
    weights: dict[Part, str]  # digests of those that decide each part
    heads: dict[Part, str | None]


@dataclass(frozen=True)
class Auditor:
    """Looks at models one by one, and compares what it saw."""

    base: AuditedModel
    items: Sequence[Items]
    loss: LanguageLoss
    texts: Sequence[str]
    device: torch.device
    margin: float
    generic: bool
    """Whether a head without names of classes has those of a task of as many."""
    tell: Callable[[str], None]

    def look(self, model: AuditedModel) -> Seen:
        """Return what a model predicts."""
        found = self._features(model)
        for items in self.items:
            order = class_order(model, items, generic=self.generic)
            if order is None and not model.answers:
                continue
            self.tell(f"{model.name}: behaviour on {items.name}")
            found["behaviour", items.name] = (
                answer(model, items, self.device)
                if order is None
                else classify(model, items, order, self.device)
            )
        self.tell(f"{model.name}: language")
        weights: dict[Part, str] = {
            "features": digest_of(model.backbone),
            "behaviour": digest_of(model.model),
        }
        return Seen(found, self.loss(model), weights, {"behaviour": model.head})

    def _features(self, model: AuditedModel) -> dict[Key, Ints]:
        found: dict[Key, Ints] = {}
        for items in self.items:
            self.tell(f"{model.name}: features of {items.name}")
            found["features", items.name] = probe(model, items, self.device)
        return found

    def compare(self, before: Seen, after: Seen) -> Comparison:
        """Return the changes between two models, judged as one family."""
        items = {each.name: each for each in self.items}
        hits = {
            key: tuple(s.predictions[key] == items[key[1]].rows.labels for s in (before, after))
            for key in before.predictions
            if key in after.predictions and before.heads.get(key[0]) == after.heads.get(key[0])
        }
        flips = {key: Flips.of(*both) for key, both in hits.items()}
        samples: dict[str | Key, Sample] = {LANGUAGE: mean_change(-before.losses, -after.losses)}
        samples |= {
            key: UNCHANGED if before.weights[key[0]] == after.weights[key[0]] else each.sample()
            for key, each in flips.items()
        }
        changes = judge(samples, self.margin)
        return Comparison(
            LanguageChange(
                self.loss.description,
                float(before.losses.mean()),
                float(after.losses.mean()),
                changes[LANGUAGE],
            ),
            tuple(
                TaskChange(
                    name,
                    part,
                    float(hits[part, name][0].mean()),
                    float(hits[part, name][1].mean()),
                    items[name].chance,
                    flips[part, name],
                    changes[part, name],
                    tuple(_flipped(items[name], before, after, (part, name))),
                )
                for part, name in hits
            ),
        )

    def without_behaviour(self, model: AuditedModel, comparison: Comparison) -> Iterator[str]:
        """Yield why the own heads of base and tuned model are not compared, if they are not."""
        if comparison.of("behaviour"):
            return
        base = self.base
        if base.head is None or model.head is None:
            lacks = base if base.head is None else model
            yield f"No behaviour: {lacks.name} has no head of its own."
        elif base.head != model.head:
            yield "No behaviour: one model has classes, the other a language-model head."
        elif base.head == "classes":
            known = "; ".join(f"{each.name}: {', '.join(each.task.labels)}" for each in self.items)
            yield (
                f"No behaviour: no task has the classes of both heads ({', '.join(base.classes)} "
                f"and {', '.join(model.classes)}). Classes of the tasks: {known}."
            )

    def put_back(self, model: AuditedModel, after: Seen) -> Iterator[PutBack]:
        """Yield what the model regains with each group of the base model's layers."""
        for group in groups_of(model):
            self.tell(f"{model.name}: {group.name} put back")
            with put_back(model, self.base, group):
                found, losses = self._features(model), self.loss(model)
            gains = [
                float((found["features", each.name] == each.rows.labels).mean())
                - float((after.predictions["features", each.name] == each.rows.labels).mean())
                for each in self.items
            ]
            yield PutBack(
                group.name, sum(gains) / len(gains), float(after.losses.mean() - losses.mean())
            )


def _flipped(items: Items, before: Seen, after: Seen, key: Key) -> Iterator[Flipped]:
    """Yield the first items that the tuned model lost, then those that it gained."""
    one, two, labels = before.predictions[key], after.predictions[key], items.rows.labels
    for lost in (True, False):
        right, wrong = (one, two) if lost else (two, one)
        for i in ((right == labels) & (wrong != labels)).nonzero()[0][:MOST_SHOWN]:
            names = items.task.labels
            yield Flipped(
                tuple(column[i] for column in items.rows.texts),
                names[labels[i]],
                names[one[i]],
                names[two[i]],
                lost,
            )

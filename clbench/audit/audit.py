"""Audit tuned models against their base: language, features, behaviour, and where they moved."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch

from clbench.audit import changes, items
from clbench.audit.comparison import Comparison, Flipped, compare
from clbench.audit.models import AuditedModel, HeadKind, digest_of, identity, load_base, load_tuned
from clbench.audit.result import MARGIN, Audit, Between, ModelAudit, PutBack, check_change
from clbench.audit.scores import ItemScores, Part
from clbench.audit.weights import TUNED, Mixer, drift, groups_of
from clbench.core.errors import SettingsError, named
from clbench.core.files import digest
from clbench.core.user_code import own_state
from clbench.models.locate import titles_of
from clbench.results.statistics import ALPHA, POWER
from clbench.tasks.corpus import corpus_name, read_corpus, resolve_corpus
from clbench.training.device import resolve_device

TEXTS = 300
"""Held-out texts of the language loss."""
DRIFT_TEXTS = 200
"""Texts on which hidden states are compared."""
UNRELATED = 0.5
"""Share of items that flip between two unrelated models of accuracy ½."""
MOST_SHOWN = 20
"""Flipped items of each kind that are kept to be read."""

Key = tuple[Part, str]


def identify(base: str, tuned: Sequence[str], seed: int = 0, **settings: object) -> str:
    """Return a digest of what makes two audits the same: the models' contents, and settings.

    Raises a ClbenchError if no tuned model is given, one is given twice, or one is not found.
    """
    if not tuned:
        raise SettingsError("there is no tuned model to audit. Name at least one.")
    names: dict[str, str] = {}
    for name in tuned:
        if (content := json.dumps(identity(name))) in names:
            twice = f"twice, first as {names[content]!r}"
            raise SettingsError(f"model {name!r} is given {twice}. Name each tuned model once.")
        names[content] = name
    key = [identity(base), [*names], seed, settings]
    return digest(json.dumps(key, sort_keys=True, default=str))


@own_state()
def audit(
    base: str,
    tuned: Sequence[str],
    *,
    tasks: Sequence[str] = items.DEFAULT_TASKS,
    data: str | Path | None = None,
    corpus: str = "built-in",
    rows: int = 500,
    texts: int = TEXTS,
    margin: float = MARGIN,
    detect: float | None = None,
    localise: bool = False,
    device: str = "auto",
    seed: int = 0,
    tell: Callable[[str], None] = lambda text: None,
    note: Callable[[str], None] = lambda text: None,
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
    rows, texts
        Most rows of each task, and held-out texts of the language loss.
    margin
        Largest change that does not matter, in accuracy and in nats.
    detect
        Smallest change of accuracy worth detecting: `note` gets a line, before the scoring, on
        whether the rows suffice.
    localise
        Whether to restore the base model's weights in one group of layers at a time, and score
        again.
    device
        ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
    seed
        Seed of rows, folds and masks.
    tell, note
        Called with a line on what is being done, and with one to keep.

    Raises
    ------
    ClbenchError
        Before any long work: if a model, a task or the corpus cannot be used.
    """
    check_change("margin", margin)
    check_change("detect", detect)
    items.check_count("rows", rows, items.FEWEST_ROWS)
    items.check_count("texts", texts, items.FEWEST_TEXTS)
    items.check_count("seed", seed)
    settings = {"rows": rows, "texts": texts, "margin": margin}
    key = identify(base, tuned, seed, tasks=tuple(tasks), data=data, corpus=corpus, **settings)
    where = resolve_device(device)
    corpus = resolve_corpus(corpus, Path.cwd(), named("corpus"))
    probed = items.load_items(tasks, data=data, rows=rows, seed=seed)
    tell("loading models")
    first = load_base(base)
    models = [load_tuned(name, first) for name in tuned]
    tell("preparing texts")
    loss = items.LanguageLoss(first, corpus, texts, seed, where)
    auditor = Auditor(first, probed, loss, where, margin, tuple(tasks) != items.DEFAULT_TASKS, tell)
    if detect is not None:
        note(auditor.plan(detect))
    compared = read_corpus(corpus, DRIFT_TEXTS, seed, held_out=True)
    before, *afters = [auditor.look(model) for model in (first, *models)]
    audits = []
    title, *titles = titles_of((base, *tuned))
    for model, name, after in zip(models, titles, afters, strict=True):
        tell(f"{model.name}: weights and hidden states")
        layers = drift(first, model, compared, where)
        regained = tuple(auditor.put_back(model, after)) if localise else ()
        comparison = auditor.compare(before, after)
        notes = (*first.notes, *model.notes, *auditor.without_behaviour(model, comparison))
        if before.weights["features"] == after.weights["features"] and not comparison.identical:
            notes = (*notes, "All weights below the head are the base model's.")
        audits.append(ModelAudit(name, comparison, tuple(layers), regained, notes))
    pairs = zip(combinations(titles, 2), combinations(afters, 2), strict=True)
    return Audit(
        title,
        tuple(audits),
        tuple(Between(one, two, auditor.compare(*pair)) for (one, two), pair in pairs),
        {
            "tasks": [each.name for each in probed],
            "corpus": corpus_name(corpus),
            **settings,
            "seed": seed,
        },
        tuple(
            f"{each.name}: {each.training} of the {len(each.rows)} rows are from its training set; "
            "a model tuned on them looks better than it is."
            for each in probed
            if each.training
        ),
        key,
    )


@dataclass(frozen=True)
class Observation:
    """What a model scored, what it predicts for each row of each task, and its weights."""

    scores: tuple[ItemScores, ...]
    predictions: dict[Key, items.Ints]
    weights: dict[Part, str]  # what decides each part: their digest, and the configuration
    head: HeadKind | None

    def mean(self, part: Part, task: str = "") -> float:
        """Return the mean score of a part, or of one task of it."""
        found = [s.scores.mean() for s in self.scores if s.part == part and task in ("", s.task)]
        return float(sum(found) / len(found))


@dataclass(frozen=True)
class Auditor:
    """Looks at models one by one, and compares what it saw."""

    base: AuditedModel
    tasks: Sequence[items.Items]
    loss: items.LanguageLoss
    device: torch.device
    margin: float
    generic: bool
    """Whether a head without names of classes has those of a task of as many."""
    tell: Callable[[str], None]

    def plan(self, change: float) -> str:
        """Return whether the rows show a change of accuracy; that depends on how many flip."""
        own = [items.has_head_for(self.base, each, generic=self.generic) for each in self.tasks]
        fewest = min(self.tasks, key=lambda each: len(each.rows))
        needed = changes.items_needed(1.0, change, ALPHA / (1 + len(own) + sum(own)))
        share, words = len(fewest.rows) / needed, "are too few"
        if share > change:  # as at least that share flips
            words = f"suffice if at most {100 * min(share, 1.0):.0f} % of them flip"
        return (
            f"{named('detect', change)}: {len(fewest.rows)} rows of {fewest.name} {words} "
            f"({100 * POWER:.0f} % power); {math.ceil(UNRELATED * needed):,} suffice in any case."
        )

    def look(self, model: AuditedModel) -> Observation:
        """Return what a model predicts."""
        parts: tuple[Part, ...] = ("features", "behaviour")
        predictions: dict[Key, items.Ints] = {}
        scores = []
        for part in parts:
            for each in self.tasks:
                if part == "features" or items.has_head_for(model, each, generic=self.generic):
                    self.tell(f"{model.name}: {part} of {each.name}")
                    predicted = items.predict(model, each, part, self.device)
                    predictions[part, each.name] = predicted
                    scores.append(items.scores(each, part, predicted))
        self.tell(f"{model.name}: language")
        language = self.loss.scores(model)
        weights: dict[Part, str] = {
            "features": digest_of(model.backbone) + model.computation,
            "behaviour": digest_of(model.model) + model.computation,
        }
        return Observation((language, *scores), predictions, weights, model.head)

    def compare(self, before: Observation, after: Observation) -> Comparison:
        """Return the changes between two models, judged as one family."""
        by_name = {each.name: each for each in self.tasks}
        same_head = before.head == after.head
        return compare(
            before.scores,
            [s for s in after.scores if s.part != "behaviour" or same_head],
            self.margin,
            unchanged=[part for part, own in before.weights.items() if own == after.weights[part]],
            identical=before.weights == after.weights,
            flipped=lambda own: (
                tuple(_flipped(by_name[own.task], before, after, (own.part, own.task)))
                if own.task in by_name
                else ()
            ),
        )

    def without_behaviour(self, model: AuditedModel, comparison: Comparison) -> Iterator[str]:
        """Yield why the own heads of base and tuned model are not compared, if they are not."""
        if any(task.part == "behaviour" for task in comparison.tasks):
            return
        base = self.base
        if lacking := [each.title for each in (base, model) if each.head is None]:
            yield f"No behaviour: {lacking[0]} has no head of its own."
        elif base.head != model.head:
            yield "No behaviour: one model has classes, the other a language-model head."
        elif base.head == "classes":
            known = "; ".join(f"{each.name}: {', '.join(each.task.labels)}" for each in self.tasks)
            yield (
                f"No behaviour: no task has the classes of both heads ({', '.join(base.classes)} "
                f"and {', '.join(model.classes)}). Classes of the tasks: {known}."
            )

    def put_back(self, model: AuditedModel, after: Observation) -> Iterator[PutBack]:
        """Yield what the model regains with each group of the base model's layers."""
        mixer = Mixer(self.base, model)
        for group in groups_of(model):
            self.tell(f"{model.name}: {group.name} put back")
            with mixer.mixed(TUNED.with_group(group.name, 0.0)):
                gains = [
                    float(items.hits(model, each, "features", self.device).mean())
                    - after.mean("features", each.name)
                    for each in self.tasks
                ]
                losses = self.loss(model)
            regained = -float(losses.mean()) - after.mean("language")
            yield PutBack(group.name, sum(gains) / len(gains), regained)


def _flipped(
    task: items.Items, before: Observation, after: Observation, key: Key
) -> Iterator[Flipped]:
    """Yield the first items that the tuned model lost, then those that it gained."""
    one, two, labels = before.predictions[key], after.predictions[key], task.rows.labels
    for lost in (True, False):
        right, wrong = (one, two) if lost else (two, one)
        for i in ((right == labels) & (wrong != labels)).nonzero()[0][:MOST_SHOWN]:
            names = task.task.labels
            yield Flipped(
                tuple(column[i] for column in task.rows.texts),
                names[labels[i]],
                names[one[i]],
                names[two[i]],
                lost,
            )

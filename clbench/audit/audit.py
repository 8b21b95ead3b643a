"""Audit tuned models against their base: language, features, behaviour, and where they moved."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from clbench.audit import ability, items, planning
from clbench.audit.comparison import Comparison, compare
from clbench.audit.gate import Gate
from clbench.audit.language import LanguageLoss
from clbench.audit.material import Material
from clbench.audit.models import AuditedModel, HeadKind, digest_of, identity, load_base, load_tuned
from clbench.audit.relearn import Relearner, missing
from clbench.audit.result import Audit, Between, ModelAudit, PutBack
from clbench.audit.scores import ItemScores, Part
from clbench.audit.settings import FEWEST_ROWS, AuditSettings
from clbench.audit.weights import TUNED, Mixer, drift, groups_of, same_if_rounded
from clbench.core.errors import ModelError, SettingsError, join_names, named
from clbench.core.files import digest
from clbench.core.user_code import own_state
from clbench.models.locate import titles_of
from clbench.results.statistics import ALPHA, spend
from clbench.tasks.corpus import corpus_identity, corpus_name, read_corpus, resolve_corpus
from clbench.training.device import resolve_device

DRIFT_TEXTS = 200
"""Texts on which hidden states are compared."""


def with_tasks(settings: AuditSettings, base: str) -> AuditSettings:
    """Return settings with the tasks of `items.default_tasks` if they name none."""
    if settings.tasks:
        return settings
    return replace(settings, tasks=items.default_tasks(base, settings.data), by_default=True)


def identify(base: str, tuned: Sequence[str], settings: AuditSettings) -> str:
    """Return a digest of what makes two audits the same: contents of models and data, and settings.

    Raises a ClbenchError if no tuned model is given, one is given twice, or a model, a task or the
    corpus is not found.
    """
    if not tuned:
        raise SettingsError("there is no tuned model to audit. Name at least one.")
    names: dict[str, str] = {}
    for name in tuned:
        if (content := json.dumps(identity(name))) in names:
            twice = f"twice, first as {names[content]!r}"
            raise SettingsError(f"model {name!r} is given {twice}. Name each tuned model once.")
        names[content] = name
    general, others = ability.chosen(settings.tasks)
    corpus = resolve_corpus(settings.corpus, Path.cwd(), named("corpus"))
    contents = [*items.contents_of([*general, *others], settings.folder), corpus_identity(corpus)]
    switches = ("detect", "until_settled", "localise", "by_default")
    more = {name: value for name in switches if (value := getattr(settings, name))}
    own = {"tasks": settings.tasks} | settings.numbers() | more
    key = [identity(base), [*names], settings.seed, own, contents]
    return digest(json.dumps(key, sort_keys=True, default=str))


@dataclass(frozen=True)
class Prepared:
    """What an audit works on, checked before any long work.

    Attributes
    ----------
    settings
        With the rows that show a change of `detect`, if it is given.
    corpus
        As `resolve_corpus` returns it.
    material
        The items of the last look.
    generic
        Whether a head without names of classes has those of a task of as many; only if the user
        named the tasks.
    tests
        How many changes of a model are judged together.
    looks
        The numbers of rows after which the audit looks.
    """

    settings: AuditSettings
    corpus: str
    base: AuditedModel
    tuned: Sequence[AuditedModel]
    material: Material
    generic: bool
    tests: int
    looks: Sequence[int]

    def look(self, rows: int) -> Material:
        """Return the items of one of the looks."""
        if rows == self.looks[-1]:
            return self.material
        return Material.load(self.base.name, self.settings, rows / self.looks[0])


def prepare(
    base: str,
    tuned: Sequence[str],
    settings: AuditSettings,
    device: torch.device,
    gate: Gate | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Prepared:
    """Return the models and items of an audit; parameters and errors as in `audit`."""
    general, _ = ability.chosen(settings.tasks)
    given = {"rephrase": settings.rephrase != 1, "questions": settings.questions is not None}
    for name in given:
        if given[name] and not general:
            raise SettingsError(f"{named(name)} is for general tasks, but there are none.")
    corpus = resolve_corpus(settings.corpus, Path.cwd(), named("corpus"))
    material = Material.load(base, settings)
    if gate is not None:
        gate.check([*material.sizes])
    tell("loading models")
    first = load_base(base)
    if general and not first.answers:
        raise ModelError(
            f"model {base!r}: {join_names(general)} need a decoder with a language-model head. "
            f"Name classification tasks in {named('tasks')}."
        )
    models = [load_tuned(name, first) for name in tuned]
    generic = not settings.by_default
    tests = material.tests(first, generic=generic)
    sized = _sized(settings, material, tests)
    times = planning.LOOKS[-1] if settings.until_settled else 1
    if times > 1 or sized is not settings:
        material = Material.load(base, sized, times)
    most = sized.rows
    if times > 1 and material.sizes:
        most = material.reach(sized)
    elif times > 1:  # language alone
        texts = read_corpus(corpus, times * sized.texts, sized.seed, held_out=True)
        most = math.ceil(sized.rows * len(texts) / sized.texts)
    looks = planning.looks(sized.rows, most)
    if settings.relearn is not None:
        material.lessons(sized, device)
    return Prepared(sized, corpus, first, models, material, generic, tests, looks)


def _sized(settings: AuditSettings, material: Material, tests: int) -> AuditSettings:
    """Return settings with as many rows as show a change of `detect`, if it is given."""
    if settings.detect is None:
        return settings
    rows = max(FEWEST_ROWS, planning.rows_needed(settings.detect, tests))
    return replace(settings, rows=rows, questions=rows if material.asked else None, detect=None)


@own_state()
def audit(
    base: str,
    tuned: Sequence[str],
    *,
    gate: Gate | None = None,
    device: str = "auto",
    tell: Callable[[str], None] = lambda text: None,
    note: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Audit:
    """Return what tuned models lost of their base model.

    Parameters
    ----------
    base, tuned
        Built-in models, folders, or names on the hub; tuned ones may be PEFT adapters in folders.
    gate
        What must hold for each tuned model.
    device
        ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
    tell, note
        Called with a line on what is being done, and with one to keep, such as on the loss that the
        rows can show.
    options
        Those of `clbench.audit.settings.AuditSettings`.

    Raises
    ------
    ClbenchError
        Before any long work: if a model, a task or the corpus cannot be used.
    """
    settings = with_tasks(AuditSettings(**options), base)
    key, where = identify(base, tuned, settings), resolve_device(device)
    ready = prepare(base, tuned, settings, where, gate, tell)
    first, models, material = ready.base, ready.tuned, ready.material
    looks, generic = ready.looks, ready.generic
    if material.sizes:
        note(planning.plan(material.sizes, ready.tests, settings.detect, spend(looks)[-1]))
    known: dict[tuple[str, str], dict[str, tuple[Any, ...]]] = {}
    for rows, alpha in zip(looks, spend(looks), strict=True):
        if rows != looks[0]:
            note("Not all comparisons are settled: looking at more items of each task.")
        tell("preparing texts")
        texts = settings.texts * rows // looks[0]
        loss = LanguageLoss(first, ready.corpus, texts, settings.seed, where)
        chosen = ready.look(rows)
        how = settings.margin, generic, tell, alpha, known
        auditor = Auditor(first, chosen, loss, where, *how)
        before, *afters = map(auditor.look, (first, *models))
        comparisons = [auditor.compare(before, after) for after in afters]
        if all(comparison.is_settled for comparison in comparisons):
            break
    relearner = None
    if settings.relearn is not None:
        more = settings.relearn, settings.relearn_rate, settings.margin, tell
        relearner = Relearner(first, chosen.lessons(ready.settings, where), *more)
    compared = read_corpus(ready.corpus, DRIFT_TEXTS, settings.seed, held_out=True)
    audits = []
    title, *titles = titles_of((base, *tuned))
    for model, name, after, comparison in zip(models, titles, afters, comparisons, strict=True):
        tell(f"{model.name}: weights and hidden states")
        layers = tuple(drift(first, model, compared, where))
        regained = tuple(auditor.put_back(model, after)) if settings.localise else ()
        relearned = relearner(model, comparison) if relearner else ()
        notes = *first.notes, *model.notes, *auditor.notes(model, before, after, comparison)
        if relearner and (line := missing(comparison, relearned)):
            notes = (*notes, line)
        decision = None if gate is None else gate.decide(comparison)
        audits.append(ModelAudit(name, comparison, layers, regained, relearned, notes, decision))
    pairs = zip(combinations(titles, 2), combinations(afters, 2), strict=True)
    spent = {"looks": list(looks), "alpha": alpha} if settings.until_settled else {}
    most = {"rows": rows, "texts": texts}
    if (questions := ready.settings.questions) is not None:
        most["questions"] = math.ceil(questions * rows / looks[0])
    described = [each.description for each in before.scores[1:] if each.description]
    is_built_in = settings.by_default and settings.tasks == items.DEFAULT_TASKS
    return Audit(
        title,
        tuple(audits),
        tuple(
            Between(one, two, auditor.compare(*pair, between=True)) for (one, two), pair in pairs
        ),
        {"tasks": [*material.sizes], "corpus": corpus_name(ready.corpus)}
        | settings.numbers()
        | most
        | {"seed": settings.seed}
        | spent,
        (*([items.BUILT_IN] if is_built_in else []), *chosen.notes, *described),
        key,
    )


@dataclass(frozen=True)
class Observation:
    """What a model scored, what it answers to general tasks, and what decided that."""

    scores: tuple[ItemScores, ...]
    weights: dict[Part, str]  # what decides each part: their digest, and the configuration
    reading: dict[Part, str]  # what else decides it: chat template, or side that long texts lose
    head: HeadKind | None
    answers: Sequence[ability.Answers] = ()

    def mean(self, part: Part, task: str = "") -> float:
        """Return the mean score of a part, or of one task of it."""
        found = [s.scores.mean() for s in self.scores if s.part == part and task in ("", s.task)]
        return float(sum(found) / len(found))


@dataclass(frozen=True)
class Auditor:
    """Looks at models one by one, and compares what it saw."""

    base: AuditedModel
    material: Material
    loss: LanguageLoss
    device: torch.device
    margin: float
    generic: bool
    """Whether a head without names of classes has those of a task of as many."""
    tell: Callable[[str], None]
    alpha: float = ALPHA
    """Error rate of a comparison."""
    known: dict[tuple[str, str], dict[str, tuple[Any, ...]]] = field(default_factory=dict)
    """What earlier looks found, by model and task."""

    def look(self, model: AuditedModel) -> Observation:
        """Return what a model scores and answers."""
        scores = []
        for part in ("features", "behaviour"):
            for each in self.material.probed:
                if part == "features" or items.has_head_for(model, each, generic=self.generic):
                    self.tell(f"{model.name}: {part} of {each.name}")
                    scores.append(items.scores(model, each, part, self.device))
        answers = []
        for asked in self.material.asked if model.answers else ():
            self.tell(f"{model.name}: {asked.task.name}")
            known = self.known.setdefault((model.name, asked.task.name), {})
            answers.append(ability.answer_new(model, asked, self.device, known))
        scores += ability.scores(self.material.asked[: len(answers)], answers)
        self.tell(f"{model.name}: language")
        language = self.loss.scores(model)
        weights: dict[Part, str] = {
            "features": digest_of(model.encoder) + model.computation,
            "behaviour": digest_of(model.model) + model.computation,
        }
        weights |= {each.part: weights["behaviour"] for each in scores if each.part != "features"}
        side, template = model.tokenizer.truncation_side, str(model.tokenizer.chat_template or "")
        reading: dict[Part, str] = {"features": side, "behaviour": template}
        if not model.answers:
            reading["behaviour"] = side
        return Observation((language, *scores), weights, reading, model.head, answers)

    def compare(
        self, before: Observation, after: Observation, *, between: bool = False
    ) -> Comparison:
        """Return the changes between two models, judged as one family."""
        same_head = before.head == after.head
        same = {part for part, own in before.weights.items() if own == after.weights.get(part)}
        differing = {p for p, own in before.reading.items() if own != after.reading[p]}
        return compare(
            before.scores,
            [s for s in after.scores if s.part != "behaviour" or same_head],
            self.margin,
            unchanged=same - differing,
            identical=before.weights == after.weights and not differing,
            alpha=self.alpha,
            between=between,
        )

    def notes(
        self, model: AuditedModel, before: Observation, after: Observation, comparison: Comparison
    ) -> Iterator[str]:
        """Yield why heads are not compared, what is read in another way, and equal weights."""
        if self.material.asked and not model.answers:
            yield f"No general tasks: {model.title} has no language-model head."
        if self.material.probed and all(task.part != "behaviour" for task in comparison.tasks):
            yield from self._without_behaviour(model)
        both = f"{self.base.title} and {model.title}"
        if self.material.probed and before.reading["features"] != after.reading["features"]:
            yield (
                f"Texts of more than {items.length_of(model)} tokens are cut at different ends for "
                f"{both}, as their tokenizers say (truncation_side)."
            )
        has_other_chat = before.reading["behaviour"] != after.reading["behaviour"]
        if self.material.probed and self.base.answers and model.answers and has_other_chat:
            yield f"Prompts of probed tasks differ, as the chat templates of {both} do."
        if before.weights["features"] == after.weights["features"] and not comparison.identical:
            where = " of the encoder" if self.base.is_encoder_decoder else " below the head"
            where = "" if before.weights == after.weights else where
            yield f"All weights{where} are the base model's."
        if kind := same_if_rounded(self.base, model):
            yield f"All weights are the base model's once both are rounded to {kind}."

    def _without_behaviour(self, model: AuditedModel) -> Iterator[str]:
        """Yield why the own heads of base and tuned model are not compared."""
        base = self.base
        if lacking := [each.title for each in (base, model) if each.head is None]:
            yield f"No behaviour: {lacking[0]} has no head of its own."
        elif base.head != model.head:
            yield "No behaviour: one model has classes, the other a language-model head."
        elif base.head == "classes":
            known = "; ".join(
                f"{each.name}: {', '.join(each.task.labels)}" for each in self.material.probed
            )
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
                    for each in self.material.probed
                ] or [
                    float(ability.answer(model, each, self.device).right.mean() - own.right.mean())
                    for each, own in zip(self.material.asked, after.answers, strict=False)
                ]
                losses = self.loss(model)
            regained = -float(losses.mean()) - after.mean("language")
            yield PutBack(group.name, fmean(gains) if gains else None, regained)

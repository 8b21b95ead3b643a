"""Audit tuned models against their base: language, features, behaviour, and where they moved."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from clbench.audit import ability, items, planning
from clbench.audit import relearn as relearning
from clbench.audit.comparison import Comparison, compare
from clbench.audit.gate import Gate
from clbench.audit.language import FEWEST_TEXTS, LanguageLoss
from clbench.audit.material import Material, Source, reach
from clbench.audit.models import AuditedModel, HeadKind, digest_of, identity, load_base, load_tuned
from clbench.audit.result import MARGIN, Audit, Between, ModelAudit, PutBack, check_change
from clbench.audit.scores import ItemScores, Part
from clbench.audit.weights import TUNED, Mixer, drift, groups_of
from clbench.core.errors import ModelError, SettingsError, join_names, named
from clbench.core.files import digest
from clbench.core.user_code import own_state
from clbench.models.locate import titles_of
from clbench.results.statistics import ALPHA, spend
from clbench.tasks.corpus import corpus_name, read_corpus, resolve_corpus
from clbench.training.device import resolve_device

TEXTS = 300
"""Held-out texts of the language loss."""
DRIFT_TEXTS = 200
"""Texts on which hidden states are compared."""


def identify(base: str, tuned: Sequence[str], seed: int = 0, **settings: object) -> str:
    """Return a digest of what makes two audits the same: the models' contents, and settings.

    `detect` and `until_settled` count only where they are set.
    Raises a ClbenchError if no tuned model is given, one is given twice, or one is not found.
    """
    if not tuned:
        raise SettingsError("there is no tuned model to audit. Name at least one.")
    settings = {k: v for k, v in settings.items() if v or k not in ("detect", "until_settled")}
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
    tasks: Sequence[str] = (),
    data: str | Path | None = None,
    corpus: str = "built-in",
    rows: int = 500,
    questions: int | None = None,
    rephrase: int = 1,
    texts: int = TEXTS,
    margin: float = MARGIN,
    detect: float | None = None,
    until_settled: bool = False,
    gate: Gate | None = None,
    localise: bool = False,
    relearn: int | None = None,
    relearn_rate: float = relearning.RATE,
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
        Tasks to probe: names, or suite files for all of their own tasks; and general tasks of
        language models, as `clbench.audit.ability.chosen` names them. By default those of
        `clbench.audit.items.default_tasks`.
    data
        Folder with copies of hub repositories, such as ``data/glue``.
    corpus
        ``built-in``, ``wiki40b/en``, or a file with one text per line, of which a tenth is read.
    rows, texts
        Most rows of each task, and held-out texts of the language loss.
    questions
        Most questions of each general task; by default 100, or 50 where answers are written.
    rephrase
        In how many wordings each general question is asked.
    margin
        Largest change that does not matter, in accuracy and in nats.
    detect
        Loss of accuracy that the rows shall show with 80 % power: it chooses their number instead
        of `rows`, as far as the tasks have so many.
    until_settled
        Whether to go on with twice as many rows and texts, twice at most, until every change has a
        verdict. The error rate is spent over these looks.
    gate
        What must hold for each tuned model.
    localise
        Whether to restore the base model's weights in one group of layers at a time, and score
        again.
    relearn, relearn_rate
        Training rows on which copies of the models relearn each task whose loss in behaviour is
        shown, and the learning rate; see `clbench.audit.relearn`.
    device
        ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
    seed
        Seed of rows, folds and masks.
    tell, note
        Called with a line on what is being done, and with one to keep, such as on the loss that the
        rows can show.

    Raises
    ------
    ClbenchError
        Before any long work: if a model, a task or the corpus cannot be used.
    """
    check_change("margin", margin)
    check_change("detect", detect)
    check_change("relearn_rate", relearn_rate)
    items.check_count("rows", rows, items.FEWEST_ROWS)
    items.check_count("texts", texts, FEWEST_TEXTS)
    items.check_count("seed", seed)
    tasks = tuple(tasks) or items.default_tasks(base, data)
    general, _ = ability.chosen(tasks)
    if rephrase != 1 and not general:
        raise SettingsError(f"{named('rephrase')} is for general tasks, but there are none.")
    if detect is not None and questions is not None:
        both = f"{named('detect')} chooses the number of questions"
        raise SettingsError(f"{both}. Leave {named('questions')} out.")
    settings: dict[str, Any] = {"rows": rows, "texts": texts, "margin": margin}
    if questions is not None or rephrase != 1:
        settings |= {"questions": questions, "rephrase": rephrase}
    if relearn is not None:
        items.check_count("relearn", relearn, 1)
        settings |= {"relearn": relearn, "relearn_rate": relearn_rate}
    more: dict[str, Any] = {**settings, "detect": detect, "until_settled": until_settled}
    key = identify(base, tuned, seed, tasks=tasks, data=data, corpus=corpus, **more)
    where = resolve_device(device)
    corpus = resolve_corpus(corpus, Path.cwd(), named("corpus"))
    source = Source(tasks, base, None if data is None else Path(data), seed, rephrase)
    material = source.load(rows, questions)
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
    generic = tasks != items.DEFAULT_TASKS
    tests = material.tests(first, generic=generic)
    if detect is not None:
        rows = max(items.FEWEST_ROWS, planning.rows_needed(detect, tests))
        questions = rows if material.asked else questions
    times = planning.LOOKS[-1] if until_settled else 1
    if times > 1 or rows != settings["rows"]:
        material = source.load(rows, questions, times)
    most = reach(material, rows, questions) if until_settled else rows
    looks = planning.looks(rows, most)
    if relearn is not None:
        source.lessons(material, relearn, where)  # raises errors before the work
    if sizes := material.sizes:
        note(planning.plan(sizes, tests, detect))
    for count, alpha in zip(looks, spend(looks), strict=True):
        if count != rows:
            note("Not all comparisons are settled: looking at more items of each task.")
        tell("preparing texts")
        wanted = texts * count // looks[0]
        loss = LanguageLoss(first, corpus, wanted, seed, where)
        last = count == looks[-1]
        chosen = material if last else source.load(rows, questions, count / rows)
        auditor = Auditor(first, chosen, loss, where, margin, generic, tell, alpha)
        before, *afters = [auditor.look(model) for model in (first, *models)]
        comparisons = [auditor.compare(before, after) for after in afters]
        if all(comparison.is_settled for comparison in comparisons):
            break
    relearner = None
    if relearn is not None:
        lessons = source.lessons(chosen, relearn, where)
        relearner = relearning.Relearner(first, lessons, relearn, relearn_rate, margin, tell)
    compared = read_corpus(corpus, DRIFT_TEXTS, seed, held_out=True)
    audits = []
    title, *titles = titles_of((base, *tuned))
    for model, name, after, comparison in zip(models, titles, afters, comparisons, strict=True):
        tell(f"{model.name}: weights and hidden states")
        layers = drift(first, model, compared, where)
        regained = tuple(auditor.put_back(model, after)) if localise else ()
        decision = None if gate is None else gate.decide(comparison)
        notes = (*first.notes, *model.notes, *auditor.without_behaviour(model, comparison))
        if before.weights["features"] == after.weights["features"] and not comparison.identical:
            where_same = "of the encoder" if first.is_encoder_decoder else "below the head"
            notes = (*notes, f"All weights {where_same} are the base model's.")
        relearned = relearner(model, comparison) if relearner else ()
        if relearner and not relearned:
            notes = (*notes, "Nothing to relearn: no loss in behaviour or an axis is shown.")
        findings = comparison, tuple(layers), regained, relearned
        audits.append(ModelAudit(name, *findings, notes, decision))
    pairs = zip(combinations(titles, 2), combinations(afters, 2), strict=True)
    return Audit(
        title,
        tuple(audits),
        tuple(Between(one, two, auditor.compare(*pair)) for (one, two), pair in pairs),
        {
            "tasks": [*sizes],
            "corpus": corpus_name(corpus),
            **settings,
            "rows": count,
            "texts": wanted,
            "seed": seed,
            **({"looks": list(looks), "alpha": alpha} if until_settled else {}),
        },
        (
            *([] if generic else [items.BUILT_IN]),
            *material.notes,
            *(each.description for each in before.scores[1:] if each.description),
            *(
                f"{each.name}: {each.training} of the {len(each.rows)} rows are from its training "
                "set; a model tuned on them looks better than it is."
                for each in chosen.probed
                if each.training
            ),
        ),
        key,
    )


@dataclass(frozen=True)
class Observation:
    """What a model scored, what it answers to general tasks, and its weights."""

    scores: tuple[ItemScores, ...]
    weights: dict[Part, str]  # what decides each part: their digest, and the configuration
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

    def look(self, model: AuditedModel) -> Observation:
        """Return what a model scores and answers."""
        parts: tuple[Part, ...] = ("features", "behaviour")
        scores = []
        for part in parts:
            for each in self.material.probed:
                if part == "features" or items.has_head_for(model, each, generic=self.generic):
                    self.tell(f"{model.name}: {part} of {each.name}")
                    scores.append(items.scores(model, each, part, self.device))
        answers = []
        for asked in self.material.asked if model.answers else ():
            self.tell(f"{model.name}: {asked.task.name}")
            answers.append(ability.answer(model, asked, self.device))
        scores += ability.scores(self.material.asked[: len(answers)], answers)
        self.tell(f"{model.name}: language")
        language = self.loss.scores(model)
        weights: dict[Part, str] = {
            "features": digest_of(model.encoder) + model.computation,
            "behaviour": digest_of(model.model) + model.computation,
        }
        weights |= {each.part: weights["behaviour"] for each in scores if each.part != "features"}
        return Observation((language, *scores), weights, model.head, answers)

    def compare(self, before: Observation, after: Observation) -> Comparison:
        """Return the changes between two models, judged as one family."""
        same_head = before.head == after.head
        return compare(
            before.scores,
            [s for s in after.scores if s.part != "behaviour" or same_head],
            self.margin,
            unchanged=[
                part for part, own in before.weights.items() if own == after.weights.get(part)
            ],
            identical=before.weights == after.weights,
            alpha=self.alpha,
        )

    def without_behaviour(self, model: AuditedModel, comparison: Comparison) -> Iterator[str]:
        """Yield why the own heads of base and tuned model are not compared, if they are not."""
        if self.material.asked and not model.answers:
            yield f"No general tasks: {model.name} has no language-model head."
        if not self.material.probed or any(task.part == "behaviour" for task in comparison.tasks):
            return
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
            yield PutBack(group.name, sum(gains) / max(1, len(gains)), regained)

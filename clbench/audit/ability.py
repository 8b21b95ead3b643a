"""What a language model is able to do: its scores on general tasks, item by item."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from scipy.special import softmax
from transformers import PreTrainedTokenizerBase

from clbench.audit import items
from clbench.audit.models import AuditedModel
from clbench.audit.scores import Floats, ItemScores, Part, keys_of
from clbench.audit.settings import check_count
from clbench.core.errors import (
    DataError,
    SettingsError,
    UnknownNameError,
    did_you_mean,
    join_names,
    named,
)
from clbench.measure.questions import Reader, ask
from clbench.models.checkpoint import load_tokenizer
from clbench.tasks.general import GENERAL, WORDINGS, GeneralTask, Question
from clbench.tasks.hub import copy_of, data_folder
from clbench.tasks.registry import TASKS

BINS = 10
"""Bins of equal width of confidence."""
RANKED, WRITTEN, FEWEST = 100, 50, 20
"""Default questions of a task whose answers are ranked, and written; and the fewest."""
MOST_FAILED = 2
"""Repositories in a row that cannot be downloaded, after which no other is tried."""
WRITTEN_ANSWERS = "written answers"
"""Name of all tasks whose answers are written, of which the form is judged together."""


@dataclass(frozen=True)
class Asked:
    """Questions of a general task.

    Attributes
    ----------
    parts
        What is reported of it: its axis, ``format`` and ``calibration``, or some of these.
    tokenizer
        The base model's as its authors saved it: no start is added to prompts that it adds none to.
    wordings
        How many wordings of the prompt are asked; an item's score is the mean over them.
    """

    task: GeneralTask
    questions: Sequence[Question] = field(repr=False)
    parts: frozenset[str]
    tokenizer: PreTrainedTokenizerBase = field(repr=False)
    wordings: int = 1

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Digests of the items' inputs."""
        inputs = ((each.prompts[: self.wordings], each.answers) for each in self.questions)
        return keys_of(f"{self.task.name} {each!r}" for each in inputs)


@dataclass(frozen=True)
class Answers:
    """What a model answered to the questions of a task.

    Attributes
    ----------
    marks
        Shape (n, 3): share of wordings in which an answer is right, has the form that was asked
        for, and follows instructions checked loosely; NaN where that does not apply.
    said, shares
        What was chosen or written in the first wording, and the probabilities of the choices.
    unstable
        Shape (n,): share of pairs of wordings in which just one answer is right.
    """

    marks: Floats
    said: Sequence[str]
    shares: Sequence[Floats]
    unstable: Floats

    @property
    def right(self) -> Floats:
        """Shape (n,): share of wordings in which an answer is right."""
        return self.marks[:, 0]


def answer(model: AuditedModel, asked: Asked, device: torch.device) -> Answers:
    """Return what a model answers; see `clbench.measure.questions.ask`."""
    questions, marks = asked.questions, list[Any]()
    reader: Reader = model.model.to(device), asked.tokenizer
    said, shares = list[str](), list[Floats]()
    for wording in range(asked.wordings):
        found = ask(reader, asked.task, questions, wording)
        if found.scores:
            items.finite(np.concatenate(found.scores), model)
        marks.append(found.marks)
        shares = shares or [softmax(each) for each in found.scores]
        said = said or found.said
    table, w = np.array(marks, np.float64), asked.wordings
    often = table[:, :, 0].sum(0)
    unstable = often * (w - often) / max(1, w * (w - 1) // 2)
    return Answers(table.mean(0), said, shares, unstable)


def answer_new(
    model: AuditedModel, asked: Asked, device: torch.device, known: dict[str, tuple[Any, ...]]
) -> Answers:
    """Return what a model answers, and keep it by item in `known`, where it is not asked again."""
    new = {k: q for k, q in zip(asked.keys, asked.questions, strict=True) if k not in known}
    if new:
        own = answer(model, replace(asked, questions=[*new.values()]), device)
        shares = own.shares or [np.empty(0)] * len(new)
        known |= zip(new, zip(own.marks, own.said, shares, own.unstable, strict=True), strict=True)
    marks, said, shares, unstable = zip(*(known[key] for key in asked.keys), strict=True)
    return Answers(np.array(marks), said, shares, np.array(unstable))


def scores(asked: Sequence[Asked], answers: Sequence[Answers]) -> Iterator[ItemScores]:
    """Yield what a model scored: accuracy by task, and form and calibration over all tasks.

    Brier's score (1950) is the sum of squared distances of the choices' probabilities from 0 and 1.
    The expected calibration error (Guo et al. 2017, equation 5; `BINS` bins) is the mean of the
    items' signed gaps, so two models are compared by a paired t test.
    """
    pairs = [*zip(asked, answers, strict=True)]
    for each, own in pairs:
        task, counts = each.task, [len(question.choices) for question in each.questions]
        if task.axis not in each.parts:
            continue
        source = {"hub": task.hub, "split": task.split, "revision": task.revision}
        source |= {} if task.config is None else {"config": task.config}
        note = f"{task.name}, in {each.wordings} wordings: of two wordings of a prompt, just one "
        note += f"gets the right answer on {own.unstable.mean():.1%} of the items."
        measure = ItemScores(
            task.name,
            cast(Part, task.axis),
            own.right,
            each.keys,
            chance=float(np.mean(1 / np.array(counts))) if task.choices else None,
            choices=counts[0] if task.choices and len({*counts}) == 1 else None,
            description=note if each.wordings > 1 else "",
            texts=tuple(question.text for question in each.questions),
            answers=tuple(question.target for question in each.questions),
            said=tuple(own.said) if each.wordings == 1 else (),
            unit="questions",
            source={} if task.configs else source,
        )
        yield measure
        if task.rules:
            loose = own.marks[:, 2]
            yield replace(measure, scores=loose, metric="loose accuracy", primary=False)
    kept = [(a, own) for a, own in pairs if "format" in a.parts and a.task.form]
    if kept:
        formed = np.concatenate([own.marks[:, 1] for _, own in kept])
        keys = _keys(kept)
        yield ItemScores(WRITTEN_ANSWERS, "format", formed, keys, "in form", unit="questions")
    kept = [(a, own) for a, own in pairs if "calibration" in a.parts and a.task.choices]
    if kept:
        shares = [each for _, own in kept for each in own.shares]
        rights = [question.right for a, _ in kept for question in a.questions]
        rows = [*zip(shares, rights, strict=True)]
        brier = np.array([((s - np.eye(len(s))[r]) ** 2).sum() for s, r in rows])
        measure = ItemScores("ranked answers", "calibration", -brier, _keys(kept), "Brier score")
        measure = replace(measure, unit="questions")
        yield measure
        hit = np.array([s.argmax() == r for s, r in rows])
        gaps = signed_gaps(np.array([each.max() for each in shares]), hit)
        yield replace(measure, scores=-gaps, metric="calibration error", primary=False)


def _keys(kept: Sequence[tuple[Asked, Answers]]) -> tuple[str, ...]:
    return tuple(key for asked, _ in kept for key in asked.keys)


def tests(asked: Sequence[Asked]) -> int:
    """Return how many measures `scores` yields by which a model is judged."""
    axes = sum(each.task.axis in each.parts for each in asked)
    pooled = {part for each in asked for part in each.parts & {"format", "calibration"}}
    return axes + len(pooled)


def signed_gaps(confidence: Floats, hit: np.typing.NDArray[np.bool_]) -> Floats:
    """Return gaps between hits and confidence, shape (n,), whose mean is the calibration error."""
    gaps = hit - confidence
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    return np.asarray(np.sign(np.bincount(bins, gaps, BINS))[bins] * gaps, np.float64)


def usual(task: GeneralTask) -> int:
    """Return how many questions of a task are asked by default."""
    return RANKED if task.choices else WRITTEN


def chosen(names: Sequence[str]) -> tuple[dict[str, frozenset[str]], list[str]]:
    """Return what to report of which general tasks, and the names that are none of them.

    ``general`` stands for all, and an axis, ``format`` or ``calibration`` for that of all tasks
    that have it; the axis ``language`` is measured on texts, and asks nothing. Raises an
    UnknownNameError for a name that is neither one of these nor that of a task or a file.
    """
    found: dict[str, set[str]] = {}
    rest = []
    axes = {task.axis for task in GENERAL.values()}
    known = {"general", "format", "calibration", "language", *axes, *GENERAL}
    for name in names:
        if name not in known:
            if name not in TASKS and not name.endswith(".toml"):
                hint = did_you_mean(name, {*known, *TASKS}, "clbench list tasks")
                raise UnknownNameError(f"Unknown task {name!r}.{hint}")
            rest.append(name)
        for task in GENERAL.values():
            kinds = {task.axis, "calibration" if task.choices else "format" if task.form else ""}
            if parts := kinds if name in ("general", task.name) else kinds & {name}:
                found.setdefault(task.name, set()).update(parts - {""})
    return {name: frozenset(parts) for name, parts in found.items()}, rest


def load(
    names: Sequence[str],
    *,
    base: str,
    data: str | Path | None,
    count: int | None = None,
    times: float = 1.0,
    seed: int = 0,
    wordings: int = 1,
) -> tuple[list[Asked], list[str]]:
    """Return the questions of general tasks to a base model, and notes on those not to be had.

    There are at most about `times` `count` of each, by default `RANKED` or `WRITTEN`. Once two
    repositories in a row cannot be downloaded, the others are looked for in the cache alone, so
    that without a network not every one of them is waited for. Raises a
    SettingsError if a number is not allowed, and a DataError if a task that is named, or all of a
    group, cannot be read.
    """
    parts, _ = chosen(names)
    if count is not None:
        check_count("questions", count, FEWEST)
    if not 1 <= wordings <= WORDINGS:
        raise SettingsError(f"{named('rephrase', wordings)}: must be 1 to {WORDINGS}.")
    folder = data_folder(data)
    reader: Any = load_tokenizer(base, plain=True) if parts else None
    asked, missing = list[Asked](), dict[str, list[str]]()
    failed, in_a_row = dict[str, DataError](), 0
    for name, own in parts.items():
        task = GENERAL[name]
        most = math.ceil(times * (count or usual(task)))
        here, gives_up = copy_of(folder, task.hub), in_a_row >= MOST_FAILED
        try:
            if task.hub in failed and name not in names:
                raise failed[task.hub]
            with items.offline(gives_up):
                questions = task.questions(folder, most, seed)
        except DataError as error:
            if name in names or here:
                raise
            reason = f"the download failed ({type(error.__cause__ or error).__name__})"
            if gives_up and task.hub not in failed:
                reason = f"{MOST_FAILED} downloads in a row failed"
            else:
                in_a_row += task.hub not in failed
                failed[task.hub] = error
            missing.setdefault(reason, []).append(name)
            continue
        if not here and not gives_up:
            in_a_row = 0
        if len(questions) < FEWEST:
            few = f"{len(questions)} rows are too few, at least {FEWEST} are needed"
            raise DataError(f"task {name!r}: {few}. Use a complete copy of {task.hub}.")
        asked.append(Asked(task, questions, own, reader, wordings))
    if failed and not asked:
        raise next(iter(failed.values()))
    return asked, [
        f"Not measured, as there is no copy and {reason}: {join_names(own)}."
        for reason, own in missing.items()
    ]

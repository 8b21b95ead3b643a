"""Audit tuned models against their base by what other harnesses have logged of both."""

import json
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

from clbench.audit.comparison import Comparison, compare, sample
from clbench.audit.gate import Gate
from clbench.audit.logs.noise import RunNoise
from clbench.audit.logs.scores import ModelLogs, check_same, read_logs
from clbench.audit.result import Audit, Between, ModelAudit
from clbench.audit.settings import MARGIN, check_change
from clbench.core.errors import SettingsError, count
from clbench.core.files import digest
from clbench.core.options import checks_arguments
from clbench.models.locate import titles_of

NO_NOISE = (
    "Run-to-run noise is not measured: each model has one run of each task. What all items of a "
    "run share would look like a change."
)


@checks_arguments
def audit_logs(
    base: str | Path,
    tuned: Sequence[str | Path],
    *,
    tasks: Sequence[str] = (),
    margin: float = MARGIN,
    gate: Gate | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Audit:
    """Return what tuned models lost of their base model, by logs of both; no model is loaded.

    Parameters
    ----------
    base, tuned
        Folders or files with the logs of one model each, in any of `FORMATS`. Several runs of a
        task give its noise.
    tasks
        Tasks to compare; by default all, which all models must have.
    margin
        Largest change of a score that does not matter.
    gate
        What must hold for each tuned model.
    tell
        Called with a line on what is being done.

    Raises
    ------
    ClbenchError
        If logs are missing or damaged, or do not have the same tasks, metrics, shots and prompts.
    """
    check_change("margin", margin)
    if not tuned:
        raise SettingsError("there is no tuned model to audit. Name the logs of at least one.")
    names, models = [str(name) for name in (base, *tuned)], []
    for name in names:
        tell(f"reading {name}")
        models.append(read_logs(name, tasks))
    tell("comparing")
    first, *others = models
    if gate is not None:
        gate.check([each.task for each in first.scores])
    title, *titles = titles_of(names)
    audits = []
    for logs, name in zip(others, titles, strict=True):
        comparison, notes = _compare(first, logs, margin)
        decision = None if gate is None else gate.decide(comparison)
        audits.append(ModelAudit(name, comparison, notes=notes, decision=decision))
    between = [
        Between(one, two, _compare(before, after, margin, between=True)[0])
        for (one, before), (two, after) in combinations(zip(titles, others, strict=True), 2)
    ]
    scores = [
        [each.what, digest(" ".join(each.keys)), digest(each.runs.tobytes())]
        for logs in models
        for each in logs.scores
    ]
    return Audit(
        title,
        tuple(audits),
        tuple(between),
        {"source": "logs", "tasks": [s.task for s in first.scores if s.primary], "margin": margin},
        tuple(dict.fromkeys(note for logs in models for note in logs.notes)),
        digest(json.dumps([*names, scores, margin])),
    )


def _compare(
    base: ModelLogs, tuned: ModelLogs, margin: float, *, between: bool = False
) -> tuple[Comparison, tuple[str, ...]]:
    """Return the changes between two models, and what a reader should know of them."""
    check_same(base, tuned)
    after = {each.what: each for each in tuned.scores}
    pairs = {each.what: (each, after[each.what]) for each in base.scores if each.what in after}
    notes = []
    for one, two in [*pairs.values()]:
        if len({*one.keys} & {*two.keys}) < 2:  # a further metric, as those that decide are checked
            del pairs[one.what]
            lacks = f"no two items in common have {one.metric}"
            notes.append(f"{one.task}: {lacks}, so it is left out.")
    noise = RunNoise.of([pair for pair in pairs.values() if pair[0].primary])
    comparison = compare(
        [one for one, _ in pairs.values()],
        tuned.scores,
        margin,
        sampled=lambda measure, paired: noise.add(sample(measure, paired), pairs[measure.what]),
        floor=lambda measure: noise.floor(pairs[measure.what], alone=True),
        between=between,
    )
    for each in comparison.changes:
        one, two = pair = pairs[each.measure.what]
        if left_out := len(one.inputs.keys() | two.inputs.keys()) - len(each.paired):
            which = "that only one model has, or without a score in every run"
            notes.append(f"{each.task}: {count(left_out, 'item')} {which}, left out.")
        notes.append(noise.note(pair))
    if all(len(logs.runs) == 1 for pair in pairs.values() for logs in pair):
        notes.append(NO_NOISE)
    if more := len(comparison.exploratory):
        notes.append(
            f"{count(more, 'further metric')} in the page's table: exploratory, each judged alone."
        )
    return comparison, tuple(filter(None, notes))

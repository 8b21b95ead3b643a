"""Audit tuned models against their base by what other harnesses have logged of both."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from clbench.audit.comparison import Comparison, compare, sample
from clbench.audit.logs.noise import Pair, RunNoise
from clbench.audit.logs.scores import ModelLogs, check_inputs, read_logs
from clbench.audit.result import MARGIN, Audit, Between, ModelAudit, check_change
from clbench.core.errors import DataError, SettingsError, count, join_names
from clbench.core.files import digest, user_path

NO_NOISE = (
    "Run-to-run noise is not measured: each model has one run of each task. Runs of the same model "
    "that differ in more than single items would look like a change."
)


def audit_logs(
    base: str,
    tuned: Sequence[str],
    *,
    tasks: Sequence[str] = (),
    margin: float = MARGIN,
    tell: Callable[[str], None] = lambda text: None,
) -> Audit:
    """Return what tuned models lost of their base model, by logs of both; no model is loaded.

    Parameters
    ----------
    base, tuned
        Folders or files with the logs of one model each: of lm-eval (``--log_samples``), lighteval
        (details), inspect or Every Eval Ever, or tables. Several runs of a task give its noise.
    tasks
        Tasks to compare; all by default, which all models must have.
    margin
        Largest change of a score that does not matter.
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
    for i, name in enumerate(tuned):
        if user_path(name, "log").resolve() in [user_path(n, "log").resolve() for n in tuned[:i]]:
            raise SettingsError(f"{name!r} is given twice. Name the logs of each model once.")
    models = []
    for name in (base, *tuned):
        tell(f"reading {name}")
        models.append(read_logs(name, tasks))
    first, *others = models
    tell("comparing")
    found = {
        (i, j): _compare((models[i], models[j]), margin)
        for i, j in combinations(range(len(models)), 2)
    }
    settings = {"source": "logs", "tasks": list(dict.fromkeys(s.task for s in first.scores))}
    scores = [
        [(each.what, digest(" ".join(each.keys)), digest(each.runs.tobytes())) for each in m.scores]
        for m in models
    ]
    return Audit(
        base,
        tuple(
            ModelAudit(m.name, found[0, i][0], notes=(*m.notes, *found[0, i][1]))
            for i, m in enumerate(others, 1)
        ),
        tuple(Between(models[i].name, models[j].name, found[i, j][0]) for i, j in found if i),
        {**settings, "margin": margin},
        first.notes,
        digest(json.dumps([scores, margin])),
    )


def _compare(models: Sequence[ModelLogs], margin: float) -> tuple[Comparison, tuple[str, ...]]:
    """Return the changes between two models, and what a reader should know of them."""
    base, tuned = models
    check_tasks(base, tuned)
    after = {each.what: each for each in tuned.scores}
    pairs = {each.what: (each, after[each.what]) for each in base.scores if each.what in after}
    noise = RunNoise.of([pair for pair in pairs.values() if pair[0].primary])
    comparison = compare(
        base.scores,
        tuned.scores,
        margin,
        sampled=lambda measure, paired: noise.add(sample(measure, paired), pairs[measure.what]),
    )
    return comparison, tuple(_notes(comparison, [*pairs.values()], noise))


def check_tasks(base: ModelLogs, tuned: ModelLogs) -> None:
    """Raise a DataError unless the logs of two models have the same tasks, asked in one way."""
    one, two = ({s.task: s for s in reversed(m.scores)} for m in (base, tuned))  # decisive metrics
    if differ := one.keys() ^ two.keys():
        task = sorted(differ)[0]
        has, lacks = (base, tuned) if task in one else (tuned, base)
        both = join_names(task for task in one if task in two)
        raise DataError(
            f"{lacks.name}: has no task {task!r}, which {has.name} has. --tasks names those to "
            f"compare; both have {both}."
        )
    for task, before in one.items():
        after = two[task]
        names = (
            ("prompts", before.prompting, after.prompting),
            ("metric", before.metric, after.metric),
        )
        for what, first, second in names:
            if first and second and first != second:
                raise DataError(
                    f"{task}: different {what}: {first} in {base.name}, and {second} in "
                    f"{tuned.name}. Run both models in one way."
                )
        check_inputs(task, before.inputs, after.inputs, base.name, tuned.name)
        if len(set(before.keys) & set(after.keys)) < 2:
            raise DataError(
                f"{task}: {base.name} and {tuned.name} have less than two items in common, by id "
                "and input. Run both models on the same items."
            )


def _notes(comparison: Comparison, pairs: Sequence[Pair], noise: RunNoise) -> Iterator[str]:
    """Yield what a reader should know of a comparison."""
    for before, after in pairs:
        if before.primary and before.dropped + after.dropped:
            dropped = count(before.dropped + after.dropped, "item")
            yield f"{before.task}: {dropped} without a score in every run of a model left out."
    for each in comparison.changes:
        if each.paired.unpaired:
            items = count(each.paired.unpaired, "item")
            yield f"{each.task}: {items} that only one model has left out."
    yield from filter(None, (noise.note(pair) for pair in pairs if pair[0].primary))
    if all(len(each.runs) == 1 for pair in pairs for each in pair):
        yield NO_NOISE
    if more := len(comparison.exploratory):
        yield f"{count(more, 'further metric')} on the page: exploratory, each judged alone."

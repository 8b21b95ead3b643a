"""The checks of the grade `recomputed`: everything in a submission follows from what it kept."""

import io
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pandas as pd

from clbench.board.manifest import MANIFEST, weights
from clbench.board.submission import Find, Lines, Outcome, Submission
from clbench.core.errors import ClbenchError, count, join_names, named
from clbench.core.files import plain
from clbench.models.locate import model_identity
from clbench.results.cell import TOLERANCE, unpack_rows
from clbench.results.score_tables import scores_frame, to_csv
from clbench.results.scores import scores_of
from clbench.suite.recipe import fingerprint, json_sections
from clbench.suite.scores import SCORE
from clbench.tasks.corpus import corpus_identity
from clbench.tasks.metrics import METRICS
from clbench.tasks.registry import task_identity, task_metrics

RIGHT = ("accuracy", "exact")
"""Metrics that are the share of right rows."""


def scores_follow(submission: Submission) -> Lines:
    """Yield each score of a cell or in ``scores.csv`` that does not follow from the cells."""
    for cell in submission.cells:
        given_by_R = scores_of(cell.R) if cell.R and cell.reference_of is None else {}
        if extra := sorted((cell.scores.keys() & SCORE.keys()) - given_by_R.keys()):
            yield f"{cell.key}: its scores hold {join_names(extra)}, which R does not give."
    reference = submission.store.questions()[-1].reference
    text = to_csv(scores_frame(submission.cells, reference))
    given = (submission.folder / "scores.csv").read_text("utf-8", "replace")
    if given == text:
        return
    try:
        tables = [pd.read_csv(io.StringIO(each)) for each in (text, given)]
        expected, found = (t.set_index(["scenario", "method", "seed"]).sort_index() for t in tables)
    except (ValueError, KeyError):
        yield "scores.csv is no table of scores."
        return
    if not expected.index.equals(found.index):
        yield "scores.csv has other rows than there are cells."
        return
    if more := [name for name in found.columns if name not in expected]:
        yield f"scores.csv has {join_names(more)} besides the scores."
    for name in expected.columns:
        if name not in found:
            yield f"scores.csv lacks the column {name}."
            continue
        for key, ours, theirs in zip(expected.index, expected[name], found[name], strict=True):
            if not _equal(ours, theirs):
                where = "--".join(map(str, key))
                yield f"scores.csv has {name} = {theirs} for {where}, not {ours}."
                return


def _equal(ours: Any, theirs: Any) -> bool:
    """Whether two entries of a table are equal, except for rounding."""
    if isinstance(ours, str) or isinstance(theirs, str):
        return str(ours) == str(theirs)
    if math.isnan(ours) or math.isnan(theirs):
        return math.isnan(ours) and math.isnan(theirs)
    return bool(abs(ours - theirs) <= TOLERANCE * max(1.0, abs(ours)))


def fingerprints_follow(submission: Submission) -> Lines:
    """Yield cells whose fingerprint is not that of their recipe."""
    for cell in submission.cells:
        if fingerprint(json_sections(cell.recipe)) != cell.fingerprint:
            yield f"{cell.key}: its fingerprint is not that of its recipe."


def matrix_follows(submission: Submission) -> Outcome:
    """Compare R with the metrics, and these with the rows that were right."""
    wrong, without, unmeasured, scores, backed = [], list[str](), list[str](), 0, 0
    sizes: dict[tuple[str, int, str], int] = {}  # rows of each scenario, seed and task
    for cell in submission.cells:
        last = len(cell.R) - 1
        before = 0
        if cell.reference_of is None:
            before = len(cell.tasks) - len(cell.stages)  # the pretraining, which has no rows
        for i, j, score in (
            (i, j, v) for i, row in enumerate(cell.R) for j, v in enumerate(row) if v is not None
        ):
            where, scores = f"{cell.key}: R[{i}][{j}]", scores + 1
            measured = (cell.metrics[i][j] if cell.metrics else None) or {}
            if not measured:
                unmeasured.append(where)
                continue
            name = _main_metric(submission, cell.tasks[j]) if j >= before else None
            allowed = [name] if name else [*METRICS.names()]
            if not any(_near(measured.get(each), score) for each in allowed):
                wrong.append(f"{where} = {score:.4f} is not its {name or 'metric'}.")
            share = next((measured[name] for name in RIGHT if name in measured), None)
            text = cell.correct[i][j] if cell.correct else None
            if share is None:
                continue  # a score that rows that are right or wrong do not give
            if text is None:
                without += [where] if i in (j, last) and j >= before else []
                continue
            right = unpack_rows(text)
            size = sizes.setdefault((cell.scenario, cell.seed, cell.tasks[j]), len(right))
            if not len(right) or size != len(right):
                wrong.append(f"{where} is of {len(right)} rows, other stages or cells of {size}.")
            elif not _near(share, float(right.mean())):
                rows = f"{right.mean():.4f} of its rows are right"
                wrong.append(f"{where} has an accuracy of {share:.4f}, but {rows}.")
            elif _near(share, score):
                backed += 1
    unchecked = [
        f"{count(len(places), 'score')} without {what}, such as {places[0]}"
        for what, places in (("rows", without), ("metrics", unmeasured))
        if places
    ]
    return Outcome(wrong, unchecked, f"{backed} of {scores} scores from rows")


def _main_metric(submission: Submission, task: str) -> str | None:
    """Return the metric that scores a task, or a part of it; None if only its code tells."""
    name = task.partition("[")[0].partition("+")[0]
    if chosen := submission.file.protocol.task_metric.get(name):
        return chosen
    with suppress(ClbenchError):
        return next(iter(task_metrics(name, submission.file.task)), None)
    return None


def _near(value: float | None, score: float) -> bool:
    return value is not None and abs(value - score) <= TOLERANCE


def model_is_the_named(submission: Submission) -> Outcome:
    """Compare the model's files here with the digests in the recipes."""
    protocol = submission.file.protocol
    theirs = submission.cells[0].recipe.get("model")
    try:
        ours = model_identity(protocol.model, protocol.revision)
    except ClbenchError as error:
        return Outcome(unchecked=[f"{str(error).rstrip('.')}; name it with {named('model')}"])
    if isinstance(theirs, dict) and {*ours} != {*theirs}:
        problem = "the model is a commit of the hub on one side and a folder on the other"
        return Outcome(unchecked=[f"{problem}; name the same kind with {named('model')}"])
    model = submission.manifest.models[0]
    name, here = model.name, dict[str, str]()
    if model.sha256 and "files" in ours:  # a commit of the hub needs no download to be the same
        here = weights(protocol.model, protocol.revision)
    wrong = [] if ours == theirs else [f"{name} here is another model: {_other(theirs, ours)}"]
    if not wrong and here and here != model.sha256:
        wrong.append(f"{MANIFEST}: the sha256 of {name} are not those of its weights.")
    return Outcome(wrong, says=name)


def _other(theirs: Any, ours: dict[str, Any]) -> str:
    files = theirs.get("files", {}) if isinstance(theirs, dict) else {}
    names = [name for name, mark in ours.get("files", {}).items() if files.get(name) != mark]
    return f"{join_names(names)} differ." if names else f"{theirs}, not {ours}."


def rows_are_the_named(submission: Submission) -> Outcome:
    """Compare the rows of the named data here, and the corpus, with those in the recipes."""
    file, wrong, unchecked, same = submission.file, [], [], []
    for name, theirs in submission.manifest.tasks.items():
        try:
            ours = plain(
                task_identity(name, data=submission.data, base=submission.base, own=file.task)
            )
        except ClbenchError as error:
            problem = str(error).rstrip(".")
            unchecked.append(f"rows of {name}: {problem}; name its data with {named('data')}")
            continue
        if ours == theirs:
            same.append(name)
        elif ours.get("dataset") != theirs.get("dataset") or {*ours} != {*theirs}:
            origins = f"there from {_origin(theirs)}, here from {_origin(ours)}"
            unchecked.append(f"rows of {name}: {origins}; name the same data with {named('data')}")
        else:
            wrong.append(f"rows of {name} are not those of the data here.")
    try:
        if corpus_identity(file.protocol.corpus) != submission.cells[0].recipe.get("corpus"):
            wrong.append(
                f"the corpus {file.protocol.corpus} here has other texts; name the right one with "
                f"{named('corpus')}."
            )
    except ClbenchError as error:
        unchecked.append(f"{str(error).rstrip('.')}; name it with {named('corpus')}")
    return Outcome(wrong, unchecked, join_names(same) if same else "")


def _origin(identity: Mapping[str, Any]) -> str:
    return str(identity.get("revision") or identity.get("dataset") or "code")


RECOMPUTED: dict[str, Find] = {
    "scores from R": scores_follow,
    "fingerprints from recipes": fingerprints_follow,
    "R from rows": matrix_follows,
    "model": model_is_the_named,
    "rows": rows_are_the_named,
}

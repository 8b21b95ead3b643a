"""What a forger changes in the records of a submission, and the check that finds it first."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from clbench.results.cell import pack_rows, unpack_rows
from helpers.submissions import Change, improve

CELL = "sentiment-acceptability--wise-ft--seed0"
PLAIN = "sentiment-acceptability--vanilla--seed0"
ZEROS = "0" * 32
OWN_TASK = {"train": "mine.csv", "validation": "test.csv", "text": ["text"], "label": "label"}
SEARCH = {"trials": 50, "epochs": 10.0, "seconds": 1.0, "seeds": [0, 1]}
FAILED: dict[str, Any] = {
    "status": "failed", "reason": "out of memory",
    "R": [], "stages": [], "scores": {}, "metrics": [], "correct": [],
}  # fmt: skip


def other_weights(cell: dict[str, Any]) -> None:
    cell["recipe"]["model"]["files"]["model.safetensors"] = ZEROS


def other_rows(cell: dict[str, Any]) -> None:
    tasks = cell["recipe"]["tasks"]
    tasks.get("synthetic/sentiment", {}).get("rows", {}).update(train=ZEROS)


def fewer_rows(cell: dict[str, Any]) -> None:
    cell["correct"][-1][0] = "8:/w=="
    cell["metrics"][-1][0]["accuracy"] = cell["R"][-1][0] = 1.0


def no_bits(cell: dict[str, Any]) -> None:
    cell["correct"][-1][0] = "500:abc"


def without_wrong_rows(cell: dict[str, Any]) -> None:
    """Leave ten rows that are wrong in the end out of all stages."""
    kept = unpack_rows(cell["correct"][-1][0])
    kept = np.delete(np.arange(len(kept)), np.flatnonzero(~kept)[:10])
    for scores, metrics, rows in zip(cell["R"], cell["metrics"], cell["correct"], strict=True):
        right = unpack_rows(rows[0])[kept]
        scores[0] = metrics[0]["accuracy"] = float(right.mean())
        rows[0] = pack_rows(right)


def without_stage(cell: dict[str, Any]) -> None:
    """Make the first task look like a pretraining, whose scores need no rows."""
    del cell["stages"][0]
    for rows in cell["correct"]:
        rows[0] = None
    cell["R"][-1][0] = cell["metrics"][-1][0]["accuracy"] = 0.99


def told_as_score(cell: dict[str, Any]) -> None:
    cell["R"][-1][0] = cell["metrics"][-1][0]["told"]


def renamed_metric(cell: dict[str, Any]) -> None:
    cell["metrics"][-1][0] = {"pearson": 0.95}
    cell["R"][-1][0], cell["correct"][-1][0] = 0.95, None


def no_metric(cell: dict[str, Any]) -> None:
    cell["R"][-1][0] = 0.95


CELLS: dict[str, tuple[str, str, Change]] = {
    "a changed setting of the method": (
        "one recipe", CELL, lambda c: c["recipe"]["method"]["settings"].update(alpha=0.9)
    ),
    "another rate for one method": (
        "one recipe", "*wise-ft*", lambda c: c["recipe"]["protocol"].update(lr=0.01)
    ),
    "more training rows for one seed": (
        "one recipe", CELL, lambda c: c["recipe"]["protocol"].update(limit=5000)
    ),
    "other tasks under the same name": (
        "one recipe", CELL,
        lambda c: c["recipe"]["scenario"].update(
            tasks=["synthetic/sentiment", "synthetic/entailment"]
        ),
    ),
    "another method under the same name": (
        "one recipe", CELL, lambda c: c["recipe"]["method"].update(name="replay")
    ),
    "code that is not in the folder": (
        "one recipe", CELL, lambda c: c["recipe"]["method"].update(source=ZEROS)
    ),
    "another seed in the recipe": ("one recipe", CELL, lambda c: c["recipe"].update(seed=4711)),
    "cells of two models": ("one recipe", CELL, other_weights),
    "other rows for one cell": ("one recipe", CELL, other_rows),
    "bad seeds declared as failed": ("whole matrix", CELL, lambda c: c.update(FAILED)),
    "tuned with the reported seeds": (
        "not tuned on what is reported", "*wise-ft*", lambda c: c.update(search=SEARCH)
    ),
    "tuned on the reported rows": (
        "not tuned on what is reported",
        "*wise-ft*",
        lambda c: c.update(search=SEARCH | {"seeds": [1000], "on_reported_rows": True}),
    ),
    "a better matrix without rows": ("R from rows", CELL, partial(improve, rows=False)),
    "a matrix that is no metric": ("R from rows", CELL, no_metric),
    "another measure in the matrix": (
        "R from rows", "growing-head--prototypes--seed0", told_as_score
    ),
    "a metric that the task does not have": ("R from rows", CELL, renamed_metric),
    "recipes without rows": ("one recipe", "*", lambda c: c["recipe"].update(tasks={})),
    "fewer rows after the last stage": ("R from rows", CELL, fewer_rows),
    "rows that are no bits": ("whole matrix", CELL, no_bits),
    "wrong rows left out of a cell": ("R from rows", CELL, without_wrong_rows),
    "tasks of other names": ("one recipe", "*", lambda c: c.update(tasks=["first", "second"])),
    "other chance levels for one cell": ("one recipe", CELL, lambda c: c.update(floors=[0.1, 0.1])),
    "a task without a stage": ("one recipe", CELL, without_stage),
    "another rate shown than used": (
        "one recipe", CELL, lambda c: c["settings"]["protocol"].update(lr=0.1)
    ),
    "kept rows denied": ("one recipe", "*replay*", lambda c: c.update(keeps_rows=False)),
    "another corpus": ("rows", "*", lambda c: c["recipe"].update(corpus={"built-in": ZEROS})),
}  # fmt: skip
"""Changes of cells, from which everything else is made to follow."""
SUITES: dict[str, tuple[str, Change]] = {
    "fewer seeds than looks": ("no seed chosen", lambda s: s.update(looks=[[5, 10, 20]])),
    "seeds up to the largest number": (
        "no seed chosen", lambda s: s.update(seeds=[0, 2**32 - 1])
    ),
    "a seed twice": ("no seed chosen", lambda s: s.update(seeds=[0, 0, 1, 2, 3])),
    "another name of the model": ("one recipe", lambda s: s.update(model_name="bert-base-uncased")),
    "more epochs than declared": ("one recipe", lambda s: s["protocol"].update(epochs=30)),
    "a packaged task defined anew": (
        "not tuned on what is reported", lambda s: s.update(task={"glue/sst2": OWN_TASK})
    ),
    "a task scored on its training rows": (
        "not tuned on what is reported",
        lambda s: s.update(task={"mine": OWN_TASK | {"train": OWN_TASK["validation"]}}),
    ),
}  # fmt: skip
"""Changes of the suite."""
MANIFESTS: dict[str, Change] = {
    "another model in the manifest": lambda m: m["models"][0].update(name="bert-base-uncased"),
    "another machine in the manifest": lambda m: m["hardware"][0].update(device="calculator"),
    "other versions in the manifest": lambda m: m["versions"][0].update(torch="1.0"),
}
"""Changes of what the manifest says of the cells."""

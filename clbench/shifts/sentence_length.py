"""Sentence-length shift: the shorter half of a task, then the longer half."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from clbench.errors import ShiftError
from clbench.seeds import numpy_stream
from clbench.shifts.base import ShiftContext
from clbench.shifts.split import DividingShift, Split, row_splits
from clbench.tasks.task import IntArray, Rows, Task

SHORT, LONG = 0, 1
NAMES = ("short", "long")


class SentenceLength(DividingShift):
    """D_o is the shorter half of the training rows, D_s the longer half.

    The shift of Kenneweg et al. 2022, section 4.1. Their published code does not divide by
    length: it pairs sorted positions with unsorted rows, and counts a pair as 2.

    Of n training rows the n // 2 shortest are short, with ties broken at random; the threshold is
    the length of the longest of them. In other splits, rows below it are short and rows above it
    long; all rows of exactly that length go to the half that got more of the training rows of that
    length (the short one if equal).

    Attributes
    ----------
    unit
        Unit of length: the model's ``tokens`` (before truncation, without special ones),
        ``words`` separated by blanks, or ``characters``. Both texts of a pair count.
    """

    name = "sentence-length"
    short_name = "length"

    unit: Literal["tokens", "words", "characters"] = "tokens"

    def fit(self, task: Task, context: ShiftContext) -> Split:
        """Return a split at the threshold of the training rows.

        Raises
        ------
        ShiftError
            If all training rows are equally long.
        """
        lengths = {key: self._lengths(rows, context) for key, rows in row_splits(task).items()}
        train = lengths["train"]
        if train.min() == train.max():
            raise ShiftError(
                f"task {task.name!r}: all {len(train)} training rows have {train[0]} "
                f"{self.unit}, so there is no shorter half. Use more rows or another unit."
            )
        threshold, halves = equal_halves(
            train, numpy_stream("length ties", task.name, self.unit, context.seed)
        )
        tied = train == threshold
        ties_short = int((halves[tied] == SHORT).sum())
        side = SHORT if 2 * ties_short >= int(tied.sum()) else LONG
        part_of = {
            key: halves if key == "train" else divide(values, threshold, side)
            for key, values in lengths.items()
        }
        fitted = {**self.fitted_settings(), "threshold": threshold, "ties": NAMES[side]}
        numbers: dict[str, Any] = {
            **fitted,
            "tied_training_rows": int(tied.sum()),
            "mean_length": {
                key: {
                    name: float(part.mean()) if len(part := values[part_of[key] == i]) else None
                    for i, name in enumerate(NAMES)
                }
                for key, values in lengths.items()
            },
        }
        return Split.of(self.name, task, NAMES, part_of, fitted, numbers)

    def picture(self, task: Task, parts: tuple[Task, ...], context: ShiftContext) -> dict[str, Any]:
        """Return a histogram, ``[length, rows]`` in order, for each split and part."""
        counts: dict[str, dict[str, list[list[int]]]] = {}
        for key in ("train", "validation"):
            for name, part in zip(NAMES, parts, strict=True):
                lengths = self._lengths(getattr(part, key), context)
                histogram = np.unique(lengths, return_counts=True)
                counts.setdefault(key, {})[name] = np.stack(histogram, axis=1).tolist()
        return {"kind": "lengths", "task": task.name, "unit": self.unit, "counts": counts}

    def _lengths(self, rows: Rows, context: ShiftContext) -> IntArray:
        if self.unit == "tokens":
            return np.asarray(context.lengths(rows), dtype=np.int64)
        words = self.unit == "words"
        counts = [
            [len(text.split() if words else text) for text in column] for column in rows.columns
        ]
        total: IntArray = np.asarray(counts, dtype=np.int64).sum(axis=0)
        return total


def equal_halves(lengths: IntArray, rng: np.random.Generator) -> tuple[int, IntArray]:
    """Return the length of the longest short row, and each row's half, `SHORT` or `LONG`.

    n // 2 rows are short. `lengths` and the halves have shape (n,). `rng` decides which of the
    rows at the threshold are short.
    """
    half = len(lengths) // 2
    order = np.lexsort((rng.permutation(len(lengths)), lengths))
    halves = np.full(len(lengths), LONG, dtype=np.int64)
    halves[order[:half]] = SHORT
    return int(lengths[order[half - 1]]), halves


def divide(lengths: IntArray, threshold: int, side: int) -> IntArray:
    """Return `SHORT` for rows below `threshold`, `LONG` above it, `side` for that length."""
    halves = np.where(lengths == threshold, side, np.where(lengths < threshold, SHORT, LONG))
    return halves.astype(np.int64)

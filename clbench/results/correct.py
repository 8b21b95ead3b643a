"""Which rows of a task a model got right, packed into one bit a row."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from clbench.results.cell import CellResult

Bits = npt.NDArray[np.bool_]


def pack_rows(correct: Bits) -> str:
    """Return ``N:BITS``: the number of rows, and a bit for each, 1 if it is right, in base64."""
    return f"{len(correct)}:{base64.b64encode(np.packbits(correct).tobytes()).decode('ascii')}"


def unpack_rows(text: str) -> Bits:
    """Return whether each row is right, from the text of `pack_rows`."""
    count, _, bits = text.partition(":")
    packed = np.frombuffer(base64.b64decode(bits), dtype=np.uint8)
    return np.unpackbits(packed, count=int(count)).astype(bool)


def correct_rows(outputs: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Bits:
    """Return whether the largest logit of each row, the first one if tied, is the label's."""
    correct: Bits = outputs.argmax(axis=1) == labels
    return correct


def correct_after(cell: CellResult, task: int, stage: int = -1) -> Bits | None:
    """Return which rows of a task are right after a stage; None if it was not recorded."""
    text = cell.correct[stage][task] if cell.correct else None
    return None if text is None else unpack_rows(text)


def row_flips(cell: CellResult) -> tuple[int, int, int] | None:
    """Return the rows of the first task, and how many became wrong and right after its stage.

    None if it was not recorded, as for the pretraining and in regression.
    """
    before, after = correct_after(cell, 0, 0), correct_after(cell, 0)
    if before is None or after is None:
        return None
    return len(after), int((before & ~after).sum()), int((~before & after).sum())


def row_differences(
    method: Mapping[int, CellResult], other: Mapping[int, CellResult], task: int
) -> npt.NDArray[np.float64] | None:
    """Return by how much two methods differ on each row of a task after the last stage.

    Parameters
    ----------
    method, other
        Finished cells of one scenario by seed.
    task
        Position of the task in R.

    Returns
    -------
    numpy.ndarray or None
        Shape (common seeds, rows): 1 where only `method` is right, -1 where only `other` is, else
        0. None without a common seed, or if rows were not recorded or differ in number.
    """
    differences = []
    for seed in sorted(method.keys() & other.keys()):
        ours, theirs = (correct_after(cells[seed], task) for cells in (method, other))
        if ours is None or theirs is None or len(ours) != len(theirs):
            return None
        differences.append(ours.astype(np.float64) - theirs)
    if not differences or len({len(row) for row in differences}) > 1:
        return None
    return np.stack(differences)

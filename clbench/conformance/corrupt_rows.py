"""Overwrites the rows of a finished task wherever they are held, in place."""

from __future__ import annotations

import itertools
import sys
import weakref
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clbench.methods.base import Method
from clbench.tasks.task import IntArray
from clbench.training.batches import Batch, TaskData
from clbench.training.memory import walk
from clbench.training.stage import Stage

Made = list[tuple[int, "weakref.ref[Tensor]"]]


@dataclass(frozen=True)
class Marked(TaskData):
    """Rows that remember the batches made of them.

    Attributes
    ----------
    made
        Task and tensors of every batch.
    """

    made: Made = field(default_factory=list, compare=False, repr=False)

    def batch(self, positions: IntArray, device: torch.device) -> Batch:
        """As the rows do, and remember it."""
        batch = super().batch(positions, device)
        for tensor in (*batch.inputs.values(), batch.labels):
            self.made.append((self.task, weakref.ref(tensor)))
        return batch


class Poison:
    """Replaces the rows of each task when its stage is over.

    Overwritten are the training rows themselves, every batch of them that is still alive,
    and whatever arrays in the method's attributes, class, module or closures hold the tokens of
    one of their rows. A
    method that looks at none of these goes on as if nothing had happened.
    """

    def __init__(self, train: tuple[TaskData, ...]) -> None:
        self.made: Made = []
        self.train = tuple(
            Marked(**{f.name: getattr(data, f.name) for f in fields(TaskData)}, made=self.made)
            for data in train
        )

    def __call__(self, method: Method, stage: Stage) -> None:
        """Overwrite the rows of the stage's task."""
        data = stage.data
        tokens = _tokens(data)
        for held in walk(_roots(method)):
            if _holds(held, tokens):
                overwrite(held)
        for task, reference in self.made:
            tensor = reference()
            if task == stage.index and tensor is not None:
                overwrite(tensor)
        overwrite(data.rows.ids)
        overwrite(data.rows.labels)


def _roots(method: Method) -> list[Any]:
    """Attributes of a method, of its classes and of the modules that define these."""
    kinds = type(method).__mro__
    roots = list(vars(method).values())
    for kind in kinds[: kinds.index(Method)]:
        if issubclass(kind, Method):
            roots += vars(kind).values()
            roots += vars(sys.modules.get(kind.__module__, object)).values()
    return roots


def _tokens(data: TaskData) -> list[bytes]:
    """The token numbers of each row, as they would lie in memory."""
    ids, offsets = data.rows.ids.astype(np.int64), data.rows.offsets
    return [ids[start:stop].tobytes() for start, stop in itertools.pairwise(offsets)]


def _holds(held: Any, tokens: list[bytes]) -> bool:
    if isinstance(held, Tensor):
        if held.dtype.is_complex or held.dtype == torch.bool:
            return False
        held = held.detach().cpu()
        held = (held.double() if held.dtype.is_floating_point else held).numpy()
    values = np.asarray(held)
    if values.dtype.kind not in "iuf" or not _whole(values):
        return False
    text = np.ascontiguousarray(values, dtype=np.int64).tobytes()
    return any(row in text for row in tokens)


def _whole(values: np.ndarray[Any, Any]) -> bool:
    """Whether these may be token numbers; they may be kept as floats."""
    return values.dtype.kind != "f" or bool(
        (np.isfinite(values) & (values == np.rint(values))).all()
    )


def overwrite(held: Any) -> None:
    """The same numbers in the opposite order: other rows, but valid ones."""
    if isinstance(held, list):
        held.reverse()
    elif isinstance(held, Tensor):
        with torch.no_grad():
            held.copy_(held.detach().flatten().flip(0).view(held.shape))
    elif held.flags.writeable:
        held[...] = held.ravel()[::-1].reshape(held.shape).copy()

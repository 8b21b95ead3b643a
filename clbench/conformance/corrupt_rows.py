"""Overwrite the rows of a finished task, in place, wherever a method may keep them."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Sequence
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

BatchTensors = list[tuple[int, "weakref.ref[Tensor]"]]


@dataclass(frozen=True)
class TracedData(TaskData):
    """Rows that remember the tensors of their batches, by task."""

    tensors: BatchTensors = field(default_factory=list, compare=False, repr=False)

    def batch(self, positions: IntArray, device: torch.device) -> Batch:
        """Return a batch and remember its tensors."""
        batch = super().batch(positions, device)
        for tensor in (*batch.inputs.values(), batch.labels):
            self.tensors.append((self.task, weakref.ref(tensor)))
        return batch


class RowCorrupter:
    """Overwrites the rows of each task when its stage is over.

    Overwrites the training rows themselves, every batch of them that is still alive, and all
    arrays in the method's attributes, class, module or closures that hold the tokens of one of
    their rows. A method that reads none of these trains on unchanged.
    """

    def __init__(self, train: Sequence[TaskData]) -> None:
        self._tensors: BatchTensors = []
        names = [f.name for f in fields(TaskData)]
        self.train = tuple(
            TracedData(**{name: getattr(data, name) for name in names}, tensors=self._tensors)
            for data in train
        )

    def __call__(self, method: Method, stage: Stage) -> None:
        """Overwrite the rows of the stage's task."""
        rows = stage.data.rows
        ids = rows.ids.astype(np.int64)
        tokens = [ids[a:b].tobytes() for a, b in itertools.pairwise(rows.offsets)]
        for array in walk(_roots(method)):
            if _contains(array, tokens):
                reverse(array)
        for task, reference in self._tensors:
            tensor = reference()
            if task == stage.index and tensor is not None:
                reverse(tensor)
        reverse(rows.ids)
        reverse(rows.labels)


def reverse(array: Any) -> None:
    """Reverse an array, tensor or list in place, which gives other but valid rows."""
    if isinstance(array, list):
        array.reverse()
    elif isinstance(array, Tensor):
        with torch.no_grad():
            array.copy_(array.detach().flatten().flip(0).view(array.shape))
    elif array.flags.writeable:
        array[...] = array.ravel()[::-1].reshape(array.shape).copy()


def _roots(method: Method) -> list[Any]:
    """Return the attributes of a method, of its classes and of the modules that define them."""
    kinds = type(method).__mro__
    roots = list(vars(method).values())
    for kind in kinds[: kinds.index(Method)]:
        if issubclass(kind, Method):
            roots += vars(kind).values()
            roots += vars(sys.modules.get(kind.__module__, object)).values()
    return roots


def _contains(array: Any, tokens: Sequence[bytes]) -> bool:
    """Whether an array holds one of these rows, as whole numbers of any type."""
    if isinstance(array, Tensor):
        array = array.detach().cpu()
        array = (array.double() if array.dtype.is_floating_point else array).numpy()
    values = np.asarray(array)
    if values.dtype.kind not in "iuf":
        return False
    if values.dtype.kind == "f" and not (np.isfinite(values) & (values == np.rint(values))).all():
        return False
    text = np.ascontiguousarray(values, dtype=np.int64).tobytes()
    return any(row in text for row in tokens)

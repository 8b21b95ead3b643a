"""How strongly the outputs depend on each weight, row by row, in one pass a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from clbench.fisher.per_example import (
    CHUNK_ACCELERATOR,
    Capture,
    Outer,
    Part,
    Rows,
    Whole,
    gradients_by_parts,
)
from clbench.training.device import Precision

if TYPE_CHECKING:
    from clbench.tasks.task import IntArray
    from clbench.training.batches import Batch
    from clbench.training.stage import Stage

RTOL, ATOL = 1e-2, 1e-5
"""How far sums may be from plain backward passes: of each number, and of the largest."""


def output_sensitivity(stage: Stage, rows: IntArray) -> dict[str, Tensor]:
    """Mean over rows of the absolute gradients of the squared norm of the outputs.

    Gradients of single rows are formed from what enters each layer and what flows back, as
    for the Fisher information, and checked against plain backward passes on two rows; what
    that does not cover gets a backward pass a row.

    Parameters
    ----------
    stage
        Its model, with the head of its task; dropout is turned off.
    rows
        Positions of the stage's rows to take the mean over.

    Returns
    -------
    dict of Tensor
        For each weight that can be trained, in the backbone and in the task's head.
    """
    weights = dict(stage.model.named_parameters())
    head = stage.model.head_parameter_names(stage.data.head)
    names = [*stage.model.backbone_parameters(), *head]
    wanted = {name: weights[name] for name in names if weights[name].requires_grad}
    stage.model.eval()
    slow, trial = _uncovered(stage, wanted, rows[:2])
    covered = {name: value for name, value in wanted.items() if name not in slow}
    capture = Capture(stage.model, covered, gather=add_absolutes, like=trial)
    order = rows[np.argsort(-stage.data.rows.lengths[rows], kind="stable")]
    size = stage.protocol.batch_of(stage.name)
    with capture:
        for start in range(0, len(order), size):
            slow |= _capture(capture, stage, order[start : start + size])
    totals = dict(capture.totals)
    if slow:
        totals |= one_by_one(stage, {name: wanted[name] for name in wanted if name in slow}, rows)
    return {name: totals[name].div_(len(rows)) for name in wanted}


def one_by_one(
    stage: Stage, parameters: Mapping[str, nn.Parameter], rows: IntArray
) -> dict[str, Tensor]:
    """Sums of absolute gradients by a backward pass for each row."""
    totals = {
        name: torch.zeros_like(value, dtype=torch.float32, requires_grad=False)
        for name, value in parameters.items()
    }
    for row in rows:
        norm = _norms(stage, stage.data.batch(np.array([row]), stage.device)).sum()
        found = torch.autograd.grad(norm, list(parameters.values()), allow_unused=True)
        for total, gradient in zip(totals.values(), found, strict=True):
            if gradient is not None:
                total.add_(gradient.abs_())
    return totals


def add_absolutes(total: Tensor, parts: Sequence[Part]) -> None:
    """Add to `total` the sum over examples of the gradient's absolute value.

    Parameters
    ----------
    total
        Of the weight's shape, float32.
    parts
        One for each use of the weight in the pass; they are added first.
    """
    outer = [part for part in parts if isinstance(part, Outer)]
    sparse = [part for part in parts if isinstance(part, Rows)]
    whole = [part.values for part in parts if isinstance(part, Whole)]
    if not outer and not sparse:
        total += torch.stack(whole).sum(0).float().abs().sum(0)
    elif not sparse and not whole:
        left = torch.cat([part.left for part in outer], 1)
        _add_outer(total, left, torch.cat([part.right for part in outer], 1))
    elif not outer and not whole:
        ids = torch.cat([part.ids for part in sparse], 1)
        _add_rows(total, ids, torch.cat([part.values for part in sparse], 1))
    else:
        _add_formed(total, outer, sparse, whole)


def _add_outer(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.device.type != "cpu":
        step = max(1, CHUNK_ACCELERATOR // total.numel())
        for start in range(0, len(left), step):
            pick = slice(start, start + step)
            total += torch.bmm(left[pick].transpose(1, 2), right[pick]).float().abs_().sum(0)
        return
    for block, gradient in gradients_by_parts(total, left, right):
        block += gradient.abs_()


def _add_rows(total: Tensor, ids: Tensor, values: Tensor) -> None:
    owner = torch.arange(len(ids), device=ids.device)[:, None].expand_as(ids)
    pairs, place = torch.unique(owner * len(total) + ids, return_inverse=True)
    sums = torch.zeros((len(pairs), total.shape[1]), device=total.device)
    sums.index_add_(0, place.reshape(-1), values.float().reshape(-1, total.shape[1]))
    total.index_add_(0, pairs % len(total), sums.abs_())


def _add_formed(
    total: Tensor, outer: Sequence[Outer], sparse: Sequence[Rows], whole: Sequence[Tensor]
) -> None:
    count = len(outer[0].left) if outer else len(sparse[0].ids)
    for example in range(count):
        gradient = torch.zeros_like(total)
        for dense in outer:
            gradient += (dense.left[example].T @ dense.right[example]).float()
        for rows in sparse:
            gradient.index_add_(0, rows.ids[example], rows.values[example].float())
        for values in whole:
            gradient += values[example].float()
        total += gradient.abs_()


def _norms(stage: Stage, batch: Batch) -> Tensor:
    """Squared norm of each row's outputs, shape (b,)."""
    return stage.logits(batch).square().sum(1)


def _capture(capture: Capture, stage: Stage, positions: IntArray) -> set[str]:
    batch = stage.data.batch(positions, stage.device)
    return capture.add(len(batch), partial(_norms, stage, batch))


def _uncovered(
    stage: Stage, wanted: Mapping[str, nn.Parameter], rows: IntArray
) -> tuple[set[str], Capture]:
    """Weights whose sums, on a few rows, are not those of plain backward passes; the trial."""
    exact_stage = replace(stage, precision=Precision("float32", stage.device.type))
    trial = Capture(stage.model, wanted, gather=add_absolutes)
    with trial:
        left = _capture(trial, exact_stage, rows)
    exact = one_by_one(exact_stage, wanted, rows)
    slack = ATOL * max(float(value.max()) for value in exact.values())
    slow = {
        name
        for name in wanted
        if name in left
        or not torch.allclose(trial.totals[name], exact[name], rtol=RTOL, atol=slack)
    }
    return slow, trial

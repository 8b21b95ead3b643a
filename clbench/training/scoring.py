"""Outputs of the model for rows, without dropout and without gradients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from clbench.errors import NonFiniteLossError
from clbench.models.classifier import Classifier
from clbench.tasks.task import IntArray
from clbench.training.batches import TaskData
from clbench.training.device import Precision


def outputs_of(
    model: Classifier, data: TaskData, batch_size: int, precision: Precision, device: torch.device
) -> npt.NDArray[np.float32]:
    """Outputs of the task's head for all rows of `data`, in their order.

    Returns
    -------
    ndarray
        Shape (n, outputs), float32.

    Raises
    ------
    NonFiniteLossError
        If an output is no finite number: the weights have diverged.
    """
    model.eval()
    order = np.argsort(-data.rows.lengths, kind="stable")
    results: list[npt.NDArray[np.float32]] = []
    with torch.inference_mode(), precision.autocast():
        for positions in _chunks(order, batch_size):
            batch = data.batch(positions, device)
            results.append(model(batch.inputs, batch.head).float().cpu().numpy())
    outputs = np.empty((len(order), results[0].shape[1]), dtype=np.float32)
    outputs[order] = np.concatenate(results)
    if not np.isfinite(outputs).all():
        raise NonFiniteLossError(
            f"the outputs for {data.name} are no longer finite numbers: training diverged. "
            "Lower the learning rate, set clip_norm, or use --precision float32."
        )
    return outputs


def _chunks(order: IntArray, size: int) -> Iterator[IntArray]:
    for start in range(0, len(order), size):
        yield order[start : start + size]

"""Which weights of a model, and which of their elements, methods act on."""

import numpy as np
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from clbench.core.shapes import only_shapes
from clbench.models.classifier import TaskModel


def linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the dense layers of a model by name, GPT-2's Conv1D included."""
    return {n: layer for n, layer in model.named_modules() if isinstance(layer, nn.Linear | Conv1D)}


def matrices(model: TaskModel) -> dict[str, nn.Parameter]:
    """Return the backbone's weights of two or more dimensions by name, without embedding tables."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    return {
        name: weight
        for name, weight in model.backbone_parameters().items()
        if weight.dim() >= 2 and id(weight) not in tables
    }


def largest(moment: Tensor, fraction: float) -> Tensor:
    """Return a mask of the `fraction` of elements with the largest size, at least one.

    Elements as large as the smallest of these are in the mask too, but none of size 0.
    """
    sizes, count = moment.abs(), max(1, round(fraction * moment.numel()))
    return (sizes >= nth_largest(sizes.flatten(), count)) & (sizes > 0)


def nth_largest(values: Tensor, n: int) -> Tensor:
    """Return the n-th largest of `values`, of shape (m,), as a scalar; n counts from 1."""
    rank = len(values) - n
    if values.device.type == "cpu" and not only_shapes():
        # Eight times as fast as torch; NumPy has no bfloat16.
        return values.new_tensor(np.partition(values.float().numpy(), rank)[rank])
    return values.kthvalue(rank + 1).values

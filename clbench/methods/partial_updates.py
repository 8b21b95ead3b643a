"""Methods that move only some weights in a step: MoFO (Chen et al. 2024), MIGU (Du et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import AdamW

from clbench.methods.base import Method

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from clbench.models.classifier import TaskModel
    from clbench.training.batches import Batch
    from clbench.training.stage import Context, Stage


class MoFO(Method):
    """Move in each step only the weights with the largest first moment of Adam.

    Adam's moments are those of all weights, but of each tensor only the share `fraction` with the
    largest ``|m|`` moves (Chen et al. 2024, arXiv 2407.20999, Algorithm 1); the others stay as they
    are, weight decay included, so the model stays nearer to where it was. A new head, which has
    nothing to forget, moves whole; a head that an earlier task trained is filtered like the
    backbone. That includes the rows of new classes in a head that grows. Biases and norms are
    filtered as printed; the authors' code lets them move.

    Attributes
    ----------
    fraction
        α: share of the weights of a tensor that move in a step, at least one weight; 1 is vanilla.
    """

    name: ClassVar[str] = "mofo"
    needs_outputs: ClassVar[bool] = True  # a share of a whole tensor moves
    fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.15

    def acts_in(self, index: int) -> bool:
        """Return False if all weights move."""
        return self.fraction < 1.0

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return the weights to filter, and those of a new head."""
        names = {id(weight): name for name, weight in stage.model.named_parameters()}
        shared, trained = set(stage.shared_names()), stage.trainable()
        filtered = [weight for weight in trained if names[id(weight)] in shared]
        new = [weight for weight in trained if names[id(weight)] not in shared]
        groups = [(filtered, self.fraction), (new, 1.0)]
        return [
            {"params": weights, "lr": stage.protocol.lr, "fraction": fraction}
            for weights, fraction in groups
            if weights
        ]

    def optimizer(self, stage: Stage, groups: list[dict[str, Any]]) -> Optimizer:
        """Return the filtered Adam with the protocol's settings."""
        return stage.adam(groups, FilteredAdam)


class FilteredAdam(AdamW):
    """Adam, or AdamW with weight decay, that moves a part of each tensor.

    A group's option ``fraction`` (default 1) is the share of each of its tensors that moves.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step, and put the weights with smaller momentum back; see `AdamW.step`."""
        before = [
            (weight, weight.clone(), group["fraction"])
            for group in self.param_groups
            for weight in group["params"]
            if weight.grad is not None and group.get("fraction", 1.0) < 1.0
        ]
        loss = super().step(closure)
        for weight, value, fraction in before:
            moves = largest(self.state[weight]["exp_avg"], fraction)
            weight.copy_(torch.where(moves, weight, value))
        return loss


def largest(moment: Tensor, fraction: float) -> Tensor:
    """Return a mask of the `fraction` of elements with the largest size, at least one.

    Elements as large as the smallest of these are in the mask too.
    """
    sizes = moment.abs()
    return sizes >= nth_largest(sizes.flatten(), max(1, round(fraction * sizes.numel())))


def nth_largest(values: Tensor, n: int) -> Tensor:
    """Return the n-th largest of `values`, of shape (m,), as a scalar; n counts from 1."""
    rank = len(values) - n
    if values.device.type == "cpu":
        # Eight times as fast as torch.
        return torch.as_tensor(np.partition(values.numpy(), rank)[rank])
    return values.kthvalue(rank + 1).values


class Migu(Method):
    """Update in each linear layer only the units with the largest outputs for the batch.

    The outputs h of a token are normalised, ``|h| / ‖h‖₁``, and averaged over the tokens of the
    batch, padding left out; the share `share` of the units with the largest averages keeps its
    gradient, and that of the other rows of weight and bias becomes 0 (Du et al. 2024, arXiv
    2406.17245, section 3). Tasks with different outputs then train different units. As in the
    authors' code, the first task trains all units, embeddings and norms are trained whole, and a
    unit without gradient still moves by Adam's momentum. The classification heads, which the
    paper's language models do not have, are trained whole too.

    Attributes
    ----------
    share
        Share of a layer's units that are updated, at least one unit; 1 is vanilla.
    """

    name: ClassVar[str] = "migu"
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.3

    def acts_in(self, index: int) -> bool:
        """Return False for the first stage, which has nothing to retain."""
        return index > 0 and self.share < 1.0

    def setup(self, context: Context) -> None:
        """Find the linear layers."""
        self._layers = linear_layers(context.model)

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the loss, and measure the outputs of the linear layers on the way."""
        mask = batch.inputs["attention_mask"].flatten(0, -2)
        self._sizes: dict[str, Tensor] = {}
        with ExitStack() as hooks:
            for name, layer in self._layers.items():
                measure = partial(self._measure, name, mask)
                hooks.callback(layer.register_forward_hook(measure).remove)
            return stage.loss(batch)

    @torch.no_grad()
    def edit_gradients(self, stage: Stage) -> None:
        """Zero the gradients of the units with smaller outputs."""
        for name, sizes in self._sizes.items():
            layer = self._layers[name]
            count = max(1, round(self.share * len(sizes)))
            kept = torch.zeros_like(sizes).index_fill_(0, sizes.topk(count).indices, 1.0)
            for parameter in layer.parameters(recurse=False):
                if parameter.grad is not None:
                    # The units are the rows of a Linear and the columns of a Conv1D.
                    by_row = parameter.dim() == 2 and isinstance(layer, nn.Linear)
                    parameter.grad.mul_(kept[:, None] if by_row else kept)

    def _measure(self, name: str, mask: Tensor, _layer: Any, _inputs: Any, output: Tensor) -> None:
        """Add the outputs of a layer to its sizes; a layer may be called several times."""
        sizes = magnitudes(output.detach().float(), mask)
        self._sizes[name] = self._sizes[name] + sizes if name in self._sizes else sizes


def linear_layers(model: TaskModel) -> dict[str, nn.Module]:
    """Return the backbone's dense layers by name, GPT-2's Conv1D included."""
    from transformers.pytorch_utils import Conv1D

    return {
        name: module
        for name, module in model.backbone.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
    }


def magnitudes(outputs: Tensor, mask: Tensor) -> Tensor:
    """Return the mean L1-normalised size of each output unit over the real tokens, shape (h,).

    Parameters
    ----------
    outputs
        Outputs of a layer, shape (…, h), such as (b, t, h).
    mask
        Shape (b, t), 1 for real tokens. Outputs that are not by token, such as those for relative
        positions, all count.
    """
    shares = outputs.abs()
    shares = shares / shares.sum(-1, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)
    if shares.shape[:-1] == mask.shape:
        return (shares * mask[..., None]).sum((0, 1)) / mask.sum()
    return shares.flatten(0, -2).mean(0)

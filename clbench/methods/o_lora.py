"""O-LoRA: a LoRA adapter for each task, orthogonal to those of earlier tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from clbench.methods.base import should_record
from clbench.methods.lora import ADAPTER, LowRank

if TYPE_CHECKING:
    from clbench.training.stage import Context, Snapshot, Stage


class OLora(LowRank):
    """Train a low-rank addition for each task, orthogonal to the frozen earlier ones (O-LoRA).

    In task t a matrix is W + (`alpha` / `r`)·Σ_{i ≤ t} B_i A_i, of which only A_t and B_t are
    trained, and ``weight·Σ_{i < t} ‖A_i A_tᵀ‖²``, summed over the matrices, is added to the loss
    (Wang et al. 2023, section 3, where A is transposed). The rows of A_i span the inputs to which
    task i changed the response, so tasks change the responses to orthogonal inputs. All additions
    are used for every row: the method is not told the task. Those of earlier tasks are added to W,
    which gives the same outputs up to rounding (`dropout` then spares them). In the paper, T5's
    output layer is frozen with the rest; here the heads are trained, so a shared head can forget.
    The second penalty of the authors' code, on the size of A_t and B_t, is left out. See `LowRank`
    for the other settings.

    Attributes
    ----------
    weight
        λ. Meaningful only together with `norm`.
    norm
        ``squared``: the sum of squared entries of A_i A_tᵀ, as in the paper. ``absolute``: the
        sum of their absolute values, as in the authors' code, which is far larger.
    """

    name: ClassVar[str] = "o-lora"
    weight: Annotated[float, Field(gt=0.0, le=1e6)] = 0.5
    norm: Literal["squared", "absolute"] = "squared"

    def setup(self, context: Context) -> None:
        """Insert the additions; A_i of the earlier tasks are kept by matrix, row under row."""
        super().setup(context)
        self.earlier: Snapshot = {}

    def penalty(self, stage: Stage) -> Tensor | None:
        """Return the weighted overlap of the task's addition with the earlier ones."""
        if not self.earlier:
            return None
        overlaps = [
            self.earlier[path] @ layer.lora_A[ADAPTER].weight.T
            for path, layer in self._layers.items()
        ]
        size = torch.square if self.norm == "squared" else torch.abs
        penalty = self.weight * torch.stack([size(overlap).sum() for overlap in overlaps]).sum()
        if should_record(stage):
            stage.record("penalty", penalty)
        return penalty

    @torch.no_grad()
    def after_stage(self, stage: Stage) -> None:
        """Add the task's product to the frozen weights and start a new one."""
        for path, layer in self._layers.items():
            down, weight = layer.lora_A[ADAPTER].weight, layer.base_layer.weight
            weight.add_(layer.get_delta_weight(ADAPTER).to(weight.dtype))
            rows = [self.earlier[path]] if path in self.earlier else []
            self.earlier[path] = torch.cat([*rows, down])
        self.restart(stage)

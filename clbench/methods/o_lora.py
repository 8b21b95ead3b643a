"""O-LoRA: a LoRA adapter for each task, orthogonal to those of earlier tasks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.methods.base import should_record
from clbench.methods.lora import LowRank

if TYPE_CHECKING:
    from clbench.training.stage import Context, Stage


class OLora(LowRank):
    """Train a low-rank addition for each task, orthogonal to the frozen earlier ones (O-LoRA).

    In task t a matrix is W + (`alpha` / `r`)·Σ_{i ≤ t} B_i A_i, of which only A_t and B_t are
    trained, and ``weight·Σ_{i < t} ‖A_i A_tᵀ‖²``, summed over the matrices, is added to the loss
    (Wang et al. 2023, section 3, where A is transposed). The rows of A_i span the inputs to which
    task i changed the response, so tasks change the responses to orthogonal inputs. All additions
    are used for every row: the method is not told the task. In the paper, T5's output layer is
    frozen with the rest; here the heads are trained, so a shared head can forget. The second
    penalty of the authors' code, on the size of A_t and B_t, is left out. See `LowRank` for the
    other settings.

    Attributes
    ----------
    weight
        λ. Meaningful only together with `norm`.
    norm
        ``squared``: the sum of squared entries of A_i A_tᵀ, as in the paper. ``absolute``: the
        sum of their absolute values, as in the authors' code, which is far larger.
    """

    name: ClassVar[str] = "o-lora"
    needs_length: ClassVar[bool] = True
    weight: Annotated[float, Field(gt=0.0, le=1e6)] = 0.5
    norm: Literal["squared", "absolute"] = "squared"

    def ranks(self, context: Context) -> dict[str, int]:
        """Return the task's adapter, and one adapter with room for all earlier tasks."""
        earlier = self.r * (context.stages - 1)
        return {"task": self.r, **({"earlier": earlier} if earlier else {})}

    def setup(self, context: Context) -> None:
        """Insert the adapters; that of earlier tasks is zero."""
        super().setup(context)
        if context.stages > 1:
            for layer in self._layers.values():
                nn.init.zeros_(layer.lora_A["earlier"].weight)
            self.use("earlier", "task")

    def penalty(self, stage: Stage) -> Tensor | None:
        """Return the weighted overlap of the task's adapter with the earlier ones."""
        if stage.index == 0:
            return None
        overlaps = [
            layer.lora_A["earlier"].weight @ layer.lora_A["task"].weight.T
            for layer in self._layers.values()
        ]
        size = torch.square if self.norm == "squared" else torch.abs
        penalty = self.weight * torch.stack([size(overlap).sum() for overlap in overlaps]).sum()
        if should_record(stage):
            stage.record("penalty", penalty)
        return penalty

    @torch.no_grad()
    def after_stage(self, stage: Stage) -> None:
        """Move the task's adapter to the earlier ones and start a new one."""
        if stage.index == stage.stages - 1:
            return
        generator = stage.rng("adapter")
        own = slice(stage.index * self.r, (stage.index + 1) * self.r)
        for layer in self._layers.values():
            down, up = layer.lora_A["task"].weight, layer.lora_B["task"].weight
            layer.lora_A["earlier"].weight[own] = down
            layer.lora_B["earlier"].weight[:, own] = up
            new = torch.empty(down.shape)
            nn.init.kaiming_uniform_(new, a=math.sqrt(5.0), generator=generator)  # as peft does
            down.copy_(new)
            up.zero_()

"""OSF: train each weight matrix in the complement of its largest singular directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from clbench.methods.base import Method
from clbench.methods.packnet import matrices

if TYPE_CHECKING:
    from clbench.training.stage import Context, Stage


class OSF(Method):
    """Train every matrix in the complement of its largest singular directions (OSF).

    When a stage begins, each weight matrix of the backbone is decomposed anew, and U and V are
    the singular vectors of its largest singular values (Nayak et al. 2025, section 3). Gradients
    become (I − UUᵀ)·G·(I − VVᵀ), and so does the change of the matrix after every step, because
    Adam would leave the complement: W keeps mapping V as it did. Embeddings, norms and biases are
    frozen meanwhile. The paper trains the factors of the remaining directions, which reach the
    same matrices; here, the matrix itself is trained. Nothing is kept between stages. The package
    peft projects the gradients only, so that Adam's steps leave the complement.

    Attributes
    ----------
    preserve
        Share of the singular directions of each matrix that a stage preserves, or
        ``progressive``: i/T in task i of T, from 0, so that the first one trains as vanilla. The
        paper's shares by layer, from the similarity of its inputs and outputs, are left out.
    """

    name: ClassVar[str] = "osf"
    preserve: Annotated[float, Field(gt=0.0, lt=1.0)] | Literal["progressive"] = "progressive"

    @property
    def needs_length(self) -> bool:  # type: ignore[override]
        """Whether the number of tasks decides the share."""
        return self.preserve == "progressive"

    def acts_in(self, index: int) -> bool:
        """Return False for a first stage that trains everything."""
        return index > 0 or self.preserve != "progressive"

    def setup(self, context: Context) -> None:
        """Find the matrices."""
        self._weights = matrices(context.model)

    @torch.no_grad()
    def before_stage(self, stage: Stage) -> None:
        """Decompose the matrices; freeze the rest of the backbone."""
        share = stage.index / stage.stages if self.preserve == "progressive" else self.preserve
        for name, parameter in stage.model.backbone_parameters().items():
            parameter.requires_grad_(name in self._weights)
        self._start = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._high: dict[str, tuple[Tensor, Tensor]] = {}
        for name, weight in self._weights.items():
            left, _, right = torch.linalg.svd(weight.flatten(1).float(), full_matrices=False)
            rank = round(share * len(right))
            self._high[name] = left[:, :rank].contiguous(), right[:rank].contiguous()

    @torch.no_grad()
    def edit_gradients(self, stage: Stage) -> None:
        """Project the gradients."""
        for name, weight in self._weights.items():
            if weight.grad is not None:
                weight.grad.copy_(self._project(name, weight.grad))

    @torch.no_grad()
    def after_step(self, stage: Stage) -> None:
        """Project the change of the matrices since the stage began."""
        for name, weight in self._weights.items():
            start = self._start[name]
            weight.copy_(start + self._project(name, weight - start))

    def after_stage(self, stage: Stage) -> None:
        """Release the singular vectors."""
        self._start, self._high = {}, {}

    def _project(self, name: str, change: Tensor) -> Tensor:
        """Return the part of `change` in the complement of a matrix's preserved directions."""
        left, right = self._high[name]
        flat = change.flatten(1)
        flat = flat - left @ (left.T @ flat)
        return (flat - (flat @ right.T) @ right).view_as(change)

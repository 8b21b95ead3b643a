"""SMART: outputs that small noise does not change, and small steps in what the model says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.errors import SettingsError
from clbench.methods.base import Method
from clbench.training.device import Precision

if TYPE_CHECKING:
    from clbench.training.batches import Batch
    from clbench.training.stage import Stage

POINTS = 30
"""Points of each curve in a stage, at most."""
Weight = Annotated[float, Field(ge=0.0, le=1e6)]
Size = Annotated[float, Field(gt=0.0, le=1e3)]
Momentum = Annotated[float, Field(ge=0.0, lt=1.0)]


class Smart(Method):
    """Smooth the model around each row, and keep what it says near what it just said.

    The loss of a step is ``L + λ_s·R_s + μ·D_Breg`` (Jiang et al. 2020, equations 1 to 4).
    R_s is the divergence between the outputs for a row and for the row with noise added to
    its word embeddings, the noise being moved so as to raise it and held small.
    D_Breg is the divergence between the outputs now and those of a moving average of the
    weights, which begins anew with each stage. The divergence is the symmetrised
    Kullback-Leibler divergence, for regression the squared difference.

    All passes of a step drop the same numbers, so that the differences are those of the
    noise and of the weights alone, and all are computed in float32: noise of the paper's
    size is below what bf16 can tell apart.

    Attributes
    ----------
    lambda_s
        Weight of the smoothness term.
    mu
        Weight of the proximal term.
    projection
        What holds the noise in. ``box``: each of its numbers within ±`epsilon`, as printed
        in algorithm 1; at the printed 1e-5 the smoothness term is then next to nothing.
        ``unit``: the noise of each token is scaled to a largest size of 1, as in the
        authors' public code, which knows no ε.
    epsilon
        Largest size of any number of the noise in its box.
    step_size
        η, with which the noise is moved along its gradient, scaled to a largest number of 1
        in each row.
    sigma
        Standard deviation of the noise to begin with.
    ascents
        How often the noise is moved in a step.
    momentum, late_momentum
        β of the moving average in the first tenth of the steps and after it.

    Raises
    ------
    SettingsError
        If both weights are 0.
    """

    name: ClassVar[str] = "smart"
    lambda_s: Weight = 1.0
    mu: Weight = 1.0
    projection: Literal["box", "unit"] = "box"
    epsilon: Size = 1e-5
    step_size: Size = 1e-3
    sigma: Size = 1e-5
    ascents: Annotated[int, Field(gt=0, le=100)] = 1
    momentum: Momentum = 0.99
    late_momentum: Momentum = 0.999

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.lambda_s == 0.0 and self.mu == 0.0:
            raise SettingsError(
                "method 'smart': lambda_s and mu are both 0, so nothing is added to the loss. "
                "Give one of them, or use vanilla."
            )

    def before_stage(self, stage: Stage) -> None:
        """Begin the moving average and the stream of noise."""
        names = [
            *stage.model.backbone_parameters(),
            *stage.model.head_parameter_names(stage.data.head),
        ]
        weights = dict(stage.model.named_parameters())
        self._weights = {name: weights[name] for name in names if weights[name].requires_grad}
        self._slow = stage.snapshot(list(self._weights)) if self.mu else {}
        seed = stage.random_seed("smart")
        self._generator = torch.Generator(stage.device).manual_seed(seed)

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """The task's loss and both terms."""
        exact = replace(stage, precision=Precision("float32", stage.device.type))
        outputs = exact.logits(batch)
        loss = stage.criterion(outputs, batch)
        if self.lambda_s:
            rough = self._roughness(exact, batch, outputs)
            self._record(stage, "smoothness", rough)
            loss = loss + self.lambda_s * rough
        if self.mu:
            stage.restart_dropout()
            with torch.no_grad():
                before = exact.logits(batch, weights=self._slow)
            moved = divergence(outputs, before, regression=batch.regression)
            self._record(stage, "proximity", moved)
            loss = loss + self.mu * moved
        return loss

    @torch.no_grad()
    def after_step(self, stage: Stage) -> None:
        """Let the moving average follow."""
        done = stage.done_before + stage.step + 1
        momentum = self.momentum if 10 * done <= stage.total_steps else self.late_momentum
        if self._slow:
            now = [weight.detach() for weight in self._weights.values()]
            torch._foreach_lerp_(list(self._slow.values()), now, 1.0 - momentum)

    def after_stage(self, stage: Stage) -> None:
        """Let go of what belonged to the stage."""
        for name in ("_weights", "_slow", "_generator"):
            self.__dict__.pop(name, None)

    def _roughness(self, stage: Stage, batch: Batch, outputs: Tensor) -> Tensor:
        """The divergence under the noise that was moved to raise it."""
        embedded = stage.model.embed(batch.inputs["input_ids"])
        noise = torch.empty_like(embedded, requires_grad=False)
        noise.normal_(0.0, self.sigma, generator=self._generator)
        fixed = outputs.detach()
        for _ in range(self.ascents):
            noise.requires_grad_(True)
            stage.restart_dropout()
            noisy = stage.logits(batch, inputs_embeds=embedded.detach() + noise)
            gap = divergence(noisy, fixed, regression=batch.regression)
            (gradient,) = torch.autograd.grad(gap, noise)
            radius = self.epsilon if self.projection == "box" else None
            noise = moved_noise(noise.detach(), gradient, self.step_size, radius)
        stage.restart_dropout()
        noisy = stage.logits(batch, inputs_embeds=embedded + noise)
        return divergence(noisy, outputs, regression=batch.regression)

    def _record(self, stage: Stage, name: str, value: Tensor) -> None:
        done = stage.done_before + stage.step
        if done % -(-stage.total_steps // POINTS) == 0:
            stage.record(name, value)


def divergence(first: Tensor, second: Tensor, *, regression: bool) -> Tensor:
    """How far two sets of outputs are apart, mean over rows; a scalar.

    ``KL(P‖Q) + KL(Q‖P)``, or the squared difference for regression (Jiang et al. 2020,
    section 3.1).

    Parameters
    ----------
    first, second
        Shape (b, outputs).
    regression
        Whether outputs are targets in place of classes.
    """
    if regression:
        return nn.functional.mse_loss(first, second)
    log_p, log_q = torch.log_softmax(first, dim=-1), torch.log_softmax(second, dim=-1)
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=-1).mean()


def moved_noise(noise: Tensor, gradient: Tensor, step_size: float, epsilon: float | None) -> Tensor:
    """Noise after a step up (Jiang et al. 2020, algorithm 1).

    Parameters
    ----------
    noise, gradient
        Shape (b, t, e); the gradient is scaled to a largest size of 1 in each row.
    step_size
        η.
    epsilon
        Radius of the box that the noise is held in; None scales the noise of each token to
        a largest size of 1.
    """
    tiny = torch.finfo(gradient.dtype).tiny
    largest = gradient.abs().amax(dim=(1, 2), keepdim=True)
    raised = noise + step_size * gradient / largest.clamp(min=tiny)
    if epsilon is None:
        return raised / raised.abs().amax(dim=2, keepdim=True).clamp(min=tiny)
    return raised.clamp_(-epsilon, epsilon)

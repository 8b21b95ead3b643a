"""Methods that train against perturbations: SAM of the weights, SMART of the embeddings."""

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.core.errors import SettingsError
from clbench.methods.base import Method
from clbench.training.batches import Batch
from clbench.training.device import Precision
from clbench.training.protocol import Protocol
from clbench.training.stage import Stage


class Sam(Method):
    """Step along the gradient at the nearby weights where the loss is largest.

    With g the gradient of the batch at the weights θ, the optimizer gets the gradient at
    ``θ + ρ·g/‖g‖`` instead, which leads to flat minima (Foret et al. 2021, equations 2 and 3,
    Algorithm 1); in these, later tasks raise the loss less (Mehta et al. 2023; Li et al. 2024,
    arXiv 2406.04836). The norm is that of all weights that the stage trains. Both passes see the
    same batch and drop the same units. The curve ``sharpness`` is the difference of the two losses.

    Attributes
    ----------
    rho
        ρ: distance of the nearby weights.
    """

    name = "sam"
    rho: Annotated[float, Field(gt=0.0, le=100.0)] = 0.05

    def check_protocol(self, protocol: Protocol) -> None:
        """Refuse parts of batches, and weights in bf16, which round the perturbation away."""
        if protocol.weights == "bf16":
            raise SettingsError(
                "its perturbation is lost in bf16. Set weights = 'float32' in [protocol]."
            )
        if protocol.accumulation > 1 or protocol.gradient_checkpointing:
            raise SettingsError(
                "its second pass needs whole batches and activations. Set accumulation = 1 and "
                "gradient_checkpointing = false in [protocol]."
            )

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the loss, and keep the batch for the second pass."""
        loss = stage.loss(batch)
        self._batch, self._loss = batch, loss.detach()
        return loss

    def edit_gradients(self, stage: Stage) -> None:
        """Replace the gradients by those at the nearby weights, without moving the weights."""
        weights = {n: w for n, w in stage.trainable_weights().items() if w.grad is not None}
        gradients = [weight.grad for weight in weights.values() if weight.grad is not None]
        with torch.no_grad():
            norm = torch.stack(torch._foreach_norm(gradients)).norm()
            torch._foreach_mul_(gradients, self.rho / (norm + 1e-12))
            torch._foreach_add_(gradients, [*weights.values()])
        nearby = {
            name: value.requires_grad_() for name, value in zip(weights, gradients, strict=True)
        }
        stage.restart_dropout()
        loss = stage.loss(self._batch, weights=nearby)
        slopes = torch.autograd.grad(loss, gradients)
        for weight, slope in zip(weights.values(), slopes, strict=True):
            weight.grad = slope
        stage.sample("sharpness", loss.detach() - self._loss)


Weight = Annotated[float, Field(ge=0.0, le=1e6)]
Size = Annotated[float, Field(gt=0.0, le=1e3)]
Momentum = Annotated[float, Field(ge=0.0, lt=1.0)]


class Smart(Method):
    """Smooth the model around each row, and keep its outputs near those of recent weights.

    The loss of a step is ``L + λ_s·R_s + μ·D_Breg`` (Jiang et al. 2020, equations 1 to 4).
    R_s is the divergence between the outputs for a row and for the row with noise added to
    its word embeddings; the noise is moved to increase it and kept small. D_Breg is the
    divergence between the current outputs and those of a moving average of the weights, which
    starts anew in each stage. The divergence is the symmetrised Kullback-Leibler divergence;
    for regression, the squared difference.

    All passes of a step use the same dropout masks, also over different parts of its batch, so
    that differences come from the noise and the weights alone. All are computed in float32: bf16
    cannot represent noise of the paper's size, nor the steps of the moving average, so weights in
    bf16 are refused.

    Attributes
    ----------
    lambda_s
        Weight of the smoothness term.
    mu
        Weight of the proximal term.
    projection
        How the noise is bounded. ``box``: each element within ±`epsilon`, as printed in
        algorithm 1; at the printed 1e-5 the smoothness term is almost 0. ``unit``: the noise
        of each token is scaled to a largest absolute value of 1, as in the authors' public
        code, which has no ε, but adds the gradient as it is (of one direction of the divergence).
    epsilon
        Largest absolute value of the noise with the projection ``box``.
    step_size
        η: step of the noise along its gradient, which is scaled to a largest absolute value
        of 1 in each row.
    sigma
        Standard deviation of the initial noise.
    ascents
        Steps of the noise per training step.
    momentum, late_momentum
        β of the moving average: in the first tenth of the steps, and in the others.
    """

    name = "smart"
    lambda_s: Weight = 1.0
    mu: Weight = 1.0
    projection: Literal["box", "unit"] = "box"
    epsilon: Size = 1e-5
    step_size: Size = 1e-3
    sigma: Size = 1e-5
    ascents: Annotated[int, Field(gt=0, le=100)] = 1
    momentum: Momentum = 0.99
    late_momentum: Momentum = 0.999

    def check_protocol(self, protocol: Protocol) -> None:
        """Refuse weights in bf16, which round the noise and the average away."""
        if protocol.weights == "bf16":
            raise SettingsError(
                "its noise and its moving average are lost in bf16. Set weights = 'float32' in "
                "[protocol]."
            )

    def before_stage(self, stage: Stage) -> None:
        """Start the moving average and the stream of noise."""
        self._weights = stage.trainable_weights()
        self._average = stage.snapshot(list(self._weights)) if self.mu else {}
        self._generator = torch.Generator(stage.device).manual_seed(stage.random_seed("smart"))

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the task's loss plus both terms."""
        exact = replace(stage, precision=Precision("float32", stage.device.type))
        stage.restart_dropout()
        outputs = exact.logits(batch)
        loss = stage.criterion(outputs, batch)
        terms = []
        if self.lambda_s:
            terms.append(("smoothness", self.lambda_s, self._smoothness(exact, batch, outputs)))
        if self.mu:
            stage.restart_dropout()
            with torch.no_grad():
                targets = exact.logits(batch, weights=self._average)
            proximity = self._gap(batch, outputs, targets)
            terms.append(("proximity", self.mu, proximity))
        for name, weight, term in terms:
            stage.sample(name, term)
            loss = loss + weight * term
        return loss

    @torch.no_grad()
    def after_step(self, stage: Stage) -> None:
        """Update the moving average."""
        steps = stage.done_before + stage.step + 1
        momentum = self.momentum if 10 * steps <= stage.total_steps else self.late_momentum
        if self._average:
            weights = [weight.detach() for weight in self._weights.values()]
            torch._foreach_lerp_(list(self._average.values()), weights, 1.0 - momentum)

    def _smoothness(self, stage: Stage, batch: Batch, outputs: Tensor) -> Tensor:
        """Return the divergence that adversarial noise causes, a scalar."""
        embedded = stage.model.embed(batch.inputs["input_ids"])
        noise = torch.empty_like(embedded)
        noise.normal_(0.0, self.sigma, generator=self._generator)
        targets = outputs.detach()
        radius = self.epsilon if self.projection == "box" else None
        for _ in range(self.ascents):
            noise.requires_grad_(True)
            stage.restart_dropout()
            noisy = stage.logits(batch, inputs_embeds=embedded.detach() + noise)
            gap = self._gap(batch, noisy, targets)
            (gradient,) = torch.autograd.grad(gap, noise)
            noise = move_noise(noise.detach(), gradient, self.step_size, radius)
        stage.restart_dropout()
        noisy = stage.logits(batch, inputs_embeds=embedded + noise)
        return self._gap(batch, noisy, outputs)

    @staticmethod
    def _gap(batch: Batch, first: Tensor, second: Tensor) -> Tensor:
        """Return the divergence of two sets of outputs for a batch, mean over predictions."""
        pair = batch.predictions(first), batch.predictions(second)
        return divergence(*pair, regression=batch.regression)


def divergence(first: Tensor, second: Tensor, *, regression: bool) -> Tensor:
    """Return the divergence of two sets of outputs, mean over rows; a scalar.

    ``KL(P‖Q) + KL(Q‖P)`` of class logits, or the squared difference for regression (Jiang et al.
    2020, section 3.1). `first` and `second` have the shape (b, outputs).
    """
    if regression:
        return nn.functional.mse_loss(first, second)
    log_p, log_q = torch.log_softmax(first, dim=-1), torch.log_softmax(second, dim=-1)
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=-1).mean()


def move_noise(noise: Tensor, gradient: Tensor, step_size: float, epsilon: float | None) -> Tensor:
    """Return the noise after a step along its gradient (Jiang et al. 2020, algorithm 1).

    `noise` and `gradient` have the shape (b, t, e) or (b, k, t, e); the gradient is scaled to a
    largest absolute value of 1 in each row. `epsilon` is the radius of the box around 0; None
    instead scales the noise of each token to a largest absolute value of 1.
    """
    tiny = torch.finfo(gradient.dtype).tiny
    largest = gradient.abs().amax(dim=tuple(range(1, gradient.dim())), keepdim=True)
    noise = noise + step_size * gradient / largest.clamp(min=tiny)
    if epsilon is None:
        return noise / noise.abs().amax(dim=-1, keepdim=True).clamp(min=tiny)
    return noise.clamp_(-epsilon, epsilon)

"""Losses of language models that weight each token: DFT, ASFT, EAFT and TALR.

All weights are constants in the gradient. Losses and terms are means over the predicted tokens.
"""

import math
from abc import ABC, abstractmethod
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.methods.base import Method
from clbench.models.encoding import IGNORED
from clbench.training.batches import Batch
from clbench.training.context import Context
from clbench.training.stage import Stage

Positive = Annotated[float, Field(gt=0.0, le=1e3)]


class TokenWeights(Method, ABC):
    """Multiply each token's cross-entropy by a weight; subclasses say which."""

    runs_in_trainer = True
    replaces_loss = True
    head_kinds = ("language-model",)

    @abstractmethod
    def weights(self, outputs: Tensor, losses: Tensor, batch: Batch) -> Tensor:
        """Return the weights of a batch's tokens, without gradient, shape (b, m).

        `outputs` are logits, shape (b, m, v), and `losses` cross-entropies, shape (b, m), 0 where
        nothing is predicted.
        """

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the mean of the weighted cross-entropies, a scalar."""
        return self.weighted(stage, batch, stage.logits(batch))

    def weighted(self, stage: Stage, batch: Batch, outputs: Tensor) -> Tensor:
        """Return the mean of the weighted cross-entropies of logits of shape (b, m, v)."""
        labels = batch.labels
        losses = nn.functional.cross_entropy(
            outputs.flatten(0, 1), labels.flatten(), reduction="none"
        ).view(labels.shape)
        with torch.no_grad():
            weights = self.weights(outputs.detach(), losses.detach(), batch)
        stage.sample("token_weight", batch.predictions(weights).mean())
        return stage.token_mean(weights * losses, batch)


class DFT(TokenWeights):
    """Weight each token by its own probability (dynamic fine-tuning).

    The loss of a token is ``−sg(p)·log p``, with p its probability and sg the stopped gradient
    (Wu et al. 2025, arXiv 2508.05629, equation 9), so that unlikely tokens hardly move the model.
    """

    name = "dft"

    def weights(self, outputs: Tensor, losses: Tensor, batch: Batch) -> Tensor:
        """Return the probabilities of the tokens."""
        return torch.exp(-losses)


class ASFT(DFT):
    """Weight tokens as DFT does, and stay near the base model's distributions there.

    Adds ``weight·KL(base ‖ model)`` over the vocabulary, the mean over the same tokens, as the
    authors' code does (Zhu et al. 2025, arXiv 2509.23753; equation 6 of their first version has
    KL(model ‖ base)). The base model is evaluated without dropout at each step. The curve
    ``divergence`` is the mean of the divergence.

    Attributes
    ----------
    weight
        λ: weight of the divergence.
    """

    name = "asft"
    weight: Annotated[float, Field(gt=0.0, le=1e6)] = 0.05

    def setup(self, context: Context) -> None:
        """Keep the base model's weights."""
        self._base = context.snapshot()

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the loss of DFT plus the divergence."""
        targets = stage.logits_of(self._base, batch)
        outputs = stage.logits(batch)
        log_q, log_p = (z.log_softmax(-1) for z in (outputs, targets))
        divergence = nn.functional.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
        divergence = stage.token_mean(divergence * (batch.labels != IGNORED), batch)
        stage.sample("divergence", divergence)
        return self.weighted(stage, batch, outputs) + self.weight * divergence


class EAFT(TokenWeights):
    """Weight each token by the entropy of the model's prediction (entropy-adaptive fine-tuning).

    The weight is ``(H/ln k)^power``, where H is the entropy of the k likeliest tokens with their
    probabilities scaled to a sum of 1 (Diao et al. 2026, arXiv 2601.02151, equations 2 and 3).
    Tokens that contradict a prediction of which the model is sure hardly move it. The authors'
    code divides by 3.0, which stands for ln 20 = 2.9957.

    Attributes
    ----------
    top
        k: number of likeliest tokens; at most the vocabulary.
    power
        Exponent of the normalised entropy.
    """

    name = "eaft"
    top: Annotated[int, Field(ge=2, le=1_000_000)] = 20
    power: Positive = 1.0

    def weights(self, outputs: Tensor, losses: Tensor, batch: Batch) -> Tensor:
        """Return the normalised entropies of the predictions."""
        count = min(self.top, outputs.shape[-1])
        log_p = outputs.topk(count, dim=-1).values.log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        return (entropy / math.log(count)).clamp(0.0, 1.0) ** self.power


class TALR(TokenWeights):
    """Weight tokens down by their loss (token-adaptive loss reweighting).

    The weight of a token is ``max(exp(−ℓ/τ), floor) = max(p^(1/τ), floor)``, with ℓ its loss and p
    its probability: the closed form that minimises the weighted loss plus τ times the weights'
    negative entropy (Lin et al. 2025, arXiv 2509.20758), not scaled to a sum of 1.

    Attributes
    ----------
    tau
        τ. ``median``: the median of the rows' mean losses in each batch or, with gradient
        accumulation, in each of its parts, so that it falls as the model learns.
    floor
        Least weight, which keeps hard tokens in training.
    """

    name = "talr"
    tau: Positive | Literal["median"] = "median"
    floor: Annotated[float, Field(ge=0.0, le=1.0)] = 0.01

    def weights(self, outputs: Tensor, losses: Tensor, batch: Batch) -> Tensor:
        """Return weights that fall with the loss."""
        tau = median_loss(losses, batch) if self.tau == "median" else self.tau
        return torch.exp(-losses / tau).clamp(min=self.floor)


def median_loss(losses: Tensor, batch: Batch) -> Tensor:
    """Return the median over rows of the mean loss of their tokens, a positive scalar.

    `losses` have the shape (b, m), 0 where nothing is predicted.
    """
    inside = batch.token_rows() == torch.arange(len(batch), device=losses.device)[:, None, None]
    counts = (inside & (batch.labels != IGNORED)).sum((1, 2))
    means = (losses * inside).sum((1, 2)) / counts  # NaN for rows without tokens
    return means.nanquantile(0.5).nan_to_num(1.0).clamp(min=torch.finfo(losses.dtype).tiny)

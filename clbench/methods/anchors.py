"""Methods that keep the weights near an anchor without a penalty: RecAdam and mixout."""

import math
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench import optim
from clbench.core.errors import SettingsError
from clbench.core.seeds import stream_seed
from clbench.methods.base import Method
from clbench.methods.quadratic import Anchor
from clbench.methods.selection import matrices
from clbench.training.batches import Batch
from clbench.training.context import Context, Snapshot
from clbench.training.dropout import MaskStream
from clbench.training.protocol import Protocol
from clbench.training.stage import Stage

MIN_T0 = 3.0
"""Smallest t0 that scaling gives."""


class RecAdam(Method):
    """Recall the pretrained weights first, then shift to learning (Chen et al. 2020).

    `clbench.optim.RecAdam` trains every stage and counts its steps from 0: λ(t) rises from 0 to
    1 and weighs learning against a pull towards the anchor. Plain Adam trains the new head
    of a task (section 4.1). With the anchor ``pretrained`` it also trains a head that tasks
    share, which was not pretrained; with ``previous`` that head is recalled like the backbone.

    The published k and t0 count steps, and gamma goes with a rate. With ``scaling = "stage"``
    they are scaled, so that λ rises at the same share of a stage of any length and the pull
    lr·gamma stays the same: t0·T/`for_steps`, k·`for_steps`/T, gamma·`for_lr`/lr for a stage
    of T steps at the flat rate lr. t0 is then at least 3 (k·t0 stays), as the first
    step of a warm-up moves nothing. The curves ``k``, ``t0`` and ``gamma`` show the scaled
    values; ``lambda`` and ``distance``, in total and by layer, are those of figures 1 and 2b.
    The result notes a stage too short to reach learning.

    Attributes
    ----------
    anchor
        What is recalled: the ``pretrained`` weights, as in the paper, or the ``previous``
        ones, with which the stage began (in the first stage the pretrained ones).
    initialisation
        Where the backbone starts: at the ``pretrained`` weights, or at ``random`` ones from
        which the first stage recalls (the paper's choice, section 4.1 and table 2).
    annealing
        Shape of λ(t): ``sigmoid`` (the paper's), ``linear`` or ``constant`` (1/2; in the authors'
        code 1, which is plain Adam).
    k, t0
        Steepness, in 1/steps, and midpoint, in steps, of the sigmoid.
    gamma
        Strength of the pull (section 4.1: 5000). lr·gamma must be below 1, or the pull
        overshoots.
    scaling
        ``stage``: scale k, t0 and gamma as above; ``printed``: use them unchanged.
    for_steps, for_lr
        Length of the stage for which k and t0 are meant, and the rate for which gamma is;
        used with ``scaling = "stage"`` only. The defaults are the slow end of what the paper
        tried (section 4.1): k = 0.05 and t0 = 1000 on RTE's 7,800 steps, at a rate of 2e-5.
    """

    name = "recadam"
    runs_in_trainer = True
    anchor: Anchor = "pretrained"
    initialisation: Literal["pretrained", "random"] = "pretrained"
    annealing: optim.Annealing = "sigmoid"
    k: Annotated[float, Field(ge=0.0, le=1e6)] = 0.05
    t0: Annotated[float, Field(ge=0.0, le=1e9)] = 1000.0
    gamma: Annotated[float, Field(gt=0.0, le=1e9)] = 5000.0
    scaling: Literal["stage", "printed"] = "stage"
    for_steps: Annotated[int, Field(gt=0)] = 7800
    for_lr: Annotated[float, Field(gt=0.0, le=1.0)] = 2e-5

    @property
    def holds_head(self) -> bool:  # type: ignore[override]
        """Whether a shared head is recalled, too."""
        return self.anchor == "previous"

    def check_protocol(self, protocol: Protocol) -> None:
        """Refuse a pull that overshoots at the flat rate, and weights in bf16, which round it."""
        if protocol.weights == "bf16":
            raise SettingsError(
                "small pulls towards the anchor are lost in bf16. Set weights = 'float32' in "
                "[protocol]; for a Trainer, load the model with dtype=torch.float32."
            )
        scaled = self.scaling == "stage"
        try:
            optim.check_pull(self.for_lr if scaled else protocol.lr, self.gamma)
        except ValueError as error:
            hint = "Here lr is the setting for_lr." if scaled else 'Or set scaling = "stage".'
            raise SettingsError(f"method {self.name!r}: {error} {hint}") from error

    def setup(self, context: Context) -> None:
        """Keep the pretrained weights; draw random ones if training starts there."""
        self._anchor = context.snapshot()
        if self.initialisation == "random":
            seed = stream_seed("random backbone", context.seed, context.scenario)
            context.model.randomise_backbone(seed)

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return the recalled weights with their anchor, then those that plain Adam trains."""
        shared, trained = set(stage.shared_names()), stage.trainable_weights()
        recalled = {n: p for n, p in trained.items() if n in shared and n in self._anchor}
        others = [p for name, p in trained.items() if name not in recalled]
        lr = stage.protocol.lr
        first: dict[str, Any] = {
            "params": list(recalled.values()),
            "anchor": [self._anchor[name] for name in recalled],
            "lr": lr,
            "annealing": self.annealing,
            **self._scaled(stage.steps, lr),
        }
        self._layers = {}
        for layer in stage.model.layer_groups():
            if inside := [name for name in layer.parameters if name in recalled]:
                anchors = [self._anchor[name] for name in inside]
                self._layers[layer.name] = [recalled[name] for name in inside], anchors
        self._shape = {key: first[key] for key in ("k", "t0", "annealing")}
        for key in ("k", "t0", "gamma"):
            stage.record(key, first[key])
        if (lam := optim.anneal(stage.steps, **self._shape)) < 0.5:
            stage.note(
                f"{self.name}: stage {stage.index} ({stage.name}) of {stage.steps} steps ended "
                f"with λ = {lam:.2g}, before learning outweighed recalling."
            )
        plain = {"params": others, "lr": lr, "recall": False}
        return [first, plain] if others else [first]

    def optimizer(self, stage: Stage, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Return RecAdam with the protocol's settings of Adam."""
        p = stage.protocol
        return optim.RecAdam(groups, p.lr, p.betas, p.eps, p.weight_decay)

    def before_step(self, stage: Stage) -> None:
        """Record λ of the coming step and the distance to the anchor."""
        if stage.is_sampled:
            stage.record("lambda", optim.anneal(stage.step + 1, **self._shape))
            self._record_distance(stage, stage.step)

    def after_step(self, stage: Stage) -> None:
        """Record the distance after the last step."""
        if stage.step + 1 == stage.steps:
            self._record_distance(stage, stage.steps)

    def after_stage(self, stage: Stage) -> None:
        """With ``anchor = "previous"``, make the current weights the next anchor."""
        if self.anchor == "previous":
            self._anchor = stage.snapshot([name for name, _ in stage.model.named_parameters()])

    def _scaled(self, steps: int, lr: float) -> dict[str, float]:
        """Return k, t0 and gamma for a stage of `steps` steps at the flat rate `lr`."""
        if self.scaling == "printed":
            return {"k": self.k, "t0": self.t0, "gamma": self.gamma}
        scale = steps / self.for_steps
        k, t0 = self.k / scale, self.t0 * scale
        if 0.0 < t0 < MIN_T0:
            k, t0 = k * t0 / MIN_T0, MIN_T0
        return {"k": k, "t0": t0, "gamma": self.gamma * self.for_lr / lr}

    @torch.no_grad()
    def _record_distance(self, stage: Stage, step: int) -> None:
        """Record the Euclidean distance to the anchor, in total and by layer."""
        sums = [
            torch.stack(torch._foreach_norm(torch._foreach_sub(weights, anchors))).square().sum()  # type: ignore[arg-type]
            for weights, anchors in self._layers.values()
        ]
        squares = torch.stack(sums).tolist()  # waits for the device once
        stage.record("distance", math.sqrt(sum(squares)), step=step)
        for name, square in zip(self._layers, squares, strict=True):
            stage.record(f"distance.{name}", math.sqrt(square), step=step)


class Mixout(Method):
    """Compute each loss with a random share of the weights at their pretrained values.

    In place of a weight w with the pretrained value u, the forward pass of a step uses
    ``u + m·(w − u)/(1 − p)`` with m = 0 at probability p and 1 otherwise, whose mean
    is w (Lee, Cho & Kang 2020, section 3). Every element of the matrices of dense layers draws
    its own m, as the paper reads; in the authors' code all output units of a layer share those
    of their inputs, and gradients lack the factor 1/(1 − p). As there, biases, normalisation,
    embedding tables and heads are not mixed, and mixout replaces dropout.

    Attributes
    ----------
    p
        Probability of the pretrained value. With 0 and `dropout` the method equals vanilla.
    anchor
        u: the ``pretrained`` weights, or the ``previous`` ones, with which the stage began.
    dropout
        Whether to keep the model's dropout.
    """

    name = "mixout"
    runs_in_trainer = True
    p: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    anchor: Anchor = "pretrained"
    dropout: bool = False

    def check_protocol(self, protocol: Protocol) -> None:
        """Refuse gradient checkpointing, which computes the forward pass again without mixing."""
        if protocol.gradient_checkpointing:
            raise SettingsError(
                "mixout: gradient_checkpointing computes the forward pass again with unmixed "
                "weights. Set gradient_checkpointing = false."
            )

    def setup(self, context: Context) -> None:
        """Keep the pretrained weights."""
        if self.anchor == "pretrained":
            self._anchor = context.snapshot(list(matrices(context.model)))

    def before_stage(self, stage: Stage) -> None:
        """Start the stream of masks."""
        if self.anchor == "previous":
            self._anchor = stage.snapshot(list(matrices(stage.model)))
        self._masks = Masks(stage.random_seed("mixout"), self.p, stage.device)
        stage.streams["mixout"] = self._masks.stream
        self._weights = dict(stage.model.named_parameters())

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the loss of the mixed weights; its gradient goes to the trained weights."""
        if not self.dropout and stage.model.training:
            stage.model.eval()
        return stage.loss(batch, weights=mix(self._weights, self._anchor, self._masks))


class Masks:
    """A seeded stream of factors of mean 1 that are 0 with probability `rate`.

    On the CPU the probability is rounded to 1/65536, and the factor fits the rounded one.
    """

    def __init__(self, seed: int, rate: float, device: torch.device) -> None:
        self._rate = rate
        self._device = device
        is_cpu = device.type == "cpu"
        self.stream = MaskStream(seed) if is_cpu else torch.Generator(device).manual_seed(seed)

    def draw(self, shape: torch.Size) -> Tensor:
        """Return the next factors, float32, of the given shape."""
        if isinstance(self.stream, MaskStream):
            return self.stream.mask(shape, self._rate, torch.float32)
        factors = torch.empty(shape, device=self._device)
        factors.bernoulli_(1.0 - self._rate, generator=self.stream)
        return factors.mul_(1.0 / (1.0 - self._rate))


def mix(weights: dict[str, nn.Parameter], anchor: Snapshot, masks: Masks) -> dict[str, Tensor]:
    """Return the trained weights mixed with those of `anchor`; gradients flow to the weights."""
    return {
        name: torch.lerp(value, weights[name], masks.draw(value.shape).to(value.dtype))
        for name, value in anchor.items()
        if weights[name].requires_grad
    }

"""RecAdam: recall the anchor first, then learn (Chen et al. 2020)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from clbench import optim
from clbench.core.errors import SettingsError
from clbench.core.seeds import stream_seed
from clbench.methods.base import Method, should_record

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from clbench.training.protocol import Protocol
    from clbench.training.stage import Context, Stage

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
        Shape of λ(t): ``sigmoid`` (the paper's), ``linear`` or ``constant`` (1/2).
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

    name: ClassVar[str] = "recadam"
    runs_in_trainer: ClassVar[bool] = True
    anchor: Literal["pretrained", "previous"] = "pretrained"
    initialisation: Literal["pretrained", "random"] = "pretrained"
    annealing: optim.Annealing = "sigmoid"
    k: Annotated[float, Field(ge=0.0, le=1e6)] = 0.05
    t0: Annotated[float, Field(ge=0.0, le=1e9)] = 1000.0
    gamma: Annotated[float, Field(gt=0.0, le=1e9)] = 5000.0
    scaling: Literal["stage", "printed"] = "stage"
    for_steps: Annotated[int, Field(gt=0)] = 7800
    for_lr: Annotated[float, Field(gt=0.0, le=1.0)] = 2e-5

    def check_protocol(self, protocol: Protocol) -> None:
        """Raise a SettingsError if the pull overshoots the anchor at the flat rate."""
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
        names = {id(p): name for name, p in stage.model.named_parameters()}
        shared = self._anchor.keys() & set(stage.shared_names())
        recalled = [p for p in stage.trainable() if names[id(p)] in shared]
        others = [p for p in stage.trainable() if names[id(p)] not in shared]
        lr = stage.protocol.lr
        first: dict[str, Any] = {
            "params": recalled,
            "anchor": [self._anchor[names[id(p)]] for p in recalled],
            "lr": lr,
            "annealing": self.annealing,
            **self._scaled(stage.steps, lr),
        }
        self._shape = {key: first[key] for key in ("k", "t0", "annealing")}
        if (lam := optim.anneal(stage.steps, **self._shape)) < 0.5:
            stage.note(
                f"{self.name}: stage {stage.index} ({stage.name}) of {stage.steps} steps ended "
                f"with λ = {lam:.2g}, before learning outweighed recalling."
            )
        plain = {"params": others, "lr": lr, "recall": False}
        return [first, plain] if others else [first]

    def optimizer(self, stage: Stage, groups: list[dict[str, Any]]) -> Optimizer:
        """Return RecAdam with the protocol's settings of Adam."""
        self._group = groups[0]
        anchors = {id(p): a for p, a in zip(groups[0]["params"], groups[0]["anchor"], strict=True)}
        weights = dict(stage.model.named_parameters())
        self._layers = {}
        for layer in stage.model.layer_groups():
            inside = [weights[n] for n in layer.parameters if id(weights[n]) in anchors]
            if inside:
                self._layers[layer.name] = inside, [anchors[id(p)] for p in inside]
        p = stage.protocol
        return optim.RecAdam(groups, p.lr, p.betas, p.eps, p.weight_decay)

    def before_step(self, stage: Stage) -> None:
        """Record λ of the coming step and the distance to the anchor."""
        if stage.step == 0:
            for key in ("k", "t0", "gamma"):
                stage.record(key, self._group[key])
        if should_record(stage):
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

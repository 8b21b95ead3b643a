"""RecAdam: recall the anchor first, then learn (Chen et al. 2020)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from clbench import optim
from clbench.errors import SettingsError
from clbench.methods.base import Method
from clbench.seeds import stream_seed

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from clbench.training.protocol import Protocol
    from clbench.training.stage import Context, Stage

LEFT = 0.1
"""Share of the way back from random weights above which the rest is noted."""
SOONEST = 3.0
"""Smallest t0 that comes of scaling."""
POINTS = 30
"""Points of the curves in a stage, about; each waits for the device."""
LEAP = 0.05
"""Change of λ that gets a point of its own, so that its rise shows in a stage of any length."""


class RecAdam(Method):
    """Recall the pretrained weights first, then shift to learning (Chen et al. 2020).

    Every stage is trained by `clbench.optim.RecAdam`, which counts its steps anew: λ(t)
    rises from 0 to 1 and weighs learning against a pull towards the anchor. A task's new
    head is trained by plain Adam (section 4.1). So is a head that tasks share while the
    anchor is ``pretrained``, as it was not; with ``previous`` it is recalled as the
    backbone is.

    Published k and t0 count steps, and gamma goes with a rate. With ``scaling = "stage"``
    they are taken in proportion, so that λ rises at the same share of a stage of any length
    and the pull lr·gamma stays: t0·T/`for_steps`, k·`for_steps`/T, gamma·`for_lr`/lr for a
    stage of T steps at the flat rate lr. t0 is then at least 3 (k·t0 stays), as the first
    step of a warm-up moves nothing. The curves ``k``, ``t0`` and ``gamma`` say what was
    used; ``lambda`` and ``distance``, whole and by layer, are those of figures 1 and 2b. A
    stage too short to recall random weights, or to come to learning, is noted in the result.

    Attributes
    ----------
    anchor
        What is recalled: the ``pretrained`` weights, as in the paper, or the ``previous``
        ones, with which the stage began (in the first stage the pretrained ones).
    initialisation
        Where the backbone starts: at the ``pretrained`` weights, or at ``random`` ones that
        the first stage recalls (the paper's choice, section 4.1 and table 2).
    annealing
        Shape of λ(t): ``sigmoid`` (the paper's), ``linear`` or ``constant`` (1/2).
    k, t0
        Steepness, in 1/steps, and midpoint, in steps, of the sigmoid.
    gamma
        Strength of the pull (section 4.1: 5000).
    scaling
        ``stage``: k, t0 and gamma in proportion, as above; ``printed``: as they are.
    for_steps, for_lr
        Length of the stage that k and t0, and rate that gamma, are meant for; read with
        ``scaling = "stage"`` only. The defaults are the slow end of what the paper tried
        (section 4.1): k = 0.05 and t0 = 1000 on RTE's 7,800 steps, at a rate of 2e-5. It
        chose k and t0 on each dev set and does not say which, its shortest task is nearest
        to the shorter stages here, and a recall needs many steps.

    Raises
    ------
    SettingsError
        If lr·gamma is 1 or more, where the pull overshoots.
    """

    name: ClassVar[str] = "recadam"
    anchor: Literal["pretrained", "previous"] = "pretrained"
    initialisation: Literal["pretrained", "random"] = "pretrained"
    annealing: optim.Annealing = "sigmoid"
    k: Annotated[float, Field(ge=0.0, le=1e6)] = 0.05
    t0: Annotated[float, Field(ge=0.0, le=1e9)] = 1000.0
    gamma: Annotated[float, Field(gt=0.0, le=1e9)] = 5000.0
    scaling: Literal["stage", "printed"] = "stage"
    for_steps: Annotated[int, Field(gt=0)] = 7800
    for_lr: Annotated[float, Field(gt=0.0, le=1.0)] = 2e-5

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.scaling == "stage":
            self._check_pull(self.for_lr)

    def check_protocol(self, protocol: Protocol) -> None:
        """Refuse a flat rate at which the printed strength overshoots."""
        if self.scaling == "printed":
            self._check_pull(protocol.lr)

    def setup(self, context: Context) -> None:
        """Keep the pretrained weights, and leave them if training starts elsewhere."""
        self.check_protocol(context.protocol)
        self._anchor = context.snapshot()
        self._random = self.initialisation == "random"
        self._told = 0.0
        if self._random:
            seed = stream_seed("random backbone", context.seed, context.scenario)
            context.model.randomise_backbone(seed)

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """What is recalled, with its anchor; then what plain Adam trains."""
        names = {id(p): name for name, p in stage.model.named_parameters()}
        recalled = self._anchor.keys() & set(stage.shared_names())
        trained = [(names[id(p)], p) for p in stage.trainable()]
        lr = stage.protocol.lr
        first = {
            "params": [p for name, p in trained if name in recalled],
            "anchor": [self._anchor[name] for name, _ in trained if name in recalled],
            "lr": lr,
            "annealing": self.annealing,
            **self._used(stage.steps, lr),
        }
        if self._random and (left := self._unrecalled(stage, first)) > LEFT:
            stage.note(
                f"{self.name}: of the way from random to pretrained weights {left:.0%} is left to "
                f"the learning, as stage {stage.index} ({stage.name}) of {stage.steps} steps pulls "
                "too little."
            )
        if (end := self._learning(stage.steps, first)) < 0.5:
            stage.note(
                f"{self.name}: stage {stage.index} ({stage.name}) of {stage.steps} steps ended "
                f"with λ = {end:.2g}, before learning weighed more than recalling."
            )
        second = [p for name, p in trained if name not in recalled]
        plain = {"params": second, "lr": lr, "recall": False}
        return [first, plain] if second else [first]

    def optimizer(self, stage: Stage, groups: list[dict[str, Any]]) -> Optimizer:
        """RecAdam with the protocol's settings of Adam."""
        protocol = stage.protocol
        self._group = groups[0]
        self._layers = _by_layer(stage, groups[0])
        return optim.RecAdam(
            groups,
            lr=protocol.lr,
            betas=protocol.betas,
            eps=protocol.eps,
            weight_decay=protocol.weight_decay,
        )

    def before_step(self, stage: Stage) -> None:
        """Record how far the weights are from the anchor and how much the step will learn."""
        learning = self._learning(stage.step + 1, self._group)
        due = stage.step % max(1, math.ceil(stage.steps / POINTS)) == 0
        if due or abs(learning - self._told) >= LEAP:
            stage.record("lambda", learning)
            self._told = learning
        if stage.step == 0:
            for key in ("k", "t0", "gamma"):
                stage.record(key, self._group[key])
        if due:
            self._record_distance(stage, stage.step)

    def after_step(self, stage: Stage) -> None:
        """Record how far the weights are in the end."""
        if stage.step + 1 == stage.steps:
            self._record_distance(stage, stage.steps)

    def _record_distance(self, stage: Stage, step: int) -> None:
        parts = _squared_distances(self._layers)
        stage.record("distance", math.sqrt(sum(parts.values())), step=step)
        for name, value in parts.items():
            stage.record(f"distance.{name}", math.sqrt(value), step=step)

    def after_stage(self, stage: Stage) -> None:
        """Take the weights as the next anchor, if that is asked for."""
        self._random = False
        self._group, self._layers = {}, {}
        if self.anchor == "previous":
            every = [name for name, _ in stage.model.named_parameters()]
            self._anchor = stage.snapshot(every)

    def _used(self, steps: int, lr: float) -> dict[str, float]:
        """k, t0 and gamma for a stage of `steps` steps at the flat rate `lr`."""
        if self.scaling == "printed":
            return {"k": self.k, "t0": self.t0, "gamma": self.gamma}
        scale = steps / self.for_steps
        k, t0 = self.k / scale, self.t0 * scale
        if 0.0 < t0 < SOONEST:
            k, t0 = k * t0 / SOONEST, SOONEST
        return {"k": k, "t0": t0, "gamma": self.gamma * self.for_lr / lr}

    def _learning(self, t: int, group: dict[str, Any]) -> float:
        return optim.anneal(t, k=group["k"], t0=group["t0"], annealing=self.annealing)

    def _check_pull(self, lr: float) -> None:
        try:
            optim.check_pull(lr, self.gamma)
        except ValueError as fault:
            other = (
                f" lr is for_lr here, for which gamma = {self.gamma:g} is meant."
                if self.scaling == "stage"
                else ' scaling = "stage" keeps to that.'
            )
            raise SettingsError(f"method {self.name!r}: {fault}{other}") from fault

    def _unrecalled(self, stage: Stage, group: dict[str, Any]) -> float:
        """Share of the way from random weights to the anchor that a stage's pulls leave."""
        protocol, steps = stage.protocol, stage.steps
        left = 1.0
        for t in range(1, steps + 1):
            factor = protocol.rate_factor(t - 1, steps)
            pull = group["lr"] * factor * group["gamma"] * (1.0 - self._learning(t, group))
            left *= 1.0 - pull
        return left


Pair = tuple[list[torch.Tensor], list[torch.Tensor]]


def _by_layer(stage: Stage, group: dict[str, Any]) -> dict[str, Pair]:
    """Weights and anchors of `group` by the names of the model's layer groups."""
    anchors = {id(p): a for p, a in zip(group["params"], group["anchor"], strict=True)}
    weights = dict(stage.model.named_parameters())
    found: dict[str, Pair] = {}
    for layer in stage.model.layer_groups():
        inside = [weights[name] for name in layer.parameters if id(weights[name]) in anchors]
        if inside:
            found[layer.name] = (
                [weight.detach() for weight in inside],
                [anchors[id(weight)] for weight in inside],
            )
    return found


@torch.no_grad()
def _squared_distances(layers: dict[str, Pair]) -> dict[str, float]:
    """By layer group; one wait for the device in all."""
    sums = [
        torch.stack(torch._foreach_norm(torch._foreach_sub(list(now), list(then)))).square().sum()
        for now, then in layers.values()
    ]
    return dict(zip(layers, torch.stack(sums).tolist(), strict=True))

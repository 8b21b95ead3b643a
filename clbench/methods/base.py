"""The registry of methods, and the simplest of them: vanilla and the controls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from pydantic import Field

from clbench.core.errors import PluginError, SettingsError
from clbench.core.registry import Registry, check_name
from clbench.training.method import LearningRate as LearningRate
from clbench.training.method import Method as Method
from clbench.training.method import Phase as Phase

if TYPE_CHECKING:
    import torch
    from torch.optim.lr_scheduler import LRScheduler

    from clbench.training.context import Context
    from clbench.training.protocol import Protocol
    from clbench.training.stage import Stage

M = TypeVar("M", bound=type[Method])
MAX_RATE = 100.0
"""Highest flat rate of a method; heads alone, on small features, can need more than 1."""


def _check_class(name: str, entry: object) -> str | None:
    if isinstance(entry, type) and issubclass(entry, Method):
        return None
    return "not a subclass of clbench.Method. Derive the class from it."


METHODS: Registry[type[Method]] = Registry("method", check=_check_class, group="clbench.methods")
for _module, _classes in {
    "adversarial": "sam:Sam smart:Smart",
    "anchors": "mixout:Mixout recadam:RecAdam",
    "base": "early-stop:EarlyStop frozen:Frozen low-rate:LowRate vanilla:Vanilla",
    "by_depth": "freeze-bottom:FreezeBottom layerwise:Layerwise lp-ft:LpFt ulmfit:Ulmfit",
    "class_means": "icarl:ICaRL prototypes:Prototypes",
    "distillation": "kl-anchor:KLAnchor lwf:LwF",
    "ewc": "ewc:EWC ewc-online:EWCOnline r-ewc:REWC",
    "generic_replay": "generic-replay:GenericReplay",
    "lora": "ewc-lora:EWCLora lora:Lora o-lora:OLora",
    "merging": "dare:Dare ties:Ties wise-ft:WiseFT",
    "on_policy": "grpo:GRPO sdft:SDFT self-replay:SelfReplay self-sft:SelfSFT",
    "partial_updates": "migu:Migu mofo:MoFO osf:OSF packnet:PackNet",
    "prompts": "l2p:L2P progressive-prompts:ProgressivePrompts",
    "quadratic": "ewc-mlm:EWCMLM l2-sp:L2SP",
    "random_features": "klda:KLDA ranpac:RanPAC",
    "replay": "a-gem:AGem der++:DerPlusPlus multitask:Multitask replay:Replay",
    "seq_star": "seq-star:SeqStar",
    "synapses": "mas:MAS si:SI",
    "token_weights": "asft:ASFT dft:DFT eaft:EAFT talr:TALR",
}.items():
    for _entry in _classes.split():
        _name, _, _class = _entry.partition(":")
        METHODS.add(_name, f"clbench.methods.{_module}:{_class}")


def method(name: str) -> Callable[[M], M]:
    """Class decorator: register a method under `name`.

    Raises
    ------
    PluginError
        If the name cannot be part of a cell's key or is taken by another class, or the class is
        not a subclass of `Method`.
    """
    register = METHODS.register(name)
    try:
        check_name(name)
    except ValueError as error:
        raise PluginError(f"method {name!r}: {error}.") from error

    def decorate(cls: M) -> M:
        register(cls)
        cls.name = name
        return cls

    return decorate


def at_rate(method: Method, protocol: Protocol) -> Protocol:
    """Return `protocol` with the flat rate of a method.

    Raises
    ------
    SettingsError
        If the rate is above `MAX_RATE`, or a method has given these settings another meaning.
    """
    for name in ("lr", "lr_multiple"):
        if not isinstance(getattr(method, name), int | float | None):
            raise SettingsError(f"{name} is the flat rate of every method: it must be a number.")
    rate = (method.lr or protocol.lr) * method.lr_multiple
    if rate > MAX_RATE:
        raise SettingsError(f"the rate lr·lr_multiple is {rate:g}: must be at most {MAX_RATE:g}.")
    return protocol if rate == protocol.lr else protocol.model_copy(update={"lr": rate})


class Vanilla(Method):
    """Fine-tune all weights at one rate; the reference for other methods."""

    name = "vanilla"

    def acts_in(self, index: int) -> bool:
        """Return False."""
        return False


class Frozen(Method):
    """Train each task's head and keep the backbone as pretrained.

    A task with its own head cannot be forgotten; tasks that share a head can still overwrite
    it. A single dense layer needs a much higher rate, `lr`, than a whole network.
    """

    name = "frozen"
    head_kinds = ("classification",)
    control = True

    def setup(self, context: Context) -> None:
        """Freeze the backbone."""
        context.model.backbone.requires_grad_(False)


class LowRate(Vanilla):
    """Fine-tune all weights at a fraction of the flat rate, in all stages.

    A control for `layerwise`: rates by layer must do better than one rate as low as their mean.
    The default of `lr_multiple` is the geometric mean of the ten multiples that Kenneweg et al.
    2022 published (baseline ``bertcl-combined``).

    Attributes
    ----------
    steps_multiple
        Length of a stage, in multiples of the protocol's; ``inverse`` is 1 / `lr_multiple`: a low
        rate gets the steps that it needs to learn as much, so that rate × steps stays.
    """

    name = "low-rate"
    control = True
    lr_multiple: Annotated[float, Field(gt=0.0, le=1e6)] = 0.1519074799
    steps_multiple: Annotated[
        Annotated[float, Field(gt=0.0, le=1e3)] | Literal["inverse"],
        Field(exclude_if=lambda value: value == 1.0),
    ] = 1.0

    def acts_in(self, index: int) -> bool:
        """Return whether stages have another length."""
        return self.steps_multiple != 1.0

    def phases(self, stage: Stage) -> Sequence[Phase]:
        """Return one phase, longer or shorter than the protocol's."""
        multiple = self.steps_multiple
        multiple = 1.0 / self.lr_multiple if multiple == "inverse" else multiple
        return [Phase(steps=max(1, round(multiple * stage.own_steps)))]


class EarlyStop(Method):
    """Fine-tune as vanilla, but stop every stage after the first at a share of its steps.

    A control for methods that forget less because they learn less. The schedule is that of the
    whole stage, as when a practitioner stops a run, so the weights are those that vanilla has at
    that step. The result records the steps, tokens and seconds actually trained.

    Attributes
    ----------
    share
        Share of a stage's steps to train, rounded to whole steps; at least one.
    """

    name = "early-stop"
    control = True
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5

    def acts_in(self, index: int) -> bool:
        """Return False for the first stage, which is trained to its end."""
        return index > 0 and self.share < 1.0

    def phases(self, stage: Stage) -> Sequence[Phase]:
        """Return one phase that ends early."""
        return [Phase(steps=max(1, round(self.share * stage.own_steps)))]

    def schedule(self, stage: Stage, optimizer: torch.optim.Optimizer) -> LRScheduler:
        """Return the protocol's schedule over the whole stage."""
        return stage.schedule(optimizer, stage.own_steps)

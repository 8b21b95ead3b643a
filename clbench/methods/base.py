"""The registry of methods, and what several of them need."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeVar

from clbench.core.errors import PluginError, SettingsError
from clbench.core.registry import Registry, check_name
from clbench.training.method import LearningRate as LearningRate
from clbench.training.method import Method as Method
from clbench.training.method import Phase as Phase

if TYPE_CHECKING:
    from clbench.training.protocol import Protocol
    from clbench.training.stage import Stage

CURVE_POINTS = 30
"""Most points that a method adds to a curve in a stage; recording one waits for the device."""


class Vanilla(Method):
    """Fine-tune all weights at one rate; the reference for other methods."""

    name: ClassVar[str] = "vanilla"

    def acts_in(self, index: int) -> bool:
        """Return False."""
        return False


def at_rate(method: Method, protocol: Protocol) -> Protocol:
    """Return `protocol` with the flat rate of a method.

    Raises
    ------
    SettingsError
        If the rate is above 1, or a method has given these settings another meaning.
    """
    for name in ("lr", "lr_multiple"):
        if not isinstance(getattr(method, name), int | float | None):
            raise SettingsError(f"{name} is the flat rate of every method: it must be a number.")
    rate = (method.lr or protocol.lr) * method.lr_multiple
    if rate > 1.0:
        raise SettingsError(f"the rate lr·lr_multiple is {rate:g}: must be at most 1.")
    return protocol if rate == protocol.lr else protocol.model_copy(update={"lr": rate})


def should_record(stage: Stage) -> bool:
    """Whether to add a point to a curve at this step, one of `CURVE_POINTS` per stage."""
    every = max(1, math.ceil(stage.total_steps / CURVE_POINTS))
    return (stage.done_before + stage.step) % every == 0


M = TypeVar("M", bound=type[Method])


def _check_class(name: str, entry: object) -> str | None:
    if isinstance(entry, type) and issubclass(entry, Method):
        return None
    return "not a subclass of clbench.Method. Derive the class from it."


METHODS: Registry[type[Method]] = Registry("method", check=_check_class, group="clbench.methods")
for _name, _class in {
    "a-gem": "replay:AGem",
    "dare": "merging:Dare",
    "der++": "replay:DerPlusPlus",
    "early-stop": "controls:EarlyStop",
    "ewc": "ewc:EWC",
    "ewc-lora": "lora:EWCLora",
    "ewc-mlm": "ewc:EWCMLM",
    "ewc-online": "ewc:EWCOnline",
    "frozen": "controls:Frozen",
    "generic-replay": "generic_replay:GenericReplay",
    "icarl": "icarl:ICaRL",
    "kl-anchor": "distillation:KLAnchor",
    "l2-sp": "quadratic:L2SP",
    "l2p": "prompts:L2P",
    "layerwise": "layerwise:Layerwise",
    "lora": "lora:Lora",
    "low-rate": "controls:LowRate",
    "lp-ft": "head_first:LpFt",
    "lwf": "distillation:LwF",
    "mas": "mas:MAS",
    "migu": "partial_updates:Migu",
    "mixout": "mixout:Mixout",
    "mofo": "partial_updates:MoFO",
    "multitask": "replay:Multitask",
    "o-lora": "lora:OLora",
    "osf": "osf:OSF",
    "packnet": "packnet:PackNet",
    "progressive-prompts": "prompts:ProgressivePrompts",
    "prototypes": "prototypes:Prototypes",
    "r-ewc": "r_ewc:REWC",
    "recadam": "recadam:RecAdam",
    "replay": "replay:Replay",
    "sam": "adversarial:Sam",
    "seq-star": "head_first:SeqStar",
    "si": "quadratic:SI",
    "smart": "adversarial:Smart",
    "ties": "merging:Ties",
    "ulmfit": "layerwise:Ulmfit",
    "vanilla": "base:Vanilla",
    "wise-ft": "merging:WiseFT",
}.items():
    METHODS.add(_name, f"clbench.methods.{_class}")


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

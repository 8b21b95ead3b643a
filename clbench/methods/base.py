"""The registry of methods, and what several of them need."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

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
    "a-gem": "a_gem:AGem",
    "dare": "dare:Dare",
    "der++": "der_plus_plus:DerPlusPlus",
    "early-stop": "early_stop:EarlyStop",
    "ewc": "ewc:EWC",
    "ewc-lora": "ewc_lora:EWCLora",
    "ewc-mlm": "ewc_mlm:EWCMLM",
    "ewc-online": "ewc:EWCOnline",
    "frozen": "frozen:Frozen",
    "generic-replay": "generic_replay:GenericReplay",
    "icarl": "icarl:ICaRL",
    "kl-anchor": "kl_anchor:KLAnchor",
    "l2-sp": "l2_sp:L2SP",
    "l2p": "l2p:L2P",
    "layerwise": "layerwise:Layerwise",
    "lora": "lora:Lora",
    "low-rate": "low_rate:LowRate",
    "lp-ft": "lp_ft:LpFt",
    "lwf": "lwf:LwF",
    "mas": "mas:MAS",
    "migu": "migu:Migu",
    "mixout": "mixout:Mixout",
    "mofo": "mofo:MoFO",
    "multitask": "multitask:Multitask",
    "o-lora": "o_lora:OLora",
    "osf": "osf:OSF",
    "packnet": "packnet:PackNet",
    "progressive-prompts": "progressive_prompts:ProgressivePrompts",
    "prototypes": "prototypes:Prototypes",
    "r-ewc": "r_ewc:REWC",
    "recadam": "recadam:RecAdam",
    "replay": "replay:Replay",
    "sam": "sam:Sam",
    "seq-star": "seq_star:SeqStar",
    "si": "si:SI",
    "smart": "smart:Smart",
    "ties": "ties:Ties",
    "ulmfit": "ulmfit:Ulmfit",
    "vanilla": "vanilla:Vanilla",
    "wise-ft": "wise_ft:WiseFT",
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

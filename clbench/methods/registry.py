"""The methods by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from clbench.methods.base import Method
from clbench.registry import Registry

M = TypeVar("M", bound=type[Method])


def _fault(name: str, entry: object) -> str | None:
    if isinstance(entry, type) and issubclass(entry, Method):
        return None
    return "is no subclass of clbench.Method. Derive the class from it."


METHODS: Registry[type[Method]] = Registry("method", check=_fault, group="clbench.methods")
METHODS.add("a-gem", "clbench.methods.a_gem:AGem")
METHODS.add("der++", "clbench.methods.der_plus_plus:DerPlusPlus")
METHODS.add("ewc", "clbench.methods.ewc:EWC")
METHODS.add("ewc-mlm", "clbench.methods.ewc_mlm:EWCMLM")
METHODS.add("ewc-online", "clbench.methods.ewc_online:EWCOnline")
METHODS.add("frozen", "clbench.methods.frozen:Frozen")
METHODS.add("l2-sp", "clbench.methods.l2_sp:L2SP")
METHODS.add("layerwise", "clbench.methods.layerwise:Layerwise")
METHODS.add("lora", "clbench.methods.lora:Lora")
METHODS.add("lwf", "clbench.methods.lwf:LwF")
METHODS.add("mas", "clbench.methods.mas:MAS")
METHODS.add("mixout", "clbench.methods.mixout:Mixout")
METHODS.add("multitask", "clbench.methods.multitask:Multitask")
METHODS.add("packnet", "clbench.methods.packnet:PackNet")
METHODS.add("recadam", "clbench.methods.recadam:RecAdam")
METHODS.add("replay", "clbench.methods.replay:Replay")
METHODS.add("si", "clbench.methods.si:SI")
METHODS.add("smart", "clbench.methods.smart:Smart")
METHODS.add("ulmfit", "clbench.methods.ulmfit:Ulmfit")
METHODS.add("vanilla", "clbench.methods.vanilla:Vanilla")


def method(name: str) -> Callable[[M], M]:
    """Class decorator: register a method under `name`.

    Raises
    ------
    PluginError
        If the name is taken by another class or the class is no `Method`.
    """

    def decorate(cls: M) -> M:
        METHODS.add(name, cls)
        cls.name = name
        return cls

    return decorate

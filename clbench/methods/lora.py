"""LoRA: train low-rank additions to frozen weights, through peft."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from clbench.errors import SettingsError, did_you_mean
from clbench.methods.base import Method
from clbench.seeds import stream_seed

if TYPE_CHECKING:
    from clbench.training.stage import Context, Stage

QUERY_VALUE: tuple[tuple[str, ...], ...] = (
    ("query", "value"),
    ("query_proj", "value_proj"),
    ("q_lin", "v_lin"),
    ("q_proj", "v_proj"),
    ("q", "v"),
    ("c_attn",),  # from here on query, key and value are one matrix
    ("Wqkv",),
    ("qkv_proj",),
    ("query_key_value",),
)
"""Names of the query and value matrices by architecture."""
Names = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class LowRank(Method):
    """Base of methods that train low-rank additions to frozen pretrained weights.

    W becomes W + (`alpha` / `r`)·BA, with B = 0 at first (Hu et al. 2021). Needs peft:
    ``pip install 'clbench[lora]'``.

    Attributes
    ----------
    r, alpha
        Rank of the additions, and numerator of their scale.
    dropout
        Dropout rate on the input of the additions.
    targets
        ``query-value`` (Hu et al. 2021, section 5.1; all three where the architecture keeps
        query, key and value in one matrix), ``all-linear``, or names of linear modules.
    """

    r: Annotated[int, Field(ge=1)] = 8
    alpha: Annotated[int, Field(ge=1)] = 16
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    targets: Literal["query-value", "all-linear"] | Names = "query-value"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if importlib.util.find_spec("peft") is None:
            raise SettingsError(f"method {self.name!r} needs peft: pip install 'clbench[lora]'.")

    def ranks(self, context: Context) -> dict[str, int]:
        """Return the rank of every adapter by its name; all have the scale `alpha` / `r`."""
        return {"task0": self.r}

    def setup(self, context: Context) -> None:
        """Freeze the backbone, insert the adapters and use the first one."""
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.lora import LoraLayer
        from transformers.pytorch_utils import Conv1D

        backbone = context.model.backbone
        targets = self._targets(backbone)
        transposed = any(isinstance(backbone.get_submodule(path), Conv1D) for path in targets)
        backbone.requires_grad_(False)
        ranks = self.ranks(context)
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(stream_seed("method", "lora", context.seed, context.scenario))
            for name, rank in ranks.items():
                config = LoraConfig(
                    r=rank,
                    lora_alpha=self.alpha * rank // self.r,
                    lora_dropout=self.dropout,
                    target_modules=targets,
                    fan_in_fan_out=transposed,
                )
                inject_adapter_in_model(config, backbone, name)
        backbone.to(context.device)
        self._layers: dict[str, Any] = {
            path: layer
            for path, layer in context.model.named_modules()
            if isinstance(layer, LoraLayer)
        }
        self.use(next(iter(ranks)))

    def use(self, *adapters: str) -> None:
        """Add the outputs of these adapters in the forward pass; train only the last of them."""
        for layer in self._layers.values():
            layer.set_adapter(list(adapters))
            for name in adapters[:-1]:
                layer.lora_A[name].requires_grad_(False)
                layer.lora_B[name].requires_grad_(False)

    def _targets(self, backbone: nn.Module) -> list[str]:
        """Return the paths of the modules that get an addition."""
        from transformers.pytorch_utils import Conv1D

        linear = [n for n, m in backbone.named_modules() if isinstance(m, nn.Linear | Conv1D)]
        if self.targets == "all-linear":
            return linear
        last = {path.rpartition(".")[2] for path in linear}
        names = tuple(self.targets)
        if self.targets == "query-value":
            names = next((names for names in QUERY_VALUE if last.issuperset(names)), ("query",))
        for name in names:
            if not any(f".{path}".endswith(f".{name}") for path in linear):
                raise SettingsError(
                    f"method {self.name!r}: {type(backbone).__name__} has no linear module "
                    f"{name!r}.{did_you_mean(name, last)} Set targets to names of its linear "
                    "modules."
                )
        ends = tuple(f".{name}" for name in names)
        return [path for path in linear if f".{path}".endswith(ends)]


class Lora(LowRank):
    """Train low-rank additions to frozen pretrained weights (LoRA).

    See `LowRank` for the other settings.

    Attributes
    ----------
    adapters
        ``one``: all tasks train the same adapter in turn, so it can forget. ``task``: each task
        trains its own adapter and is scored with it; only a shared head can then forget, and
        the method is told the task of each row at test time.
    """

    name: ClassVar[str] = "lora"
    adapters: Literal["one", "task"] = "one"
    _active: int = 0

    @property
    def needs_length(self) -> bool:  # type: ignore[override]
        """Whether the model has an adapter for each task from the start."""
        return self.adapters == "task"

    @property
    def needs_task_id(self) -> bool:  # type: ignore[override]
        """Whether each task has its own adapter."""
        return self.adapters == "task"

    def ranks(self, context: Context) -> dict[str, int]:
        """Return one adapter, or one for each task."""
        count = context.stages if self.adapters == "task" else 1
        return {f"task{number}": self.r for number in range(count)}

    def before_stage(self, stage: Stage) -> None:
        """Activate the task's adapter."""
        self._activate(stage.index)

    @contextmanager
    def scoring(self, task: int) -> Iterator[None]:
        """Score a task with its own adapter, if it has one."""
        previous = self._active
        self._activate(task)
        try:
            yield
        finally:
            self._activate(previous)

    def _activate(self, task: int) -> None:
        self._active = task if self.adapters == "task" else 0
        self.use(f"task{self._active}")

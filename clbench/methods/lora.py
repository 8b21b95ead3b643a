"""LoRA: small matrices beside frozen ones, through peft."""

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
    ("c_attn",),  # query, key and value in one matrix, here and below
    ("Wqkv",),
    ("qkv_proj",),
    ("query_key_value",),
)
"""What architectures call the matrices of query and value."""
Names = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class Lora(Method):
    """Train low-rank additions to the attention (LoRA); the pretrained weights stay.

    Hu et al. 2021: W becomes W + (`alpha` / `r`)·BA with B = 0 at first. Needs peft:
    ``pip install 'clbench[lora]'``.

    Attributes
    ----------
    r, alpha
        Rank, and the scale of the addition times the rank.
    dropout
        On the input of the additions.
    targets
        ``query-value`` (Hu et al. 2021, section 5.1; all three where the architecture keeps
        query, key and value in one matrix), ``all-linear``, or names of modules.
    adapters
        ``one`` is trained by all tasks in turn, so that it can forget. ``task``: each task
        has a fresh one and is scored with it; only a shared head can then forget.
    lr
        Rate of additions and heads; None takes the protocol's.
    """

    name: ClassVar[str] = "lora"
    r: Annotated[int, Field(ge=1)] = 8
    alpha: Annotated[int, Field(ge=1)] = 16
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    targets: Literal["query-value", "all-linear"] | Names = "query-value"
    adapters: Literal["one", "task"] = "one"
    lr: Annotated[float, Field(gt=0.0, le=1.0)] | None = None

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if importlib.util.find_spec("peft") is None:
            raise SettingsError("method 'lora' needs peft: pip install 'clbench[lora]'.")

    def setup(self, context: Context) -> None:
        """Freeze the backbone and put the adapters in, those of later tasks too."""
        from peft import LoraConfig, inject_adapter_in_model
        from transformers.pytorch_utils import Conv1D

        backbone = context.model.backbone
        self._classifier = context.model
        chosen = self._modules(backbone)
        backbone.requires_grad_(False)
        turned = any(isinstance(backbone.get_submodule(name), Conv1D) for name in chosen)
        config = LoraConfig(
            r=self.r,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=chosen,
            fan_in_fan_out=turned,
        )
        count = context.stages if self.adapters == "task" else 1
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(stream_seed("method", "lora", context.seed, context.scenario))
            for number in range(count):
                inject_adapter_in_model(config, backbone, f"task{number}")
        backbone.to(context.device)
        self._activate(0)

    def before_stage(self, stage: Stage) -> None:
        """Turn to the task's adapter."""
        self._activate(stage.index)

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Adapter and head at their rate."""
        return [{"params": stage.trainable(), "lr": self.lr or stage.protocol.lr}]

    @contextmanager
    def scoring(self, task: int) -> Iterator[None]:
        """With the task's own adapter, if it has one."""
        before = self._active
        self._activate(task)
        try:
            yield
        finally:
            self._activate(before)

    def _activate(self, task: int) -> None:
        from peft.tuners.tuners_utils import BaseTunerLayer

        self._active = task if self.adapters == "task" else 0
        for module in self._classifier.backbone.modules():
            if isinstance(module, BaseTunerLayer):
                module.set_adapter(f"task{self._active}")

    def _modules(self, backbone: nn.Module) -> list[str]:
        """Paths of the modules that get an addition.

        Raises
        ------
        SettingsError
            If the model has none of the wanted names.
        """
        from transformers.pytorch_utils import Conv1D

        linear = [
            path
            for path, module in backbone.named_modules()
            if isinstance(module, nn.Linear | Conv1D)
        ]
        if self.targets == "all-linear":
            return linear
        last = {path.rpartition(".")[2] for path in linear}
        if self.targets == "query-value":
            wanted = next((names for names in QUERY_VALUE if last.issuperset(names)), ())
            if not wanted:
                raise SettingsError(
                    "method 'lora': query and value are not found in "
                    f"{type(backbone).__name__}. Set `targets` to some of {sorted(last)}."
                )
        else:
            wanted = tuple(self.targets)
            missing = [name for name in wanted if not any(_ends(path, name) for path in linear)]
            if missing:
                raise SettingsError(
                    f"method 'lora': targets: there is no linear module {missing[0]!r}."
                    f"{did_you_mean(missing[0], last)}"
                )
        return [path for path in linear if any(_ends(path, name) for name in wanted)]


def _ends(path: str, name: str) -> bool:
    return path == name or path.endswith(f".{name}")

"""LoRA: train low-rank additions to frozen weights, through peft."""

from __future__ import annotations

import importlib.util
import math
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from clbench.core.errors import SettingsError, did_you_mean
from clbench.core.seeds import stream_seed
from clbench.methods.base import Method

if TYPE_CHECKING:
    from clbench.training.stage import Context, Snapshot, Stage

ADAPTER = "task"
"""Name of the additions in peft."""
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

    def setup(self, context: Context) -> None:
        """Freeze the backbone and insert the additions."""
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.lora import LoraLayer
        from transformers.pytorch_utils import Conv1D

        backbone = context.model.backbone
        targets = self._targets(backbone)
        transposed = any(isinstance(backbone.get_submodule(path), Conv1D) for path in targets)
        backbone.requires_grad_(False)
        config = LoraConfig(
            r=self.r,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=targets,
            fan_in_fan_out=transposed,
        )
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(stream_seed("method", "lora", context.seed, context.scenario))
            inject_adapter_in_model(config, backbone, ADAPTER)
        backbone.to(context.device)
        self._layers: dict[str, Any] = {
            path: layer
            for path, layer in context.model.named_modules()
            if isinstance(layer, LoraLayer)
        }

    @torch.no_grad()
    def restart(self, stage: Stage) -> None:
        """Draw A anew, as peft does, and set B to 0."""
        generator = stage.rng("adapter")
        for layer in self._layers.values():
            down, up = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
            new = torch.empty(down.shape)
            nn.init.kaiming_uniform_(new, a=math.sqrt(5.0), generator=generator)
            down.copy_(new)
            up.zero_()

    def _targets(self, backbone: nn.Module) -> list[str]:
        """Return the paths of the modules that get an addition."""
        from transformers.pytorch_utils import Conv1D

        linear = [n for n, m in backbone.named_modules() if isinstance(m, nn.Linear | Conv1D)]
        if self.targets == "all-linear":
            model: Any = backbone
            head = model.get_output_embeddings()  # which peft leaves out, too
            return [path for path in linear if backbone.get_submodule(path) is not head]
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
        ``one``: all tasks train the same additions in turn, so they can forget. ``task``: each task
        trains its own and is scored with them; only a shared head can then forget, and the method
        is told the task of each row at test time.
    """

    name: ClassVar[str] = "lora"
    adapters: Literal["one", "task"] = "one"

    @property
    def needs_task_id(self) -> bool:  # type: ignore[override]
        """Whether each task has its own additions."""
        return self.adapters == "task"

    def setup(self, context: Context) -> None:
        """Insert the additions; those of finished tasks are kept by the task's number."""
        super().setup(context)
        self._context = context
        self.kept: dict[int, Snapshot] = {}

    def before_stage(self, stage: Stage) -> None:
        """Start new additions for the task, if it has its own."""
        if self.kept:
            self.restart(stage)

    def after_stage(self, stage: Stage) -> None:
        """Keep the task's own additions."""
        if self.adapters == "task":
            names = [name for name in stage.model.backbone_parameters() if ".lora_" in name]
            self.kept[stage.index] = stage.snapshot(names)

    def scoring(self, task: int) -> AbstractContextManager[object]:
        """Score a finished task with its own additions, if it has them."""
        return self._context.swapped(self.kept[task]) if task in self.kept else nullcontext()

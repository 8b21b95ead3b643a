"""Methods that train low-rank additions to frozen weights: LoRA, O-LoRA and EWC-LoRA."""

import importlib.util
import math
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.core.errors import SettingsError, did_you_mean
from clbench.core.seeds import stream_seed
from clbench.fisher.diagonal import Mode
from clbench.methods.base import Method
from clbench.methods.ewc import add_decayed, task_fisher
from clbench.methods.selection import linear_layers
from clbench.tasks.task import Task
from clbench.training.context import Context, Snapshot
from clbench.training.protocol import Protocol
from clbench.training.stage import Stage

ADAPTER = "task"
"""Name of the additions in peft."""
QUERY_VALUE = r"(.*\.)?((q|v|query|value)(_proj|_lin)?|c_attn|Wqkv|qkv_proj|query_key_value)"
"""Query and value matrices; in some architectures one matrix holds query, key and value."""
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

        backbone = context.model.backbone
        backbone.requires_grad_(False)
        config = LoraConfig(
            r=self.r,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=self._targets(backbone),
        )
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(stream_seed("method", "lora", context.seed, context.scenario))
            try:
                inject_adapter_in_model(config, backbone, ADAPTER)
            except ValueError as error:
                hint = "Set targets to names of its linear modules."
                raise SettingsError(f"method {self.name!r}: {error} {hint}") from error
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

    def _targets(self, backbone: nn.Module) -> str | list[str]:
        """Return what peft takes as the modules that get an addition."""
        if isinstance(self.targets, str):
            return QUERY_VALUE if self.targets == "query-value" else self.targets
        linear = linear_layers(backbone)
        last = {path.rpartition(".")[2] for path in linear}
        for name in self.targets:  # of which peft misses only all together
            if not any(f".{path}".endswith(f".{name}") for path in linear):
                raise SettingsError(
                    f"method {self.name!r}: {type(backbone).__name__} has no linear module "
                    f"{name!r}.{did_you_mean(name, last)} Set targets to names of its linear "
                    "modules."
                )
        return self.targets


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

    name = "lora"
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


class OLora(LowRank):
    """Train a low-rank addition for each task, orthogonal to the frozen earlier ones (O-LoRA).

    In task t a matrix is W + (`alpha` / `r`)·Σ_{i ≤ t} B_i A_i, of which only A_t and B_t are
    trained, and ``weight·Σ_{i < t} ‖A_i A_tᵀ‖²``, summed over the matrices, is added to the loss
    (Wang et al. 2023, section 3, where A is transposed). The rows of A_i span the inputs to which
    task i changed the response, so tasks change the responses to orthogonal inputs. All additions
    are used for every row: the method is not told the task. Those of earlier tasks are added to W,
    which gives the same outputs up to rounding (`dropout` then spares them); weights in bf16 would
    round most of an addition away, and are refused. In the paper, T5's output layer is frozen with
    the rest; here the heads are trained, so a shared head can forget. The second penalty of the
    authors' code, on the size of A_t and B_t, is left out; its weight is 0 in their orders of four
    tasks, and 0 to 0.3 in those of fifteen. See `LowRank` for the other settings.

    Attributes
    ----------
    weight
        λ. Meaningful only together with `norm`.
    norm
        ``squared``: the sum of squared entries of A_i A_tᵀ, as in the paper. ``absolute``: the
        sum of their absolute values, as in the authors' code, which is far larger.
    """

    name = "o-lora"
    weight: Annotated[float, Field(gt=0.0, le=1e6)] = 0.5
    norm: Literal["squared", "absolute"] = "squared"

    def check_protocol(self, protocol: Protocol) -> None:
        """Refuse weights in bf16, which round what is added to them away."""
        if protocol.weights == "bf16":
            raise SettingsError(
                "the additions of earlier tasks are lost in weights in bf16. Set "
                "weights = 'float32' in [protocol]."
            )

    def setup(self, context: Context) -> None:
        """Insert the additions; A_i of the earlier tasks are kept by matrix, row under row."""
        super().setup(context)
        self.earlier: Snapshot = {}

    def penalty(self, stage: Stage) -> Tensor | None:
        """Return the weighted overlap of the task's addition with the earlier ones."""
        if not self.earlier:
            return None
        overlaps = [
            self.earlier[path] @ layer.lora_A[ADAPTER].weight.T
            for path, layer in self._layers.items()
        ]
        size = torch.square if self.norm == "squared" else torch.abs
        penalty = self.weight * torch.stack([size(overlap).sum() for overlap in overlaps]).sum()
        stage.sample("penalty", penalty)
        return penalty

    @torch.no_grad()
    def after_stage(self, stage: Stage) -> None:
        """Add the task's product to the frozen weights and start a new one."""
        for path, layer in self._layers.items():
            down, weight = layer.lora_A[ADAPTER].weight, layer.base_layer.weight
            weight.add_(layer.get_delta_weight(ADAPTER).to(weight.dtype))
            rows = [self.earlier[path]] if path in self.earlier else []
            self.earlier[path] = torch.cat([*rows, down])
        self.restart(stage)


class EWCLora(LowRank):
    """Train one low-rank addition, pulled to the previous task's by Fisher information (EWC-LoRA).

    With ΔW = (`alpha` / `r`)·BA, adds ``½·importance·Σ F (ΔW − ΔW*)²``, where ΔW* is the addition
    after the previous task and ``F ← γF + F_new`` after each task (Zheng et al. 2026). F_new is
    the diagonal Fisher information of the task's loss for the whole matrix W + ΔW, not for A and
    B, which interact: many pairs of them have the same product. A head that tasks share is held
    in the same way, as by `ewc-online`; in the paper each task has its own. The authors' code
    merges the addition into the weights after each task and starts a new one from 0; here, one
    addition is trained on, so that its rank stays `r`. See `LowRank` for the other settings.

    Attributes
    ----------
    importance
        λ. Meaningful only together with `mode`, and not portable between data sets.
    gamma
        γ: the factor on the Fisher information of earlier tasks, 0 to 1.
    mode, examples
        How, and from how many rows, F_new is computed: as in `EWC`.
    penalised
        What the penalty holds: ``all``, or only ΔW (``delta``) or a shared head (``head``), which
        tells their effects apart.
    """

    name = "ewc-lora"
    holds_head = True
    importance: Annotated[float, Field(gt=0.0, le=1e15)] = 1e5
    gamma: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    mode: Mode = "sampled"
    examples: Annotated[int, Field(ge=1)] | None = 2000
    penalised: Annotated[
        Literal["all", "head", "delta"], Field(exclude_if=lambda value: value == "all")
    ] = "all"

    def check_protocol(self, protocol: Protocol) -> None:
        """Raise a SettingsError if only the head is held and there is none."""
        if self.penalised == "head" and protocol.is_language_model:
            raise SettingsError(
                "penalised = 'head': language models have no head to hold. Drop it."
            )

    def check_tasks(self, tasks: Sequence[Task]) -> None:
        """Raise a SettingsError if only a head is held and each task has its own."""
        if self.penalised == "head" and 1 < len(tasks) == len({task.head for task in tasks}):
            raise SettingsError(
                "penalised = 'head': each task has a head of its own, so none is held. Drop it."
            )

    def setup(self, context: Context) -> None:
        """Insert the adapter."""
        super().setup(context)
        self.fisher: dict[str, Tensor] = {}

    def before_stage(self, stage: Stage) -> None:
        """Keep the additions and the head as the previous task left them."""
        self._anchor: Snapshot = {
            name: value.detach().clone() for name, value in self._held(stage).items()
        }

    def penalty(self, stage: Stage) -> Tensor | None:
        """Return the weighted squared distance to the previous task's additions and head."""
        if not self._anchor:
            return None
        terms = [
            (self.fisher[name] * (value - self._anchor[name]).square()).sum()
            for name, value in self._held(stage).items()
        ]
        penalty = 0.5 * self.importance * torch.stack(terms).sum()
        stage.sample("penalty", penalty)
        return penalty

    def after_stage(self, stage: Stage) -> None:
        """Add the Fisher information of the task just learned, unless it is the last one."""
        self._anchor = {}
        if stage.index == stage.stages - 1:
            return
        names = [] if self.penalised == "head" else [*self._matrices()]
        if self.penalised != "delta":
            names += stage.model.head_parameter_names(stage.data.head)
        new = task_fisher(stage, names, mode=self.mode, examples=self.examples)
        add_decayed(self.fisher, new, self.gamma)

    def _held(self, stage: Stage) -> dict[str, Tensor]:
        """Return what earlier tasks have Fisher information for, by the names of `fisher`.

        This is the addition to each matrix, and the weights of the stage's head.
        """
        weights = dict(stage.model.named_parameters())
        held = {name: layer.get_delta_weight(ADAPTER) for name, layer in self._matrices().items()}
        held |= {n: weights[n] for n in stage.model.head_parameter_names(stage.data.head)}
        return {name: value for name, value in held.items() if name in self.fisher}

    def _matrices(self) -> dict[str, Any]:
        """Return the layers with an addition by the names of their frozen weights."""
        return {f"{path}.base_layer.weight": layer for path, layer in self._layers.items()}

"""The stages of a cell: what hooks see and may call."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from clbench.core.errors import PluginError, SettingsError
from clbench.core.seeds import numpy_stream, stream_seed, torch_stream
from clbench.core.shapes import few
from clbench.models.classifier import evaluating
from clbench.models.encoding import IGNORED
from clbench.training.batches import Batch, TaskData, length_grouped
from clbench.training.context import Context, Snapshot

CURVE_POINTS = 30
"""Most points that a method samples for a curve in a stage; each waits for the device."""


@dataclass
class Stage(Context):
    """Training on one task of a scenario.

    Attributes
    ----------
    index
        Number of the stage, from 0.
    tasks
        Tokenised training rows of the tasks up to this one. Methods that declare ``keeps_rows``
        may read those of earlier tasks: see `earlier`.
    data
        The rows of the stage's own task.
    heads
        Names of the heads that the stage trains; `trainable` returns their weights.
    shown_before
        Outputs in use before the stage, by head, of heads that grow.
    steps, step
        Steps of the running phase, and how many of them are done.
    part, parts
        Number of the part of the step's batch, from 0, with gradient accumulation; and how many
        parts the batch has.
    part_share
        Share of the part in the step's mean loss.
    part_rows
        Rows of the step's batch times the part's share in its mean loss; 0 outside the engine.
    epoch_steps
        Steps of one pass over the training rows.
    phase
        Number of the running phase, from 0.
    total_steps
        Steps of all phases.
    done_before
        Steps of the phases before the running one.
    log
        Curves that the method adds: name to a list of ``[step, value]``.
    streams
        Random streams of the method by name, which have `get_state` and `set_state`.
    """

    index: int = 0
    tasks: Sequence[TaskData] = ()
    reads_earlier_rows: bool = False
    steps: int = 0
    step: int = 0
    part: int = 0
    parts: int = 1
    part_share: float = 1.0
    part_rows: float = 0.0
    epoch_steps: int = 0
    phase: int = 0
    total_steps: int = 0
    done_before: int = 0
    log: dict[str, list[list[float]]] = field(default_factory=dict)
    heads: frozenset[str] = frozenset()
    shown_before: Mapping[str, int] = field(default_factory=dict)
    streams: dict[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> TaskData:
        """The stage's own rows; `Protocol.head_loss` says which classes their loss compares."""
        data = self.tasks[self.index]
        if self.protocol.head_loss == "stage":
            classes = self.classes()
            return replace(data, compared=classes) if len(classes) > 1 else data
        return data

    @property
    def name(self) -> str:
        """Name of the stage's task."""
        return self.data.name

    @property
    def own_steps(self) -> int:
        """Steps that the protocol gives to the rows of the stage's task."""
        return self.protocol.stage_length(self.name, len(self.data.rows))[0]

    def classes(self) -> Tensor:
        """Return which outputs of the head are classes of the stage's rows, bool, shape (outputs,).

        The one output of a head without classes counts as one.
        """
        data = self.tasks[self.index]
        head = self.model.head(data.head)
        present = torch.ones(len(next(head.parameters())), dtype=torch.bool)
        if len(present) > 1:
            labels = torch.from_numpy(np.unique(data.rows.labels))
            present = torch.zeros_like(present).index_fill_(0, labels, True)
        return present.to(self.device)

    def earlier(self, task: int) -> TaskData:
        """Return the rows of task number `task`, an earlier one or the stage's own.

        Their loss always compares all classes so far.

        Raises a PluginError if it comes later, or the method lacks ``keeps_rows = True``.
        """
        if task > self.index:
            raise PluginError(f"stage {self.index} must not read task {task}, which comes later.")
        if task < self.index and not self.reads_earlier_rows:
            raise PluginError(
                f"stage {self.index} reads rows of task {task} ({self.tasks[task].name}). A method "
                "that does so must declare keeps_rows = True."
            )
        return self.tasks[task]

    def stream(self, *parts: str | int) -> tuple[str | int, ...]:
        """Return the name of a random stream of this stage: kind, seed, scenario, stage."""
        return (*parts, self.seed, self.scenario, self.index)

    def rng(self, name: str) -> torch.Generator:
        """Return the method's own CPU generator `name`, which keeps its state in the stage."""
        if name not in self.streams:
            self.streams[name] = torch_stream(*self.stream("method", name))
        generator: torch.Generator = self.streams[name]
        return generator

    def random_seed(self, name: str) -> int:
        """Return the seed of the method's own stream `name`, for other libraries."""
        return stream_seed(*self.stream("method", name))

    def restart_dropout(self) -> None:
        """Restart the streams of dropout, as the engine does before every step.

        The first forward pass of a step thus has the same dropout masks under every method,
        however many passes a method adds, and so does the first pass after this call.
        """
        seed = stream_seed(*self.stream("dropout"), self.done_before + self.step)
        if self.device.type == "cpu":
            # torch.manual_seed also seeds every other back end, which takes 1 ms.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        if self.masks is not None:
            self.masks.seed(seed)

    def part_of(self, count: int) -> range:
        """Return which of a step's `count` items, such as kept rows, the running part reads."""
        first, end = (-(-count * number // self.parts) for number in (self.part, self.part + 1))
        return range(first, end)

    def trainable(self) -> list[nn.Parameter]:
        """Return the weights of the backbone and of this stage's heads that require gradients."""
        return list(self.trainable_weights().values())

    def trainable_weights(self) -> dict[str, nn.Parameter]:
        """Return the weights of `trainable` by name."""
        names = set(self.model.backbone_parameters())
        for head in self.heads:
            names.update(self.model.head_parameter_names(head))
        return {n: p for n, p in self.model.named_parameters() if n in names and p.requires_grad}

    def shared_names(self) -> list[str]:
        """Return the names of weights shared with earlier tasks: backbone and any shared head."""
        names = list(self.model.backbone_parameters())
        if self.data.head in {task.head for task in self.tasks[: self.index]}:
            names += self.model.head_parameter_names(self.data.head)
        return names

    def logits(
        self,
        batch: Batch,
        *,
        head: str | None = None,
        weights: Mapping[str, Tensor] | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Return the outputs for a batch in float32, shape (b, outputs).

        Parameters
        ----------
        batch
            From `data`, `batches` or the hook's argument.
        head
            Another task's head to use on the same inputs; by default the batch's own.
        weights
            Tensors to use in place of the weights of the same names, as for mixout or a proximal
            point; gradients flow into them.
        inputs_embeds
            Word embeddings in place of the tokens, shape (b, t, e), as for adversarial noise.
        """
        with self.precision.autocast():
            outputs = self._call(weights, batch.inputs, head or batch.head, inputs_embeds)
        return torch.as_tensor(outputs).float()

    def logits_of_heads(self, heads: Iterable[str], batch: Batch) -> dict[str, Tensor]:
        """Return the outputs of several heads for a batch, from one pass of the backbone."""
        model = self.model
        with self.precision.autocast():
            pooled = model.dropout(model.features(batch.inputs))
            return {head: model.apply_head(pooled, head).float() for head in sorted({*heads})}

    def _call(self, weights: Mapping[str, Tensor] | None, *arguments: Any) -> Any:
        """Call the model, with other weights if given."""
        if weights is None:
            return self.model(*arguments)
        if self.protocol.gradient_checkpointing and torch.is_grad_enabled():
            raise SettingsError(
                "gradient_checkpointing: this method needs gradients at weights other than the "
                "model's own. Set gradient_checkpointing = false."
            )
        return torch.func.functional_call(self.model, dict(weights), arguments)

    @torch.no_grad()
    def logits_of(self, weights: Snapshot, batch: Batch) -> Tensor:
        """Return the outputs that earlier weights give for a batch, without dropout."""
        with evaluating(self.model):
            return self.logits(batch, weights=weights)

    def loss(
        self,
        batch: Batch,
        *,
        weights: Mapping[str, Tensor] | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Return the mean loss of a batch, a scalar; arguments as in `logits`."""
        outputs = self.logits(batch, weights=weights, inputs_embeds=inputs_embeds)
        return self.criterion(outputs, batch)

    @staticmethod
    def criterion(outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross-entropy, or squared error, of outputs of shape (b, outputs).

        The cross-entropy is among the batch's `Batch.compared` classes. For language models, it is
        the mean over all answers' tokens; outputs of shape (b, m, v).
        """
        if batch.labels.dim() == 2:
            return nn.functional.cross_entropy(outputs.flatten(0, 1), batch.labels.flatten())
        if batch.regression:
            return nn.functional.mse_loss(outputs.squeeze(-1), batch.labels)
        return nn.functional.cross_entropy(batch.among_compared(outputs), batch.labels)

    def token_mean(self, values: Tensor, batch: Batch) -> Tensor:
        """Return the mean over a batch's predicted tokens of values (b, m), 0 at all others."""
        return values.sum() / (batch.labels != IGNORED).sum().clamp(min=1)

    def batches(self, name: str) -> Iterator[Batch]:
        """Yield one pass over the stage's rows, shuffled by stream `name`."""
        rng = numpy_stream(*self.stream("method", name))
        size = self.protocol.batch_of(self.name)
        for positions in few(length_grouped(self.data.rows.lengths, size, rng)):
            yield self.data.batch(positions, self.device)

    def adam(
        self, groups: list[dict[str, Any]], kind: type[torch.optim.Adam] | None = None
    ) -> Optimizer:
        """Return Adam of a `kind`, by default torch's, with the protocol's settings.

        By default it is AdamW with weight decay.
        """
        p = self.protocol
        kind = kind or (torch.optim.AdamW if p.weight_decay else torch.optim.Adam)
        return kind(groups, p.lr, p.betas, p.eps, p.weight_decay, fused=True)

    def schedule(self, optimizer: Optimizer, steps: int | None = None) -> LRScheduler:
        """Return the protocol's schedule over `steps`, by default those of the running phase."""
        return LambdaLR(optimizer, partial(self.protocol.rate_factor, steps=steps or self.steps))

    def record(self, name: str, value: float | Tensor, *, step: int | None = None) -> None:
        """Add a point to the curve `name`, at `step` of the running phase (default: steps done)."""
        number = float(value.detach() if isinstance(value, Tensor) else value)
        total = self.done_before + (self.step if step is None else step)
        self.log.setdefault(name, []).append([float(total), number])

    @property
    def is_sampled(self) -> bool:
        """Whether `sample` adds a point at this step, one of `CURVE_POINTS` in a stage.

        In a Trainer, it is every step, unless the method makes the optimizer.
        """
        every = max(1, math.ceil(self.total_steps / CURVE_POINTS))
        return (self.done_before + self.step) % every == 0

    def sample(self, name: str, value: float | Tensor) -> None:
        """Add a point to the curve `name` at some steps, since each waits for the device.

        With gradient accumulation it is that of the step's first part.
        """
        at = float(self.done_before + self.step)
        if self.is_sampled and self.log.get(name, [[-1.0]])[-1][0] != at:
            self.record(name, value)

"""What a method sees: the model, the stage's rows, streams, and helpers with weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from clbench.errors import PluginError
from clbench.models.classifier import Classifier
from clbench.seeds import numpy_stream, stream_seed, torch_stream
from clbench.training.batches import Batch, TaskData, length_grouped
from clbench.training.device import Precision
from clbench.training.dropout import MaskStream
from clbench.training.protocol import Protocol
from clbench.training.schedule import make_schedule

Snapshot = dict[str, Tensor]


@dataclass
class Context:
    """What stays the same through a cell.

    Attributes
    ----------
    model
        Backbone and heads, on `device`.
    model_name, revision
        As the user named the model.
    protocol
        The suite's settings.
    device, precision
        Where and in which numbers the forward pass runs.
    seed
        The cell's seed.
    scenario
        Its name, for the names of random streams.
    stages
        Number of tasks.
    masks
        The stream that dropout draws from on the CPU; None where torch's own is used.
    notes
        Lines for the reader of the result; see `note`.
    """

    model: Classifier
    model_name: str
    revision: str | None
    protocol: Protocol
    device: torch.device
    precision: Precision
    seed: int
    scenario: str
    stages: int
    masks: MaskStream | None
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a line for the reader of the result, once however often it is told."""
        if text not in self.notes:
            self.notes.append(text)

    def snapshot(self, names: Sequence[str] | None = None) -> Snapshot:
        """A detached copy of weights by name; of the backbone's unless `names` says which."""
        if names is None:
            parameters: Mapping[str, Tensor] = self.model.backbone_parameters()
        else:
            every = dict(self.model.named_parameters())
            parameters = {name: every[name] for name in names}
        return {name: value.detach().clone() for name, value in parameters.items()}

    def squared_distance(self, snapshot: Mapping[str, Tensor]) -> Tensor:
        """Sum of squared differences between the weights now and in `snapshot`; a scalar."""
        current = dict(self.model.named_parameters())
        terms = [(current[name] - value).square().sum() for name, value in snapshot.items()]
        if not terms:
            raise PluginError("squared_distance was given an empty snapshot, so it would be zero.")
        return torch.stack(terms).sum()


@dataclass
class Stage(Context):
    """Training on one task of a scenario.

    Attributes
    ----------
    index
        Number of the stage, from 0.
    tasks
        Tokenised training rows of the tasks up to this one. Those of earlier tasks are there
        for a method that declares ``keeps_rows``: see `earlier`.
    data
        The rows of its own task.
    steps, step
        Steps of the running phase, and how many are done.
    epoch_steps
        Steps of one pass over what is trained on.
    phase
        Number of the running phase, from 0.
    total_steps
        Steps of all phases.
    done_before
        Steps of the phases before the running one.
    log
        Curves that the method adds: name to a list of ``[step, value]``.
    """

    index: int = 0
    tasks: Sequence[TaskData] = ()
    reads_earlier_rows: bool = False
    steps: int = 0
    step: int = 0
    epoch_steps: int = 0
    phase: int = 0
    total_steps: int = 0
    done_before: int = 0
    log: dict[str, list[list[float]]] = field(default_factory=dict)
    heads: frozenset[str] = frozenset()
    _generators: dict[str, torch.Generator] = field(default_factory=dict)

    @property
    def data(self) -> TaskData:
        """The stage's own rows."""
        return self.tasks[self.index]

    @property
    def name(self) -> str:
        """Name of the stage's task."""
        return self.data.name

    def earlier(self, task: int) -> TaskData:
        """Rows of task number `task`, already seen in an earlier stage.

        Raises
        ------
        PluginError
            If the method does not declare ``keeps_rows = True``, or the task is still to
            come.
        """
        if task > self.index:
            raise PluginError(f"task {task} comes after stage {self.index}: its rows are unseen.")
        if task < self.index and not self.reads_earlier_rows:
            raise PluginError(
                f"stage {self.index} asked for rows of task {task} ({self.tasks[task].name}). "
                "A method that keeps rows must declare keeps_rows = True."
            )
        return self.tasks[task]

    def stream(self, *parts: str | int) -> tuple[str | int, ...]:
        """Name of a random stream of this stage: kind, seed, scenario, stage."""
        return (*parts, self.seed, self.scenario, self.index)

    def rng(self, name: str) -> torch.Generator:
        """A CPU generator of the method's own, by name; goes on from use to use."""
        if name not in self._generators:
            self._generators[name] = torch_stream(*self.stream("method", name))
        return self._generators[name]

    def random_seed(self, name: str) -> int:
        """The seed of a stream of the method's own, for other libraries."""
        return stream_seed(*self.stream("method", name))

    def restart_dropout(self) -> None:
        """Start the streams of dropout anew, as the engine does before every step.

        However many passes a method adds in a step, the first pass of the next one drops
        what it drops under every other method. Within a step a pass that follows this call
        drops what the first one dropped.
        """
        seed = stream_seed(*self.stream("dropout"), self.done_before + self.step)
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # torch.manual_seed asks every back end: 1 ms
        else:
            torch.manual_seed(seed)
        if self.masks is not None:
            self.masks.seed(seed)

    def trainable(self) -> list[nn.Parameter]:
        """Backbone weights and the heads that this stage trains, where they need gradients."""
        names = set(self.model.backbone_parameters())
        for head in self.heads:
            names.update(self.model.head_parameter_names(head))
        return [p for n, p in self.model.named_parameters() if n in names and p.requires_grad]

    def shared_names(self) -> list[str]:
        """Names of weights that an earlier task trained too: the backbone, shared heads."""
        names = list(self.model.backbone_parameters())
        seen = {task.head for task in self.tasks[: self.index]}
        if self.data.head in seen:
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
        """Outputs for a batch in float32, shape (b, outputs).

        Parameters
        ----------
        batch
            From `data`, `batches` or the hook's argument.
        head
            Another task's head on the same inputs; None takes the batch's own.
        weights
            Use these tensors in place of the weights of the same names (mixout, proximal
            points); gradients flow into them.
        inputs_embeds
            Shape (b, t, e): word embeddings in place of the tokens (adversarial noise).
        """
        arguments = (batch.inputs, head or batch.head, inputs_embeds)
        with self.precision.autocast():
            if weights is None:
                outputs = self.model(*arguments)
            else:
                outputs = torch.func.functional_call(self.model, dict(weights), arguments)
        return torch.as_tensor(outputs).float()

    def loss(
        self,
        batch: Batch,
        *,
        weights: Mapping[str, Tensor] | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Mean loss of a batch: cross-entropy, or squared error for regression; a scalar."""
        outputs = self.logits(batch, weights=weights, inputs_embeds=inputs_embeds)
        return self.criterion(outputs, batch)

    @staticmethod
    def criterion(outputs: Tensor, batch: Batch) -> Tensor:
        """Mean loss of `outputs`, shape (b, outputs), against the batch's labels."""
        if batch.regression:
            return nn.functional.mse_loss(outputs.squeeze(-1), batch.labels)
        return nn.functional.cross_entropy(outputs, batch.labels)

    def batches(
        self, name: str, *, data: TaskData | None = None, batch_size: int | None = None
    ) -> Iterator[Batch]:
        """One pass over the stage's rows in the order of a stream of the method's own."""
        source = data or self.data
        if source.task != self.index:
            self.earlier(source.task)
        rng = numpy_stream(*self.stream("method", name))
        size = batch_size or self.protocol.batch_of(self.name)
        for positions in length_grouped(source.rows.lengths, size, rng):
            yield source.batch(positions, self.device)

    def adam(self, groups: list[dict[str, Any]]) -> Optimizer:
        """Adam by the protocol, in torch's fused form; AdamW when weight decay is set."""
        protocol = self.protocol
        kind = torch.optim.AdamW if protocol.weight_decay else torch.optim.Adam
        return kind(
            groups,
            lr=protocol.lr,
            betas=protocol.betas,
            eps=protocol.eps,
            weight_decay=protocol.weight_decay,
            fused=True,
        )

    def schedule(self, optimizer: Optimizer) -> LRScheduler:
        """The protocol's schedule over the running phase's steps."""
        return make_schedule(optimizer, self.protocol.schedule, self.protocol.warmup, self.steps)

    def record(self, name: str, value: float | Tensor, *, step: int | None = None) -> None:
        """Add a point to the curve `name`.

        Parameters
        ----------
        name, value
            What was measured, one number.
        step
            Of the running phase; by default the steps that were done before the present one.
        """
        number = float(value.detach() if isinstance(value, Tensor) else value)
        point = [float(self.done_before + (self.step if step is None else step)), number]
        self.log.setdefault(name, []).append(point)

"""Methods that train vectors in front of a frozen backbone: Progressive Prompts and L2P."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.core.errors import SettingsError, count
from clbench.core.seeds import torch_stream
from clbench.methods.base import Method
from clbench.models.checkpoint import load_config
from clbench.models.classifier import TaskModel
from clbench.models.families import output_width, usable_length
from clbench.tasks.task import Task
from clbench.training.batches import Batch, TaskData
from clbench.training.context import Context
from clbench.training.protocol import Protocol
from clbench.training.stage import Stage

FILL = {"input_ids": 0, "attention_mask": 1, "token_type_ids": 0}
"""What the model's inputs are at prompts; the ids are not looked up."""
LEAST = 8
"""Positions that prompts must leave to the words of a row."""


class Prompted(Method, ABC):
    """Base of methods that insert vectors among the word embeddings of every row.

    The backbone is frozen. With first-token pooling the prompts follow the first token ([CLS]),
    which is still read; else they precede the row, and mean pooling includes them. A row that
    would need more positions than the model has loses its last tokens, and the result says so.
    """

    @abstractmethod
    def prompts(self, model: TaskModel, inputs: dict[str, Tensor]) -> Tensor:
        """Return the prompts of each row, shape (b, n, e), or (b, k, n, e) for multiple choice."""

    @abstractmethod
    def longest(self, tasks: int) -> int:
        """Return the most vectors that a row gets after so many tasks."""

    def check_protocol(self, protocol: Protocol) -> None:
        """Read the model's positions."""
        config = load_config(protocol.model, protocol.revision)
        self._checked, self._positions = protocol.model, usable_length(config)

    def check_tasks(self, tasks: Sequence[Task]) -> None:
        """Raise a SettingsError if prompts leave fewer than `LEAST` positions to the words."""
        most = self.longest(len(tasks))
        if self._positions is not None and self._positions - most < LEAST:
            raise SettingsError(
                f"{self._checked} has {self._positions} positions, of which prompts of {most} "
                f"vectors for {count(len(tasks), 'task')} leave too few to the words. Use shorter "
                "prompts, or a model with more positions."
            )

    def freeze(self, context: Context) -> None:
        """Freeze the backbone and insert prompts in every pass of the model; call it in `setup`."""
        model, pooling = context.model, context.protocol.pooling
        self._positions = usable_length(model.config)
        model.backbone.requires_grad_(False)
        first = (model.family.pooling if pooling == "auto" else pooling) == "first"
        self._before, self._context = int(first), context
        model.insert = self._insert

    def _insert(
        self, inputs: dict[str, Tensor], embeds: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return inputs and embeddings of `TaskModel.features` with prompts among them."""
        model = self._context.model
        prompts = self.prompts(model, inputs)
        if embeds is None:
            embeds = model.embed(inputs["input_ids"])
        at, size = self._before, prompts.shape[-2]
        mask = inputs["attention_mask"]
        kept = mask.shape[-1]
        if self._positions is not None and kept + size > self._positions:
            kept = self._positions - size
            if bool(mask[..., kept:].any()):
                self._context.note(
                    f"method {self.name!r}: rows were truncated to {kept} tokens, since the "
                    f"prompts take {size} of the model's {self._positions} positions."
                )
        extended = {}
        for name, values in inputs.items():
            filled = values.new_full((*values.shape[:-1], size), FILL[name])
            extended[name] = torch.cat([values[..., :at], filled, values[..., at:kept]], dim=-1)
        parts = [embeds[..., :at, :], prompts.to(embeds.dtype), embeds[..., at:kept, :]]
        return extended, torch.cat(parts, dim=-2)


class ProgressivePrompts(Prompted):
    """Learn a prompt for each task, put before the frozen prompts of earlier tasks.

    Task k reads the rows as [P_k, P_(k-1), …, P_1, words] and trains P_k and its head only
    (Razdaibiedina et al. 2023, section 3). A task is scored with the prompts up to its own, so only
    a shared head can forget, and the method is told the task of each row. A prompt starts as
    embeddings of random tokens of its task's rows, special ones included; in the paper they are
    words of the whole vocabulary. The paper's networks that produce the prompts in training are
    left out. See `Prompted` for the place of the prompts in a row.

    Attributes
    ----------
    length
        Vectors in each prompt.
    """

    name = "progressive-prompts"
    head_kinds = ("classification",)
    needs_task_id = True
    length: Annotated[int, Field(ge=1)] = 10

    def longest(self, tasks: int) -> int:
        """Return the vectors of all tasks' prompts."""
        return self.length * tasks

    def setup(self, context: Context) -> None:
        """Freeze the backbone; add a prompt to the model. Those of finished tasks are kept."""
        self.freeze(context)
        width = context.model.backbone.get_input_embeddings().weight.shape[1]
        self._prompt = nn.Parameter(torch.zeros(self.length, width, device=context.device))
        context.model.prompts = nn.ParameterList([self._prompt])
        self.kept: dict[int, Tensor] = {}
        self._task = 0

    @torch.no_grad()
    def before_stage(self, stage: Stage) -> None:
        """Start the task's prompt."""
        self._task = stage.index
        ids = torch.from_numpy(stage.data.rows.ids.copy())
        draw = torch.randint(len(ids), (self.length,), generator=stage.rng("prompt"))
        self._prompt.copy_(stage.model.embed(ids[draw].long().to(stage.device)))

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return one group: the task's prompt and head."""
        return [{"params": [self._prompt, *stage.trainable()], "lr": stage.protocol.lr}]

    def prompts(self, model: TaskModel, inputs: dict[str, Tensor]) -> Tensor:
        """Return the prompts up to the task's own, the latest first; equal for all rows."""
        own = self.kept.get(self._task, self._prompt)
        earlier = [prompt for task, prompt in sorted(self.kept.items()) if task < self._task]
        prompts = torch.cat([own, *reversed(earlier)])
        return prompts.expand(*inputs["input_ids"].shape[:-1], *prompts.shape)

    def after_stage(self, stage: Stage) -> None:
        """Keep the prompt for later tasks."""
        self.kept[stage.index] = self._prompt.detach().clone()
        self._task = stage.index

    @contextmanager
    def scoring(self, task: int) -> Iterator[None]:
        """Score a task with the prompts up to its own."""
        previous, self._task = self._task, task
        try:
            yield
        finally:
            self._task = previous


class L2P(Prompted):
    """Learn a pool of prompts that rows select by their content, before a frozen backbone (L2P).

    The query q(x) of a row is its pooled vector ([CLS], by default) in the pretrained model. The
    `select` prompts whose keys k_i have the largest cosine similarity to it are put into the row,
    the most similar first, and ``weight·Σ_i (1 − cos(q(x), k_i))`` over them, averaged over the
    rows, is added to the loss (Wang et al. 2022, section 4). Keys, prompts and heads are
    trained by all tasks; the method is not told the task. The heads read the same vector as under
    other methods, where the paper averages the outputs at the prompts. Each row selects for
    itself, where the authors' code lets the rows of a batch vote. The paper's optional penalty on
    prompts that are selected often is left out. See `Prompted` for the place of the prompts.

    Attributes
    ----------
    pool, length, select
        Prompts in the pool, vectors in each, and prompts for each row.
    weight
        λ: weight of the distance of the selected keys.
    mask
        Whether the loss leaves out the classes that the stage's rows lack, as in the authors' code,
        whatever the protocol's ``head_loss`` says.
    """

    name = "l2p"
    head_kinds = ("classification",)
    pool: Annotated[int, Field(ge=1)] = 10
    length: Annotated[int, Field(ge=1)] = 5
    select: Annotated[int, Field(ge=1)] = 4
    weight: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    mask: bool = True

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.select > self.pool:
            raise SettingsError(
                f"method 'l2p': select {self.select} is more than the {self.pool} prompts of the "
                "pool. Lower select or raise pool."
            )

    def longest(self, tasks: int) -> int:
        """Return the vectors of the chosen prompts."""
        return self.select * self.length

    def setup(self, context: Context) -> None:
        """Freeze the backbone; add the pool to the model."""
        self.freeze(context)
        model = context.model
        width = model.backbone.get_input_embeddings().weight.shape[1]
        generator = torch_stream("method", "l2p", context.seed, context.scenario)
        sizes = {"prompts": (self.length, width), "keys": (output_width(model.config),)}
        for name, size in sizes.items():
            values = 0.01 * torch.rand(self.pool, *size, generator=generator)  # as in their code
            model.register_parameter(name, nn.Parameter(values.to(context.device)))

    def training_data(self, stage: Stage) -> Sequence[TaskData]:
        """Return the stage's rows; with `mask`, their loss compares the classes of the stage."""
        data = stage.data
        return [replace(data, compared=stage.classes()) if self.mask else data]

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return one group: the pool and the stage's heads."""
        pool = [stage.model.get_parameter(name) for name in ("prompts", "keys")]
        return [{"params": [*pool, *stage.trainable()], "lr": stage.protocol.lr}]

    def prompts(self, model: TaskModel, inputs: dict[str, Tensor]) -> Tensor:
        """Return the prompts that the rows select; keep the distance of their keys."""
        with torch.no_grad():
            query = model.pooled(inputs)
        keys = model.get_parameter("keys")
        # A product would be rounded to bfloat16 under autocast, and choose between equal numbers.
        similarity = nn.functional.cosine_similarity(query.float().unsqueeze(-2), keys, dim=-1)
        largest, chosen = similarity.topk(self.select, dim=-1)
        self._distance = (1.0 - largest).sum(-1).mean()
        return model.get_parameter("prompts")[chosen].flatten(-3, -2)

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the loss, plus the weighted distance of the keys that the batch selected."""
        loss = stage.loss(batch)
        stage.sample("key_distance", self._distance)
        return loss + self.weight * self._distance

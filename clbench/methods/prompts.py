"""Prompts: trained vectors among the word embeddings of a frozen backbone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clbench.core.errors import SettingsError, count
from clbench.methods.base import Method
from clbench.models.checkpoint import load_config
from clbench.models.families import usable_length

if TYPE_CHECKING:
    from clbench.models.classifier import Classifier
    from clbench.tasks.task import Task
    from clbench.training.protocol import Protocol
    from clbench.training.stage import Context

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
    def prompts(self, model: Classifier, inputs: dict[str, Tensor]) -> Tensor:
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
        """Return inputs and embeddings of `Classifier.features` with prompts among them."""
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

"""What a clbench method sees of the model and the batches of somebody's Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clbench.core.errors import ModelError, SettingsError
from clbench.models.answering import family_of_whole
from clbench.models.classifier import TaskModel
from clbench.models.encoding import IGNORED
from clbench.models.families import family_of
from clbench.models.likelihood import logits_at
from clbench.training.batches import Batch
from clbench.training.device import Precision
from clbench.training.stage import Snapshot, Stage

HEAD = "task"
"""Name of the head of a classifier, for methods."""
Loss = Callable[..., Any]


class HostedModel(TaskModel):
    """A transformers model in the shape that methods know: `backbone`, and a head for classifiers.

    It holds the modules of the model that the Trainer trains, not copies. A language model is all
    backbone, as in `clbench.models.answering.AnsweringModel`. `forward` calls a function, for
    `torch.func.functional_call`: other weights can then take their places in the Trainer's model.
    """

    def __init__(self, model: Any) -> None:
        is_language_model = model.get_output_embeddings() is not None
        backbone = model if is_language_model else model.base_model
        super().__init__(backbone, (family_of_whole if is_language_model else family_of)(backbone))
        self.is_language_model = is_language_model
        if not is_language_model:
            children = model.named_children()
            parts = {name: child for name, child in children if child is not backbone}
            self.heads[HEAD] = nn.ModuleDict(parts)
        self._whole = (model,)  # in a tuple, so that its weights are not listed twice

    def whole(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the logits of the model, head included, for inputs in its own form."""
        return logits_of(self._whole[0](**inputs), has_loss="labels" in inputs)

    def forward(self, function: Callable[[], Any]) -> Any:
        """Return what `function` returns."""
        return function()

    def head_parameter_names(self, name: str) -> list[str]:
        """Return the names of the parameters of the classifier's head, or none."""
        return [] if self.is_language_model else super().head_parameter_names(name)

    def randomise_backbone(self, seed: int) -> None:
        """Raise an error: the model of a Trainer keeps its weights."""
        raise SettingsError(
            "protect: a Trainer's model keeps its weights. Use initialisation = 'pretrained'."
        )


@dataclass(frozen=True)
class HostedBatch(Batch):
    """A batch of which `count` rows may be packed into fewer sequences."""

    count: int = 0

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True)
class HostedPrecision(Precision):
    """The Trainer's number format, which may be ``fp16``, too."""

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass."""
        if self.name == "fp16":
            return torch.autocast(self.device_type, torch.float16)
        return super().autocast()


@dataclass(frozen=True)
class NoRows:
    """Stands for the rows of the stage, which a Trainer shows batch by batch only."""

    head: str = HEAD
    name: str = "the Trainer's data"


@dataclass
class HostedStage(Stage):
    """The stage of a method in a Trainer: the second of two, as the model has learned before.

    `loss` is the Trainer's own loss of the batch at hand. Weights that are frozen, such as those
    under adapters, are never copied.

    Attributes
    ----------
    model
        The Trainer's model.
    rank
        Number of the process. Each draws its own random rows and places.
    returns_outputs
        Whether the Trainer's loss comes with the outputs if asked.
    make_optimizer
        Function that returns the Trainer's optimizer for parameter groups.
    inputs, own_loss, scale
        The batch at hand as the Trainer has it; the function that returns its loss, and with
        `return_outputs`, the outputs, too; and a factor that makes it a mean over the batch.
    """

    model: HostedModel
    rank: int = 0
    returns_outputs: bool = True
    make_optimizer: Callable[[list[dict[str, Any]]], Optimizer] | None = None
    inputs: dict[str, Tensor] = field(default_factory=dict)
    own_loss: Loss | None = None
    scale: float = 1.0
    _loss: Tensor | None = None
    _has_labels: bool = True

    @property
    def data(self) -> Any:
        """The name of the head, and no rows."""
        return NoRows()

    def begin(self, inputs: dict[str, Tensor], own_loss: Loss, scale: float) -> Batch:
        """Take the batch at hand; return it as methods know it.

        For language models, it asks for the tokens that the Trainer's labels have.
        """
        self.inputs, self.own_loss, self.scale, self._loss = inputs, own_loss, scale, None
        arguments = {k: v for k, v in inputs.items() if isinstance(v, Tensor) and k != "labels"}
        labels = inputs.get("labels")
        self._has_labels = labels is not None
        rows = len(next(iter(arguments.values())))
        if labels is None:
            labels = torch.zeros(rows, dtype=torch.long)
        regression = labels.is_floating_point() or self._is_regression
        if labels.dim() > 1 and self.protocol.is_language_model and not self._reads_labels:
            shift = int(self.model.family.pooling == "last")
            arguments["predict"], labels = asked_tokens(labels, shift)
        if rows == 1 and "position_ids" in inputs and "attention_mask" not in inputs:
            rows = int((inputs["position_ids"] == 0).sum())  # packed without padding
        places = np.arange(len(labels))
        return HostedBatch(
            arguments, labels, HEAD, regression, self.index, places, labels.numel(), rows
        )

    def snapshot(self, names: Sequence[str] | None = None) -> Snapshot:
        """Return a detached copy of those of the weights by name that are trained."""
        weights = dict(self.model.named_parameters())
        if names is None:
            names = list(self.model.backbone_parameters())
        return super().snapshot([name for name in names if weights[name].requires_grad])

    def shared_names(self) -> list[str]:
        """Return the names of all weights: the model comes with all of them."""
        return [name for name, _ in self.model.named_parameters()]

    def trainable(self) -> list[nn.Parameter]:
        """Return the weights that require gradients."""
        return [value for value in self.model.parameters() if value.requires_grad]

    def rng(self, name: str) -> torch.Generator:
        """Return the generator `name` of this process."""
        return super().rng(f"{name}-{self.rank}" if self.rank else name)

    def loss(
        self,
        batch: Batch,
        *,
        weights: Mapping[str, Tensor] | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Return the Trainer's loss of the batch at hand, with other weights if given."""
        if inputs_embeds is not None:
            raise SettingsError("a Trainer's loss takes no embeddings.")
        assert self.own_loss is not None
        self._check_weights(weights)
        return self._with(weights, self.own_loss) * self.scale

    def logits(
        self,
        batch: Batch,
        *,
        head: str | None = None,
        weights: Mapping[str, Tensor] | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Return the model's outputs in float32: for language models, at the batch's places."""
        if head is not None or inputs_embeds is not None:
            raise SettingsError("a Trainer's model has one head, and reads tokens.")
        self._check_weights(weights)
        if not self._has_labels:
            raise SettingsError(f"{self.scenario} needs labels, but the batch has none.")
        if not self.protocol.is_language_model or self._reads_labels:
            if weights is None and torch.is_grad_enabled() and self.returns_outputs:
                assert self.own_loss is not None
                loss, outputs = self.own_loss(return_outputs=True)
                self._loss = loss * self.scale
                return logits_of(outputs, has_loss=True).float()
            return self._with(weights, self._plain)
        if "attention_mask" not in batch.inputs:
            raise ModelError(
                f"{self.scenario}: rows are packed into one without padding, so their next tokens "
                "cannot be compared. Set padding_free and packing to False."
            )
        texts = {name: value for name, value in batch.inputs.items() if name != "predict"}
        places = batch.inputs["predict"]
        return self._with(weights, lambda: self._at(places, texts))

    def criterion(self, outputs: Tensor, batch: Batch) -> Tensor:  # type: ignore[override]
        """Return the Trainer's loss of the batch at hand, whose outputs these are."""
        return self.loss(batch) if self._loss is None else self._loss

    def adam(self, groups: list[dict[str, Any]], kind: Any = None) -> Optimizer:
        """Return the Trainer's optimizer for these groups, or Adam of a `kind`."""
        if kind is not None or self.make_optimizer is None:
            return super().adam(groups, kind)
        return self.make_optimizer(groups)

    @property
    def _is_regression(self) -> bool:
        config = self.model.config
        kind, outputs = config.problem_type, getattr(config, "num_labels", 0)
        is_scored = not self.protocol.is_language_model
        return is_scored and (kind == "regression" or (kind is None and outputs == 1))

    @property
    def _reads_labels(self) -> bool:
        """Whether the model is an encoder-decoder, which reads its labels to predict them."""
        return bool(getattr(self.model.config, "is_encoder_decoder", False))

    def _plain(self) -> Tensor:
        with self.precision.autocast():
            return self.model.whole(self.inputs).float()

    def _at(self, places: Tensor, texts: Mapping[str, Tensor]) -> Tensor:
        with self.precision.autocast():
            return logits_at(self.model.backbone, places, **texts).float()

    def _with(self, weights: Mapping[str, Tensor] | None, function: Callable[[], Tensor]) -> Tensor:
        if weights is None:
            return function()
        values: Tensor = torch.func.functional_call(self.model, dict(weights), (function,))
        return values

    def _check_weights(self, weights: Mapping[str, Tensor] | None) -> None:
        if weights is not None and self.protocol.gradient_checkpointing and torch.is_grad_enabled():
            raise SettingsError(
                f"{self.scenario}: gradients of other weights cannot be computed with "
                "gradient_checkpointing, which recomputes the pass with the model's own. Set "
                "gradient_checkpointing=False in the arguments."
            )


def asked_tokens(labels: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """Return the places that predict labelled tokens, and these tokens: both of shape (b, m).

    `labels` of shape (b, t) have -100 where nothing is predicted; a place predicts the token
    `shift` further on. Rows with fewer tokens are filled up with place 0 and token -100.
    """
    ahead = nn.functional.pad(labels[:, shift:], (0, shift), value=IGNORED)
    asked = ahead != IGNORED
    order = asked.int().argsort(dim=1, descending=True, stable=True)
    places = order[:, : max(1, int(asked.sum(1).max()))]
    tokens = ahead.gather(1, places)
    return places.masked_fill(tokens == IGNORED, 0), tokens


def logits_of(outputs: Any, *, has_loss: bool) -> Tensor:
    """Return the logits in a model's outputs: a dictionary, or a tuple that may start with a loss.

    Raises a ModelError if there are none.
    """
    values = outputs.get("logits") if isinstance(outputs, Mapping) else outputs[int(has_loss)]
    if not isinstance(values, Tensor):
        raise ModelError("protect: the model returns no logits to compare. Use another method.")
    return values

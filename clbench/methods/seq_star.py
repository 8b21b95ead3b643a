"""SEQ*: train the encoder on the first task only, then the classifiers of new classes."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.methods.base import LearningRate, Method, Phase
from clbench.models.classifier import head_key
from clbench.training.batches import Batch
from clbench.training.context import Context
from clbench.training.stage import Stage


class SeqStar(Method):
    """Warm up on the first task, then train only the classifiers of new classes (SEQ*).

    Zheng et al. 2024 (arXiv 2312.07887) find that encoders forget little and classifiers a lot.
    The first stage trains everything for `warmup_epochs` more epochs than the protocol says;
    then the encoder is frozen, and the protocol's epochs train the head alone, here and in all
    later stages. The classifier of a class, its row of the head, is frozen after the stages of
    its tasks, as are heads of earlier tasks. A class that a later task has too, unlike those of
    the paper, is trained further there; a regression head, which has no classes, always is.

    With own heads, that leaves nothing to forget. With a head that grows, the old and the new
    classifiers never train against each other, which `classifier` and `preallocate` are to
    mitigate. Classifiers that learned to stay low need many steps to rise: in short stages new
    classes are never the answer, unless `head_lr` is higher.

    Attributes
    ----------
    warmup_epochs
        Epochs of the first stage that train the encoder too; 0 freezes the pretrained one.
    classifier
        ``cosine``: the logits are cosines of features and rows, without bias, so that new classes
        do not win by the size of theirs. Heads with one output stay linear. ``linear``: dense
        heads. ``auto``: cosine for heads that grow, else linear.
    preallocate
        Whether the softmax over a head that grows also has the classes to come, so that their
        classifiers learn to stay low for the classes so far. A head that has all classes from
        the start does that anyway. Without effect with ``head_loss = "stage"``, whose softmax has
        the classes of the stage alone.
    head_lr
        Flat rate of the heads; `lr` is that of the encoder.
    """

    name = "seq-star"
    holds_head = True
    head_kinds = ("classification",)
    warmup_epochs: Annotated[int, Field(ge=0, le=1000)] = 3
    classifier: Literal["auto", "cosine", "linear"] = "auto"
    preallocate: bool = True
    head_lr: LearningRate = 1e-3

    def setup(self, context: Context) -> None:
        """Replace the heads if they are to be cosine; no class is learned yet."""
        self.learned: dict[str, Tensor] = {}
        growing = {head_key(head) for head in context.model.shown}
        for key, layer in context.model.heads.items():
            is_cosine = self.classifier == "cosine" or (
                self.classifier == "auto" and key in growing
            )
            if is_cosine and isinstance(layer, nn.Linear) and layer.out_features > 1:
                context.model.heads[key] = CosineHead(layer)

    def phases(self, stage: Stage) -> Sequence[Phase]:
        """Return the warm-up, in the first stage only, and the training of the head."""
        warmup = Phase("warm-up", steps=self.warmup_epochs * stage.epoch_steps)
        return [warmup, Phase("head")] if stage.index == 0 else [Phase("head")]

    def before_phase(self, stage: Stage) -> None:
        """Freeze the encoder after the warm-up; find the classifiers that must not change."""
        if stage.index > 0 or stage.phase > 0:
            stage.model.backbone.requires_grad_(False)
        head = stage.data.head
        fixed = self.learned.get(head)
        self._fixed: list[tuple[nn.Parameter, Tensor, Tensor]] = []
        if fixed is not None:
            fixed = fixed & ~stage.classes()
            for parameter in stage.model.head(head).parameters():
                self._fixed.append((parameter, fixed, parameter.detach()[fixed]))

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return the encoder at the flat rate, while it is trained, and the head at its own."""
        encoder, trained = stage.model.backbone_parameters(), stage.trainable_weights()
        body = [weight for name, weight in trained.items() if name in encoder]
        head = [weight for name, weight in trained.items() if name not in encoder]
        parts = [(body, stage.protocol.lr), (head, self.head_lr)]
        return [{"params": part, "lr": lr} for part, lr in parts if part]

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the loss, with a preallocated head over all of its outputs."""
        if not self.preallocate or batch.head not in stage.model.shown:
            return stage.loss(batch)
        model = stage.model
        with stage.precision.autocast():
            pooled = model.dropout(model.features(batch.inputs))
        return stage.criterion(model.head(batch.head)(pooled.float()), batch)

    @torch.no_grad()
    def edit_gradients(self, stage: Stage) -> None:
        """Zero the gradients of classifiers that must not change."""
        for parameter, fixed, _ in self._fixed:
            if parameter.grad is not None:
                parameter.grad[fixed] = 0.0

    @torch.no_grad()
    def after_step(self, stage: Stage) -> None:
        """Restore these classifiers, which weight decay changes without a gradient."""
        for parameter, fixed, value in self._fixed:
            parameter[fixed] = value

    def after_stage(self, stage: Stage) -> None:
        """Note the classes that are learned."""
        self._fixed = []
        head, classes = stage.data.head, stage.classes()
        if len(classes) > 1:
            self.learned[head] = self.learned.get(head, torch.zeros_like(classes)) | classes


class CosineHead(nn.Linear):
    """A head whose outputs are the cosines of the features and its rows.

    Takes over the rows of `layer`.
    """

    def __init__(self, layer: nn.Linear) -> None:
        with torch.device("meta"):  # draws nothing from torch's own stream
            super().__init__(layer.in_features, layer.out_features, bias=False)
        self.weight = layer.weight

    def forward(self, features: Tensor) -> Tensor:
        """Return the cosines, shape (…, outputs), for features of shape (…, h)."""
        normalised = nn.functional.normalize(self.weight, dim=-1)
        return nn.functional.linear(nn.functional.normalize(features, dim=-1), normalised)

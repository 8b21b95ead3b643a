"""Methods that fit the head before or without the encoder: LP-FT and SEQ*."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.methods.base import LearningRate, Method, Phase
from clbench.models.classifier import head_key

if TYPE_CHECKING:
    from clbench.models.classifier import TaskModel
    from clbench.training.batches import Batch
    from clbench.training.stage import Context, Stage


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
        the start does that anyway.
    head_lr
        Flat rate of the heads; `lr` is that of the encoder.
    """

    name: ClassVar[str] = "seq-star"
    head_kinds: ClassVar[tuple[str, ...]] = ("classification",)
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
            fixed = fixed & ~classes_of(stage)
            for parameter in stage.model.head(head).parameters():
                self._fixed.append((parameter, fixed, parameter.detach()[fixed]))

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return the encoder at the flat rate, while it is trained, and the head at its own."""
        encoder = {id(parameter) for parameter in stage.model.backbone_parameters().values()}
        parts: tuple[list[nn.Parameter], ...] = ([], [])
        for parameter in stage.trainable():
            parts[id(parameter) not in encoder].append(parameter)
        rates = (stage.protocol.lr, self.head_lr)
        return [{"params": part, "lr": lr} for part, lr in zip(parts, rates, strict=True) if part]

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the loss, with a preallocated head over all of its outputs."""
        if not self.preallocate or batch.head not in stage.model.shown:
            return stage.loss(batch)
        return stage.criterion(all_outputs(stage, batch), batch)

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
        head = stage.data.head
        if _size(stage.model, head) > 1:
            classes = classes_of(stage)
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


def all_outputs(stage: Stage, batch: Batch) -> Tensor:
    """Return all outputs of a batch's head in float32, in use or not; shape (b, outputs)."""
    model = stage.model
    with stage.precision.autocast():
        pooled = model.dropout(model.features(batch.inputs))
    outputs: Tensor = model.head(batch.head)(pooled.float())
    return outputs


def classes_of(stage: Stage) -> Tensor:
    """Return which classes of the head occur in the stage's rows, bool, shape (outputs,)."""
    classes = torch.zeros(_size(stage.model, stage.data.head), dtype=torch.bool)
    classes[torch.from_numpy(np.unique(stage.data.rows.labels))] = True
    return classes.to(stage.device)


def _size(model: TaskModel, head: str) -> int:
    """Return the number of outputs of a head, in use or not."""
    return len(next(iter(model.head(head).parameters())))


class LpFt(Method):
    """Fit the stage's head on frozen features first, then train all weights.

    A random head sends large gradients into the features and distorts them, which linear probing
    then fine-tuning avoids (Kumar et al. 2022, sections 3.4 and 4). Both phases together have as
    many steps as the protocol gives the stage; each has an optimizer and a schedule of its own. The
    paper probes until the head has converged and chooses the probe by its validation accuracy; here
    a share of the steps stands for that. While the backbone is frozen its dropout is off. A head
    that an earlier task trained is probed from the weights that it has.

    Attributes
    ----------
    probe
        Share of the stage's steps that train the head alone, rounded to whole steps; at least one
        step, and at least one is left for the rest. A stage of one step trains everything.
    probe_lr
        Rate of these steps. The others have the flat rate.
    """

    name: ClassVar[str] = "lp-ft"
    head_kinds: ClassVar[tuple[str, ...]] = ("classification",)
    probe: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    probe_lr: LearningRate = 1e-3

    def phases(self, stage: Stage) -> Sequence[Phase]:
        """Return two phases, probing and fine-tuning, with the steps of the stage between them."""
        steps, _ = stage.protocol.stage_length(stage.name, len(stage.data.rows))
        probing = min(max(1, round(self.probe * steps)), steps - 1)
        return [Phase("probe", steps=probing), Phase("fine-tune", steps=steps - probing)]

    def before_phase(self, stage: Stage) -> None:
        """Freeze the backbone for probing, and unfreeze what that froze afterwards."""
        if stage.phase == 0:
            backbone = stage.model.backbone_parameters().values()
            self._frozen = [weight for weight in backbone if weight.requires_grad]
        for weight in self._frozen:
            weight.requires_grad_(stage.phase > 0)

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return one group: the head at the rate of probing, or all weights at the flat rate."""
        lr = self.probe_lr if stage.phase == 0 else stage.protocol.lr
        return [{"params": stage.trainable(), "lr": lr}]

"""Methods that answer with the nearest class mean: prototypes and iCaRL."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.core.errors import SettingsError
from clbench.core.shapes import only_shapes
from clbench.methods.base import Frozen, Method, Phase
from clbench.models.families import output_width
from clbench.tasks.task import IntArray, Task
from clbench.training.batches import Batch, TaskData
from clbench.training.context import Context, Snapshot
from clbench.training.stage import Stage

Sums = dict[str, Tensor]
"""``weights`` (classes), ``features`` (…, classes, h) and, of regression, ``moment`` (…, h, h)."""
NEVER = -1e30
"""Bias of a class without rows so far, which is never the answer."""


class ClosedForm(Frozen, ABC):
    """Base of methods that compute the heads from sums over the rows, without a gradient.

    A stage is one pass over its rows, which adds to the sums of each class and to one second
    moment. All heads so far are computed from these, so the order of the tasks does not matter.

    For multiple choice, right and wrong choices are two classes, and the head holds the
    difference of their rows. A regression head holds the least-squares solution, with the same
    regularisation. There is no rate, and the curve of the loss stays 0.
    """

    holds_head = True
    head_kinds = ("classification",)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if (self.lr, self.lr_multiple) != (None, 1.0):
            raise SettingsError(
                f"lr and lr_multiple have no effect on {self.name}, whose heads are computed. "
                "Remove them."
            )

    @abstractmethod
    def classes(self, sums: Mapping[str, Sums]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return weight (…, classes, h) and bias (…, classes) of heads of classes by `sums`."""

    @abstractmethod
    def regularised(self, covariance: Tensor, rows: float) -> Tensor:
        """Return a covariance of shape (…, h, h), from `rows` rows, that can be inverted."""

    def mapped(self, features: Tensor) -> Tensor:
        """Return what the sums are taken of, for features of shape (n, h)."""
        return features

    def setup(self, context: Context) -> None:
        """Freeze the backbone; start with empty sums."""
        super().setup(context)
        self._classifier = context.model
        self.moment: Tensor | float = 0.0
        self.sums: dict[str, Sums] = {}

    def phases(self, stage: Stage) -> Sequence[Phase]:
        """Return one pass over the rows."""
        return [Phase("sums", steps=stage.epoch_steps)]

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return the head's weights, which no step changes."""
        return [{"params": stage.trainable(), "lr": 0.0}]

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Add the features of a batch to the sums; return 0."""
        with torch.no_grad(), stage.precision.autocast():
            features = stage.model.features(batch.inputs)
        self.add(batch, features.to(sums_device(stage), torch.float64))
        return stage.trainable()[0].sum() * 0.0

    def add(self, batch: Batch, features: Tensor) -> None:
        """Add features, shape (b, h), or (b, k, h) for k choices, float64, to the sums."""
        columns = self.columns(batch, features)
        features = self.mapped(features.flatten(0, -2))
        new = {"weights": columns.sum(0), "features": columns.T @ features}
        moment = features.mT @ features
        if batch.regression:
            new["moment"] = moment
        else:
            self.moment += moment
        sums = self.sums.setdefault(batch.head, {n: torch.zeros_like(v) for n, v in new.items()})
        for name, value in new.items():
            sums[name] += value

    def columns(self, batch: Batch, features: Tensor) -> Tensor:
        """Return the targets of the rows of features, shape (n, outputs), float64.

        They are ones and the values for regression, else 1 for the class and 0 for others.
        """
        labels = batch.labels.to(features.device)
        if batch.regression:
            return torch.stack([torch.ones_like(labels), labels], dim=1).double()
        outputs = self._layer(batch.head).out_features
        if features.dim() == 3:
            labels, outputs = nn.functional.one_hot(labels, features.shape[1]).flatten(), 2
        return nn.functional.one_hot(labels, outputs).double()

    @torch.no_grad()
    def after_stage(self, stage: Stage) -> None:
        """Write all heads so far."""
        for head, (weight, bias) in self.solve().items():
            layer = self._layer(head)
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)

    def solve(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return weight, shape (outputs, h), and bias, shape (outputs,), of each head so far."""
        classes = {head: sums for head, sums in self.sums.items() if "moment" not in sums}
        solved = {head: self._regression(s) for head, s in self.sums.items() if "moment" in s}
        for head, (weight, bias) in (self.classes(classes) if classes else {}).items():
            if self._layer(head).out_features == 1:  # multiple choice: a wrong one, a right one
                weight = weight[..., 1:, :] - weight[..., :1, :]
                solved[head] = weight, bias[..., 1:] - bias[..., :1]
            else:
                absent = classes[head]["weights"] == 0
                solved[head] = weight, bias.masked_fill(absent, NEVER)
        return solved

    def _regression(self, sums: Sums) -> tuple[Tensor, Tensor]:
        rows = sums["weights"][0]
        mean, target = sums["features"][..., 0, :] / rows, sums["weights"][1] / rows
        covariance = sums["moment"] / rows - mean[..., :, None] * mean[..., None, :]
        joint = sums["features"][..., 1, :] / rows - target * mean
        weight = torch.linalg.solve(self.regularised(covariance, float(rows)), joint)
        return weight[..., None, :], (target - torch.linalg.vecdot(weight, mean))[..., None]

    def _layer(self, head: str) -> nn.Linear:
        layer = self._classifier.head(head)
        assert isinstance(layer, nn.Linear)
        return layer


class Prototypes(ClosedForm):
    """Answer with the class whose mean is nearest among the frozen pretrained features.

    The sums of `ClosedForm` give the mean μ_c of each class of each head, and one covariance Σ
    for all of them: that of the rows around their class means, over all tasks so far. The nearest
    mean by Mahalanobis distance has the largest ``w_c·x + b_c`` with ``w_c = Σ⁻¹μ_c`` and
    ``b_c = −½ μ_cᵀΣ⁻¹μ_c``, which become rows of the head (linear discriminant analysis with equal
    priors, as in deep SLDA: Hayes & Kanan 2020, section 3).

    Attributes
    ----------
    shrinkage
        ρ in ``(1 − ρ)·Σ + ρ·m·I``, with m the mean variance. ``oas`` chooses it by the number of
        rows and Σ (oracle approximating shrinkage; Chen et al. 2010, equation 23).
    """

    name = "prototypes"
    shrinkage: Annotated[float, Field(gt=0.0, le=1.0)] | Literal["oas"] = "oas"

    def classes(self, sums: Mapping[str, Sums]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the discriminant functions of the classes of each head."""
        scatter, rows = torch.as_tensor(self.moment), 0.0
        for each in sums.values():
            scatter = scatter - each["features"].mT @ _means(each)
            rows += float(each["weights"].sum())
        covariance = self.regularised(scatter / rows, rows)
        solved = {}
        for head, each in sums.items():
            means = _means(each)
            weight = torch.linalg.solve(covariance, means.mT).mT
            solved[head] = weight, -0.5 * (weight * means).sum(-1)
        return solved

    def regularised(self, covariance: Tensor, rows: float) -> Tensor:
        """Return the shrunk covariance."""
        return shrink(covariance, rows, self.shrinkage)


def sums_device(stage: Stage) -> torch.device:
    """Return the stage's device if it has float64, which Apple's has not; else the CPU."""
    return stage.device if stage.device.type == "cuda" else torch.device("cpu")


def _means(sums: Sums) -> Tensor:
    """Return the mean features of each class, shape (…, classes, h); 0 for one without rows."""
    return sums["features"] / sums["weights"].clamp(min=1.0)[:, None]


def shrink(covariance: Tensor, rows: float, shrinkage: float | Literal["oas"]) -> Tensor:
    """Return a covariance of shape (h, h), estimated from `rows` rows, shrunk towards m·I.

    m is the mean variance. Without any variance the result is I. Several are shrunk one by one.
    """
    if covariance.dim() == 3:
        return torch.stack([shrink(each, rows, shrinkage) for each in covariance])
    size = len(covariance)
    identity = torch.eye(size, dtype=covariance.dtype, device=covariance.device)
    trace = float(covariance.trace())
    if trace <= 0.0:
        return identity
    if shrinkage == "oas":
        squares = float(covariance.square().sum())
        spread = (rows + 1 - 2 / size) * (squares - trace**2 / size)
        excess = (1 - 2 / size) * squares + trace**2
        shrinkage = 1.0 if excess >= spread else excess / spread
    return (1 - shrinkage) * covariance + shrinkage * trace / size * identity


class ICaRL(Method):
    """Train on new rows and exemplars, distil old outputs, and answer with the nearest mean.

    Rebuffi et al. 2017. A stage trains on its rows and on all exemplars of earlier classes
    (Algorithm 3). Every output is a sigmoid. An output of a class of the stage learns the
    labels; an output of an earlier class learns the value it had for the row before the stage.
    The loss is their binary cross-entropy, summed over outputs. Afterwards each class gets an
    equal part of the memory, filled by herding: the next exemplar is the row that brings the
    mean of the exemplars nearest to that of the class, on features of length 1 (Algorithm 4).
    The first exemplars are the best, so those of earlier classes are cut off at the end
    (Algorithm 5). A row is scored by the mean of the exemplars nearest to its features
    (Algorithm 1), which is the largest product with the means of length 1: these replace the
    head's rows while it is scored.

    A batch has rows of one task here, and a small batch of exemplars weighs as much as a full
    one of new rows. Between the start and the end of a stage, on curves, the head itself is
    scored. The outputs of another task's own head are distilled too; its exemplars do not count
    as negative rows for the head of the stage. A class that comes again in a later task learns
    the labels again, and its exemplars are divided among its tasks.

    Attributes
    ----------
    memory
        K: number of rows kept over all classes; at least one for each.
    rest
        What becomes of the rows left over where K is no multiple of the number of classes:
        ``drop`` keeps equally many of each class, as in Algorithm 5; ``use`` keeps one more of the
        first classes, so that K rows are kept in all, as by `Rehearsal`.
    """

    name = "icarl"
    holds_head = True
    head_kinds = ("classification",)
    keeps_rows = True
    memory: Annotated[int, Field(ge=1)] = 200
    rest: Literal["drop", "use"] = "drop"

    def check_tasks(self, tasks: Sequence[Task]) -> None:
        """Raise a SettingsError if a task has no classes, or they are more than the memory."""
        for task in tasks:
            if task.outputs == 1:
                raise SettingsError(
                    f"task {task.name!r} is regression or multiple choice, without the class means "
                    "that method 'icarl' needs. Use replay or der++."
                )
        classes = sum({task.head: task.outputs for task in tasks}.values())
        if classes > self.memory:
            raise SettingsError(
                f"memory = {self.memory} is too small: each of {classes} classes needs an exemplar."
            )

    def setup(self, context: Context) -> None:
        """Start without exemplars."""
        self._context = context
        self.exemplars: dict[int, dict[int, IntArray]] = {}  # by task and class
        self.learned: dict[str, Tensor] = {}
        self.means: dict[str, Tensor] = {}

    def before_stage(self, stage: Stage) -> None:
        """Record the earlier classes' outputs for the rows of the stage and the exemplars."""
        self.means = {}
        self._old = dict(self.learned)
        if (head := stage.data.head) in self._old:
            self._old[head] = self._old[head] & ~stage.classes()
        self._targets = {}
        for data in self.training_data(stage) if self._old else ():
            for head, outputs in stage.outputs_of(self._old, data).items():
                self._targets[data.task, head] = outputs.sigmoid()

    def training_data(self, stage: Stage) -> Sequence[TaskData]:
        """Return the stage's rows and the exemplars of each earlier task."""
        return [stage.data, *self._kept(stage)]

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the cross-entropy of labels and of earlier outputs, from one backbone pass."""
        rows = torch.from_numpy(batch.positions).to(stage.device, non_blocking=True)
        terms = []
        for head, logits in stage.logits_of_heads([batch.head, *self._old], batch).items():
            width = logits.shape[1]
            targets, counted = torch.zeros_like(logits), torch.zeros_like(logits)
            if head == batch.head:
                targets = nn.functional.one_hot(batch.labels, width).float()
                counted = torch.ones_like(logits)
            if head in self._old:
                old = self._old[head][:width]
                targets = torch.where(old, self._targets[batch.task, head][rows], targets)
                counted = counted.masked_fill(old, 1.0)
            terms.append(
                nn.functional.binary_cross_entropy_with_logits(
                    logits, targets, weight=counted, reduction="sum"
                )
            )
        return torch.stack(terms).sum() / len(batch)

    def after_stage(self, stage: Stage) -> None:
        """Choose exemplars of the stage's classes, cut the others off, and take all means."""
        self._targets = {}
        labels, own, head = stage.data.rows.labels, stage.classes(), stage.data.head
        classes = own.nonzero().flatten().tolist()
        self.exemplars[stage.index] = new = {k: np.flatnonzero(labels == k) for k in classes}
        room = self._room([task.head for task in stage.tasks])
        features = normalised_features(stage, stage.data)
        for label, positions in new.items():
            new[label] = positions[herding(features[positions], room[stage.index, label])]
        for task, kept in self.exemplars.items():
            kept.update({label: rows[: room[task, label]] for label, rows in kept.items()})
        self.learned[head] = self.learned.get(head, torch.zeros_like(own)) | own
        self._take_means(stage)

    def scoring(self, task: int) -> AbstractContextManager[None]:
        """Replace the rows of each head by the means of the exemplars, once they are taken."""
        rows: Snapshot = {}
        for head, means in self.means.items():
            weight, bias = self._context.model.head_parameter_names(head)
            rows |= {weight: means, bias: torch.where(self.learned[head], 0.0, NEVER)}
        return self._context.swapped(rows)

    def _room(self, heads: Sequence[str]) -> dict[tuple[int, int], int]:
        """Return the number of exemplars of each class of each task, for the tasks' `heads`.

        Each class has the same share of the memory, up to one row, and its tasks equal parts of it.
        """
        tasks: dict[tuple[str, int], list[int]] = {}
        for task, kept in self.exemplars.items():
            for label in kept:
                tasks.setdefault((heads[task], label), []).append(task)
        share, rest = divmod(self.memory, len(tasks))
        more = rest if self.rest == "use" else 0
        return {
            (task, label): len(part)
            for number, ((_, label), some) in enumerate(tasks.items())
            for task, part in zip(
                some, np.array_split(np.arange(share + (number < more)), len(some)), strict=True
            )
        }

    def _kept(self, stage: Stage) -> list[TaskData]:
        """Return the exemplars of each task that has some."""
        kept = []
        for task, by_class in self.exemplars.items():
            data, positions = stage.earlier(task), np.concatenate(list(by_class.values()))
            if len(positions):
                kept.append(replace(data, rows=data.rows.take(positions)))
        return kept

    def _take_means(self, stage: Stage) -> None:
        """Take the mean of the exemplars of each class, of length 1; 0 for other outputs."""
        for head, learned in self.learned.items():
            self.means[head] = torch.zeros((len(learned), output_width(stage.model.config)))
        for data in self._kept(stage):
            labels = torch.from_numpy(np.array(data.rows.labels))
            self.means[data.head].index_add_(0, labels, normalised_features(stage, data))
        for head, sums in self.means.items():
            self.means[head] = nn.functional.normalize(sums, dim=1).to(stage.device)


def normalised_features(stage: Stage, data: TaskData) -> Tensor:
    """Return the pooled features of all rows, of length 1, without dropout; (n, h) on the CPU."""
    return nn.functional.normalize(torch.from_numpy(stage.features(data)), dim=1)


def herding(features: Tensor, count: int) -> IntArray:
    """Return the positions of the best `count` exemplars of a class, best first.

    `features` are those of all its rows, of length 1, shape (n, h). For these, the row that brings
    the mean of k exemplars nearest to the class mean μ is the one with the largest product with
    kμ minus the sum of those chosen before.
    """
    if only_shapes():
        return np.arange(min(count, len(features)))
    rows = features.double()
    mean = rows.mean(0)
    direction, chosen = mean.clone(), []
    free = torch.ones(len(rows), dtype=torch.bool)
    for _ in range(min(count, len(rows))):
        best = int((rows @ direction).masked_fill(~free, -torch.inf).argmax())
        free[best] = False
        chosen.append(best)
        direction += mean - rows[best]
    return np.array(chosen, dtype=np.int64)

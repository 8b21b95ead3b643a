"""Methods that mix weights after training: WiSE-FT, TIES and DARE."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from clbench.methods.base import Method
from clbench.methods.selection import nth_largest
from clbench.models.classifier import TaskModel
from clbench.models.groups import depth_positions
from clbench.training.context import Context
from clbench.training.stage import Stage


class Merging(Method, ABC):
    """Base of methods that merge the changes of separately trained tasks.

    Every stage starts from the pretrained backbone and the initial head. Afterwards the changes of
    the backbone, δ_i for task i, are merged with those of the earlier tasks, and the model becomes
    ``θ_0 + scale·merge(δ_1 … δ_i)``, with which all tasks so far are scored. While a stage trains,
    its curves show the task's own weights.

    The papers merge backbones and keep the tasks' heads, as here. Of a head that tasks share, which
    each of them trains from its initial weights, an output belongs to the tasks with rows of that
    class, and gets the mean of what they trained; if it grows, that is the task that added it. The
    outputs of different tasks have never competed in training.

    A subclass adds a task's changes to running sums, so memory does not grow with the tasks.

    Attributes
    ----------
    scale
        λ: factor on the merged change.
    """

    holds_head = True
    scale: Annotated[float, Field(gt=0.0, le=10.0)] = 1.0

    def acts_in(self, index: int) -> bool:
        """Return False for the first stage, which starts from the pretrained weights anyway."""
        return index > 0

    def setup(self, context: Context) -> None:
        """Keep the weights that each stage starts from."""
        self._start = context.snapshot([name for name, _ in context.model.named_parameters()])
        self.heads: dict[str, dict[str, Tensor]] = {}

    def before_stage(self, stage: Stage) -> None:
        """Restore the pretrained backbone and the initial head."""
        head = stage.model.head_parameter_names(stage.data.head)
        names = [*stage.model.backbone_parameters(), *head]
        stage.restore({name: self._start[name] for name in names})

    @torch.no_grad()
    def after_stage(self, stage: Stage) -> None:
        """Merge the task's changes with those of the earlier tasks."""
        weights = stage.model.backbone_parameters()
        self.add(
            stage, {name: weight.detach() - self._start[name] for name, weight in weights.items()}
        )
        for name, change in self.merged().items():
            weights[name].copy_(self._start[name] + self.scale * change)
        if stage.model.head_parameter_names(stage.data.head):
            self._merge_head(stage)

    @abstractmethod
    def add(self, stage: Stage, changes: Mapping[str, Tensor]) -> None:
        """Add a task's changes of the backbone, by name, to the state."""

    @abstractmethod
    def merged(self) -> dict[str, Tensor]:
        """Return the merged change of each weight of the backbone."""

    def _merge_head(self, stage: Stage) -> None:
        """Give each output of the stage's head the mean over the tasks that have its class."""
        weights, owned = dict(stage.model.named_parameters()), stage.classes().float()
        sums = self.heads.setdefault(stage.data.head, {"tasks": torch.zeros_like(owned)})
        sums["tasks"] += owned
        for name in stage.model.head_parameter_names(stage.data.head):
            weight = weights[name]
            sums.setdefault(name, torch.zeros_like(weight))
            by_row = (-1, *[1] * (weight.dim() - 1))
            sums[name] += weight * owned.view(by_row)
            tasks = sums["tasks"].view(by_row)
            weight.copy_(torch.where(tasks > 0, sums[name] / tasks.clamp(min=1.0), weight))


class Ties(Merging):
    """Trim the changes of each task, elect a sign for each weight, and average what has it.

    Of the changes that a task makes to the backbone, the share `keep` with the largest size stays
    and the others become 0. Each weight takes the sign of the sum over tasks, and the merged change
    is the mean of the changes with that sign that are not 0 (Yadav et al. 2023, section 4 and
    Algorithm 1: trim, elect sign, disjoint merge). See `Merging` for the rest.

    Sums and numbers of the positive and the negative changes are all that this needs: 2.5 times
    the weights, however many tasks there are, besides the pretrained weights.

    Attributes
    ----------
    keep
        k: share of the backbone's changes that stays, over all tensors together.
    """

    name = "ties"
    keep: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2

    def setup(self, context: Context) -> None:
        """Start with no task."""
        super().setup(context)
        weights = context.model.backbone_parameters()
        self.sums = {
            sign: {name: torch.zeros_like(weight) for name, weight in weights.items()}
            for sign in ("positive", "negative")
        }
        self.counts = {
            sign: {name: torch.zeros_like(value, dtype=torch.uint8) for name, value in sums.items()}
            for sign, sums in self.sums.items()
        }

    def add(self, stage: Stage, changes: Mapping[str, Tensor]) -> None:
        """Trim the task's changes and add them by sign."""
        sizes = torch.cat([change.abs().flatten() for change in changes.values()])
        smallest = nth_largest(sizes, max(1, round(self.keep * len(sizes))))
        for name, change in changes.items():
            trimmed = torch.where(change.abs() >= smallest, change, 0.0)
            for sign, part in (
                ("positive", trimmed.clamp(min=0.0)),
                ("negative", trimmed.clamp(max=0.0)),
            ):
                self.sums[sign][name] += part
                self.counts[sign][name] += part != 0.0

    def merged(self) -> dict[str, Tensor]:
        """Return the mean of the changes with the elected sign."""
        result = {}
        for name, positive in self.sums["positive"].items():
            elected = (positive + self.sums["negative"][name]).sign()
            means = {
                sign: self.sums[sign][name] / self.counts[sign][name].clamp(min=1)
                for sign in self.sums
            }
            result[name] = means["positive"] * (elected > 0) + means["negative"] * (elected < 0)
        return result


class Dare(Merging):
    """Drop each change of the backbone at random, rescale the others, and add up the tasks.

    A change that a task makes to a weight becomes 0 with probability `drop` = p and is divided by
    1 − p otherwise, which keeps its mean; then the tasks are combined (Yu et al. 2024, section 3;
    their sum times `scale` is task arithmetic, Ilharco et al. 2023). See `Merging` for the rest.

    The sum of the dropped changes is all that this needs: the weights once, however many tasks
    there are, besides the pretrained weights.

    Attributes
    ----------
    drop
        p; 0 is task arithmetic without dropping.
    combine
        ``sum`` or ``mean`` over the tasks.
    """

    name = "dare"
    drop: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    combine: Literal["sum", "mean"] = "sum"

    def setup(self, context: Context) -> None:
        """Start with no task."""
        super().setup(context)
        weights = context.model.backbone_parameters()
        self.sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.tasks = 0

    def add(self, stage: Stage, changes: Mapping[str, Tensor]) -> None:
        """Drop most of the task's changes, and add the others, rescaled."""
        generator = stage.rng("dare")
        for name, change in changes.items():
            kept = torch.rand(change.shape, generator=generator) >= self.drop
            self.sums[name] += change * kept.to(change.device) / (1.0 - self.drop)
        self.tasks += 1

    def merged(self) -> dict[str, Tensor]:
        """Return the sum or the mean over the tasks."""
        divisor = self.tasks if self.combine == "mean" else 1
        return {name: value / divisor for name, value in self.sums.items()}


Share = Annotated[float, Field(ge=0.0, le=1.0)]


class WiseFT(Method):
    """Fine-tune as vanilla; then average the shared weights with those before the stage.

    After every stage but the first, w becomes (1 − `alpha`)·before + `alpha`·after (Wortsman et
    al. 2022, section 3), for all weights that earlier tasks trained too: the backbone, and the head
    if an earlier task shares it. A new head, and the new classes of a head that grows, keep their
    trained weights, since before the stage they were random. The next stage starts from the
    average.

    Attributes
    ----------
    alpha
        Share of the trained weights; 1 is vanilla, 0 undoes the stage except for a new head. One
        number for all weights, as in the paper, or a list by depth of at least three: for the
        embeddings, for groups of layers from the bottom up, and for the head and whatever is
        neither embedding nor layer, divided as by `clbench.models.groups.divide_layers`.
    first
        Whether the first stage is averaged too, with the pretrained weights, as in the paper: for
        what is kept of the pretraining.
    """

    name = "wise-ft"
    holds_head = True
    control = True
    only_consolidates = True
    alpha: Share | Annotated[list[Share], Field(min_length=3)] = 0.5
    first: bool = False

    def acts_in(self, index: int) -> bool:
        """Return False for the first stage, before which no task was learned, unless `first`."""
        shares = self.alpha if isinstance(self.alpha, list) else [self.alpha]
        return (index > 0 or self.first) and min(shares) < 1.0

    def before_stage(self, stage: Stage) -> None:
        """Keep the shared weights."""
        self.before = stage.snapshot(stage.shared_names())

    @torch.no_grad()
    def after_stage(self, stage: Stage) -> None:
        """Average the shared weights; those that did not change stay equal in every bit."""
        if not self.acts_in(stage.index):
            return
        weights, alphas = dict(stage.model.named_parameters()), self._alphas(stage.model)
        head = set(stage.model.head_parameter_names(stage.data.head))
        old_classes = stage.shown_before.get(stage.data.head)
        for name, before in self.before.items():
            old = slice(old_classes) if name in head else ...
            after = weights[name][old]
            after.copy_(before[old].lerp(after, alphas[name]))
        self.before = {}

    def _alphas(self, model: TaskModel) -> dict[str, float]:
        """Return the share of the trained weights for each parameter, by its name."""
        layers = model.layer_groups()
        shares = self.alpha if isinstance(self.alpha, list) else [self.alpha] * 3
        positions = depth_positions(len(layers) - 2, len(shares))
        return {
            name: shares[positions[layer.name]] for layer in layers for name in layer.parameters
        }

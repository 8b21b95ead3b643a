"""Methods that change only a part of the weights, or directions: MoFO, MIGU, PackNet and OSF."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.core.errors import SettingsError
from clbench.methods.base import Method, Phase
from clbench.methods.selection import largest, linear_layers, matrices
from clbench.models.encoding import IGNORED
from clbench.training.batches import Batch
from clbench.training.context import Context, Snapshot
from clbench.training.stage import Stage


class MoFO(Method):
    """Move in each step only the weights with the largest first moment of Adam.

    Adam's moments are those of all weights, but of each tensor only the share `fraction` with the
    largest ``|m|`` moves (Chen et al. 2024, arXiv 2407.20999, Algorithm 1); the others stay as they
    are, weight decay included, so the model stays nearer to where it was. A new head, which has
    nothing to forget, moves whole; a head that an earlier task trained is filtered like the
    backbone. That includes the rows of new classes in a head that grows. Biases and norms are
    filtered as printed; the authors' code lets them move, and decays all weights but norms.

    Attributes
    ----------
    fraction
        α: share of the weights of a tensor that move in a step, at least one weight; 1 is vanilla.
    """

    name = "mofo"
    holds_head = True
    needs_outputs = True  # a share of a whole tensor moves
    fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.15

    def acts_in(self, index: int) -> bool:
        """Return False if all weights move."""
        return self.fraction < 1.0

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return the weights to filter, and those of a new head."""
        shared, trained = set(stage.shared_names()), stage.trainable_weights()
        filtered = [weight for name, weight in trained.items() if name in shared]
        new = [weight for name, weight in trained.items() if name not in shared]
        groups = [(filtered, self.fraction), (new, 1.0)]
        return [
            {"params": weights, "lr": stage.protocol.lr, "fraction": fraction}
            for weights, fraction in groups
            if weights
        ]

    def optimizer(self, stage: Stage, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Return the filtered Adam with the protocol's settings."""
        return stage.adam(groups, FilteredAdam)


class FilteredAdam(torch.optim.AdamW):
    """Adam, or torch.optim.AdamW with weight decay, that moves a part of each tensor.

    A group's option ``fraction`` (default 1) is the share of each of its tensors that moves.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step, and put the weights with smaller momentum back; see `AdamW.step`."""
        before = [
            (weight, weight.clone(), group["fraction"])
            for group in self.param_groups
            for weight in group["params"]
            if weight.grad is not None and group.get("fraction", 1.0) < 1.0
        ]
        loss = super().step(closure)
        for weight, value, fraction in before:
            moves = largest(self.state[weight]["exp_avg"], fraction)
            weight.copy_(torch.where(moves, weight, value))
        return loss


class Migu(Method):
    """Update in each linear layer only the units with the largest outputs for the batch.

    The outputs h of a token are normalised, ``|h| / ‖h‖₁``, and averaged over the tokens of the
    batch, padding left out; the share `share` of the units with the largest averages keeps its
    gradient, and that of the other rows of weight and bias becomes 0 (Du et al. 2024, arXiv
    2406.17245, section 3). Tasks with different outputs then train different units. As in the
    authors' code, the first task trains all units, embeddings and norms are trained whole, and a
    unit without gradient still moves by Adam's momentum. The code sums plain ``|h|``, padding
    included, where the paper normalises. The classification heads, which the paper's language
    models do not have, are trained whole too. Padding of several packed sequences counts.

    Attributes
    ----------
    share
        Share of a layer's units that are updated, at least one unit; 1 is vanilla.
    """

    name = "migu"
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.3

    def acts_in(self, index: int) -> bool:
        """Return False for the first stage, which has nothing to retain."""
        return index > 0 and self.share < 1.0

    def setup(self, context: Context) -> None:
        """Find the linear layers, without those whose weight is an embedding table."""
        own = {id(weight) for weight in matrices(context.model).values()}
        layers = linear_layers(context.model.backbone)
        self._layers = {n: layer for n, layer in layers.items() if id(layer.weight) in own}

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the loss, and measure the outputs of the linear layers on the way."""
        masks = batch.inputs["attention_mask"].flatten(0, -2), batch.labels != IGNORED
        if stage.part == 0:
            self._sizes: dict[str, Tensor] = {}
        with ExitStack() as hooks:
            for name, layer in self._layers.items():
                measure = partial(self._measure, name, masks)
                hooks.callback(layer.register_forward_hook(measure).remove)
            return stage.loss(batch)

    @torch.no_grad()
    def edit_gradients(self, stage: Stage) -> None:
        """Zero the gradients of the units with smaller outputs."""
        for name, sizes in self._sizes.items():
            layer = self._layers[name]
            count = max(1, round(self.share * len(sizes)))
            kept = torch.zeros_like(sizes).index_fill_(0, sizes.topk(count).indices, 1.0)
            for parameter in layer.parameters(recurse=False):
                if parameter.grad is not None:
                    # The units are the rows of a Linear and the columns of a Conv1D.
                    by_row = parameter.dim() == 2 and isinstance(layer, nn.Linear)
                    parameter.grad.mul_(kept[:, None] if by_row else kept)

    def _measure(self, name: str, masks: Sequence[Tensor], _: Any, _i: Any, output: Tensor) -> None:
        """Add the outputs of a layer, which a step may call several times, to its sizes."""
        mask = next((mask for mask in masks if mask.shape == output.shape[:-1]), masks[0])
        sizes = magnitudes(output.detach().float(), mask) * mask.sum()
        self._sizes[name] = self._sizes.get(name, 0.0) + sizes


def magnitudes(outputs: Tensor, mask: Tensor) -> Tensor:
    """Return the mean L1-normalised size of each output unit over the real tokens, shape (h,).

    Parameters
    ----------
    outputs
        Outputs of a layer, shape (…, h), such as (b, t, h).
    mask
        Shape (b, t) or (b,), 1 for what is real. Outputs of other shapes, such as those for
        relative positions, all count.
    """
    shares = outputs.abs()
    shares = shares / shares.sum(-1, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)
    if shares.shape[:-1] == mask.shape:
        return (shares * mask[..., None]).flatten(0, -2).sum(0) / mask.sum()
    return shares.flatten(0, -2).mean(0)


class PackNet(Method):
    """Train the free weights, prune the smallest of them, retrain the rest; then fix them.

    Mallya & Lazebnik 2018, sections 3 and 4. In each weight matrix of the backbone the
    fraction `prune` of the weights that the task trained, smallest magnitudes first, is set
    to zero and left to later tasks; the rest belongs to the task and never changes again.
    Biases, norms and embeddings are trained by the first task and fixed afterwards. A task
    is scored with the weights of the tasks up to it and with its own copy of the head, so
    nothing is forgotten, shared head or not. The task of each row must be known.

    Attributes
    ----------
    prune
        Fraction freed after each task, or ``equal``: of T tasks, task i (from 0) keeps 1/(T-i)
        of the free weights, so that all get equal parts and the last one leaves nothing.
    retrain
        Steps of training after pruning, as a fraction of the stage's own.
    """

    name = "packnet"
    holds_head = True
    needs_task_id = True
    prune: Annotated[float, Field(gt=0.0, lt=1.0)] | Literal["equal"] = 0.5
    retrain: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5

    @property
    def needs_length(self) -> bool:  # type: ignore[override]
        """Whether the number of tasks decides how much each one keeps."""
        return self.prune == "equal"

    def setup(self, context: Context) -> None:
        """Find the matrices; all their weights are free (owner 0; task i is owner i + 1).

        Raises a SettingsError if the first tasks will leave no weight to a later one.
        """
        self._context = context
        self._weights = matrices(context.model)
        free = [weight.numel() for weight in self._weights.values()]
        for index in range(context.stages):
            if not any(free):
                raise SettingsError(
                    f"method 'packnet': prune = {self.prune} leaves no weights to task {index + 1} "
                    f'of {context.stages}. Raise prune, or set it to "equal".'
                )
            share = self._pruned_share(context, index)
            free = [round(share * count) for count in free]
        self.owner = {
            name: torch.zeros(weight.shape, dtype=torch.uint8, device=weight.device)
            for name, weight in self._weights.items()
        }
        self.heads: dict[int, Snapshot] = {}

    def before_stage(self, stage: Stage) -> None:
        """From the second task on, freeze all of the backbone but its matrices."""
        if self.heads:
            for name, value in stage.model.backbone_parameters().items():
                value.requires_grad_(name in self.owner)

    def phases(self, stage: Stage) -> Sequence[Phase]:
        """Return two phases: training as long as the protocol says, then retraining."""
        steps = math.ceil(self.retrain * stage.own_steps)
        return [Phase("train"), Phase("retrain", steps=steps)]

    def before_phase(self, stage: Stage) -> None:
        """Prune before retraining; select the weights that may change."""
        owner = 0 if stage.phase == 0 else stage.index + 1
        if owner:
            self._prune(stage)
        self._free = {name: owners == owner for name, owners in self.owner.items()}
        # Adam keeps a weight whose gradients have always been zero; weight decay does not.
        decays = stage.protocol.weight_decay > 0
        self._backup = {n: w.detach().clone() for n, w in self._weights.items()} if decays else {}

    @torch.no_grad()
    def edit_gradients(self, stage: Stage) -> None:
        """Zero the gradients of weights that must not change."""
        if stage.phase == 0 and not self.heads:
            return  # all weights are free
        for name, weight in self._weights.items():
            if weight.grad is not None:
                weight.grad.mul_(self._free[name])

    @torch.no_grad()
    def after_step(self, stage: Stage) -> None:
        """Restore the weights that only weight decay changed."""
        for name, backup in self._backup.items():
            weight = self._weights[name]
            weight.copy_(torch.where(self._free[name], weight, backup))

    def after_stage(self, stage: Stage) -> None:
        """Keep a copy of the task's head."""
        self.heads[stage.index] = stage.snapshot(stage.model.head_parameter_names(stage.data.head))

    @torch.no_grad()
    def scoring(self, task: int) -> AbstractContextManager[object]:
        """Score a finished task with the weights of the tasks up to it and its own head."""
        if task not in self.heads:
            return nullcontext()
        own = {
            name: self._weights[name] * ((owner > 0) & (owner <= task + 1))
            for name, owner in self.owner.items()
        }
        return self._context.swapped({**own, **self.heads[task]})

    def _pruned_share(self, context: Context, index: int) -> float:
        """Return the share of the free weights that task `index`, from 0, leaves free."""
        remaining = context.stages - index
        return (remaining - 1) / remaining if self.prune == "equal" else self.prune

    @torch.no_grad()
    def _prune(self, stage: Stage) -> None:
        """Give the task the largest of its weights, matrix by matrix, and zero the others."""
        share = self._pruned_share(stage, stage.index)
        free_count = 0
        for name, weight in self._weights.items():
            owner = self.owner[name].view(-1)
            free = owner == 0
            count = int(free.sum())
            size = count - round(share * count)
            sizes = torch.where(free, weight.detach().abs().reshape(-1), -1.0)
            owner[sizes.topk(size).indices] = stage.index + 1
            weight.mul_(self.owner[name] > 0)
            free_count += count - size
        total = sum(owner.numel() for owner in self.owner.values())
        stage.record("free_share", free_count / total)


class OSF(Method):
    """Train every matrix in the complement of its largest singular directions (OSF).

    When a stage begins, each weight matrix of the backbone is decomposed anew, and U and V are
    the singular vectors of its largest singular values (Nayak et al. 2025, section 3). Gradients
    become (I − UUᵀ)·G·(I − VVᵀ), and so does the change of the matrix after every step, because
    Adam would leave the complement: W keeps mapping V as it did. Embeddings, norms and biases are
    frozen meanwhile. The paper trains the factors of the remaining directions, which reach the
    same matrices; here, the matrix itself is trained. Nothing is kept between stages. The authors'
    code and the package peft project the gradients only, so that Adam's steps leave the
    complement; the authors' code also trains embeddings, norms and undecomposed matrices.

    Attributes
    ----------
    preserve
        Share of the singular directions of each matrix that a stage preserves, or
        ``progressive``: i/T in task i of T, from 0, so that the first one trains as vanilla. The
        paper's shares by layer, from the similarity of its inputs and outputs, are left out.
    """

    name = "osf"
    preserve: Annotated[float, Field(gt=0.0, lt=1.0)] | Literal["progressive"] = "progressive"

    @property
    def needs_length(self) -> bool:  # type: ignore[override]
        """Whether the number of tasks decides the share."""
        return self.preserve == "progressive"

    def acts_in(self, index: int) -> bool:
        """Return False for a first stage that trains everything."""
        return index > 0 or self.preserve != "progressive"

    def setup(self, context: Context) -> None:
        """Find the matrices."""
        self._weights = matrices(context.model)

    @torch.no_grad()
    def before_stage(self, stage: Stage) -> None:
        """Decompose the matrices; freeze the rest of the backbone."""
        share = stage.index / stage.stages if self.preserve == "progressive" else self.preserve
        for name, parameter in stage.model.backbone_parameters().items():
            parameter.requires_grad_(name in self._weights)
        self._start = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._high: dict[str, tuple[Tensor, Tensor]] = {}
        for name, weight in self._weights.items():
            left, _, right = torch.linalg.svd(weight.flatten(1).float(), full_matrices=False)
            rank = round(share * len(right))
            self._high[name] = left[:, :rank].contiguous(), right[:rank].contiguous()

    @torch.no_grad()
    def edit_gradients(self, stage: Stage) -> None:
        """Project the gradients."""
        for name, weight in self._weights.items():
            if weight.grad is not None:
                weight.grad.copy_(self._project(name, weight.grad))

    @torch.no_grad()
    def after_step(self, stage: Stage) -> None:
        """Project the change of the matrices since the stage began."""
        for name, weight in self._weights.items():
            start = self._start[name]
            weight.copy_(start + self._project(name, weight - start))

    def after_stage(self, stage: Stage) -> None:
        """Release the singular vectors."""
        self._start, self._high = {}, {}

    def _project(self, name: str, change: Tensor) -> Tensor:
        """Return the part of `change` in the complement of a matrix's preserved directions."""
        left, right = self._high[name]
        flat = change.flatten(1).to(left)
        flat = flat - left @ (left.T @ flat)
        return (flat - (flat @ right.T) @ right).view_as(change)

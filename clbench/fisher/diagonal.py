"""The diagonal of the Fisher information, example by example."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from clbench.core.errors import DataError, PluginError, SettingsError, did_you_mean
from clbench.core.options import checks_arguments
from clbench.core.seeds import torch_stream
from clbench.core.shapes import few
from clbench.fisher import losses
from clbench.fisher.per_example import Capture, zeros_like
from clbench.fisher.squares import Rotation, add_absolutes, rotate
from clbench.models.classifier import evaluating
from clbench.training.batches import Batch
from clbench.training.device import Precision

Mode = Literal["sampled", "empirical", "batched"]
RTOL, ATOL, NOISE = 1e-2, 1e-5, 1e-11
"""Tolerances of a rule's squares against autograd's: relative to each, to the largest of its
weight, and to the largest of all (some gradients, as of key biases, are only rounding errors)."""


@checks_arguments
def diagonal_fisher(
    model: nn.Module,
    batches: Iterable[losses.AnyBatch],
    loss: losses.LossName | losses.LossFunction = "mlm",
    mode: Mode = "sampled",
    *,
    seed: int = 0,
    generator: torch.Generator | None = None,
    names: Iterable[str] | None = None,
    precision: Literal["float32", "bf16"] = "float32",
    rotations: Mapping[str, Rotation] | None = None,
) -> dict[str, Tensor]:
    """Return the mean over examples of the squared gradients of each example's loss.

    A batch takes one forward and one backward pass. Per-example gradients of dense layers, layer
    norms and embeddings, tied and shared weights included, are formed from the layers' inputs and
    output gradients and never kept, so memory grows with the batch size only. Two examples are
    checked against plain backward passes. Weights of other layers, and weights that a batch uses
    differently from these two examples, get one backward pass per example. Not detected: a weight
    that another module also reads after the first two examples.

    Dropout is off during the computation. Weights and their ``grad`` do not change.

    Parameters
    ----------
    model
        A transformers model with a language-model or classification head, a clbench
        ``Classifier``, or any module if `loss` is a function.
    batches
        Dictionaries of the model's inputs with ``labels``, of shape (b, t) for ``mlm`` (-100
        where a token is not masked; see `mask_tokens`) and (b,) for ``task``; or batches of a
        clbench stage. They are moved to the model's device.
    loss
        ``mlm``: mean over an example's masked tokens. ``clm``: mean over its next tokens.
        ``task``: cross-entropy, or squared error for float labels of shape (b,) or (b, 1). Or a
        function of model and batch that returns the loss of each example, shape (b,), none of
        which may depend on other examples. This is fast if it calls the model on the whole batch.
    mode
        ``sampled``: labels drawn from the model, an unbiased estimate of the Fisher information;
        where an example's loss is the mean over m tokens, of 1/m² of it.
        ``empirical``: true labels. ``batched``: squared gradient of a batch's mean loss, averaged
        over batches; another quantity, smaller by about the batch size (van de Ven 2025,
        section 3).
    seed, generator
        Source of ``sampled`` labels: a seed, or a generator on the CPU.
    names
        Weights to compute; by default all that require a gradient.
    precision
        ``bf16`` runs the model under autocast: faster and less exact.
    rotations
        Orthogonal matrices U and V (or None) by the names of matrices W: their diagonal is then
        that of the Fisher information of UᵀWV.

    Returns
    -------
    dict of str to Tensor
        By the names of ``named_parameters``: float32, of the weight's shape, on its device. Zero
        for a weight that the loss does not depend on.

    Raises
    ------
    SettingsError
        If an argument is of a wrong type, `loss`, `mode` or `precision` is unknown, or `mode` is
        sampled and `loss` a function.
    DataError
        If there are no batches, or a batch or its labels have the wrong form.
    PluginError
        If a function does not return one loss for each example, a name is unknown, or a gradient
        is not finite.
    """
    if mode == "sampled" and callable(loss):
        raise SettingsError("mode 'sampled' needs a named loss. Use mode='empirical'.")
    if isinstance(batches, Mapping | Batch):
        raise DataError(f"batches is a {type(batches).__name__}. Give a list, such as [batch].")
    rng = generator if generator is not None else torch_stream("fisher", seed)
    weights = _weights(model, names)
    device = next(iter(weights.values())).device
    chosen = partial(_given, loss) if callable(loss) else losses.named_loss(loss)
    precise = Precision(precision, device.type)
    sums = _Sums(model, weights, chosen, mode, rng, precise, rotations or {})
    checked = (losses.check_batch(batch, number) for number, batch in enumerate(few(batches)))
    return sums.over(losses.on_device(batch, device) for batch in checked)


def absolute_gradients(
    model: nn.Module,
    batches: Iterable[Batch],
    loss: losses.LossFunction,
    weights: dict[str, nn.Parameter],
    precision: Precision,
) -> dict[str, Tensor]:
    """Return the mean over examples of the absolute gradients of each example's loss.

    They are computed as the squares of `diagonal_fisher`. `batches` are on the model's device.
    """
    given = partial(_given, loss)
    sums = _Sums(
        model, weights, given, "empirical", torch.Generator(), precision, {}, absolute=True
    )
    return sums.over(few(batches))


@dataclass
class _Sums:
    """Sums of squared (or `absolute`) gradients over the batches so far."""

    model: nn.Module
    weights: dict[str, nn.Parameter]
    loss: losses.Loss
    mode: Mode
    rng: torch.Generator
    precision: Precision
    rotations: Mapping[str, Rotation]
    absolute: bool = False

    def __post_init__(self) -> None:
        self._rules = partial(
            Capture,
            self.model,
            gather=add_absolutes if self.absolute else None,
            rotations=self.rotations,
        )
        self._capture: Capture | None = None  # set by the first trial that succeeds
        self._slow: dict[str, nn.Parameter] = {}
        self._sums: dict[str, Tensor] = {}
        self._labels: Tensor | None = None  # sampled once for all passes over a batch
        self._count = 0

    def over(self, batches: Iterable[losses.AnyBatch]) -> dict[str, Tensor]:
        """Return the means over all batches."""
        with evaluating(self.model, trained=self.weights.values()), torch.enable_grad():
            for batch in batches:
                self.add(batch)
        return self.mean()

    def add(self, batch: losses.AnyBatch) -> None:
        examples = losses.size_of(batch)
        self._count += 1 if self.mode == "batched" else examples
        if self.mode == "batched":
            mean = [lambda: self._outputs(batch).mean_loss()]
            self._add(self._one_by_one(self.weights, mean))
        elif self._capture is None and not self._try_rules(batch):  # tried again on the next batch
            self._add(self._one_by_one(self.weights, self._singly(batch, range(examples))))
        else:
            assert self._capture is not None
            self._labels = None
            slow = self._slow
            if self._capture.totals:
                with self._capture as capture:
                    uncovered = capture.add(examples, partial(self._each, batch))
                slow = slow | {name: self.weights[name] for name in uncovered}
            if slow:
                self._add(self._one_by_one(slow, self._singly(batch, range(examples))))

    def _one_by_one(
        self, weights: Mapping[str, Tensor], passes: Iterable[Callable[[], Tensor]]
    ) -> dict[str, Tensor]:
        """Return sums, by one backward pass for each loss, a scalar."""
        totals = zeros_like(weights)
        for single in few(passes):
            value = single()
            if not value.requires_grad:
                continue
            gradients = torch.autograd.grad(value, list(weights.values()), allow_unused=True)
            for (name, total), gradient in zip(totals.items(), gradients, strict=True):
                if gradient is not None:
                    rotation = self.rotations.get(name)
                    values = gradient if rotation is None else rotate(gradient, rotation)
                    total.addcmul_(values, values.sign() if self.absolute else values)
        return totals

    def mean(self) -> dict[str, Tensor]:
        if self._count == 0:
            raise DataError("batches holds no batch. Give at least one.")
        if self._capture is not None:
            self._add(self._capture.totals)
        for name in self.weights:
            if not bool(torch.isfinite(self._sums[name].sum())):  # none is negative
                raise PluginError(
                    f"the gradients of {name} are not finite numbers. Check the weights "
                    "and the loss, or use precision='float32'."
                )
        return {name: self._sums[name].div_(self._count) for name in self.weights}

    def _add(self, squares: Mapping[str, Tensor]) -> None:
        for name, value in squares.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def _try_rules(self, batch: losses.AnyBatch) -> bool:
        """Determine the weights whose squares the rules get right on two examples.

        Returns False if all gradients of these two are 0, which proves nothing.
        """
        small = losses.take(batch, [0, min(1, losses.size_of(batch) - 1)])
        trial = self._rules(self.weights)
        precision = self.precision
        self.precision = Precision("float32", precision.device_type)
        before = self.rng.get_state()
        with trial:
            uncovered = trial.add(2, partial(self._each, small))
        exact = self._one_by_one(self.weights, self._singly(small, range(2)))
        self.precision, self._labels = precision, None
        self.rng.set_state(before)
        largest = max(float(value.max()) for value in exact.values())
        if largest == 0.0:
            return False
        covered: dict[str, nn.Parameter] = {}
        noise = NOISE**0.5 if self.absolute else NOISE
        for name, weight in self.weights.items():
            allowed = (RTOL * exact[name]).add_(ATOL * exact[name].max() + noise * largest)
            agrees = bool(((trial.totals[name] - exact[name]).abs_() <= allowed).all())
            (covered if agrees and name not in uncovered else self._slow)[name] = weight
        self._capture = self._rules(covered, like=trial)
        return True

    def _singly(self, batch: losses.AnyBatch, examples: Sequence[int]) -> Iterator[partial[Tensor]]:
        """Yield functions for the loss of each example alone, with labels sampled for the batch."""
        if self.mode == "sampled" and self._labels is None:
            with torch.no_grad():
                self._each(batch)
        for i in examples:
            labels = None if self._labels is None else self._labels[[i]]
            yield partial(self._each, losses.take(batch, [i]), labels)

    def _outputs(self, batch: losses.AnyBatch) -> losses.Outputs:
        # On the CPU torch's fused attention is slow in bf16.
        slow = self.precision.name == "bf16" and self.precision.device_type == "cpu"
        kernel = sdpa_kernel(SDPBackend.MATH) if slow else nullcontext()
        with self.precision.autocast(), kernel:
            return self.loss(self.model, batch)

    def _each(self, batch: losses.AnyBatch, labels: Tensor | None = None) -> Tensor:
        """Return the loss of each example, shape (b,)."""
        outputs = self._outputs(batch)
        if labels is not None:
            # Labels of the batch may be wider than this example's; the rest is padding.
            if outputs.mask is not None:
                labels = labels[:, : outputs.labels.shape[1]]
            outputs = replace(outputs, labels=labels)
        elif self.mode == "sampled":
            outputs = outputs.sample_labels(self.rng)
            self._labels = outputs.labels
        return outputs.losses()


class _Given(losses.Outputs):
    """The losses that a user's function returns, in the place of logits."""

    def losses(self) -> Tensor:
        return self.logits


def _given(
    function: losses.LossFunction, model: nn.Module, batch: losses.AnyBatch
) -> losses.Outputs:
    values = function(model, batch)
    if not isinstance(values, Tensor) or values.shape != (losses.size_of(batch),):
        what = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise PluginError(
            f"the loss function must return a tensor of shape ({losses.size_of(batch)},) with one "
            f"loss for each example, not {what}."
        )
    return _Given(values, values)


def _weights(model: nn.Module, names: Iterable[str] | None) -> dict[str, nn.Parameter]:
    by_name = dict(model.named_parameters())
    if names is None:
        weights = {name: value for name, value in by_name.items() if value.requires_grad}
        if not weights:
            raise PluginError("no weight of the model requires a gradient. Unfreeze some.")
        return weights
    subset = [] if isinstance(names, str) else list(names)
    if not subset:
        raise PluginError(f"names is {names!r}. Give a list of names, or omit it for all weights.")
    for name in subset:
        if name not in by_name:
            tied = dict(model.named_parameters(remove_duplicate=False)).get(name)
            first = next((n for n, value in by_name.items() if value is tied), None)
            same = f" It is the same tensor as {first!r}: use that name."
            hint = did_you_mean(name, by_name) if first is None else same
            raise PluginError(f"the model has no weight {name!r}.{hint}")
    return {name: by_name[name] for name in subset}

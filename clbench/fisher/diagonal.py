"""The diagonal of the Fisher information, example by example."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from clbench.errors import DataError, PluginError, SettingsError
from clbench.fisher.capture import Capture, squares_one_by_one
from clbench.fisher.losses import (
    AnyBatch,
    LossName,
    Outputs,
    OwnLoss,
    checked,
    named_loss,
    on_device,
    size_of,
    take,
)
from clbench.seeds import torch_stream
from clbench.training.batches import Batch
from clbench.training.device import Precision

Mode = Literal["sampled", "empirical", "batched"]
RTOL, ATOL, NOISE = 1e-2, 1e-5, 1e-11
"""How far the squares of a rule may be from those of autograd: of each, of its weight's
largest, and of the largest of all (some gradients, as of key biases, are rounding only)."""


def diagonal_fisher(
    model: nn.Module,
    batches: Iterable[AnyBatch],
    loss: LossName | OwnLoss = "mlm",
    mode: Mode = "sampled",
    *,
    seed: int = 0,
    generator: torch.Generator | None = None,
    names: Iterable[str] | None = None,
    precision: Literal["float32", "bf16"] = "float32",
) -> dict[str, Tensor]:
    """Mean over examples of the squared gradients of each example's loss.

    One forward and one backward pass a batch; per-example gradients of dense layers,
    layer norms and embeddings (tied and shared weights included) are formed from what
    enters a layer and what flows back, and never kept. That covers the usual
    architectures; it is checked against plain backward passes on two examples. What is not
    covered, and in any batch what its layers use otherwise than there, is computed by one
    backward pass an example. (What cannot be seen is a weight that its own layer uses as
    ever and that something else reads beside it, but not for the first two examples.) Memory
    does not grow with the number of examples, only with the size of a batch.

    Dropout is off while it runs. Weights and their gradients are left as they were.

    Parameters
    ----------
    model
        A transformers model with a language-model or classification head, a clbench
        ``Classifier``, or any module if `loss` is a function.
    batches
        Dictionaries of what the model takes, with ``labels`` of shape (b, t) for ``mlm``
        (-100 where a token is not masked; see `mask_tokens`), (b,) for ``task``; or
        batches of a clbench stage. They are moved to the model's device.
    loss
        ``mlm``: the mean over an example's masked tokens. ``clm``: the mean over its next
        tokens. ``task``: cross-entropy, or squared error where labels are floats, shape (b,)
        or (b, 1). Or a
        function of model and batch that returns the losses of its examples, shape (b,);
        no example's loss may depend on the others. It is quick if it calls the model on the
        whole batch.
    mode
        ``sampled``: for labels drawn from the model itself, an unbiased estimate of the
        Fisher information. ``empirical``: for the true labels. ``batched``: squares of the
        gradient of a batch's mean loss, averaged over batches; smaller by about the
        batch size, and another quantity (van de Ven 2025, section 3).
    seed, generator
        Where ``sampled`` draws from; a generator on the CPU, or a seed for one.
    names
        Weights that are wanted; by default all that require a gradient.
    precision
        ``bf16`` runs the model under autocast, which is quicker and less exact.

    Returns
    -------
    dict of str to Tensor
        By the names of ``named_parameters``, float32, of each weight's shape, on its
        device. A weight that the loss does not depend on has zeros.

    Raises
    ------
    SettingsError
        If `loss`, `mode` or `precision` is unknown, or labels are to be sampled for a function.
    DataError
        If there are no batches or they are no dictionaries, or labels are missing or of another
        shape.
    PluginError
        If a function returns no loss for each example, `names` has an unknown one, or a
        gradient is no finite number.
    """
    if precision not in ("float32", "bf16"):
        raise SettingsError(f"precision {precision!r}: must be float32 or bf16.")
    if isinstance(batches, Mapping | Batch):
        raise DataError("batches is a single batch. Give a list of batches, such as [batch].")
    if not isinstance(batches, Iterable):
        raise DataError(f"batches is a {type(batches).__name__} where a list of batches is needed.")
    if mode not in ("sampled", "empirical", "batched"):
        raise SettingsError(f"mode {mode!r}: must be sampled, empirical or batched.")
    if mode == "sampled" and callable(loss):
        raise SettingsError(
            "mode 'sampled' draws labels, which a loss function of your own does not show. "
            "Use mode='empirical'."
        )
    rng = generator if generator is not None else torch_stream("fisher", seed)
    wanted = _wanted(model, names)
    device = next(iter(wanted.values())).device
    job = _Job(model, wanted, loss, mode, rng, Precision(precision, device.type))
    with _prepared(model, wanted):
        for number, batch in enumerate(batches):
            job.add(on_device(checked(batch, number), device))
    return job.mean()


class _Job:
    """Sums of squares on their way."""

    def __init__(
        self,
        model: nn.Module,
        wanted: dict[str, nn.Parameter],
        loss: LossName | OwnLoss,
        mode: Mode,
        rng: torch.Generator,
        precision: Precision,
    ) -> None:
        self._model = model
        self._wanted = wanted
        self._named = None if callable(loss) else named_loss(loss)
        self._own = loss if callable(loss) else None
        self._mode = mode
        self._rng = rng
        self._precision = precision
        self._capture: Capture | None = None  # made after a trial on the first batch
        self._slow: dict[str, nn.Parameter] = {}
        self._sums: dict[str, Tensor] = {}
        self._labels: Tensor | None = None  # sampled once for all passes over a batch
        self._count = 0

    def add(self, batch: AnyBatch) -> None:
        if self._mode == "batched":
            self._add(squares_one_by_one(self._wanted, [lambda: self._together(batch)]))
            self._count += 1
            return
        examples = size_of(batch)
        if self._capture is None:
            tried = self._tried(batch)
            if tried is None:  # on the next batch, then
                self._add(squares_one_by_one(self._wanted, self._one_by_one(batch, examples)))
                self._count += examples
                return
            self._slow, self._capture = tried
        self._labels = None
        slow = self._slow
        if self._capture.totals:
            with self._capture as capture:
                left = capture.add(examples, lambda: self._each(batch))
            slow = slow | {name: self._wanted[name] for name in left}
        if slow:
            self._add(squares_one_by_one(slow, self._one_by_one(batch, examples)))
        self._count += examples

    def mean(self) -> dict[str, Tensor]:
        if self._count == 0:
            raise DataError("there is no batch to compute the Fisher information from.")
        if self._capture is not None:
            self._add(self._capture.totals)
        sums = self._sums
        for name in self._wanted:
            if not bool(torch.isfinite(sums[name].sum())):  # squares: nothing cancels
                raise PluginError(
                    f"the squared gradients of {name} are not finite numbers. Look for weights "
                    "or a loss that are not, or use precision='float32'."
                )
        return {name: sums[name].div_(self._count) for name in self._wanted}

    def _add(self, squares: Mapping[str, Tensor]) -> None:
        for name, value in squares.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def _tried(self, batch: AnyBatch) -> tuple[dict[str, nn.Parameter], Capture] | None:
        """Weights whose squares, on two examples, are not those of plain backward passes.

        And what captures the others. None if no gradient flows from the two, which shows nothing.
        """
        small = take(batch, [0, min(1, size_of(batch) - 1)])
        trial, precision = Capture(self._model, self._wanted), self._precision
        self._precision = Precision("float32", precision.device_type)
        before = self._rng.get_state()
        with trial:
            left = trial.add(2, lambda: self._each(small))
        exact = squares_one_by_one(self._wanted, self._singly(small, ([0], [1])))
        self._precision, self._labels = precision, None
        self._rng.set_state(before)
        largest = max(float(value.max()) for value in exact.values())
        if largest == 0.0:
            return None
        noise = NOISE * largest
        slow = {
            name: parameter
            for name, parameter in self._wanted.items()
            if name in left or not _agree(trial.totals[name], exact[name], noise)
        }
        covered = {name: value for name, value in self._wanted.items() if name not in slow}
        return slow, Capture(self._model, covered, like=trial)

    def _one_by_one(self, batch: AnyBatch, examples: int) -> Iterator[_Single]:
        return self._singly(batch, ([i] for i in range(examples)))

    def _singly(self, batch: AnyBatch, picks: Iterable[list[int]]) -> Iterator[_Single]:
        """The loss of each example alone, for the labels of the whole batch."""
        if self._mode == "sampled" and self._labels is None:
            with torch.no_grad():
                self._each(batch)
        for pick in picks:
            labels = None if self._labels is None else self._labels[pick]
            yield _Single(self, take(batch, pick), labels)

    @contextmanager
    def _numbers(self) -> Iterator[None]:
        """Autocast; on processors torch's fused attention is slow in bf16, so without it."""
        slow = self._precision.name == "bf16" and self._precision.device_type == "cpu"
        fused = sdpa_kernel(SDPBackend.MATH) if slow else nullcontext()
        with self._precision.autocast(), fused:
            yield

    def _outputs(self, batch: AnyBatch) -> Outputs:
        assert self._named is not None
        with self._numbers():
            return self._named(self._model, batch)

    def _each(self, batch: AnyBatch, labels: Tensor | None = None) -> Tensor:
        if self._own is not None:
            with self._numbers():
                losses = self._own(self._model, batch)
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else None
            if shape != (size_of(batch),):
                found = f"a {type(losses).__name__}" if shape is None else f"the shape {shape}"
                raise PluginError(
                    f"the loss function returned {found} for {size_of(batch)} examples. "
                    "Return a tensor with one loss for each."
                )
            return losses
        outputs = self._outputs(batch)
        if labels is not None:
            outputs = _with(outputs, labels)
        elif self._mode == "sampled":
            outputs = outputs.drawn(self._rng)
            self._labels = outputs.labels
        return outputs.each()

    def _together(self, batch: AnyBatch) -> Tensor:
        if self._own is not None:
            return self._each(batch).mean()
        return self._outputs(batch).together()


class _Single:
    """The loss of one example, to be computed when it is its turn."""

    def __init__(self, job: _Job, batch: AnyBatch, labels: Tensor | None) -> None:
        self._job, self._batch, self._labels = job, batch, labels

    def __call__(self) -> Tensor:
        return self._job._each(self._batch, self._labels)[0]


def _with(outputs: Outputs, labels: Tensor) -> Outputs:
    """Labels of more places than a part of the batch has are cut; they are not counted."""
    if outputs.counted is not None:
        labels = labels[:, : outputs.labels.shape[1]]
    return Outputs(outputs.logits, labels, outputs.counted)


def _agree(found: Tensor, exact: Tensor, noise: float) -> bool:
    allowed = (RTOL * exact).add_(ATOL * exact.max() + noise)
    return bool(((found - exact).abs_() <= allowed).all())


def _wanted(model: nn.Module, names: Iterable[str] | None) -> dict[str, nn.Parameter]:
    every = dict(model.named_parameters())
    if names is None:
        wanted = {name: value for name, value in every.items() if value.requires_grad}
        if not wanted:
            raise PluginError("no weight of the model requires a gradient: there is no Fisher.")
        return wanted
    if isinstance(names, str):
        raise PluginError(f"names is a single name. Give a list of names: names=[{names!r}].")
    chosen = list(names)
    if not chosen:
        raise PluginError("names is empty. Name some weights, or leave it out for all of them.")
    for name in chosen:
        if name not in every:
            raise PluginError(f"the model has no weight {name!r}{_alias(model, name)}.")
    return {name: every[name] for name in chosen}


def _alias(model: nn.Module, name: str) -> str:
    """What to say of a tied weight, which goes by its first name."""
    tied = dict(model.named_parameters(remove_duplicate=False)).get(name)
    if tied is None:
        return ""
    first = next(other for other, value in model.named_parameters() if value is tied)
    return f" of its own: it is the same tensor as {first!r}; name that"


@contextmanager
def _prepared(model: nn.Module, wanted: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """Dropout off, gradients for the wanted weights only; all as before afterwards."""
    training = [(layer, layer.training) for layer in model.modules()]
    required = [(p, p.requires_grad) for p in model.parameters()]
    inside = {id(parameter) for parameter in wanted.values()}
    model.eval()
    for parameter, _ in required:
        parameter.requires_grad_(id(parameter) in inside)
    try:
        with torch.enable_grad():
            yield
    finally:
        for layer, mode in training:
            layer.training = mode
        for parameter, needed in required:
            parameter.requires_grad_(needed)

"""Squared gradients of single examples from one pass over a batch.

The gradient of a layer's weight is a sum over tokens of products of the layer's input and the loss
gradient at its output. `Capture` records both with hooks, a rule for each kind of layer says what
they add to which weight, and `add_squares` forms gradients one example and a part of a matrix at a
time, and keeps only the squares. Plain backward passes, one per example, are several times slower:
see ``benchmarks/fisher.py``.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from clbench.fisher.squares import Outer, Part, Rotation, Rows, Whole, add_squares, rotate_outer

Gather = Callable[[Tensor, Sequence[Part]], None]
Rule = Callable[..., list[tuple[Tensor | None, Part]]]


class Capture:
    """Records what the layers of a model add to gradients during forward and backward passes.

    Inside the context weights get no gradients, except those that no rule covered in the trial;
    gradients flow through activations only. The parts of a weight are squared and added as soon as
    all of its uses are complete.

    Parameters
    ----------
    model
        The model, in evaluation mode.
    parameters
        Weights to compute `totals` for, by name.
    gather
        Adds the parts of a weight's gradients to its total; by default their squares.
    like
        A trial on a few examples with correct totals. Weights that a batch uses differently from
        the trial are left out.
    rotations
        Rotations of the gradients of some matrices before they are squared, by name.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, Tensor],
        gather: Gather | None = None,
        like: Self | None = None,
        rotations: Mapping[str, Rotation] | None = None,
    ) -> None:
        self._model = model
        self._rotations = rotations or {}
        self._gather = gather or add_squares
        self._names = {id(value): name for name, value in parameters.items()}
        self.totals = zeros_like(parameters)
        self.uses: Counter[str] = Counter()  # of weights by layers with a rule, in the last pass
        self._expected = None if like is None else {name: like.uses[name] for name in parameters}
        # No rule applied to these in the trial: they are unused, or used in a way that no rule
        # covers. In the latter case they take a gradient.
        self._watched = {n: value for n, value in parameters.items() if like and not like.uses[n]}
        self._handles: list[RemovableHandle] = []
        self._before: list[tuple[nn.Parameter, bool, Tensor | None]] = []

    def __enter__(self) -> Self:
        self._before = [(p, p.requires_grad, p.grad) for p in self._model.parameters()]
        for parameter, _, _ in self._before:
            parameter.requires_grad_(False)
        for name, value in self._watched.items():
            value.requires_grad_(True)
            value.grad = None
            hook = partial(lambda name, _: self._uncovered.add(name), name)
            self._handles.append(value.register_hook(hook))  # type: ignore[no-untyped-call]
        # A classifier gives its backbone a row for each choice of an example.
        inner = (getattr(self._model, name, None) for name in ("base_model", "backbone"))
        for layer in {self._model, *inner}:
            if isinstance(layer, nn.Module):
                handle = layer.register_forward_pre_hook(self._before_forward, with_kwargs=True)
                self._handles.append(handle)
        for layer in self._model.modules():
            rule = rule_of(layer)
            if rule is not None and self._names_in(layer):
                after = partial(self._after_forward, rule)
                self._handles.append(layer.register_forward_hook(after, with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        for parameter, required, gradient in self._before:
            parameter.requires_grad_(required)
            parameter.grad = gradient
        self._handles, self._before = [], []

    def add(self, examples: int, losses: Callable[[], Tensor]) -> set[str]:
        """Add the squared gradients of each of `examples` losses, shape (examples,).

        Returns the names of the weights that the pass used in a way that no rule covers, or
        differently from the trial. It adds nothing to their totals.
        """
        self._examples = self._rows = examples
        self.uses = Counter()
        self._uncovered: set[str] = set()
        self._parts: dict[str, list[Part]] = {}
        total = losses().sum()
        if self._expected is not None:
            self._uncovered |= {n for n, uses in self._expected.items() if self.uses[n] != uses}
        if total.requires_grad:
            total.backward()  # type: ignore[no-untyped-call]
        for name, parts in self._parts.items():  # some uses do not reach the loss
            if name not in self._uncovered:
                self._add_parts(name, parts)
        self._parts = {}
        return self._uncovered

    def _add_parts(self, name: str, parts: Sequence[Part]) -> None:
        rotation = self._rotations.get(name)
        if rotation is not None:
            outer = [rotate_outer(part, rotation) for part in parts if isinstance(part, Outer)]
            if len(outer) < len(parts):
                self._uncovered.add(name)
                return
            parts = outer
        self._gather(self.totals[name], parts)

    def _names_in(self, layer: nn.Module) -> list[str]:
        own = map(id, layer.parameters(recurse=False))
        return [self._names[key] for key in own if key in self._names]

    def _before_forward(
        self, _: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        """Record the number of rows that the model gets."""
        for value in (*positional, *named.values()):
            if isinstance(value, Tensor) and value.dim() > 0:
                self._rows = len(value)
                return

    def _after_forward(
        self,
        rule: Rule,
        layer: nn.Module,
        positional: tuple[Any, ...],
        named: dict[str, Any],
        output: Tensor,
    ) -> Tensor | None:
        """Watch the gradient of the output; start the graph here if no layer below did."""
        inputs: Tensor = positional[0] if positional else next(iter(named.values()))
        self.uses.update(self._names_in(layer))
        starts_graph = not output.requires_grad
        if starts_graph:
            output = output.detach()
            if isinstance(layer, nn.Embedding) and inputs.dim() == 2 and len(inputs) == 1:
                # Position ids that all examples share: repeat them to keep gradients apart.
                inputs = inputs.expand(self._rows, -1)
                output = output.expand(self._rows, -1, -1)
            output = output.clone().requires_grad_()
        hook = partial(self._on_output_gradient, rule, layer, inputs.detach())
        output.register_hook(hook)  # type: ignore[no-untyped-call]
        return output.clone() if starts_graph else None

    @torch.no_grad()
    def _on_output_gradient(
        self, rule: Rule, layer: nn.Module, inputs: Tensor, grad: Tensor
    ) -> None:
        if len(grad) != self._examples or len(inputs) != self._examples:
            self._uncovered.update(self._names_in(layer))
            return
        for parameter, part in rule(layer, inputs, grad):
            name = self._names.get(id(parameter))
            if name is None or name in self._uncovered:
                continue
            parts = self._parts.setdefault(name, [])
            parts.append(part)
            if len(parts) == self.uses[name]:
                self._add_parts(name, self._parts.pop(name))


def zeros_like(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return float32 zeros of each weight's shape."""
    return {n: torch.zeros_like(p, dtype=torch.float32) for n, p in parameters.items()}


# Rules: what one pass through a layer adds to the gradients of its weights.


def rule_of(layer: nn.Module) -> Rule | None:
    """Return the rule for the exact class of a layer, or None if there is none."""
    kind = type(layer)
    if kind is nn.Linear:
        return _dense
    if kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils":
        return partial(_dense, transposed=True)  # GPT-2's dense layer
    if kind is nn.LayerNorm or kind is nn.RMSNorm:
        return _norm
    if kind.__name__.endswith("RMSNorm") and kind.__module__.startswith("transformers."):
        return _own_rms_norm
    if isinstance(layer, nn.Embedding) and kind is nn.Embedding:
        plain = layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
        return _embedding if plain else None
    return None


def _dense(
    layer: Any, inputs: Tensor, grad: Tensor, *, transposed: bool = False
) -> list[tuple[Tensor | None, Part]]:
    grad = _tokens(grad)
    inputs = _tokens(inputs).to(grad.dtype)
    bias = Whole(grad.float().sum(1))
    positions = _nonzero_positions(grad)
    if positions is not None:
        grad, inputs = (
            values.gather(1, positions[..., None].expand(-1, -1, values.shape[-1]))
            for values in (grad, inputs)
        )
    outer = Outer(inputs, grad) if transposed else Outer(grad, inputs)
    return [(layer.weight, outer), (layer.bias, bias)]


def _embedding(
    layer: nn.Embedding, inputs: Tensor, grad: Tensor
) -> list[tuple[Tensor | None, Part]]:
    grad = _tokens(grad)
    ids = inputs.reshape(len(inputs), -1)
    if layer.padding_idx is not None:  # its row gets no gradient
        grad = grad.masked_fill((ids == layer.padding_idx)[..., None], 0.0)
    return [(layer.weight, Rows(ids, grad))]


def _norm(layer: Any, inputs: Tensor, grad: Tensor) -> list[tuple[Tensor | None, Part]]:
    grad, inputs = grad.float(), inputs.float()
    shape = list(layer.normalized_shape)
    if isinstance(layer, nn.LayerNorm):
        plain = nn.functional.layer_norm(inputs, shape, None, None, layer.eps)
    else:
        plain = nn.functional.rms_norm(inputs, shape, None, layer.eps)
    middle = tuple(range(1, grad.dim() - len(shape)))
    scaled, grad = ((v.sum(middle) if middle else v) for v in (grad * plain, grad))
    return [(layer.weight, Whole(scaled)), (getattr(layer, "bias", None), Whole(grad))]


def _own_rms_norm(layer: Any, inputs: Tensor, grad: Tensor) -> list[tuple[Tensor | None, Part]]:
    """As `_norm`, for the layers of transformers; the trial on two examples checks the formula."""
    eps = getattr(layer, "variance_epsilon", getattr(layer, "eps", 1e-6))
    values = inputs.float()
    scaled = grad.float() * values * (values.square().mean(-1, keepdim=True) + eps).rsqrt()
    middle = tuple(range(1, scaled.dim() - 1))
    return [(layer.weight, Whole(scaled.sum(middle) if middle else scaled))]


def _tokens(values: Tensor) -> Tensor:
    """Return `values` as (b, t, n): all dimensions between first and last become tokens."""
    return values.reshape(len(values), -1, values.shape[-1])


def _nonzero_positions(grad: Tensor) -> Tensor | None:
    """Return the positions (b, m) of tokens with a gradient, or None if all have one.

    Padding has none, nor do tokens of the last layer that the loss does not read. Examples with
    fewer such tokens are filled up with other tokens.
    """
    if bool((grad[..., :8] != 0).any(-1).all()):  # mostly true, and faster than the whole
        return None
    nonzero = (grad != 0).any(-1)
    most = int(nonzero.sum(1).max())
    if most == nonzero.shape[1]:
        return None
    return torch.sort(nonzero.int(), dim=1, descending=True, stable=True).indices[:, :most]

"""One pass over a batch that yields the squared gradients of its examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from clbench.fisher.rules import Part, Rule, add_squares, rule_of


class Capture:
    """Looks on at the layers of a model during forward and backward passes.

    Inside the context no weight takes a gradient (but those of which the trial saw nothing):
    what flows back are the gradients of activations only, and each layer's part is squared
    and added up as soon as all uses of its weights are known.

    Parameters
    ----------
    model
        In evaluation mode.
    parameters
        Weights whose squares are wanted, by name.
    gather
        Adds the parts of a weight's gradients to its total: as squares, if not told
        otherwise.
    like
        A trial of the same on a few examples, whose totals were right. What a batch uses
        otherwise than the trial is left out.

    Attributes
    ----------
    totals
        Sums of squares by name.
    uses
        How often layers that have a rule used each weight in the last pass.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, Tensor],
        gather: Callable[[Tensor, Sequence[Part]], None] = add_squares,
        like: Capture | None = None,
    ) -> None:
        self._model = model
        self._gather = gather
        self._names = {id(value): name for name, value in parameters.items()}
        self.totals = {
            name: torch.zeros_like(value, dtype=torch.float32) for name, value in parameters.items()
        }
        self.uses: Counter[str] = Counter()
        self._expected = None if like is None else {name: like.uses[name] for name in parameters}
        # Seen by no rule and without a gradient in the trial: either of no use or used in a
        # way that no rule knows. Whether one takes a gradient is the graph's to say.
        self._watched = {
            name: value for name, value in parameters.items() if like and not like.uses[name]
        }
        self._handles: list[RemovableHandle] = []
        self._before: list[tuple[nn.Parameter, bool, Tensor | None]] = []

    def __enter__(self) -> Self:
        self._before = [(p, p.requires_grad, p.grad) for p in self._model.parameters()]
        for parameter, _, _ in self._before:
            parameter.requires_grad_(False)
        for name, value in self._watched.items():
            value.requires_grad_(True)
            value.grad = None
            touched = partial(self._touched, name)
            self._handles.append(value.register_hook(touched))  # type: ignore[no-untyped-call]
        for layer in {self._model, getattr(self._model, "base_model", None)}:
            if isinstance(layer, nn.Module):
                hook = layer.register_forward_pre_hook(self._called, with_kwargs=True)
                self._handles.append(hook)
        for layer in self._model.modules():
            rule = rule_of(layer)
            wanted = any(id(p) in self._names for p in layer.parameters(recurse=False))
            if rule is not None and wanted:
                entered = partial(self._entered, rule)
                self._handles.append(layer.register_forward_hook(entered, with_kwargs=True))
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

        Returns
        -------
        set of str
            Names of weights that were used in a way that no rule knows, or otherwise than in
            the trial. Nothing of this pass was added to their totals.
        """
        self._examples = self._rows = examples
        self.uses = Counter()
        self._left: set[str] = set()
        self._parts: dict[str, list[Part]] = {}
        total = losses().sum()
        if self._expected is not None:
            self._left |= {n for n, uses in self._expected.items() if self.uses[n] != uses}
        if total.requires_grad:
            total.backward()  # type: ignore[no-untyped-call]
        for name, parts in self._parts.items():  # uses that the loss does not depend on
            if name not in self._left:
                self._gather(self.totals[name], parts)
        self._parts = {}
        return self._left

    def _touched(self, name: str, _: Tensor) -> None:
        """When a weight that no rule has seen takes a gradient."""
        self._left.add(name)

    def _called(self, _: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Before the model's forward pass: how many rows it is given."""
        for value in (*positional, *named.values()):
            if isinstance(value, Tensor) and value.dim() > 0:
                self._rows = len(value)
                return

    def _entered(
        self,
        rule: Rule,
        layer: nn.Module,
        positional: tuple[Any, ...],
        named: dict[str, Any],
        output: Tensor,
    ) -> Tensor | None:
        """After a layer's forward pass: begin the graph here if it has not begun below."""
        entered: Tensor = positional[0] if positional else next(iter(named.values()))
        for parameter in layer.parameters(recurse=False):
            if id(parameter) in self._names:
                self.uses[self._names[id(parameter)]] += 1
        fresh = not output.requires_grad
        if fresh:
            output = output.detach()
            if isinstance(layer, nn.Embedding) and entered.dim() == 2 and len(entered) == 1:
                # Position numbers common to all examples: give each its own, or their
                # gradients could not be told apart.
                entered = entered.expand(self._rows, -1)
                output = output.expand(self._rows, -1, -1)
            output = output.clone().requires_grad_()
        hook = partial(self._returned, rule, layer, entered.detach())
        output.register_hook(hook)  # type: ignore[no-untyped-call]
        return output.clone() if fresh else None

    @torch.no_grad()
    def _returned(self, rule: Rule, layer: nn.Module, entered: Tensor, back: Tensor) -> None:
        """When the gradient of a layer's output is known."""
        if len(back) != self._examples or len(entered) != self._examples:
            names = (self._names.get(id(p)) for p in layer.parameters(recurse=False))
            self._left.update(name for name in names if name is not None)
            return
        for parameter, part in rule(layer, entered, back):
            name = self._names.get(id(parameter))
            if name is None or name in self._left:
                continue
            parts = self._parts.setdefault(name, [])
            parts.append(part)
            if len(parts) == self.uses[name]:
                self._gather(self.totals[name], self._parts.pop(name))


def squares_one_by_one(
    parameters: Mapping[str, Tensor], losses: Iterable[Callable[[], Tensor]]
) -> dict[str, Tensor]:
    """Sums of squared gradients by one backward pass for each loss, a scalar."""
    totals = {
        name: torch.zeros_like(value, dtype=torch.float32) for name, value in parameters.items()
    }
    for loss in losses:
        value = loss()
        if not value.requires_grad:
            continue
        gradients = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
        for total, gradient in zip(totals.values(), gradients, strict=True):
            if gradient is not None:
                total.addcmul_(gradient, gradient)
    return totals

"""Weights that later examples use differently from the two on which the rules are tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification, XLNetConfig
from transformers import XLNetForSequenceClassification as XLNet

from clbench.core.errors import DataError
from clbench.fisher import diagonal_fisher

Batch = dict[str, Tensor]
Losses = Callable[[Any, Batch], Tensor]


def entropies(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["labels"], reduction="none")


def assert_equals_loop(
    model: nn.Module, batches: Sequence[Batch], losses: Losses = entropies
) -> None:
    """Compare with one backward pass per example, weight by weight."""
    model.eval()
    fisher = diagonal_fisher(model, batches, losses, "empirical")
    ones = [
        {key: value[i : i + 1] for key, value in batch.items()}
        for batch in batches
        for i in range(len(batch["labels"]))
    ]
    exact = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for one in ones:
        gradients = torch.autograd.grad(
            losses(model, one)[0], list(model.parameters()), allow_unused=True
        )
        for name, gradient in zip(exact, gradients, strict=True):
            exact[name] += 0.0 if gradient is None else gradient.square()
    for name, value in exact.items():
        expected = value / len(ones)
        slack = 1e-5 * float(expected.max()) + 1e-14
        torch.testing.assert_close(fisher[name], expected, rtol=1e-3, atol=slack, msg=name)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


class Masked(nn.Module):
    """Token 0 is embedded by a parameter that no layer owns."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(9, 4), nn.Linear(4, 3)
        self.mask = nn.Parameter(torch.randn(4))

    def forward(self, ids: Tensor) -> Tensor:
        embedded = torch.where((ids == 0)[..., None], self.mask, self.table(ids))
        return self.out(embedded.tanh().mean(1))


class Elsewhere(nn.Module):
    """For marked examples, a layer's weight is read without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, values: Tensor) -> Tensor:
        if bool((values[:, 0] == 5.0).all()):
            return self.out(functional.linear(values, self.first.weight).tanh())
        return self.out(self.first(values).tanh())


class Experts(nn.Module):
    """Each example goes to one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.out = nn.Linear(4, 3)

    def forward(self, values: Tensor) -> Tensor:
        chosen, hidden = values[:, 0] > 0, torch.zeros_like(values)
        hidden[chosen] = self.experts[0](values[chosen])
        hidden[~chosen] = self.experts[1](values[~chosen])
        return self.out(hidden.tanh())


def random_batches(*rows: int) -> list[Batch]:
    return [{"x": torch.randn(n, 4), "labels": torch.randint(0, 3, (n,))} for n in rows]


def test_a_parameter_that_only_later_examples_use() -> None:
    torch.manual_seed(0)
    ids = torch.randint(1, 9, (8, 5))
    ids[3:, 0] = 0
    labels = torch.randint(0, 3, (8,))
    whole = [{"x": ids, "labels": labels}]
    assert_equals_loop(Masked(), whole)
    assert_equals_loop(
        Masked(), [{"x": ids[a:b], "labels": labels[a:b]} for a, b in ((0, 3), (3, 8))]
    )


def test_existing_gradients_are_restored() -> None:
    torch.manual_seed(0)
    model = Masked()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    ids = torch.randint(1, 9, (8, 5))
    ids[3:, 0] = 0
    batch = {"x": ids, "labels": torch.randint(0, 3, (8,))}
    diagonal_fisher(model, [batch], entropies, "empirical")
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, torch.ones_like(parameter))


def test_a_weight_that_later_batches_read_without_its_layer() -> None:
    torch.manual_seed(0)
    batches = random_batches(2, 5, 2, 3)
    for passing in (batches[1], batches[3]):
        passing["x"][:, 0] = 5.0
    assert_equals_loop(Elsewhere(), batches)


def test_experts_that_get_only_some_examples() -> None:
    torch.manual_seed(0)
    batches = random_batches(2, 6, 4)
    batches[0]["x"][:, 0] = 1.0  # the first batch goes to the first expert only
    assert_equals_loop(Experts(), batches)


def test_parameters_without_a_layer_and_with_tiny_gradients() -> None:
    torch.manual_seed(0)
    model = XLNet(XLNetConfig(vocab_size=30, d_model=16, n_layer=2, n_head=2, d_inner=16))
    batch = {"input_ids": torch.randint(5, 30, (3, 6)), "labels": torch.tensor([0, 1, 1])}

    def losses(model: Any, batch: Batch) -> Tensor:
        logits = model(input_ids=batch["input_ids"]).logits
        return functional.cross_entropy(logits, batch["labels"], reduction="none")

    fisher = diagonal_fisher(model, [batch], losses, "empirical")
    assert float(fisher["transformer.layer.0.rel_attn.r"].max()) > 0.0


def bert(outputs: int = 2) -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=12,
        num_labels=outputs,
    )
    return BertForSequenceClassification(config).eval()


def row_by_row(model: Any, batch: Batch) -> Tensor:
    return torch.cat(
        [
            functional.cross_entropy(
                model(input_ids=batch["input_ids"][i : i + 1]).logits,
                batch["labels"][i : i + 1],
                reduction="none",
            )
            for i in range(len(batch["labels"]))
        ]
    )


def two_views(model: Any, batch: Batch) -> Tensor:
    ids = batch["input_ids"]
    views = model.bert(torch.cat([ids, ids.flip(1)])).pooler_output
    return (views[: len(ids)] * views[len(ids) :]).sum(1)


@pytest.mark.parametrize("losses", [row_by_row, two_views])
def test_losses_that_call_the_model_on_another_number_of_rows(losses: Losses) -> None:
    torch.manual_seed(1)
    ids = torch.randint(5, 30, (5, 6))
    model = bert()
    if losses is two_views:
        model.classifier = nn.Identity()  # not part of this loss
    assert_equals_loop(model, [{"input_ids": ids, "labels": torch.randint(0, 2, (5,))}], losses)


@pytest.mark.parametrize("mode", ["empirical", "batched"])
def test_regression_labels_may_be_a_column(mode: Any) -> None:
    model, ids = bert(outputs=1), torch.randint(5, 30, (4, 6))
    labels = torch.randn(4)
    row = diagonal_fisher(model, [{"input_ids": ids, "labels": labels}], "task", mode)
    column = diagonal_fisher(model, [{"input_ids": ids, "labels": labels[:, None]}], "task", mode)
    assert all(torch.equal(row[name], column[name]) for name in row)


@pytest.mark.parametrize(
    ("loss", "outputs", "labels", "message"),
    [
        ("task", 3, torch.randn(4, 3), r"one float label.*shape \(3,\), outputs \(3,\)"),
        ("task", 3, torch.randn(4), r"one float label.*shape \(\), outputs \(3,\)"),
        ("task", 1, torch.tensor([0, 1, 0, 1]), "two outputs or more"),
        ("mlm", 3, torch.ones(4, 6, dtype=torch.long), "no language-model head.*loss='task'"),
    ],
)
def test_labels_that_do_not_fit_the_outputs_are_refused(
    loss: Any, outputs: int, labels: Tensor, message: str
) -> None:
    batch = {"input_ids": torch.randint(5, 30, (4, 6)), "labels": labels}
    with pytest.raises(DataError, match=message):
        diagonal_fisher(bert(outputs), [batch], loss)


class Turned(nn.Module):
    """The examples are in the second dimension; with as many tokens, the shape does not show it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, values: Tensor) -> Tensor:
        return self.out(self.first(values.transpose(0, 1)).tanh()).transpose(0, 1)


def test_rules_are_not_tried_on_examples_without_gradients() -> None:
    torch.manual_seed(0)
    values, labels = torch.randn(4, 2, 2, 4), torch.tensor([0, 2])
    counts = torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    batches = [
        {"x": value, "labels": labels, "counts": count}
        for value, count in zip(values, counts, strict=True)
    ]

    def losses(model: Any, batch: Batch) -> Tensor:
        each = functional.cross_entropy(
            model(batch["x"]).mean(1), batch["labels"], reduction="none"
        )
        return each * batch["counts"]

    assert_equals_loop(Turned(), batches, losses)
    nothing = diagonal_fisher(Turned(), batches[:1], losses, "empirical")
    assert not any(value.any() for value in nothing.values())

"""Mixout against cases worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cell import CPU, Cell, differ
from helpers.checkpoints import make_checkpoint
from torch import nn

from clbench.methods.anchors import Masks, Mixout, mix
from clbench.methods.base import Vanilla
from clbench.methods.selection import matrices


def test_each_element_is_the_pretrained_one_or_rescaled() -> None:
    rng = np.random.default_rng(0)
    u, w = rng.normal(size=(2, 60, 50))
    weight = nn.Parameter(torch.tensor(w, dtype=torch.float32))
    anchor = {"w": torch.tensor(u, dtype=torch.float32)}
    value = mix({"w": weight}, anchor, Masks(1, 0.75, CPU))["w"]
    other = (w - 0.75 * u) / 0.25
    actual = value.detach().double().numpy()
    from_anchor = np.abs(actual - u) < 1e-5
    np.testing.assert_allclose(actual[~from_anchor], other[~from_anchor], atol=1e-4)
    assert from_anchor.mean() == pytest.approx(0.75, abs=0.03)
    # The derivative is 0 where the pretrained number stands, 1/(1 - p) elsewhere.
    value.sum().backward()
    assert weight.grad is not None
    np.testing.assert_allclose(weight.grad.numpy(), np.where(from_anchor, 0.0, 4.0), rtol=1e-6)


def test_the_mean_of_mixed_weights_is_the_trained_weight() -> None:
    weight = nn.Parameter(torch.tensor([[1.0, -2.0, 0.5]]))
    anchor = {"w": torch.tensor([[0.5, 1.0, 0.5]])}
    masks = Masks(5, 0.9, CPU)
    draws = torch.stack([mix({"w": weight}, anchor, masks)["w"].detach() for _ in range(4000)])
    # One draw has the deviation |w - u|·√(p/(1 - p)), at most 9: five standard errors are 0.71.
    torch.testing.assert_close(draws.mean(0), weight.detach(), atol=0.71, rtol=0.0)
    assert torch.equal(draws[:, 0, 2].unique(), torch.tensor([0.5]))


def test_probability_0_with_dropout_is_vanilla_to_the_bit(folder: Path, vanilla: Cell) -> None:
    assert not differ(Cell(folder, Mixout(p=0.0, dropout=True)).run(), vanilla)
    assert differ(Cell(folder, Mixout(p=0.0)).run(), vanilla)  # no dropout either


def test_frozen_weights_are_not_mixed() -> None:
    weight = nn.Parameter(torch.ones(2, 2), requires_grad=False)
    assert mix({"w": weight}, {"w": torch.zeros(2, 2)}, Masks(1, 0.5, CPU)) == {}


@pytest.mark.parametrize(
    ("kind", "inside", "outside"),
    [
        (
            "bert",
            "encoder.layer.0.attention.self.query.weight",
            "embeddings.word_embeddings.weight",
        ),
        ("gpt2", "h.2.attn.c_attn.weight", "wpe.weight"),
        (
            "albert",
            "encoder.embedding_hidden_mapping_in.weight",
            "embeddings.LayerNorm.weight",
        ),
    ],
)
def test_matrices_of_dense_layers_are_mixed(
    tmp_path: Path, kind: str, inside: str, outside: str
) -> None:
    names = list(matrices(Cell(make_checkpoint(kind, tmp_path), Vanilla()).model))
    assert f"backbone.{inside}" in names
    assert f"backbone.{outside}" not in names
    assert not any(name.endswith("bias") or "embeddings." in name for name in names)
    assert len(names) == len(set(names)) > 3

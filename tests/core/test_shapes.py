"""Code that runs on shapes alone."""

from __future__ import annotations

import psutil
import pytest
import torch
from torch import nn

from clbench.core.shapes import few, on_shapes, only_shapes, without_numbers


def test_floats_have_shapes_but_take_no_memory() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    with on_shapes():
        layer = without_numbers(lambda: nn.Linear(20_000, 20_000))  # 1.6 GB
        output = layer(torch.ones(2, 20_000))
        output.sum().backward()
        assert layer.weight.grad is not None
        assert layer.weight.grad.shape == (20_000, 20_000)
        torch.optim.Adam(layer.parameters(), fused=True).step()
        assert output.dtype == torch.float32
        assert output.shape == (2, 20_000)
        assert process.memory_info().rss - before < 300e6


def test_memory_that_is_used_again_is_not_written() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    with on_shapes():
        kept: list[torch.Tensor] = []
        for side in (1_000, 990, 980):  # 4 MB
            kept += [without_numbers(lambda n=side: torch.empty(n, n)) for _ in range(400)]
            del kept[::2]
        assert process.memory_info().rss - before < 100e6


def test_integers_are_computed() -> None:
    with on_shapes():
        ids = torch.tensor([[3, 1, 0], [2, 0, 0]])
        mask = ids != 0
        weights = without_numbers(lambda: torch.empty(2, 3, 5))
        assert mask.sum(1).tolist() == [2, 1]
        assert weights[mask].shape == (3, 5)
        assert torch.unique(ids).tolist() == [0, 1, 2, 3]


def test_numbers_that_are_read_are_finite_and_small() -> None:
    with on_shapes():
        value = without_numbers(lambda: torch.empty(3, 3)).sum()
        assert 0.0 < float(value) < 1e-3
        assert bool(torch.isfinite(value))
        value.add_(1.0)
    assert not only_shapes()


def test_only_the_first_of_many() -> None:
    assert list(few(range(3))) == [0, 1, 2]
    with on_shapes():
        assert list(few(range(3))) == [0]


def test_numbers_are_computed_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="no"), on_shapes():
        raise ValueError("no")
    assert not only_shapes()
    assert float(torch.ones(2).sum()) == 2.0

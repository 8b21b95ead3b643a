"""Sums of squares, against gradients formed by hand."""

from __future__ import annotations

import pytest
import torch

from clbench.fisher.squares import TILE, Outer, Rows, Whole, add_squares


def test_tied_weights_have_cross_terms() -> None:
    rng = torch.Generator().manual_seed(0)
    for tokens in (3, 6):  # expanded squares, and formed gradients
        left, right = (torch.randn(2, tokens, n, generator=rng) for n in (5, 4))
        ids = torch.tensor([[0, 3, 3], [4, 0, 1]])
        values = torch.randn(2, 3, 4, generator=rng)
        total = torch.zeros(5, 4)
        add_squares(total, [Outer(left, right), Rows(ids, values)])
        expected = torch.zeros(5, 4)
        for i in range(2):
            gradient = left[i].T @ right[i]
            for t in range(3):
                gradient[ids[i, t]] += values[i, t]
            expected += gradient.square()
        torch.testing.assert_close(total, expected)
        with_whole = torch.zeros(5, 4)
        add_squares(
            with_whole, [Outer(left, right), Rows(ids, values), Whole(torch.zeros(2, 5, 4))]
        )
        torch.testing.assert_close(with_whole, expected)


@pytest.mark.parametrize("tokens", [1, 2, 3, 5])
def test_gradients_whose_terms_nearly_cancel_are_exact(tokens: int) -> None:
    rng = torch.Generator().manual_seed(0)
    left = torch.randn(4, 1, 6, generator=rng) * torch.ones(1, tokens, 1)
    left[:, -1] *= 1 - tokens if tokens > 1 else 1
    near = 1e-2 * torch.randn(4, tokens, 7, generator=rng)
    right = torch.randn(4, 1, 7, generator=rng) + near  # the tokens nearly cancel
    total = torch.zeros(6, 7)
    add_squares(total, [Outer(left, right)])
    exact = (left.double().transpose(1, 2) @ right.double()).square().sum(0)
    torch.testing.assert_close(total.double(), exact, rtol=1e-4, atol=0)
    assert (total >= 0).all()


def test_sparse_rows_that_nearly_cancel_dense_ones_are_exact() -> None:
    rng = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 6, 5, generator=rng), torch.randn(2, 6, 4, generator=rng)
    ids = torch.tensor([[3], [0]])
    dense = left.transpose(1, 2) @ right
    values = torch.stack([-dense[0, 3:4], -dense[1, :1]])
    values += 1e-2 * torch.randn(values.shape, generator=rng)
    total, exact = torch.zeros(5, 4), left.double().transpose(1, 2) @ right.double()
    add_squares(total, [Outer(left, right), Rows(ids, values)])
    exact[0, 3] += values[0, 0]
    exact[1, 0] += values[1, 0]
    torch.testing.assert_close(total.double(), exact.square().sum(0), rtol=1e-4, atol=0)
    alone = torch.zeros(5, 4)
    add_squares(alone, [Outer(left[:1], right[:1]), Rows(ids[:1], values[:1])])
    torch.testing.assert_close(alone.double()[3], exact[0, 3].square(), rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("dtype", "rtol"),
    # Under autocast products are rounded to bf16, each number by up to 1 in 256.
    [(torch.float32, 1e-5), (torch.bfloat16, 2 / 256)],
)
def test_large_weights_are_summed_part_by_part(dtype: torch.dtype, rtol: float) -> None:
    torch.manual_seed(0)
    rows, columns = TILE[0] + 20, 2 * TILE[1] + 10
    left, right = torch.randn(6, 9, rows).to(dtype), torch.randn(6, 9, columns).to(dtype)
    total, exact = torch.zeros(rows, columns), torch.zeros(rows, columns)
    add_squares(total, [Outer(left, right)])
    for a, b in zip(left.double(), right.double(), strict=True):
        exact += (a.T @ b).square().float()
    torch.testing.assert_close(total, exact, rtol=rtol, atol=1e-3 * rtol)

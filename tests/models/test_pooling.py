from __future__ import annotations

import pytest
import torch

from clbench.models.pooling import first_token, last_token, mean_token

HIDDEN = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [8.0, 9.0]], [[5.0, 6.0], [7.0, 0.0], [2.0, 3.0]]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        (first_token, [[1.0, 2.0], [5.0, 6.0]]),
        (last_token, [[3.0, 4.0], [2.0, 3.0]]),
        (mean_token, [[2.0, 3.0], [14.0 / 3.0, 3.0]]),
    ],
)
def test_pooling(pool: object, expected: list[list[float]]) -> None:
    torch.testing.assert_close(pool(HIDDEN, MASK), torch.tensor(expected))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("pool", "expected"),
    [(first_token, [1.0, 2.0]), (last_token, [8.0, 9.0]), (mean_token, [4.0, 5.0])],
)
def test_without_a_mask_all_tokens_are_real(pool: object, expected: list[float]) -> None:
    torch.testing.assert_close(pool(HIDDEN, None)[0], torch.tensor(expected))  # type: ignore[operator]


def test_the_mean_is_summed_in_float32() -> None:
    hidden = torch.full((1, 1000, 1), 1.0, dtype=torch.bfloat16)
    hidden[0, 0] = 257.0  # rounds to 256 in bfloat16
    assert mean_token(hidden, torch.ones(1, 1000)).item() == pytest.approx(1.255)

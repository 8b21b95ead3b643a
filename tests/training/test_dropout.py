from __future__ import annotations

import pytest
import torch

from clbench.training.dropout import LEVELS, MaskStream, StreamDropout


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.0, 1.0])
def test_mask_keeps_and_rescales_by_the_rate(rate: float) -> None:
    mask = MaskStream(3).mask(torch.Size([1000, 1001]), rate, torch.float32)
    share = (mask > 0).float().mean().item()
    assert share == pytest.approx(1 - rate, abs=0.002)
    if rate < 1:
        dropped = round(rate * LEVELS)
        assert mask.max().item() == pytest.approx(LEVELS / (LEVELS - dropped))
        assert mask.mean().item() == pytest.approx(1.0, abs=0.004)


def test_stream_repeats_and_leaves_torchs_own_untouched() -> None:
    stream = MaskStream(5)
    state = torch.get_rng_state()
    first = [stream.mask(torch.Size([4, 3]), 0.5, torch.float32) for _ in range(3)]
    assert torch.equal(torch.get_rng_state(), state)
    stream.seed(5)
    again = [stream.mask(torch.Size([4, 3]), 0.5, torch.float32) for _ in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])


def test_gradients_are_dropped_with_their_values() -> None:
    layer = StreamDropout(0.5, MaskStream(1))
    values = torch.ones(1000, requires_grad=True)
    out = layer(values)
    out.sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, out.detach())
    layer.eval()
    assert layer(values) is values

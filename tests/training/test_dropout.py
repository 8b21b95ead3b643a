from __future__ import annotations

import pytest
import torch
from torch import nn

from clbench.training.dropout import LEVELS, MaskStream, StreamDropout, _attention


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


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_that_of_torch(masked: bool, causal: bool) -> None:
    """Compare with torch's fused attention at a dropout of almost 0."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 5, 4) for _ in range(3))
    mask = None
    if masked:
        lengths = torch.tensor([5, 3])
        mask = (torch.arange(5)[None] < lengths[:, None])[:, None, None, :]
        mask = mask.expand(2, 1, 5, 5)
        if causal:
            mask = mask & torch.ones(5, 5, dtype=torch.bool).tril()
    module = nn.Module()
    module.is_causal = causal
    module._clbench_stream = MaskStream(0)
    out, _ = _attention(module, query, key, value, mask, dropout=1e-9, scaling=0.3)
    expected = nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal and mask is None, scale=0.3
    )
    torch.testing.assert_close(out, expected.transpose(1, 2), rtol=1e-5, atol=1e-6)

"""The engine's attention on the CPU against torch's."""

import pytest
import torch
from torch import Tensor, nn

from clbench.training.attention import LONGEST, attention
from clbench.training.dropout import MaskStream


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
    module._clbench_masks = MaskStream(0)
    out, _ = attention(module, query, key, value, mask, dropout=1e-9, scaling=0.3)
    expected = nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal and mask is None, scale=0.3
    )
    torch.testing.assert_close(out, expected.transpose(1, 2), rtol=1e-5, atol=1e-6)


def fused(*_: object, **__: object) -> tuple[Tensor, None]:
    raise AssertionError("torch's fused attention was called")


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_in_bf16_short_rows_train_without_the_fused_attention(
    groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its values and gradients are within bf16's accuracy of those in float32."""
    torch.manual_seed(0)
    module = nn.Module()
    module.is_causal, module.num_key_value_groups = True, 6 // groups
    whole = [torch.randn(2, heads, 7, 4, requires_grad=True) for heads in (6, groups, groups)]
    short = [x.detach().bfloat16().requires_grad_() for x in whole]
    weights = torch.randn(2, 7, 6, 4)
    expected, _ = attention(module, *whole, None)
    kernel = "transformers.integrations.sdpa_attention.sdpa_attention_forward"
    monkeypatch.setattr(kernel, fused)
    found, _ = attention(module, *short, None)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0.02, atol=0.02)
    wanted = torch.autograd.grad((expected * weights).sum(), whole)
    gradients = torch.autograd.grad((found.float() * weights).sum(), short)
    for one, other in zip(wanted, gradients, strict=True):
        torch.testing.assert_close(other.float(), one, rtol=0.05, atol=0.05)
    long = [torch.randn(1, h, LONGEST + 1, 4) for h in (6, groups, groups)]
    long = [x.bfloat16().requires_grad_() for x in long]
    with pytest.raises(AssertionError, match="fused attention"):
        attention(module, *long, None)
    with torch.no_grad(), pytest.raises(AssertionError, match="fused attention"):
        attention(module, *short, None)  # which is faster without a gradient
    with torch.autocast("cpu", dtype=torch.bfloat16):
        attention(module, *whole, None)

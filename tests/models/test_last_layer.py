"""The last layer for the first token alone gives the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clbench.models.classifier import Classifier, build_classifier
from clbench.models.families import only_first_token
from clbench.training.dropout import install

INPUTS = {
    "input_ids": torch.tensor([[5, 6, 7, 8, 9, 10], [9, 12, 11, 5, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]),
}
Get = Callable[..., Path]
UNPADDED = {name: value[:1] for name, value in INPUTS.items()}


def build(folder: Path, **settings: Any) -> Classifier:
    return build_classifier(str(folder), heads={"h": 2}, head_seed=lambda _: 0, **settings).eval()


def outputs_of(
    model: Classifier, inputs: dict[str, Tensor], *, whole: bool
) -> tuple[Tensor, dict[str, Tensor], list[int]]:
    """Return outputs, gradients, and the tokens that each shortened last layer returned."""
    sizes: list[int] = []
    forward = model._last_layer

    def recorded(layer: Any, states: Tensor, mask: Tensor | None) -> Tensor:
        assert forward is not None
        output = forward(layer, states, mask)
        sizes.append(output.shape[1])
        return output

    model._last_layer = None if whole or forward is None else recorded
    model.zero_grad()
    outputs = model(inputs, "h")
    outputs.square().sum().backward()
    model._last_layer = forward
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return outputs.detach(), gradients, sizes


@pytest.mark.parametrize("inputs", [INPUTS, UNPADDED], ids=["padded", "unpadded"])
@pytest.mark.parametrize("own_attention", [False, True])
@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "distilbert"])
def test_outputs_and_gradients_are_those_of_the_whole_layer(
    kind: str, own_attention: bool, inputs: dict[str, Tensor], checkpoint: Get
) -> None:
    model = build(checkpoint(kind))
    if own_attention:
        install(model, model.backbone, torch.device("cpu"))
    outputs, gradients, tokens = outputs_of(model, inputs, whole=False)
    expected, full, all_tokens = outputs_of(model, inputs, whole=True)
    assert (tokens, all_tokens) == ([1], [])
    torch.testing.assert_close(outputs, expected, atol=1e-6, rtol=1e-5)
    assert gradients.keys() == full.keys()
    for name, value in full.items():
        torch.testing.assert_close(gradients[name], value, atol=1e-6, rtol=1e-4, msg=name)


def test_dropout_acts_on_the_first_token(checkpoint: Get) -> None:
    model = build(checkpoint()).train()
    masks = install(model, model.backbone, torch.device("cpu"))
    assert masks is not None
    model.eval()
    for parent in (model.backbone.encoder.layer[-1], model.backbone.encoder.layer[-1].attention):
        for name in ("output", "self"):
            part = getattr(parent, name, None)
            if part is None:
                continue
            quiet = model(INPUTS, "h")
            part.train()
            assert not torch.equal(model(INPUTS, "h"), quiet), name
            part.eval()


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_other_poolings_read_every_token(pooling: str, checkpoint: Get) -> None:
    model = build(checkpoint(), pooling=pooling)
    assert outputs_of(model, INPUTS, whole=False)[2] == []


def test_the_backbone_itself_computes_every_token(checkpoint: Get) -> None:
    model = build(checkpoint())
    with torch.no_grad():
        model.features(INPUTS)
        hidden = model.backbone(**INPUTS).last_hidden_state
        assert hidden.shape == (2, 6, 32)
        torch.testing.assert_close(hidden[:, 0], model.features(INPUTS), atol=1e-6, rtol=1e-5)
    with pytest.raises(IndexError):
        model.features({"input_ids": torch.full((1, 4), 10**6)})
    assert "forward" not in vars(model.backbone.encoder.layer[-1]), "also after a failure"


@pytest.mark.parametrize("mask", [INPUTS["attention_mask"], object()], ids=["rows", "opaque"])
def test_a_mask_that_is_not_dense_runs_the_whole_layer(mask: object) -> None:
    class Layer(nn.Module):
        def forward(self, states: Tensor, mask: object = None, **options: object) -> Tensor:
            return states + 1

    layer = Layer()
    states = torch.zeros(2, 6, 4)

    def shortened(*args: Any) -> Tensor:
        return torch.zeros(2, 1, 4)

    with only_first_token(layer, shortened):
        assert layer(states, mask, more=1).shape == (2, 6, 4)
        assert layer(states, None, more=1).shape == (2, 1, 4)
    assert layer(states, None).shape == (2, 6, 4)


class Scaled(nn.Module):
    """A module that wraps another, as adapters do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **options: Any) -> Any:
        output = self.inner(*args, **options)
        return (2.0 * output[0], *output[1:]) if isinstance(output, tuple) else 2.0 * output


def _hook(module: Any, *_: Any) -> Any:
    output = _[-1]
    return (2.0 * output[0], *output[1:]) if isinstance(output, tuple) else 2.0 * output


def _other_forward(module: Any) -> None:
    before = module.forward
    module.forward = lambda *args, **options: _hook(module, before(*args, **options))


def _other_class(module: Any) -> None:
    kind = type(module)

    class Own(kind):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any, **options: Any) -> Any:
            return _hook(self, super().forward(*args, **options))

    module.__class__ = Own


def _wrap_attention(layer: Any) -> None:
    layer.attention.self = Scaled(layer.attention.self)


def _hook_on(part: str) -> Any:
    return lambda layer: layer.get_submodule(part).register_forward_hook(_hook)


CHANGES = {
    "hook on the layer": _hook_on(""),
    "hook on attention": _hook_on("attention"),
    "hook inside attention": _hook_on("attention.self"),
    "hook on a dense layer": _hook_on("output.dense"),
    "forward of the layer": _other_forward,
    "forward of attention": lambda layer: _other_forward(layer.attention.self),
    "class of attention": lambda layer: _other_class(layer.attention.self),
    "wrapped attention": _wrap_attention,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_last_layer_runs_whole(change: Any, checkpoint: Get) -> None:
    model = build(checkpoint())
    with torch.no_grad():
        before = model.features(INPUTS)
        change(model.backbone.encoder.layer[-1])
        output = model.features(INPUTS)
        again = model.features(INPUTS)
        expected = model.backbone(**INPUTS).last_hidden_state[:, 0]
    assert not torch.allclose(output, before, atol=1e-3)
    assert torch.equal(output, expected)
    assert torch.equal(again, expected)


def test_a_hook_on_the_backbone_sees_every_token(checkpoint: Get) -> None:
    model = build(checkpoint())
    seen: list[tuple[int, ...]] = []
    model.backbone.register_forward_hook(
        lambda _, __, output: seen.append(tuple(output.last_hidden_state.shape))
    )
    model.features(INPUTS)
    assert seen == [(2, 6, 32)]


def test_a_custom_attention_function_is_called(checkpoint: Get) -> None:
    from transformers import AttentionInterface

    def uniform(module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Any:
        return value.mean(2, keepdim=True).expand_as(query).transpose(1, 2).contiguous(), None

    AttentionInterface.register("uniform-for-this-test", uniform)
    model = build(checkpoint())
    model.backbone.set_attn_implementation("uniform-for-this-test")
    with torch.no_grad():
        expected = model.backbone(**UNPADDED).last_hidden_state[:, 0]
        assert torch.equal(model.features(UNPADDED), expected)

"""The last layer for the first token alone: the same numbers, and fewer of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import make_checkpoint
from torch import Tensor, nn

from clbench.models.classifier import Classifier
from clbench.models.first_token import only_first_token
from clbench.models.load import build_classifier
from clbench.training.dropout import install

INPUTS = {
    "input_ids": torch.tensor([[5, 6, 7, 8, 9, 10], [9, 12, 11, 5, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]),
}
UNPADDED = {name: value[:1] for name, value in INPUTS.items()}


def answers(
    model: Classifier, inputs: dict[str, Tensor], *, whole: bool
) -> tuple[Tensor, dict[str, Tensor], list[int]]:
    """Outputs, gradients, and how many tokens the last normalisation saw."""
    seen: list[int] = []
    norms = [m for m in model.backbone.modules() if isinstance(m, nn.LayerNorm)]
    watch: Any = norms[-1].register_forward_hook(lambda _, given, __: seen.append(len(given[0][0])))
    keep = model._last_layer
    model._last_layer = None if whole else keep
    model.zero_grad()
    outputs = model(inputs, "h")
    outputs.square().sum().backward()
    model._last_layer = keep
    watch.remove()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return outputs.detach(), found, seen


@pytest.mark.parametrize("inputs", [INPUTS, UNPADDED], ids=["padded", "unpadded"])
@pytest.mark.parametrize("own_attention", [False, True])
@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "distilbert"])
def test_outputs_and_gradients_are_those_of_the_whole_layer(
    kind: str, own_attention: bool, inputs: dict[str, Tensor], tmp_path: Path
) -> None:
    folder = str(make_checkpoint(kind, tmp_path / kind))
    model = build_classifier(folder, heads={"h": 2}, head_seed=lambda _: 0).eval()
    if own_attention:
        install(model, model.backbone, torch.device("cpu"))
    outputs, gradients, tokens = answers(model, inputs, whole=False)
    expected, full, all_tokens = answers(model, inputs, whole=True)
    assert (tokens, all_tokens) == ([1], [inputs["input_ids"].shape[1]])
    torch.testing.assert_close(outputs, expected, atol=1e-6, rtol=1e-5)
    assert gradients.keys() == full.keys()
    for name, value in full.items():
        torch.testing.assert_close(gradients[name], value, atol=1e-6, rtol=1e-4, msg=name)


def test_dropout_thins_the_first_token_too(tmp_path: Path) -> None:
    folder = str(make_checkpoint("bert", tmp_path / "bert"))
    model = build_classifier(folder, heads={"h": 2}, head_seed=lambda _: 0)
    masks = install(model, model.backbone, torch.device("cpu"))
    assert masks is not None
    model.eval()
    for parent in (model.backbone.encoder.layer[-1], model.backbone.encoder.layer[-1].attention):
        for rate_of in ("output", "self"):
            part = getattr(parent, rate_of, None)
            if part is None:
                continue
            quiet = model(INPUTS, "h")
            part.train()
            assert not torch.equal(model(INPUTS, "h"), quiet), rate_of
            part.eval()


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_other_poolings_see_every_token(pooling: str, tmp_path: Path) -> None:
    folder = str(make_checkpoint("bert", tmp_path / "bert"))
    model = build_classifier(
        folder,
        heads={"h": 2},
        head_seed=lambda _: 0,
        pooling=pooling,  # type: ignore[arg-type]
    ).eval()
    assert answers(model, INPUTS, whole=False)[2] == [6]


def test_the_backbone_itself_stays_whole(tmp_path: Path) -> None:
    folder = str(make_checkpoint("bert", tmp_path / "bert"))
    model = build_classifier(folder, heads={"h": 2}, head_seed=lambda _: 0).eval()
    with torch.no_grad():
        model.features(INPUTS)
        hidden = model.backbone(**INPUTS).last_hidden_state
        assert hidden.shape == (2, 6, 32)
        torch.testing.assert_close(hidden[:, 0], model.features(INPUTS), atol=1e-6, rtol=1e-5)
    with pytest.raises(IndexError):
        model.features({"input_ids": torch.full((1, 4), 10**6)})
    assert "forward" not in vars(model.backbone.encoder.layer[-1]), "also after a failure"


@pytest.mark.parametrize("mask", [INPUTS["attention_mask"], object()], ids=["rows", "opaque"])
def test_a_mask_that_is_not_written_out_runs_the_whole_layer(mask: object) -> None:
    class Layer(nn.Module):
        def forward(self, states: Tensor, mask: object = None, **options: object) -> Tensor:
            return states + 1

    layer = Layer()
    states = torch.zeros(2, 6, 4)

    def shortened(*given: Any) -> Tensor:
        return torch.zeros(2, 1, 4)

    with only_first_token(layer, shortened):
        assert layer(states, mask, more=1).shape == (2, 6, 4)
        assert layer(states, None, more=1).shape == (2, 1, 4)
    assert layer(states, None).shape == (2, 6, 4)

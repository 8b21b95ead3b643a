from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint

from clbench.models import embed
from clbench.models.classifier import head_key
from clbench.models.embed import embed_rows
from clbench.models.load import build_classifier, load_backbone, load_tokenizer
from clbench.tasks.task import Rows

ROWS = Rows.of(["the film was good", "bad", "a dull plot of it", "very"], None, [0, 1, 0, 1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_checkpoint("bert", tmp_path_factory.mktemp("embed") / "bert"))


def test_vectors_are_those_of_each_text_alone(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, tokenizer = load_backbone(folder).train(), load_tokenizer(folder)
    vectors = embed_rows(backbone, tokenizer, ROWS, 32)
    assert vectors.dtype == np.float32
    assert vectors.shape == (4, 32)
    backbone.eval()
    for text, vector in zip(ROWS.first, vectors, strict=True):
        with torch.no_grad():
            hidden = backbone(**tokenizer(text, return_tensors="pt")).last_hidden_state
        np.testing.assert_allclose(vector, hidden[0, 0].numpy(), atol=2e-5)
    monkeypatch.setattr(embed, "BATCH_TOKENS", 7)  # several batches
    np.testing.assert_allclose(embed_rows(backbone, tokenizer, ROWS, 32), vectors, atol=2e-5)


def test_no_rows(folder: str) -> None:
    empty = Rows.of([], None, [])
    assert embed_rows(load_backbone(folder), load_tokenizer(folder), empty, 32).shape == (0, 32)


def test_vectors_are_kept_by_model_rows_and_settings(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone, tokenizer = load_backbone(folder), load_tokenizer(folder)
    calls: list[int] = []
    compute = embed._compute
    monkeypatch.setattr(embed, "_compute", lambda *given: (calls.append(1), compute(*given))[1])

    def get(rows: Rows = ROWS, length: int = 32, identity: str = "m", **more: str) -> np.ndarray:
        return embed_rows(
            backbone, tokenizer, rows, length, identity={"x": identity}, cache=tmp_path, **more
        )

    first = get()
    assert np.array_equal(get(), first)
    assert len(calls) == 1
    get(rows=ROWS.take([0, 1]))
    get(length=5)
    get(identity="n")
    assert not np.allclose(get(pooling="mean"), first)
    assert len(calls) == 5
    assert len(list(tmp_path.iterdir())) == 5, "and no temporary files"
    embed_rows(backbone, tokenizer, ROWS, 32)
    assert len(calls) == 6, "nothing is kept without a cache"


@pytest.mark.parametrize("name", ["glue/sst2", "own.csv", "keys", "training", "", "a b"])
def test_any_task_name_can_name_a_head(name: str, folder: str) -> None:
    model = build_classifier(folder, heads={name: 3}, head_seed=lambda name: 1)
    assert model.head(name).weight.shape == (3, 32)
    assert model.head_parameter_names(name) == [
        f"heads.{head_key(name)}.weight",
        f"heads.{head_key(name)}.bias",
    ]
    assert set(model.head_parameter_names(name)) <= dict(model.named_parameters()).keys()
    inputs = load_tokenizer(folder)("the film", return_tensors="pt")
    assert model(inputs, name).shape == (1, 3)


def test_an_unknown_head(folder: str) -> None:
    from clbench.errors import ModelError

    model = build_classifier(folder, heads={"glue/sst2": 2}, head_seed=lambda name: 1)
    with pytest.raises(ModelError, match="Did you mean 'glue/sst2'"):
        model.head("glue/sst")


def test_head_dropout_acts_in_training_only(folder: str) -> None:
    model = build_classifier(
        folder, heads={"a": 2}, head_seed=lambda name: 1, head_dropout=0.5
    ).eval()
    inputs = load_tokenizer(folder)("the film", return_tensors="pt")
    still = model(inputs, "a")
    assert torch.equal(model(inputs, "a"), still)
    model.dropout.train()
    outputs = [model(inputs, "a") for _ in range(8)]
    assert not all(torch.equal(output, still) for output in outputs)


def test_backbone_parameters_have_their_full_names(folder: str) -> None:
    model = build_classifier(folder, heads={"a": 2}, head_seed=lambda name: 1)
    found = model.backbone_parameters()
    everything = dict(model.named_parameters())
    assert set(everything) - set(found) == {"heads.a.weight", "heads.a.bias"}
    assert all(everything[name] is value for name, value in found.items())

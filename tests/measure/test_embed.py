from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.checkpoints import make_checkpoint

from clbench.measure import rows as measured
from clbench.measure.rows import embed_rows
from clbench.models import encoding
from clbench.models.checkpoint import load_backbone, load_tokenizer
from clbench.tasks.task import Rows

ROWS = Rows.of(["the film was good", "bad", "a dull plot of it", "very"], None, [0, 1, 0, 1])


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(make_checkpoint("bert", tmp_path / "bert"))


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
    monkeypatch.setattr(measured, "BATCH_TOKENS", 7)  # several batches
    np.testing.assert_allclose(embed_rows(backbone, tokenizer, ROWS, 32), vectors, atol=2e-5)


def test_no_rows_give_no_vectors(folder: str) -> None:
    empty = Rows.of([], None, [])
    assert embed_rows(load_backbone(folder), load_tokenizer(folder), empty, 32).shape == (0, 32)


def test_vectors_are_cached_by_model_rows_and_settings(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone, tokenizer = load_backbone(folder), load_tokenizer(folder)
    monkeypatch.setenv("CLBENCH_CACHE", str(tmp_path))
    calls: list[int] = []
    encode = encoding.encode
    monkeypatch.setattr(encoding, "encode", lambda *rest: (calls.append(1), encode(*rest))[1])

    def get(rows: Rows = ROWS, length: int = 32, identity: str = "m", **more: str) -> np.ndarray:
        return embed_rows(backbone, tokenizer, rows, length, identity={"x": identity}, **more)

    first = get()
    assert np.array_equal(get(), first)
    assert len(calls) == 1
    get(rows=ROWS.take([0, 1]))
    get(length=5)
    get(identity="n")
    assert not np.allclose(get(pooling="mean"), first)
    assert len(calls) == 5
    assert len(list(tmp_path.glob("embeddings/*"))) == 5, "and no temporary files"
    embed_rows(backbone, tokenizer, ROWS, 32)
    assert len(calls) == 6, "nothing is stored without an identity"

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from helpers.cell import CPU, PROTOCOL, Cell, differ, weights
from helpers.checkpoints import make_checkpoint

from clbench.core import files
from clbench.fisher import language
from clbench.fisher.language import Recipe, pretrained_fisher
from clbench.methods.base import Vanilla
from clbench.methods.quadratic import EWCMLM, fisher_of_backbone
from clbench.models.classifier import build_classifier
from clbench.training.device import Precision

FLOAT = Precision("float32", "cpu")
FEW = {"examples": 6, "text_length": 12, "head_steps": 20}


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    file = tmp_path / "corpus.txt"
    words = [
        "the film was good and long",
        "a dog ran over the green hill",
        "we like this film a lot",
    ]
    file.write_text("\n".join(words * 3), encoding="utf-8")
    return str(file)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A checkpoint with its masked-LM head."""
    folder = make_checkpoint("bert", tmp_path / "whole")
    torch.manual_seed(1)
    model = hf.BertForMaskedLM.from_pretrained(folder)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def _fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLBENCH_CACHE", str(tmp_path / "cache"))


def fisher_of(folder: Path, corpus: str, **settings: Any) -> Any:
    recipe = Recipe(**{**FEW, **settings})
    return pretrained_fisher(str(folder), None, corpus, recipe, device=CPU, precision=FLOAT)


def test_fisher_is_computed_once_per_model_corpus_and_settings(
    whole: Path, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, facts = fisher_of(whole, corpus)
    assert facts["loss"] == "mlm"
    assert facts["head_loss"] is None
    calls: list[str] = []
    own = language.diagonal_fisher

    def spy(*arguments: Any, **options: Any) -> Any:
        calls.append("computed")
        return own(*arguments, **options)

    monkeypatch.setattr(language, "diagonal_fisher", spy)
    again, same = fisher_of(whole, corpus)
    assert not calls
    assert same == facts
    assert all(torch.equal(first[name], again[name]) for name in first)
    copied = shutil.copytree(whole, whole.parent / "copy")
    fisher_of(copied, corpus)
    assert not calls  # a copy is the same model
    fisher_of(whole, corpus, mode="empirical")
    fisher_of(whole, corpus, seed=1)
    Path(corpus).write_text("the dog is on the hill now\n" * 2, encoding="utf-8")
    fisher_of(whole, corpus)
    assert len(calls) == 3
    for file in files.cache_dir("fisher").iterdir():
        file.write_bytes(b"damaged")
    fisher_of(whole, corpus)
    assert len(calls) == 4


def test_a_missing_head_is_fitted_and_noted(folder: Path, corpus: str) -> None:
    protocol = PROTOCOL.model_copy(update={"corpus": corpus})
    cell = Cell(folder, EWCMLM(**FEW), protocol=protocol)
    assert "no language-model head: one was fitted in 20 steps" in cell.context.notes[0]
    _, facts = fisher_of(folder, corpus)
    first, last = facts["head_loss"]
    assert last < first
    before = build_classifier(str(folder), heads={}, head_seed=lambda _: 0)
    for name, parameter in before.named_parameters():
        assert torch.equal(cell.start[name], parameter)  # the encoder stayed as it was


def test_decoders_use_the_next_token_loss(tmp_path: Path, corpus: str) -> None:
    folder = make_checkpoint("gpt2", tmp_path / "gpt2")
    protocol = PROTOCOL.model_copy(update={"corpus": corpus})
    cell = Cell(folder, EWCMLM(**FEW), protocol=protocol)
    assert "next-token loss" in cell.context.notes[0]
    assert "head" not in cell.context.notes[0]


def test_pulls_in_every_stage_and_repeats(whole: Path, corpus: str) -> None:
    protocol = PROTOCOL.model_copy(update={"corpus": corpus, "epochs": 1})
    settings = {"importance": 1e4, "mode": "batched", **FEW}
    method = EWCMLM(**settings)
    assert method.acts_in(0)
    first = Cell(whole, method, protocol=protocol).run()
    for file in files.cache_dir("fisher").iterdir():
        file.unlink()  # so that the Fisher information is computed again
    assert not differ(first, Cell(whole, EWCMLM(**settings), protocol=protocol).run())
    assert differ(first, Cell(whole, Vanilla(), protocol=protocol).run())
    assert method.state() == {}
    assert all(trace.curves["penalty"][-1][1] > 0 for trace in first.traces)


def test_gradients_are_the_pull_towards_the_pretrained_weights(whole: Path, corpus: str) -> None:
    protocol = PROTOCOL.model_copy(update={"corpus": corpus})
    method = EWCMLM(importance=11.0, **FEW)
    cell = Cell(whole, method, protocol=protocol)
    fisher, _ = fisher_of(whole, corpus)
    stage = cell.begin(0)
    with torch.no_grad():
        for parameter in cell.model.parameters():
            parameter.mul_(1.1)
    method.edit_gradients(stage)
    now = weights(cell)
    for name, parameter in cell.model.backbone.named_parameters():
        off = now[f"backbone.{name}"].double() - cell.pretrained[f"backbone.{name}"].double()
        expected = 2 * 11.0 * fisher[name].double() * off
        torch.testing.assert_close(parameter.grad.double(), expected, rtol=1e-5, atol=1e-12)


def test_fisher_is_cut_to_a_trimmed_vocabulary(whole: Path, corpus: str) -> None:
    fisher, _ = fisher_of(whole, corpus)
    vocabulary = np.asarray([0, 2, 3, 7, 11])
    model = build_classifier(str(whole), heads={}, head_seed=lambda _: 0, vocabulary=vocabulary)
    importance = fisher_of_backbone(model, fisher)
    name = "embeddings.word_embeddings.weight"
    assert torch.equal(importance[f"backbone.{name}"], fisher[name][vocabulary])
    assert set(importance) == set(model.backbone_parameters())

"""Details of fisher that no other test notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from helpers.checkpoints import make_checkpoint

from clbench.fisher import mask_tokens
from clbench.fisher.language import Recipe, pretrained_fisher
from clbench.fisher.losses import Outputs
from clbench.models.checkpoint import load_tokenizer
from clbench.training.device import Precision


def test_values_are_drawn_with_a_variance_of_one_half() -> None:
    means = torch.linspace(-3.0, 3.0, 100_000)
    drawn = Outputs(means, means).sample_labels(torch.Generator().manual_seed(0)).labels
    assert float((drawn - means).var()) == pytest.approx(0.5, rel=0.03)
    assert float((drawn - means).mean()) == pytest.approx(0.0, abs=0.01)


def test_a_tenth_becomes_another_word_and_a_tenth_stays(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(make_checkpoint("bert", tmp_path)))
    word = next(n for n in range(len(tokenizer)) if n not in tokenizer.all_special_ids)
    ids = torch.full((200, 100), word)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    found = mask_tokens(inputs, tokenizer, torch.Generator().manual_seed(0), share=0.5)
    fate = found["input_ids"][found["labels"] != -100]
    words = len(tokenizer) - len({*tokenizer.all_special_ids})
    masked = float((fate == tokenizer.mask_token_id).float().mean())
    stays = float((fate == word).float().mean())
    assert masked == pytest.approx(0.8, abs=0.015)  # four standard errors of 10,000 tokens
    assert stays == pytest.approx(0.1 + 0.1 / words, abs=0.015)
    others = fate[(fate != word) & (fate != tokenizer.mask_token_id)]
    assert not torch.isin(others, torch.tensor(tokenizer.all_special_ids)).any()
    assert len(others.unique()) == words - 1
    assert (found["input_ids"][found["labels"] == -100] == word).all()


def test_every_text_has_a_token_to_predict(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(make_checkpoint("bert", tmp_path)))
    ids = torch.full((200, 3), 7)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    rng = torch.Generator().manual_seed(0)
    found = mask_tokens(inputs, tokenizer, rng, masking="any-position")
    counts = (found["labels"] != -100).sum(1)
    assert int(counts.min()) == 1
    assert float(counts.float().mean()) < 1.2


def test_masks_are_drawn_by_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLBENCH_CACHE", str(tmp_path / "cache"))
    folder = make_checkpoint("bert", tmp_path / "model")
    hf.BertForMaskedLM.from_pretrained(folder).save_pretrained(folder)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(["the film was good and long", "a dog ran over the hill"] * 3))

    def fisher(seed: int) -> Any:
        recipe = Recipe(mode="empirical", examples=100, text_length=12, seed=seed)
        where = torch.device("cpu"), Precision("float32", "cpu")
        return pretrained_fisher(
            str(folder), None, str(corpus), recipe, device=where[0], precision=where[1]
        )[0]

    one, other = fisher(0), fisher(1)
    assert any(not torch.allclose(one[n], other[n], rtol=1e-2, atol=0.0) for n in one)

"""Audits of encoder-decoders: the encoder's features, the decoder's answers and language."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkpoints import make_tokenizer, save_generator
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    T5ForSequenceClassification,
)

from clbench.audit.audit import Audit, audit
from clbench.audit.items import load_items, predict
from clbench.audit.language import LanguageLoss
from clbench.audit.mend import mend
from clbench.audit.models import load_base, load_tuned
from clbench.audit.page import write_mended
from clbench.audit.weights import drift
from clbench.core.errors import ModelError
from clbench.models.likelihood import likelihood

TASK = "synthetic/sentiment"
QUICK: Any = {"tasks": [TASK], "rows": 60, "texts": 30}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models")
    return str(save_generator("t5", folder / "t5", appends_end=True))


def changed(base: str, folder: Path, change: Callable[[Any], Any]) -> str:
    model = AutoModelForSeq2SeqLM.from_pretrained(base)
    generator = torch.Generator().manual_seed(0)
    for value in change(model).parameters():
        value.data.add_(torch.randn(value.shape, generator=generator), alpha=0.3)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return str(folder)


def only(found: Audit) -> Any:
    (model,) = found.models
    return model


def test_damage_of_the_decoder_is_none_of_the_features(base: str, tmp_path: Path) -> None:
    model = only(audit(base, [changed(base, tmp_path, lambda m: m.decoder.block[1])], **QUICK))
    features, behaviour = model.comparison.tasks
    assert features.change.difference == 0.0
    assert features.change.word == "kept"
    assert behaviour.flips.lost + behaviour.flips.gained > 0
    assert abs(model.comparison.language.change.difference) > 0.1
    assert "second-half loss on 30 held-out texts" in model.comparison.language.measure.description
    assert model.notes == ("All weights of the encoder are the base model's.",)
    moved = [layer.name for layer in model.layers if layer.weights > 0]
    assert moved == ["layer.1"]
    assert all(layer.similarity == pytest.approx(1.0) for layer in model.layers)
    same = only(
        audit(base, [changed(base, tmp_path / "same", lambda m: torch.nn.Module())], **QUICK)
    )
    assert same.comparison.identical


def test_layers_of_a_deeper_decoder_have_their_own_hidden_states(base: str, tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(base, num_decoder_layers=3)
    AutoModelForSeq2SeqLM.from_config(config).save_pretrained(tmp_path / "deep")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "deep")
    first = load_base(str(tmp_path / "deep"))
    tuned = changed(first.name, tmp_path / "tuned", lambda m: m.encoder.block[1])
    texts = ["the film was good", "it was long and dull"]
    layers = drift(first, load_tuned(tuned, first), texts, torch.device("cpu"))
    similar = {layer.name: layer.similarity for layer in layers}
    assert similar["layer.0"] == pytest.approx(1.0)
    assert similar["layer.1"] == similar["layer.2"] < 0.99
    assert [layer.name for layer in layers if layer.weights > 0] == ["layer.1"]


def test_the_language_loss_is_that_of_the_second_half(base: str) -> None:
    model = load_base(base)
    loss = LanguageLoss(model, "built-in", 30, 0, torch.device("cpu"))
    found, row = loss(model), 0
    for batch in loss._batches:
        for ids, mask, labels in zip(*batch.values(), strict=True):
            real, written = mask.bool(), labels != -100
            assert 0 <= int(real.sum() - written.sum()) <= 1
            with torch.no_grad():
                alone = model.model(input_ids=ids[real][None], labels=labels[written][None])
            assert found[row] == pytest.approx(float(alone.loss), abs=1e-4)
            row += 1
    assert row == 30


def test_answers_are_the_likelier_ones(base: str) -> None:
    model = load_base(base)
    (items,) = load_items([TASK], data=None, rows=50)
    predicted = predict(model, items, "behaviour", torch.device("cpu"))
    assert items.task.template is not None
    short = [i for i, text in enumerate(items.rows.first) if len(text.encode()) < 100]
    prompts = [items.task.template.render([items.rows.first[i]]) for i in short]
    scores = likelihood(model.model, model.tokenizer, prompts, items.task.labels)
    assert len(short) > 30
    assert (predicted[short] == scores.argmax(1)).all()


def test_bart_is_read_and_mended(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"layers": 2, "attention_heads": 2, "ffn_dim": 32}
    layers = {f"{part}_{k}": v for part in ("encoder", "decoder") for k, v in sizes.items()}
    layers |= {"vocab_size": 300, "d_model": 16, "max_position_embeddings": 140}
    tokens = dict.fromkeys(("eos_token_id", "bos_token_id", "decoder_start_token_id"), 1)
    config = BartConfig(**layers, **tokens, pad_token_id=0, forced_eos_token_id=None)
    base = str(tmp_path / "base")
    BartForConditionalGeneration(config).save_pretrained(base)
    make_tokenizer(appends_end=True).save_pretrained(base)
    tuned = changed(base, tmp_path / "tuned", lambda m: m.model.decoder)
    found = only(audit(base, [tuned], **QUICK))
    assert [task.part for task in found.comparison.tasks] == ["features", "behaviour"]
    mended, model = mend(
        base, tuned, keep=[TASK], learn="synthetic/acceptability", rows=50, alpha=0.5
    )
    (tmp_path / "out").mkdir()
    write_mended(mended, model, tmp_path / "out")
    again = load_tuned(str(tmp_path / "out"), load_base(base)).model.state_dict()
    one, two = (AutoModelForSeq2SeqLM.from_pretrained(each).state_dict() for each in (base, tuned))
    for name, value in again.items():
        torch.testing.assert_close(value, (one[name] + two[name]) / 2)


def test_classifiers_are_refused(base: str, tmp_path: Path) -> None:
    T5ForSequenceClassification.from_pretrained(base).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path)
    for load in (load_base, lambda name: load_tuned(name, load_base(base))):
        with pytest.raises(ModelError, match="audited with their language-model head only"):
            load(str(tmp_path))

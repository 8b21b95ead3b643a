"""Generic replay against the language-model loss computed by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from helpers.cell import PROTOCOL, Cell, differ, weights
from helpers.checkpoints import make_checkpoint

from clbench.methods.base import Vanilla
from clbench.methods.generic_replay import GenericReplay, table_rows
from clbench.models.classifier import build_classifier

LINES = [
    "the film was very good and bright",
    "a dull plot is not a good story",
    "it was of the film",
]
FEW: dict[str, Any] = {"texts": 8, "text_length": 12, "head_steps": 4}


@pytest.fixture(scope="module")
def protocol(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n".join(LINES * 10), encoding="utf-8")
    return PROTOCOL.model_copy(update={"corpus": str(path)})


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint `folder` with a language-model head."""
    target = tmp_path_factory.mktemp("whole")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = transformers.BertForMaskedLM.from_pretrained(folder)
    model.save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(target)
    return target


class Counted(GenericReplay):
    """Keeps the number of texts in each step."""

    def before_stage(self, stage: Any) -> None:
        super().before_stage(stage)
        self.counts = [0] * 12

    def text_loss(self, stage: Any, texts: Any) -> Any:
        self.counts[stage.step] += len(texts["input_ids"])
        return super().text_loss(stage, texts)


@pytest.mark.parametrize(
    ("share", "counts"),
    [
        (0.01, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),  # 4/99 texts a step
        (0.1, [1, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0]),  # 4/9 of one
        (0.2, [1] * 12),
        (0.25, [2, 0, 2, 2, 0, 2, 2, 0, 2, 2, 0, 2]),  # 4/3
        (0.5, [4] * 12),
        (0.8, [16] * 12),  # 16.000000000000004
    ],
)
def test_texts_are_the_share_of_what_a_stage_trains_on(
    whole: Path, protocol: Any, share: float, counts: list[int]
) -> None:
    method = Counted(share=share, **{**FEW, "texts": 16})
    Cell(whole, method, protocol=protocol.model_copy(update={"steps": 12})).stage(0)
    assert method.counts == counts
    assert sum(counts) == pytest.approx(12 * 4 * share / (1 - share), abs=1)


def prepared(folder: Path, protocol: Any) -> tuple[Cell, Any, dict[str, torch.Tensor]]:
    """Return a cell in evaluation mode, its stage, and a batch of texts."""
    cell = Cell(folder, GenericReplay(share=0.5, **FEW), protocol=protocol)
    stage = cell.begin(1)
    cell.model.eval()
    with torch.no_grad():
        for parameter in cell.model.backbone.encoder.parameters():
            parameter.mul_(1.1)
    return cell, stage, next(cell.method._stream)


def test_the_loss_is_that_of_the_pretrained_head_on_the_trained_backbone(
    whole: Path, protocol: Any
) -> None:
    cell, stage, texts = prepared(whole, protocol)
    reference = transformers.BertForMaskedLM.from_pretrained(whole).eval()
    own = {n.removeprefix("backbone."): w for n, w in weights(cell).items()}
    reference.bert.load_state_dict(own, strict=False)
    expected = reference(**{k: v for k, v in texts.items() if k != "token_type_ids"}).loss
    found = cell.method.text_loss(stage, texts)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    batch = stage.data.batch(np.arange(8), stage.device)
    cell.method._stream = iter([texts])
    total = cell.method.loss(stage, batch)  # four texts, eight rows
    torch.testing.assert_close(total, stage.loss(batch) + 0.5 * expected, rtol=1e-5, atol=1e-6)
    total.backward()
    assert all(p.grad is None for p in cell.method._language.cls.parameters())
    assert cell.model.backbone.encoder.layer[0].output.dense.weight.grad is not None


def test_decoders_learn_the_next_token(tmp_path: Path, protocol: Any) -> None:
    folder = make_checkpoint("gpt2", tmp_path)
    cell = Cell(folder, GenericReplay(share=0.5, **FEW), protocol=protocol)
    stage = cell.begin(0)
    cell.model.eval()
    texts = next(cell.method._stream)
    reference = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    labels = texts["input_ids"].masked_fill(texts["attention_mask"] == 0, -100)
    expected = reference(**texts, labels=labels).loss
    found = cell.method.text_loss(stage, texts)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_tokens_without_a_row_have_their_pretrained_embedding(whole: Path, protocol: Any) -> None:
    vocabulary = np.arange(0, 60, 2)
    full = build_classifier(str(whole), heads={}, head_seed=lambda _: 0)
    part = build_classifier(str(whole), heads={}, head_seed=lambda _: 0, vocabulary=vocabulary)
    assert table_rows(full, 60).tolist() == list(range(60))
    assert table_rows(part, 60).tolist() == [n // 2 if n % 2 == 0 else -1 for n in range(60)]
    cell, stage, texts = prepared(whole, protocol)
    before = cell.method.text_loss(stage, texts)
    trained, even = cell.model.backbone.embeddings.word_embeddings, torch.from_numpy(vocabulary)
    with torch.no_grad():
        trained.weight[even] = trained.weight[even].flip(0)
    expected = cell.method.text_loss(stage, texts)
    assert not torch.isclose(expected, before)  # other tokens are read by their trained rows
    (gradient,) = torch.autograd.grad(expected, trained.weight)
    assert gradient.any()
    cell.method._rows = table_rows(part, 60)
    trained.weight = torch.nn.Parameter(trained.weight.detach()[even])
    torch.testing.assert_close(cell.method.text_loss(stage, texts), expected)


def test_a_missing_head_is_fitted_and_noted(folder: Path, protocol: Any) -> None:
    cell = Cell(folder, GenericReplay(**FEW), protocol=protocol)
    assert "no language-model head: one was fitted in 4 steps" in cell.context.notes[0]
    again = Cell(folder, GenericReplay(**FEW), protocol=protocol)
    for first, second in zip(
        cell.method._language.cls.parameters(), again.method._language.cls.parameters(), strict=True
    ):
        assert torch.equal(first, second)
    assert torch.equal(
        cell.start["backbone.encoder.layer.0.output.dense.bias"],
        again.start["backbone.encoder.layer.0.output.dense.bias"],
    )


@pytest.mark.slow
def test_text_keeps_the_language_model(whole: Path, protocol: Any) -> None:
    losses = []
    for weight in (1e-6, 1.0):
        method = GenericReplay(share=0.5, weight=weight, **FEW)
        cell = Cell(whole, method, protocol=protocol.model_copy(update={"steps": 30})).run()
        stage = cell.begin(1)
        cell.model.eval()
        with torch.no_grad():
            batches = [next(method._stream) for _ in range(5)]
            losses.append(sum(float(method.text_loss(stage, texts)) for texts in batches))
    assert losses[1] < 0.8 * losses[0]


def test_two_runs_agree_and_differ_from_vanilla(whole: Path, protocol: Any) -> None:
    first, second = (Cell(whole, GenericReplay(**FEW), protocol=protocol).run() for _ in range(2))
    assert not differ(first, second)
    assert differ(first, Cell(whole, Vanilla(), protocol=protocol).run())
    assert first.method.state() == {}

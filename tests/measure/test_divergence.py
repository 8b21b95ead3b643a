"""The divergence from the base model on the new task's prompts."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import save_generator
from helpers.language_models import cell, run

from clbench.measure.divergence import Divergence, kl_sums
from clbench.measure.writer import Writer
from clbench.models.answering import AnsweringModel, build_answering_model
from clbench.models.checkpoint import load_tokenizer
from clbench.models.encoding import PromptRows
from clbench.models.prompts import PromptEncoder
from clbench.tasks.task import Rows, Task
from clbench.training.batches import TaskData
from clbench.training.context import Context
from clbench.training.device import Precision
from clbench.training.protocol import Protocol
from clbench.training.writing import uniform

NAMES = ["", "_base", "_own"]
PAIRS = [(f"forward_kl{name}", f"reverse_kl{name}") for name in NAMES]


def test_both_directions_are_those_of_hand() -> None:
    even, odd = torch.tensor([0.5, 0.5]), torch.tensor([0.75, 0.25])
    base = torch.stack([even, even, odd]).log() + 3.0  # logits may have any offset
    current = torch.stack([even, odd, even]).log()
    # ½ ln(½ / ¾) + ½ ln(½ / ¼) = .143841 and ¾ ln(¾ / ½) + ¼ ln(¼ / ½) = .130812
    assert kl_sums(base[:2], current[:2]) == pytest.approx((0.143841, 0.130812), abs=1e-6)
    assert kl_sums(base, current) == pytest.approx((0.274653, 0.274653), abs=1e-6)


@pytest.fixture
def divergence(tmp_path: Path, request: pytest.FixtureRequest) -> Divergence:
    """Three rows of a small model: a decoder, or the one that the test's parameter names."""
    name = getattr(request, "param", "llama")
    folder = str(save_generator(name, tmp_path / "model", appends_end=name == "t5"))
    tokenizer = load_tokenizer(folder, plain=True)
    rows = Rows.of(["the old film", "it was a very bad story of it", "a"], None, [0, 1, 0])
    task = Task("mood", ("good new", "bad"), ("accuracy",), rows, rows, head="mood")
    encoder = PromptEncoder(tokenizer, 24, encoder_decoder=name == "t5")
    gold = encoder.encode(task, rows, to_train=True)
    data = TaskData(0, "mood", "mood", False, gold, 0)
    context = Context(
        build_answering_model(folder),
        folder,
        None,
        Protocol(head="language-model", eval_batch_size=2),
        torch.device("cpu"),
        Precision("float32", "cpu"),
        *(0, "s", 1, None),
    )
    writer = Writer(tokenizer, (1,), 5, "likelihood")
    return Divergence([data], context, writer, lambda task: nullcontext())


def move(model: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


def by_hand(divergence: Divergence, answers: Any) -> list[float]:
    """Return both divergences, row by row and token by token, without batches or padding."""
    rows = divergence.gold[0].rows
    gaps = []
    ends = rows.offsets[1:]
    with torch.no_grad():
        for start, end, answer in zip(rows.offsets[:-1], ends, answers, strict=True):
            prompt, answer = rows.ids[start:end].tolist(), answer[answer >= 0].tolist()
            if divergence._model.encoder_decoder:
                inputs = {"input_ids": prompt, "decoder_input_ids": [0, *answer[:-1]]}
            else:
                inputs = {"input_ids": prompt + answer[:-1]}
            ids = {name: torch.tensor([value]) for name, value in inputs.items()}
            p, q = (
                model.backbone(**ids).logits[0, -len(answer) :].double().log_softmax(-1)
                for model in (divergence._base, divergence._model)
            )
            gap = p - q
            gaps += zip((p.exp() * gap).sum(-1), -(q.exp() * gap).sum(-1), strict=True)
    return np.mean(gaps, axis=0).tolist()


@pytest.mark.parametrize("divergence", ["llama", "t5"], indirect=True)
def test_divergences_are_those_of_plain_passes(divergence: Divergence) -> None:
    same = divergence.measure(0)
    assert list(same) == [name for pair in PAIRS for name in pair]
    assert max(map(abs, same.values())) < 1e-6
    move(divergence.context.model)
    state = torch.random.get_rng_state()
    found = divergence.measure(0)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert found == divergence.measure(0)
    texts = [
        divergence.gold[0],
        divergence._drawn[0],
        divergence._draw(divergence._model, 0, "own"),
    ]
    for pair, data in zip(PAIRS, texts, strict=True):
        assert isinstance(data.rows, PromptRows)
        expected = by_hand(divergence, data.rows.answers)
        assert [found[name] for name in pair] == pytest.approx(expected, rel=1e-4)
        assert min(expected) > 0.01
    # Answers are drawn up to their end token, the first of the stops.
    for data in texts[1:]:
        for answer in data.rows.answers:
            assert len(answer) == 5
            ends = np.flatnonzero(answer == 1)
            assert (answer >= 0).sum() == (ends[0] + 1 if len(ends) else 5)


def test_answers_are_drawn_from_the_models_own_distribution(divergence: Divergence) -> None:
    model, ids = divergence.context.model, torch.tensor([[5, 9, 7]]).repeat(4000, 1)
    assert isinstance(model, AnsweringModel)
    move(model)

    def drawn(seed: int) -> torch.Tensor:
        return uniform((len(ids), 1), torch.Generator().manual_seed(seed))

    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    first, again, other = (
        torch.stack(model.write(inputs, [1], 1, draws=drawn(seed)))[:, 0] for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    with torch.no_grad():
        expected = model.backbone(input_ids=ids[:1]).logits[0, -1].softmax(-1)
    shares = torch.bincount(first, minlength=len(expected)) / len(first)
    spread = (expected * (1 - expected) / len(first)).sqrt()
    assert (shares - expected).abs().le(5 * spread + 1e-3).all()


@pytest.mark.slow
def test_a_run_keeps_divergences_and_changes_no_other_number(folder: Path) -> None:
    short = {"epochs = 10": "epochs = 2"}
    plain = cell(run(folder, "without", changes=short))
    changes = {**short, "curve_rows = 10": "curve_rows = 10\nkl_rows = 20"}
    result = run(folder, "with", changes=changes)
    assert cell(result).R == plain.R
    assert plain.capabilities == []
    before, *stages = cell(result).capabilities
    assert before == {}
    assert [stage.keys() for stage in stages] == [{n for pair in PAIRS for n in pair}] * 2
    assert result.frame["forward_kl"][0] == stages[-1]["forward_kl"] > 0.1
    assert "kl_rows" not in plain.settings["protocol"]
    # What the model writes after training is what it was trained to write.
    assert stages[-1]["reverse_kl_own"] > 0.1
    free = cell(run(folder, "free", changes=changes, scenarios=["write"]))
    assert free.capabilities[-1]["reverse_kl_own"] > 0.1


def test_encoder_decoders_are_compared_too(folder: Path) -> None:
    save_generator("t5", folder / "t5-compared", appends_end=True)
    changes = {'model = "model"': 'model = "t5-compared"', "max_length = 24": "max_length = 80",
               "epochs = 10": "epochs = 1\nkl_rows = 10"}  # fmt: skip
    measures = cell(run(folder, "t5-kl", changes=changes)).capabilities[-1]
    assert min(measures.values()) > 0.0

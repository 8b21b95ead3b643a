"""The shared beginning of prompts is read once, and changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import GENERATORS, make_generator, make_tokenizer

from clbench.models import answering, likelihood
from clbench.models.beginnings import FEWEST, alike, reads_ahead

SOLVED = "Q: two and two? A: four. Q: " + "x" * FEWEST
PROMPTS = [f"{SOLVED}{end}" for end in ("one? A:", "how many? A:", "")] + ["Another one? A:"]
"""Prompts of which the third is the beginning of two others."""


def read_aheads(monkeypatch: pytest.MonkeyPatch, *modules: Any) -> list[int]:
    """Return a list that gets the rows of each beginning's cache."""
    rows: list[int] = []

    class Seen(likelihood.Behind):
        def cache(self, count: int, *room: int) -> Any:
            rows.append(count)
            return super().cache(count, *room)

    for module in modules:
        monkeypatch.setattr(module, "Behind", Seen)
    return rows


def test_rows_that_begin_alike_come_together() -> None:
    one, two = [1] * FEWEST, [2] * (FEWEST + 5)
    rows = [[*one, 7, 8], [3, 4], two, [*one, 7, 9, 9], [*two, 5], [3, 5]]
    groups = [(sorted(group), shared) for group, shared in alike(rows)]
    assert groups == [([0, 3], FEWEST + 1), ([2, 4], FEWEST + 4), ([1, 5], 0)]
    assert [*alike([[1, 2]])] == [([0], 0)]


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("answers", [[" yes", " not at all", "!"], ["!", "?"]])
def test_likelihoods_are_those_of_whole_prompts(
    name: str, answers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = make_generator(name), make_tokenizer(appends_end=name == "t5")
    rows = read_aheads(monkeypatch, likelihood)
    scores = likelihood.likelihood(model, tokenizer, PROMPTS, answers)
    assert bool(rows) == reads_ahead(model)
    alone = [likelihood.likelihood(model, tokenizer, [prompt], answers)[0] for prompt in PROMPTS]
    np.testing.assert_allclose(scores, alone, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("name", GENERATORS)
def test_what_is_written_is_that_behind_whole_prompts(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = make_generator(name), make_tokenizer(appends_end=name == "t5")
    rows = read_aheads(monkeypatch, answering)
    inputs = tokenizer(PROMPTS[:3], padding=True, return_tensors="pt")
    together = answering.write(model, inputs, [], 6, pad_id=0)
    assert bool(rows) == reads_ahead(model)
    for prompt, own in zip(PROMPTS, together.tolist(), strict=False):
        alone = answering.write(model, tokenizer([prompt], return_tensors="pt"), [], 6, pad_id=0)
        assert own == alone[0].tolist()


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_texts_are_written_with_autocast(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = make_generator(name), make_tokenizer()
    rows = read_aheads(monkeypatch, answering)
    inputs = tokenizer(PROMPTS[:3], padding=True, return_tensors="pt")
    whole = answering.write(model, inputs, [], 6, pad_id=0)
    with torch.autocast("cpu", torch.bfloat16):  # keys and values have different types in Llama
        written = answering.write(model, inputs, [], 6, pad_id=0)
    assert rows
    assert written[:, 0].tolist() == whole[:, 0].tolist()


def test_training_follows_what_was_written_with_autocast() -> None:
    model, tokenizer = make_generator("llama"), make_tokenizer()
    inputs = tokenizer(PROMPTS[:3], padding=True, return_tensors="pt")
    frozen, *trained = model.parameters()
    frozen.requires_grad_(False)
    found = []
    for writes in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            if writes:
                answering.write(model, inputs, [], 2, pad_id=0)
            model(**inputs).logits.square().mean().backward()
        assert frozen.grad is None
        found.append([p.grad for p in trained])
    assert all(grad is not None and grad.any() for grad in found[0])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_some_models_read_ahead() -> None:
    found = {name: reads_ahead(make_generator(name)) for name in GENERATORS}
    assert {"llama", "gpt2"} <= {name for name, ahead in found.items() if ahead}
    assert {"t5", "mistral"} <= {name for name, ahead in found.items() if not ahead}
    assert torch.is_grad_enabled()

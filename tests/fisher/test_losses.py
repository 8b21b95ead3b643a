"""Labels drawn from a model's own distribution."""

from __future__ import annotations

import pytest
import torch
from helpers.checkpoints import make_generator, make_tokenizer

from clbench.fisher import diagonal_fisher, text_batches
from clbench.fisher.losses import BLOCK, Outputs, causal_lm, next_tokens


@pytest.mark.parametrize("size", [3, BLOCK, 2 * BLOCK + 88])
def test_labels_are_drawn_as_often_as_the_model_says(size: int) -> None:
    torch.manual_seed(0)
    logits = 2 * torch.randn(size)
    logits[::3] = -torch.inf  # whole classes that must never be drawn, the last among them
    logits[-1] = -torch.inf
    draws = 40_000
    labels = Outputs(logits.expand(draws, size), torch.zeros(draws)).sample_labels(
        torch.Generator().manual_seed(1)
    )
    counts = torch.bincount(labels.labels, minlength=size).double()
    expected = torch.softmax(logits.double(), 0) * draws
    possible = expected > 0
    assert not counts[~possible].any()
    often = expected > 5
    squares = ((counts - expected)[often].square() / expected[often]).sum()
    freedom = int(often.sum())
    assert squares < freedom + 4 * (2 * freedom) ** 0.5  # chi-square: mean, deviation


@pytest.mark.parametrize("name", ["opt", "llama"])
def test_logits_are_taken_where_tokens_are_predicted_if_a_body_is_not_called(name: str) -> None:
    model = make_generator(name)
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    with torch.no_grad():
        outputs = causal_lm(model, {"input_ids": ids, "attention_mask": mask})
        plain = model(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(outputs.logits, plain[:, :3])
    assert outputs.labels.tolist() == [[6, 7, 8], [10, 11, 0]]


def test_padding_has_no_next_token_on_either_side() -> None:
    ids = torch.tensor([[0, 0, 7, 8], [9, 10, 11, 0], [4, 5, 6, 7]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]])
    labels = next_tokens({"input_ids": ids, "attention_mask": mask})
    assert labels[0].tolist() == [-100, -100, 8, -100]
    assert labels[1].tolist() == [10, 11, -100, -100]
    assert labels[2].tolist() == next_tokens({"input_ids": ids})[2].tolist() == [5, 6, 7, -100]


def test_the_fisher_of_a_batch_is_that_of_its_texts_if_the_tokenizer_pads_on_the_left() -> None:
    model, tokenizer = make_generator("gpt2"), make_tokenizer()
    tokenizer.padding_side = "left"
    texts = ["abc", "ab", "a longer text than the others", "story"]
    one, four = (
        diagonal_fisher(
            model,
            text_batches(
                texts,
                tokenizer,
                max_length=32,
                generator=torch.Generator(),
                masking=None,
                batch_size=size,
            ),
            "clm",
            "empirical",
        )
        for size in (1, 4)
    )
    for name, value in one.items():
        torch.testing.assert_close(four[name], value, atol=1e-5 * float(value.max()), rtol=1e-3)
    assert tokenizer.padding_side == "left"

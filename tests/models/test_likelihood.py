"""Log-probabilities of answers equal those of plain passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from helpers.checkpoints import GENERATORS, make_generator, make_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers

from clbench.core.errors import DataError
from clbench.models.answer_scores import AnswerScorer, AnswerTree
from clbench.models.likelihood import answer_batches, likelihood

PROMPTS = ["The film was dull.\nGood:", "Yes?", "a {b} c, and rather longer than the others"]
ANSWERS = [" yes", " no", " not at all", " nobody", "!"]


def plain(model: Any, tokenizer: Any, prompt: str, answer: str) -> float:
    """Return a log-probability, token by token, without batch, padding or cache."""
    ids = tokenizer(prompt)["input_ids"]
    total, written = 0.0, [0]
    for token in tokenizer(answer, add_special_tokens=False)["input_ids"]:
        arguments = {"input_ids": torch.tensor([ids])}
        if model.config.is_encoder_decoder:
            arguments["decoder_input_ids"] = torch.tensor([written])
        logits = model(**arguments, use_cache=False).logits[0, -1].double()
        total += float(logits.log_softmax(-1)[token])
        written = [*written, token]
        if not model.config.is_encoder_decoder:
            ids = [*ids, token]
    return total


@pytest.mark.parametrize("name", GENERATORS)
def test_likelihoods_equal_those_of_a_plain_loop(name: str) -> None:
    model, tokenizer = make_generator(name), make_tokenizer(appends_end=name == "t5")
    scores = likelihood(model, tokenizer, PROMPTS, ANSWERS, batch_size=2)
    assert scores.shape == (3, 5)
    with torch.inference_mode():
        wanted = [[plain(model, tokenizer, p, a) for a in ANSWERS] for p in PROMPTS]
    np.testing.assert_allclose(scores, wanted, atol=1e-5, rtol=1e-6)
    assert len(np.unique(scores)) == scores.size


def test_answers_do_not_follow_the_end_token_of_a_tokenizer() -> None:
    model, tokenizer = make_generator("llama"), make_tokenizer()
    prompts = [*PROMPTS, "", "Done.<|end|>"]
    plain = likelihood(model, tokenizer, prompts, ANSWERS)
    assert plain[-1] != pytest.approx(likelihood(model, tokenizer, ["Done."], ANSWERS)[0])
    ended = likelihood(model, make_tokenizer(appends_end=True), prompts, ANSWERS)
    np.testing.assert_array_equal(ended, plain)


def test_an_answer_that_joins_its_prompt_gets_no_blank_from_the_tokenizer() -> None:
    pieces = ["<unk>", "</s>", "▁", "▁the", "the", "▁yes", "yes", "re", "▁re", "ere", "e", "\n"]
    unigram = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=unigram, unk_token="<unk>", eos_token="</s>"
    )
    config = make_generator("llama").config
    for prompt, answer, number in (("the ", "yes", 6), ("the", "re", 7), ("the", " re", 8)):
        ((_, _, inputs),) = answer_batches(config, tokenizer, [prompt], [answer])
        assert inputs["candidates"].tolist() == [[[number]]]


def test_every_prompt_may_have_its_own_answers() -> None:
    model, tokenizer = make_generator("llama"), make_tokenizer()
    own = [[" yes", " longer answer"], [" no", "?"], ["!", " not"]]
    scores = likelihood(model, tokenizer, PROMPTS, own)
    with torch.inference_mode():
        wanted = [
            [plain(model, tokenizer, p, a) for a in row]
            for p, row in zip(PROMPTS, own, strict=True)
        ]
    np.testing.assert_allclose(scores, wanted, atol=1e-5, rtol=1e-6)


def test_single_tokens_decide_nothing_about_trees() -> None:
    scorer = AnswerScorer(make_generator("bloom"))
    inputs = {
        "input_ids": torch.tensor([[5, 6, 7]]),
        "attention_mask": torch.ones(1, 3, dtype=torch.long),
        "candidates": torch.tensor([[[8], [9]]]),
    }
    with torch.inference_mode():
        scorer(inputs)
        assert scorer._at_once is None
        scorer({**inputs, "candidates": torch.tensor([[[8, 9], [8, 10]]])})
    assert scorer._at_once is False


@pytest.mark.parametrize(("name", "at_once"), [("llama", True), ("gpt2", True), ("bloom", False)])
def test_a_tree_is_read_where_the_model_allows_it(name: str, at_once: bool) -> None:
    scorer = AnswerScorer(make_generator(name))
    inputs = {
        "input_ids": torch.tensor([[5, 6, 7]]),
        "attention_mask": torch.ones(1, 3, dtype=torch.long),
        "candidates": torch.tensor([[[8, 9, -1], [8, 10, 11]]]),
    }
    with torch.inference_mode():
        scorer(inputs)
    assert scorer._at_once == at_once


def test_a_tree_holds_shared_beginnings_once() -> None:
    tree = AnswerTree.of([[4, 5, 6], [4, 5, 7, 8], [9]])
    assert tree.tokens.tolist() == [4, 5, 7]
    assert tree.depths.tolist() == [0, 1, 2]
    assert tree.sees.int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert tree.source.tolist() == [[0, 1, 2, 0], [0, 1, 2, 3], [0, 0, 0, 0]]


def test_scores_may_be_means_over_tokens() -> None:
    model = make_generator("llama")
    inputs = {
        "input_ids": torch.tensor([[5, 6, 7]]),
        "attention_mask": torch.ones(1, 3, dtype=torch.long),
        "candidates": torch.tensor([[[8, -1, -1], [8, 10, 11]]]),
    }
    with torch.inference_mode():
        total, mean = (AnswerScorer(model, mean=mean)(inputs) for mean in (False, True))
    assert torch.allclose(total / torch.tensor([[1.0, 3.0]]), mean)


@pytest.mark.parametrize(
    ("prompts", "answers"), [([], [" a"]), (["a"], []), (["a", "b"], [["c"], ["d", "e"]])]
)
def test_missing_prompts_or_answers_are_refused(prompts: list[str], answers: Any) -> None:
    with pytest.raises(DataError, match="Give at least one prompt, and either one list"):
        likelihood(make_generator("llama"), make_tokenizer(), prompts, answers)


@pytest.mark.parametrize(
    ("prompts", "answers", "message"),
    [
        (None, [" a"], "prompts are lists of texts, not nothing"),
        (["a"], 3, "answers are lists of texts, not 3"),
        (["a"], [" a", [" b"]], "answers are lists of texts, not ' a'"),
        ([None], [" a"], "nothing is not a text"),
        ([7], [" a"], "7 is not a text"),
        (["a"], [[" a", None]], "nothing is not a text"),
        (["a"], [b" a"], "not a text"),
        (["\ud800"], [" a"], r"'\\ud800' is not a text of whole characters"),
        (["a"], [" a\udfff"], "is not a text of whole characters"),
    ],
)
def test_what_is_no_text_is_named(prompts: Any, answers: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        likelihood(make_generator("llama"), make_tokenizer(), prompts, answers)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [0, -1, 2.5, None])
def test_a_batch_has_a_row(size: Any) -> None:
    with pytest.raises(DataError, match=r"batch_size = .* is not a whole number from 1 on"):
        likelihood(make_generator("llama"), make_tokenizer(), ["a"], [" b"], batch_size=size)


@pytest.mark.parametrize(("prompt", "answer"), [("new", " a"), ("a", " new")])
def test_a_token_beyond_the_vocabulary_is_named(prompt: str, answer: str) -> None:
    model, tokenizer = make_generator("llama"), make_tokenizer()
    tokenizer.add_tokens(["new"])
    number, size = tokenizer.convert_tokens_to_ids("new"), model.config.vocab_size
    with pytest.raises(DataError, match=f"token {number} .* beyond the model's {size} tokens"):
        likelihood(model, tokenizer, [prompt], [answer])
    assert np.isfinite(likelihood(model, tokenizer, ["a"], [" b"])).all()


def test_an_empty_prompt_needs_a_token_that_begins_texts() -> None:
    tokenizer = make_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(DataError, match=r"^the tokenizer has no token for an empty prompt\."):
        likelihood(make_generator("llama"), tokenizer, [""], [" a"])


def test_an_answer_without_tokens_is_refused() -> None:
    with pytest.raises(DataError, match="the answer '' has no tokens"):
        likelihood(make_generator("llama"), make_tokenizer(), ["a"], ["", "b"])


def test_an_empty_prompt_stands_for_the_first_token() -> None:
    model, tokenizer = make_generator("llama"), make_tokenizer()
    with torch.inference_mode():
        first = model(input_ids=torch.tensor([[tokenizer.eos_token_id]])).logits[0, -1]
    (token,) = tokenizer(" yes")["input_ids"]
    scores = likelihood(model, tokenizer, ["", "b"], [" yes"])
    assert scores[0, 0] == pytest.approx(float(first.log_softmax(-1)[token]), abs=1e-5)


def test_what_exceeds_the_positions_is_refused() -> None:
    model, tokenizer = make_generator("gpt2"), make_tokenizer()
    assert np.isfinite(likelihood(model, tokenizer, ["a" * 126], ["bcd"])).all()
    with pytest.raises(DataError, match="127 tokens and an answer of 3 exceed the model's 128"):
        likelihood(model, tokenizer, ["a" * 127], ["bcd"])


def test_rows_that_fit_alone_are_not_refused_together() -> None:
    model, tokenizer = make_generator("gpt2"), make_tokenizer()
    prompts, answers = ["a" * 100, "b" * 99, "c"], [[" x", " y"], ["u", "v"], ["z" * 60, "w" * 60]]
    alone = likelihood(model, tokenizer, prompts, answers, batch_size=1)
    together = likelihood(model, tokenizer, prompts, answers)
    np.testing.assert_allclose(together, alone, atol=1e-5, rtol=1e-6)


def test_longer_rows_than_an_attention_window_are_read_as_by_a_plain_loop() -> None:
    model, tokenizer = make_generator("mistral"), make_tokenizer()
    scorer = AnswerScorer(model)
    answers = torch.tensor([[tokenizer(a)["input_ids"] for a in (" abc", " xyz")]])
    for prompt in ("a", "rather longer than before"):
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "candidates": answers}
        with torch.inference_mode():
            scores = scorer(inputs)[0]
            wanted = [plain(model, tokenizer, prompt, answer) for answer in (" abc", " xyz")]
        np.testing.assert_allclose(scores, wanted, atol=1e-5, rtol=1e-6)


def test_a_text_is_no_list_of_prompts_and_the_mode_of_the_model_is_kept() -> None:
    model, tokenizer = make_generator("gpt2").train(), make_tokenizer()
    with pytest.raises(DataError, match="prompts are lists of texts, not 'prompt'"):
        likelihood(model, tokenizer, "prompt", [" a"])
    first, second = (likelihood(model, tokenizer, PROMPTS, [" yes"]) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert model.training

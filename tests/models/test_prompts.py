"""Rows as prompts and answers in tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.checkpoints import CHAT, make_tokenizer
from tokenizers import AddedToken
from transformers import AutoTokenizer

from clbench.core.errors import DataError, ModelError
from clbench.models import prompts
from clbench.models.encoding import PromptRows
from clbench.models.prompts import PromptEncoder
from clbench.tasks.task import Rows, Task
from clbench.tasks.template import Template

FOREVER = "{{% for i in range(99999) %}}{{% for j in range(99999) %}}{}{{% endfor %}}{{% endfor %}}"
TEMPLATE = Template("{text}\nGood:", {"neg": "no", "pos": "yes"})


def task(rows: Rows, labels: tuple[str, ...] = ("neg", "pos"), **values: Any) -> Task:
    values = {"template": TEMPLATE, **values}
    return Task("t", labels, ("accuracy",), rows, rows, head="t", **values)


def rows_of(texts: list[str], labels: list[int]) -> Rows:
    return Rows.of(texts, None, labels)


def encoder(max_length: int = 60, **options: Any) -> PromptEncoder:
    tokenizer = make_tokenizer(chat=options.get("chat", False))
    return PromptEncoder(tokenizer, max_length, **options)


def text_of(ids: Any) -> str:
    return str(make_tokenizer().decode([i for i in ids if i >= 0]))


def test_a_training_row_ends_with_its_answer_of_which_the_last_token_is_only_predicted() -> None:
    rows = rows_of(["dull", "a {text}\nbright"], [0, 1])
    encoded = encoder().encode(task(rows), rows, to_train=True)
    inputs, labels = encoded.collate([1, 0], pad_id=0)
    ids = inputs["input_ids"]
    assert text_of(ids[0]).startswith("a {text}\nbright\nGood: yes")
    assert "<|end|>" not in text_of(ids[0])
    for row, answer in ((0, " yes<|end|>"), (1, " no<|end|>")):
        assert text_of(labels[row]) == answer
        at = inputs["predict"][row].tolist()
        # The token after each position is the one to predict, but for the end.
        assert ids[row, at[0] + 1] == labels[row, 0]
        assert text_of(ids[row, : at[0] + 1]).endswith("\nGood:")
        assert inputs["attention_mask"][row].sum() == at[-1] + 1
        assert ids[row, at[-1] + 1 :].eq(0).all()
    assert encoded.lengths.tolist() == inputs["attention_mask"].sum(1).tolist()[::-1]


def test_rows_to_score_have_prompts_and_candidates() -> None:
    rows = rows_of(["dull", "bright"], [0, 1])
    encoded = encoder().encode(task(rows), rows, to_train=False)
    inputs, labels = encoded.take([1]).collate([0], pad_id=0)
    assert text_of(inputs["input_ids"][0]).startswith("bright\nGood:")
    assert [text_of(answer) for answer in inputs["candidates"][0]] == [" no", " yes"]
    assert labels.tolist() == [1]
    assert encoded.names == (("no", "yes"),)
    assert encoded.notes == ()


@pytest.mark.parametrize("to_train", [False, True])
def test_prompts_can_list_the_answers(to_train: bool) -> None:
    rows = rows_of(["dull", "a {text} that is too long " * 9], [0, 1])
    braces = Template("{text}\nGood:", {"neg": "{no}", "pos": "yes"})
    typed = Template("Options: {{no}}, yes\n{text}\nGood:", braces.answers)
    listed = encoder(list_answers=True).encode(task(rows, template=braces), rows, to_train=to_train)
    expected = encoder().encode(task(rows, template=typed), rows, to_train=to_train)
    assert listed.ids.tolist() == expected.ids.tolist()
    assert listed.offsets.tolist() == expected.offsets.tolist()
    assert text_of(listed.ids).startswith("Options: {no}, yes\ndull\nGood:")
    for key in ("answers", "candidates"):
        one, other = getattr(listed, key), getattr(expected, key)
        assert (one is None and other is None) or one.tolist() == other.tolist()


def test_answers_that_make_the_list_unclear_are_noted() -> None:
    rows = rows_of(["dull"], [0])
    commas = task(rows, template=Template("{text}:", {"neg": "no, never", "pos": "yes"}))
    (note,) = encoder(list_answers=True).encode(commas, rows, to_train=False).notes
    assert note.endswith(": 1 answer with a comma or line break in their list.")
    assert encoder().encode(commas, rows, to_train=False).notes == ()


def test_a_list_that_leaves_no_room_is_named() -> None:
    rows = rows_of(["dull"], [0])
    long = task(rows, template=Template("{text}:", {"neg": "no " * 20, "pos": "yes " * 20}))
    with pytest.raises(DataError, match="Raise max_length, set list_answers = false, or lower"):
        encoder(list_answers=True).encode(long, rows, to_train=False)
    assert len(encoder().encode(long, rows, to_train=False)) == 1


@pytest.mark.parametrize("kind", ["choices", "numbers", "texts"])
def test_only_prompts_of_classes_list_answers(kind: str) -> None:
    none = np.zeros(1, np.int64), np.arange(1)
    rows, template, labels = {
        "choices": (Rows(["q"], None, *none, (["a"], ["b"])), {}, ("1", "2")),
        "numbers": (Rows.of(["q"], None, [1.0], regression=True), {"0": "0", "1": "1"}, ()),
        "texts": (Rows(["q"], None, *none, targets=["one"]), {}, ()),
    }[kind]
    other = task(rows, labels, template=Template("{text}:", template))
    listed = encoder(list_answers=True, max_answer=4).encode(other, rows, to_train=False)
    assert text_of(listed.ids) == "q:"


def test_multiple_choice_has_candidates_of_its_own() -> None:
    rows = Rows(["why", "when"], None, np.array([1, 0]), np.arange(2), (["a", "c"], ["bb", "d"]))
    choice = task(rows, ("1", "2"), template=Template("{text}?"))
    encoded = encoder().encode(choice, rows, to_train=False)
    inputs, _ = encoded.take([1, 0]).collate([1], pad_id=0)
    assert [text_of(answer) for answer in inputs["candidates"][0]] == [" a", " bb"]
    trained = encoder().encode(choice, rows, to_train=True)
    _, labels = trained.collate([0, 1], pad_id=0)
    assert [text_of(answer) for answer in labels] == [" bb<|end|>", " c<|end|>"]


def test_choices_that_begin_another_one_are_ranked_with_their_end() -> None:
    rows = Rows(["why"], None, np.array([0]), np.arange(1), (["cat"], ["cat food"]))
    choice = task(rows, ("1", "2"), template=Template("{text}?"))
    encoded = encoder().encode(choice, rows, to_train=False)
    inputs, _ = encoded.collate([0], pad_id=0)
    assert [text_of(answer) for answer in inputs["candidates"][0]] == [
        " cat<|end|>",
        " cat food<|end|>",
    ]
    assert "one answer is a prefix of another" in encoded.notes[0]


def test_a_prompt_does_not_end_with_an_end_token() -> None:
    rows = rows_of(["dull"], [0])
    encoded = PromptEncoder(make_tokenizer(appends_end=True), 60).encode(
        task(rows), rows, to_train=False
    )
    assert text_of(encoded.ids) == "dull\nGood:"


@pytest.mark.parametrize("to_train", [False, True])
def test_an_empty_prompt_is_the_token_that_begins_texts(to_train: bool) -> None:
    rows = rows_of(["", "dull"], [0, 1])
    bare = task(rows, template=Template("{text}", TEMPLATE.answers))
    encoded = encoder().encode(bare, rows, to_train=to_train)
    inputs, _ = encoded.collate([0, 1], pad_id=0)
    assert encoded.ids[0] == make_tokenizer().eos_token_id
    assert encoded.offsets.tolist() == [0, 1, 5]
    assert not to_train or inputs["predict"][:, 0].tolist() == [0, 3]


def test_regression_trains_the_nearest_of_numbers_and_scores_all() -> None:
    rows = Rows.of(["a", "b"], None, [1.6, 0.2], regression=True)
    template = Template("{text}:", {"0": "0", "1": "1", "2": "2"})
    number = task(rows, (), template=template)
    _, labels = encoder().encode(number, rows, to_train=True).collate([0, 1], pad_id=0)
    assert [text_of(answer) for answer in labels] == [" 2<|end|>", " 0<|end|>"]
    inputs, _ = encoder().encode(number, rows, to_train=False).collate([0], pad_id=0)
    assert inputs["values"].tolist() == [[0.0, 1.0, 2.0]]
    with pytest.raises(DataError, match="needs answers that are numbers"):
        encoder().encode(task(rows, (), template=Template("{text}:")), rows, to_train=False)


def test_texts_to_write_are_targets() -> None:
    rows = Rows(["a", "b"], None, np.zeros(2, np.int64), np.arange(2), targets=["one", "longer"])
    write = task(rows, (), template=Template("{text}:"))
    assert encoder(max_answer=4).encode(write, rows, to_train=False).targets == ("one", "longer")
    encoded = encoder(max_answer=4).encode(write, rows, to_train=True)
    _, labels = encoded.collate([0, 1], pad_id=0)
    assert [text_of(answer) for answer in labels] == [" one<|end|>", " lon<|end|>"]
    assert encoded.notes == ("task 't': 1 target cut to 4 tokens.",)


def test_a_long_prompt_loses_the_beginning_of_its_longest_text() -> None:
    rows = Rows.of(["0123456789" * 9, "short"], ["keep", "both"], [0, 1])
    pair = Template("{text} / {text2}\nGood:", TEMPLATE.answers, (None, None))
    encoded = encoder(max_length=30).encode(task(rows, template=pair), rows, to_train=True)
    prompt = text_of(encoded.ids[: encoded.offsets[1]])
    assert prompt.endswith("6789 / keep\nGood:")
    assert len(prompt) == 30 - 1  # tokens are bytes here, but the answer is one
    (note,) = encoded.notes
    assert note.startswith("task 't': 1 training prompt cut to 29 tokens by dropping the beginning")
    with pytest.raises(DataError, match="leave no room for a text in max_length = 8 tokens"):
        encoder(max_length=8).encode(task(rows, template=pair), rows, to_train=True)


def test_answers_that_begin_another_one_are_ranked_with_their_end() -> None:
    rows = rows_of(["a"], [0])
    names = Template("{text}:", {"neg": "gas", "pos": "gas type"})
    encoded = encoder().encode(task(rows, template=names), rows, to_train=False)
    inputs, _ = encoded.collate([0], pad_id=0)
    assert [text_of(answer) for answer in inputs["candidates"][0]] == [
        " gas<|end|>",
        " gas type<|end|>",
    ]
    assert "one answer is a prefix of another" in encoded.notes[0]


def test_shared_first_tokens_are_noted_and_equal_answers_refused() -> None:
    rows = rows_of(["a"], [0])
    names = Template("{text}:", {"neg": "gas", "pos": "oil"})
    encoded = encoder().encode(task(rows, template=names), rows, to_train=False)
    assert encoded.notes == ("task 't': 2 answers begin with 1 different tokens.",)  # the blank
    same = Template("{text}:", {"neg": "same", "pos": "same"})
    with pytest.raises(DataError, match="several classes have the answer 'same'"):
        encoder().encode(task(rows, template=same), rows, to_train=False)


def test_a_chat_model_gets_its_template() -> None:
    rows = rows_of(["dull"], [0])
    encoded = encoder(chat=True).encode(task(rows), rows, to_train=True)
    inputs, labels = encoded.collate([0], pad_id=0)
    text = text_of(inputs["input_ids"][0])
    assert text.startswith("<user>\ndull\nGood:\n<assistant>\nno")
    assert text_of(labels[0]) == "no<|end|>"
    with pytest.raises(ModelError, match=r"no chat template\. Set chat = false"):
        PromptEncoder(make_tokenizer(), 60, chat=True)


@pytest.mark.parametrize("text", ["dull", "dull " * 20, "dull <|end|> " * 9])
@pytest.mark.parametrize(
    ("turn", "special", "assistant", "answer"),
    [
        ("<|a|>", True, "{{ raise_exception('no') }}", "no"),
        ("<|a|>", False, "<b>", "no"),
        ("A:", True, "<b>", " no"),
        ("A:\n", True, "A:\n<b>", "no"),
        ("A:\n", True, "A:\n", "no"),
        ("A:", True, "A:", "no"),
        ("<|a|>", True, "<|a|>", "no"),
        ("<|a|>", True, "<|a|> ", " no"),
        ("<|a|>", True, "<|a|>\n", "\nno"),
    ],
)
def test_an_answer_follows_a_turn_as_in_chats_else_without_a_blank_behind_its_token(
    turn: str, special: bool, assistant: str, answer: str, text: str
) -> None:
    tokenizer, rows = make_tokenizer(), rows_of([text], [0])
    tokenizer.add_tokens([AddedToken("<|a|>", special=special, normalized=False)])
    ends = f"{{% if m.role == 'assistant' %}}{assistant}{{% endif %}}{{{{ m.content }}}}"
    prompt = f"{{% if add_generation_prompt %}}{turn}{{% endif %}}"
    tokenizer.chat_template = f"{{% for m in messages %}}{ends}{{% endfor %}}{prompt}"
    chats = PromptEncoder(tokenizer, 60, chat=True)
    encoded = chats.encode(task(rows), rows, to_train=False)
    tokens = encoded.candidates[0, 0]
    assert text_of(tokens) == answer.strip("\n")  # as written answers end at a line break
    assert chats.dress([text])[0].endswith(turn + "\n" * answer.startswith("\n"))
    assert tokenizer.decode([*encoded.ids, *tokens[tokens >= 0]]).endswith(turn + answer)


def test_an_encoder_decoder_reads_the_prompt_and_writes_the_answer() -> None:
    rows = rows_of(["dull", "bright"], [0, 1])
    encoded = encoder(encoder_decoder=True).encode(task(rows), rows, to_train=True)
    assert isinstance(encoded, PromptRows)
    inputs, labels = encoded.collate([0, 1], pad_id=0)
    assert [text_of(answer) for answer in labels] == ["no<|end|>", "yes<|end|>"]
    assert inputs["decoder_input_ids"][:, 0].tolist() == [-1, -1]
    assert inputs["decoder_input_ids"][:, 1:].tolist() == labels[:, :-1].clamp(min=0).tolist()
    assert text_of(inputs["input_ids"][1]).startswith("bright\nGood:")


@pytest.mark.parametrize("chat", [False, True])
def test_special_tokens_in_a_text_are_read_as_characters(chat: bool) -> None:
    text = "so <|end|> it ends " * 6
    rows = rows_of(["dull", text], [0, 1])
    for room in (200, 80):
        encoded = encoder(room, chat=chat).encode(task(rows), rows, to_train=False)
        (ids,) = encoded.take([1]).collate([0], pad_id=0)[0]["input_ids"].tolist()
        assert make_tokenizer().eos_token_id not in ids
        assert "<|end|> it ends" in text_of(ids)
        assert text_of(ids).endswith("Good:\n<assistant>\n" if chat else "Good:")
        assert encoded.notes[0] == "task 't': 1 scored row with special tokens, read as plain text."


def test_special_tokens_without_a_role_are_characters_too() -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken("<|turn|>", special=True, normalized=False)])
    rows = rows_of(["so <|turn|>"], [0])
    encoded = PromptEncoder(tokenizer, 60).encode(task(rows), rows, to_train=False)
    assert text_of(encoded.ids) == "so <|turn|>\nGood:"  # of the tokens of bytes
    assert encoded.notes == ("task 't': 1 scored row with special tokens, read as plain text.",)


def test_special_tokens_in_an_answer_are_characters_too() -> None:
    rows = Rows(["a"], None, np.zeros(1, np.int64), np.arange(1), targets=["<|end|>hi"])
    write = task(rows, (), template=Template("{text}:"))
    _, labels = encoder(max_answer=30).encode(write, rows, to_train=True).collate([0], pad_id=0)
    end = make_tokenizer().eos_token_id
    assert labels[0].tolist().count(end) == 1
    assert text_of(labels[0]) == " <|end|>hi<|end|>"


def test_choices_lose_the_blanks_around_them_and_equal_ones_are_noted() -> None:
    rows = Rows(["why"], None, np.array([1]), np.arange(1), ([" cat "], ["cat"]))
    choice = task(rows, ("1", "2"), template=Template("{text}?"))
    encoded = encoder().encode(choice, rows, to_train=False)
    assert encoded.names == (("cat", "cat"),)
    (note,) = encoded.notes  # not that one is the beginning of the other
    assert note == "task 't': 1 row with equal choices, of which the first is taken."


@pytest.mark.parametrize("to_train", [True, False])
def test_locked_rows_cannot_be_written_to(to_train: bool) -> None:
    encoded = encoder().encode(
        task(rows_of(["a", "b"], [0, 1])), rows_of(["a", "b"], [0, 1]), to_train=to_train
    )
    locked = encoded.lock()
    arrays = {n: v for n, v in vars(locked).items() if isinstance(v, np.ndarray)}
    assert ("answers" if to_train else "candidates") in arrays
    for name, array in arrays.items():
        assert not array.flags.writeable
        assert np.array_equal(array, getattr(encoded, name))


def test_a_text_that_a_prompt_names_twice_is_cut_in_both_places() -> None:
    rows = rows_of(["0123456789" * 9], [0])
    twice = task(rows, template=Template("{text} Again: {text}:", {"neg": "no", "pos": "yes"}))
    (ids,) = encoder().encode(twice, rows, to_train=False).collate([0], pad_id=0)[0]["input_ids"]
    first, second = text_of(ids).removesuffix(":").split(" Again: ")
    assert first == second
    assert ("0123456789" * 9).endswith(first)
    assert 50 <= len(ids) <= 60


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no') }}", "the chat template fails: TemplateError: no"),
        ("{% for", "the chat template fails: "),
        ("<user>", "contains the user's message 0 times instead of once"),
        ("{{ 1 / 0 }}", "fails: ZeroDivisionError: division by zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "fails: RecursionError"),
        (FOREVER.format(""), "fails: it takes more than 3 seconds"),
        (FOREVER.format("{{ 'x' * 10 ** 8 }}"), "fails: (MemoryError|it takes|it crashes)"),
        ("{{ 'x' * 10 ** 12 }}", "fails: (MemoryError|OverflowError)"),
        ("{{ 'x' * 10 ** 6 }}{{ messages[0].content }}", "adds more than 100,000 characters"),
        ("{{ 10 ** (10 ** 10) }}", "fails: (it takes|it crashes|MemoryError)"),
    ],
)
def test_a_chat_template_that_cannot_be_used_is_refused(
    template: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "SECONDS", 3.0)
    tokenizer = make_tokenizer(chat=True)
    tokenizer.chat_template = template
    with pytest.raises(ModelError, match=message) as caught:
        PromptEncoder(tokenizer, 60, chat=True)
    assert "\n" not in str(caught.value)


def test_prompts_are_the_same_every_day_and_every_time() -> None:
    tokenizer = make_tokenizer(chat=True)
    tokenizer.chat_template = '{{ strftime_now("%d %b %Y") }} {{ range(10**4) | random }} ' + CHAT
    rows = rows_of(["bright", "dull"], [1, 0])
    one, two = (
        PromptEncoder(tokenizer, 60, chat=True).encode(task(rows), rows, to_train=True)
        for _ in range(2)
    )
    assert one.ids.tolist() == two.ids.tolist()
    assert tokenizer.decode(one.ids[:11]) == "26 Jul 2024"


def test_a_chat_template_is_judged_by_the_rows_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "SECONDS", 3.0)
    saved = make_tokenizer(chat=True)
    ends = f"{{% if 'dull' in messages[0].content %}}{FOREVER.format('')}{{% endif %}}"
    saved.chat_template = f"{ends}{CHAT}"
    saved.save_pretrained(tmp_path)
    one = PromptEncoder(AutoTokenizer.from_pretrained(tmp_path), 60, chat=True)
    rows = rows_of(["bright", "dull"], [1, 0])
    assert len(one.encode(task(rows), rows.take([0]), to_train=True)) == 1
    with pytest.raises(
        ModelError, match=r"chat_template\.jinja fails: it takes more than 3 second"
    ):
        one.encode(task(rows), rows, to_train=True)


@pytest.mark.parametrize("content", ["content", "content | trim"])
def test_a_cut_prompt_is_dressed_as_the_template_does(content: str) -> None:
    tokenizer = make_tokenizer(chat=True)
    tokenizer.chat_template = CHAT.replace("content", content)
    one = PromptEncoder(tokenizer, 60, chat=True)
    rows = rows_of(["word " * 30], [0])
    blank = task(rows, template=Template("{text} good? ", {"neg": "no", "pos": "yes"}))
    (ids,) = one.encode(blank, rows, to_train=False).collate([0], pad_id=0)[0]["input_ids"]
    text = text_of(ids)
    message = text.removeprefix("<user>\n").removesuffix("\n<assistant>\n")
    turns = [{"role": "user", "content": message}]
    again = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text == again
    assert message.endswith("good? " if content == "content" else "good?")
    assert 50 <= len(ids) <= 60

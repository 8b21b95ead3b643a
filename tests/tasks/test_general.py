"""Tables of general tasks: what is asked, and what counts as right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.general_rows import write_hub

from clbench.core.errors import DataError
from clbench.tasks.general import GENERAL, at_hand

TWO = "What is 2 + 2?\nA. 1\nB. 4\nC. 7\nD. 9\nAnswer: B"
THREE = "What is 3 + 3?\nA. 1\nB. 6\nC. 7\nD. 9\nAnswer: B"
ABOUT = "The following are multiple choice questions (with answers) about"
PROMPTS = {
    "mmlu": f"{ABOUT} elementary mathematics.\n\n{TWO}\n\n{THREE}\n\n"
    "What is 4 + 4?\nA. 3\nB. 5\nC. 8\nD. 9\nAnswer:",
    "mmlu-cloze": "Question: What is 4 + 4?\nAnswer:",
    "arc-easy": "Question: Where do fish live?\nAnswer:",
    "arc-challenge": "Question: Which is warm?\nAnswer:",
    "truthfulqa": "Q: Can pigs fly?\nA:",
    "hellaswag": "Baking: A woman opens an oven.. Step one The woman",
    "copa": "The man fell because",
    "multirc": "Ann has a dog.\nQuestion: Who has a dog?\nAnswer: Ann\nIs the answer correct?",
    "ifeval": "Say hello without commas.",
}
CHOICES = {
    "mmlu": (("A", "B", "C", "D"), "C"),
    "mmlu-cloze": (("3", "5", "8", "9"), "8"),
    "arc-easy": (("in trees", "in water", "in sand"), "in water"),
    "arc-challenge": (("ice", "snow", "fire", "frost"), "fire"),
    "truthfulqa": (("No.", "Yes, by night."), "No."),
    "hellaswag": (
        ("takes out a cake.", "swims.", "is a lake.", "flies away."),
        "takes out a cake.",
    ),
    "winogrande": (("cup", "table"), "table"),
    "copa": (("he slipped.", "he sang."), "he slipped."),
    "multirc": (("no", "yes"), "yes"),
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hub(tmp_path_factory.mktemp("hub"))


@pytest.mark.parametrize("name", PROMPTS)
def test_a_row_is_asked_in_the_published_prompt(name: str, hub: Path) -> None:
    (question,) = GENERAL[name].questions(hub, 10, 0)
    assert question.prompts[0] == (PROMPTS[name],)


@pytest.mark.parametrize("name", CHOICES)
def test_the_choices_of_a_row_and_the_right_one(name: str, hub: Path) -> None:
    (question,) = GENERAL[name].questions(hub, 10, 0)
    assert (question.choices, question.target) == CHOICES[name]
    assert question.choices[question.right] == question.target
    if name != "winogrande":
        assert question.answers == tuple(f" {choice}" for choice in question.choices)


def test_choices_inside_a_sentence_have_a_prompt_each_and_one_ending(hub: Path) -> None:
    (question,) = GENERAL["winogrande"].questions(hub, 10, 0)
    start = "The cup fell off the table because the "
    assert question.prompts[0] == (f"{start}cup", f"{start}table")
    assert question.answers == (" was shaken.",)


def test_solved_rows_of_the_same_split_are_not_asked(hub: Path) -> None:
    questions = GENERAL["bbh"].questions(hub, 20, 0)
    assert len(questions) == 20  # two of each of ten configurations, behind three solved ones
    (one,) = [each for each in questions if each.text == "Q: navigate number 4\nA:"]
    solved = "".join(f"Q: navigate number {n}\nA: No\n\n" for n in range(3))
    assert one.prompts[0] == (f"{solved}Q: navigate number 4\nA:",)
    assert (one.choices, one.target) == (("Yes", "No"), "No")
    assert not {f"Q: navigate number {n}\nA:" for n in range(3)} & {q.text for q in questions}


def test_written_answers_count_by_their_last_number_and_their_form(hub: Path) -> None:
    task = GENERAL["gsm8k"]
    (question,) = task.questions(hub, 10, 0)
    assert question.target == "1000"
    assert question.prompts[0][0].startswith("Question: What is 0 + 1?\nAnswer: 0 + 1 = <<0+1=1>>1")
    for text, hit, form in (
        (" 999 + 1 = 1,000.\n#### 1,000\n\n", True, True),
        (" It is $1000.", True, False),
        (" 1000 and 1 more is 1001\n#### 1001", False, True),
        (" no idea", False, False),
    ):
        assert task.grade(question, text)[:2] == (hit, form), text


@pytest.mark.parametrize(
    ("name", "text", "hit", "form"),
    [
        ("bbh-counting", " 6", True, True),
        ("bbh-counting", " There are 6 of them", True, False),
        ("bbh-counting", " 16", False, True),
    ],
)
def test_short_answers_have_a_form(name: str, text: str, hit: bool, form: bool, hub: Path) -> None:
    task = GENERAL[name]
    questions = task.questions(hub, 20, 0)
    (question,) = {q.target: q for q in questions if q.target == "6"}.values()
    assert task.grade(question, text)[:2] == (hit, form)


def test_more_questions_begin_with_the_fewer_ones(tmp_path: Path) -> None:
    write_hub(tmp_path, "bbh", times=20)
    few, many = (GENERAL["bbh-counting"].questions(tmp_path, count, 3) for count in (10, 30))
    for config in ("multistep_arithmetic_two", "object_counting"):
        one, two = ([q.text for q in part if q.row["config"] == config] for part in (few, many))
        assert two[: len(one)] == one
        assert len(two) == 15


def test_every_table_is_pinned_and_has_three_wordings() -> None:
    for task in GENERAL.values():
        assert re.fullmatch("[0-9a-f]{40}", task.revision), task.name
        assert task.licence, task.name
        assert len({*task.prompts}) == 3, task.name
        assert bool(task.choices) != bool(task.length), task.name


def test_a_changed_copy_is_refused_in_one_line(tmp_path: Path) -> None:
    write_hub(tmp_path, "super_glue")
    file = tmp_path / "super_glue" / "boolq" / "validation.jsonl"
    file.write_text(file.read_text().replace("passage", "text"))
    with pytest.raises(DataError, match=r"'boolq'.*'passage' is undefined.*unchanged copy"):
        GENERAL["boolq"].questions(tmp_path, 5, 0)
    file = tmp_path / "super_glue" / "copa" / "validation.jsonl"
    file.write_text(file.read_text().replace('"label": 0', '"label": 2'))
    with pytest.raises(DataError, match=r"'copa'.*no choice 2 of 2"):
        GENERAL["copa"].questions(tmp_path, 5, 0)


def test_without_copies_and_hub_nothing_is_at_hand(tmp_path: Path) -> None:
    assert not at_hand(None)
    assert not at_hand(tmp_path)
    assert at_hand(write_hub(tmp_path, "hellaswag"))


@pytest.mark.real
def test_real_rows_are_read(real_data: Path) -> None:
    for name in ("mmlu", "mmlu-cloze", "bbh", "boolq", "multirc", "copa", "gsm8k", "ifeval"):
        questions = GENERAL[name].questions(real_data, 40, 0)
        assert len({q.prompts[0] for q in questions}) >= 39, name

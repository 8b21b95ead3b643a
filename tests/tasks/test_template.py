"""Templates: prompts and answers of tasks for language models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clbench.core.errors import DataError
from clbench.tasks.registry import TASKS, load_task
from clbench.tasks.spec import FileTaskSpec
from clbench.tasks.template import Template


def test_texts_are_put_in_as_they_are() -> None:
    template = Template("{{a}} {premise} | {text2}", columns=("premise", None))
    odd = ["{text} {0} {{x}} %s \\n ä\n", "{premise}"]
    assert template.render(odd) == f"{{a}} {odd[0]} | {{premise}}"


@pytest.mark.parametrize("columns", [("text2", "text"), ("text", "text2")])
def test_columns_with_the_names_of_fields_are_meant_by_them(columns: tuple[str, str]) -> None:
    assert Template("{text2} {text}", columns=columns).render(columns) == "text2 text"
    choices = ("question", "choice2", "choice1")
    assert Template("{choice1} {choice2}", columns=choices).render(choices) == "choice1 choice2"


def test_an_answer_is_the_class_in_words_unless_given() -> None:
    template = Template("{text}", {"pos": "good"})
    assert template.answer("pos") == "good"
    assert template.answer("freeze_account") == "freeze account"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("Sentiment:", r"has no field\. Use \{text\}"),
        ("{txt}", r"there is no field \{txt\}\. Use \{text\}"),
        ("{text!r}", r"fields have no format\. Write \{text\} alone"),
        ("{text:>5}", r"fields have no format"),
        ("{text} {", "Write {{ and }} for braces"),
    ],
)
def test_a_wrong_prompt_is_refused(prompt: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Template(prompt)


@pytest.mark.parametrize("name", list(TASKS))
def test_every_task_of_clbench_has_a_template_of_its_own(name: str) -> None:
    loader: Any = TASKS.get(name)
    template = loader.template()
    assert template.prompt not in {Template.default(pair).prompt for pair in (False, True)}
    answers = list(template.answers.values())
    assert len(set(answers)) == len(answers)
    if getattr(loader, "classes", 0) > 1 and answers:
        assert len(answers) == loader.classes


def spec(**values: Any) -> FileTaskSpec:
    return FileTaskSpec(**{"train": "a.csv", "validation": "b.csv", "text": "text", **values})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"label": "y", "labels": ["a", "b"], "answers": ["x"] * 3}, "2 classes, but 3 answers"),
        ({"label": "y", "labels": ["a", "b"], "answers": {"c": "x"}}, "there is no class 'c'"),
        ({"label": "y", "prompt": "{tex}"}, r"there is no field \{tex\}"),
        ({"target": "y", "label": "z"}, "a task with a target has no classes; remove label"),
        ({"target": "y", "answers": ["a", "b"]}, "answers are those of classes"),
        ({"label": "y", "regression": True, "answers": {"a": "0", "b": "5"}}, "a list of numbers"),
        ({"label": "y", "answers": ["a ", "b"]}, "one line of text, without blanks"),
    ],
)
def test_wrong_settings_of_a_task_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec(**values)


def test_a_task_in_files_has_prompt_answers_and_targets(tmp_path: Path) -> None:
    lines = "q,a,y,t\nIs it?,x,no,write this\nIs that?,z,yes,or that\n"
    for name in ("train.csv", "dev.csv"):
        (tmp_path / name).write_text(lines)
    files = {"train": "train.csv", "validation": "dev.csv", "text": ["q", "a"]}
    own = {
        "choose": FileTaskSpec(**files, label="y", prompt="{q} {a}:", answers=["nein", "ja"]),
        "write": FileTaskSpec(**files, target="t", prompt="{q}", metrics=["exact"]),
    }
    choose, write = (load_task(name, data=None, base=tmp_path, own=own) for name in own)
    assert choose.template is not None
    assert choose.template.render(["Is it?", "x"]) == "Is it? x:"
    assert [choose.template.answer(label) for label in choose.labels] == ["nein", "ja"]
    assert write.free_text
    assert not write.regression
    assert write.train.targets == ["write this", "or that"]
    assert write.train.take([1]).targets == ["or that"]
    assert write.limited(1).train.targets in (["write this"], ["or that"])
    with pytest.raises(DataError, match="'accuracy' is not a metric of texts"):
        load_task(
            "w",
            data=None,
            base=tmp_path,
            own={"w": FileTaskSpec(**files, target="t", metrics=["accuracy"])},
        )

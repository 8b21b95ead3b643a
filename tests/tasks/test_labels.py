from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clbench.errors import DataError
from clbench.tasks.files import FileTaskSpec
from clbench.tasks.load import load_task
from clbench.tasks.task import Task


def load(folder: Path, train: str, dev: str, file: str = "t.csv", **changes: Any) -> Task:
    (folder / file).write_text(train, encoding="utf-8")
    (folder / "dev.csv").write_text(dev, encoding="utf-8")
    keys: dict[str, Any] = {"train": file, "validation": "dev.csv", "text": "text", **changes}
    own = {"mine": FileTaskSpec(label="label", **keys)}
    return load_task("mine", data=None, base=folder, own=own)


def csv(*labels: str) -> str:
    return "text,label\n" + "".join(f"some words,{label}\n" for label in labels)


def lines(*labels: Any) -> str:
    return "".join(json.dumps({"text": "some words", "label": label}) + "\n" for label in labels)


def fault(*arguments: Any, **changes: Any) -> str:
    with pytest.raises(DataError) as caught:
        load(*arguments, **changes)
    return str(caught.value)


def test_a_training_file_of_one_class_is_told_of_itself(tmp_path: Path) -> None:
    assert fault(tmp_path, csv("1", "1"), csv("0", "1")) == (
        "task 'mine', train = 't.csv': every label in column 'label' is '1'. Use a file with rows "
        "of at least two classes."
    )


def test_one_number_written_in_two_ways(tmp_path: Path) -> None:
    assert fault(tmp_path, csv("1", "0", "1.0"), csv("0")) == (
        "task 'mine', train = 't.csv': column 'label' (key 'label') has '1' on line 2 and '1.0' on "
        "line 4, two ways to write one number. Write it one way, or list both in `labels` if they "
        "are two classes."
    )
    assert fault(tmp_path, csv("1", "0"), csv("1", "0.0")) == (
        "task 'mine', validation = 'dev.csv': label '0.0' on line 3 is written '0' in the training "
        "file. Write it the same way in both."
    )
    assert "label '1' on line 2 is written '01' in `labels`." in fault(
        tmp_path, csv("1", "2"), csv("1"), labels=["01", "02"]
    )
    as_listed = load(tmp_path, csv("1", "1.0"), csv("1"), labels=["1", "1.0"])
    assert as_listed.train.labels.tolist() == [0, 1]


def test_blanks_around_a_label_and_whole_floats_of_a_typed_file_count_for_nothing(
    tmp_path: Path,
) -> None:
    loaded = load(tmp_path, lines(0, 1.0, 1), csv(" 1", "0 "), "t.jsonl")
    assert loaded.train.labels.tolist() == [0, 1, 1]
    assert loaded.validation.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ((1, 0, "1"), "holds 1 (a number) on line 1 and '1' (a text) on line 3"),
        ((True, 1), "holds true (a truth value) on line 1 and 1 (a number) on line 2"),
        (("no", False), "holds 'no' (a text) on line 1 and false (a truth value) on line 2"),
    ],
)
def test_labels_of_two_types_are_not_merged(
    tmp_path: Path, labels: tuple[Any, ...], told: str
) -> None:
    assert fault(tmp_path, lines(*labels), csv("1"), "t.jsonl") == (
        f"task 'mine', train = 't.jsonl': column 'label' (key 'label') {told}. Write all labels in "
        "one way."
    )


def test_a_truth_value_is_no_target(tmp_path: Path) -> None:
    assert fault(tmp_path, lines(True, False), csv("1"), "t.jsonl", regression=True) == (
        "task 'mine', train = 't.jsonl': true in column 'label' on line 1 is no finite number, as "
        "regression = true needs."
    )


@pytest.mark.parametrize(
    ("file", "separator", "remedy"),
    [
        ("t.csv", ";", 'Set separator = ";".'),
        ("t.csv", "|", 'Set separator = "|".'),
        ("t.csv", "\t", 'Set format = "tsv".'),
        ("t.tsv", ",", 'Set format = "csv".'),
    ],
)
def test_another_separator_is_seen(tmp_path: Path, file: str, separator: str, remedy: str) -> None:
    here = "," if file == "t.csv" else "\t"
    train = csv("1", "0").replace(",", separator)
    assert fault(tmp_path, train, csv("1"), file) == (
        f"task 'mine', train = {file!r}: its fields seem to be separated by {separator!r}, not "
        f"{here!r}. {remedy}"
    )
    dev = csv("1").replace(",", separator)
    given = load(tmp_path, train, dev, file, separator=separator)
    assert given.train.labels.tolist() == [1, 0]


def test_a_file_without_a_header(tmp_path: Path) -> None:
    train = "good film indeed,1\nbad film,0\n"
    assert fault(tmp_path, train, csv("1")) == (
        "task 'mine', train = 't.csv': there is no column 'text' (key 'text'). Available: 1, good "
        "film indeed. Its first line must name the columns."
    )


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to("gone.csv")
    assert fault(tmp_path, csv("0", "1"), csv("1"), validation="link.csv") == (
        f"task 'mine', validation = 'link.csv': {tmp_path}/link.csv is a link to gone.csv, which "
        "does not exist. Mend the link."
    )

"""Rows of tables, and tables in files."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from clbench.core.errors import DataError
from clbench.tasks.registry import load_task, task_identity
from clbench.tasks.spec import FileTaskSpec
from clbench.tasks.tables import Table, check_columns
from clbench.tasks.task import Task


def columns(*labels: Any, texts: list[Any] | None = None, **keys: Any) -> Table:
    keys = {"train": "t.csv", "validation_fraction": 0.5, "text": "text", **keys}
    spec = FileTaskSpec(label="label", **keys)
    texts = texts or [f"text {i}" for i in range(len(labels))]
    return Table("here", spec, {"text": texts, "label": labels})


def error(table: Table) -> str:
    with pytest.raises(DataError) as caught:
        table.rows([] if table.spec.regression else table.classes())
    assert str(caught.value).startswith("here: ")
    return str(caught.value)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ((10, 9, 10), ["9", "10"]),
        (("10", "9"), ["9", "10"]),
        ((10.0, 9.0), ["9", "10"]),
        (("b", "a"), ["a", "b"]),
        ((True, False), ["false", "true"]),
        ((-1, 0, 1), ["-1", "0", "1"]),
        (("NA", "null"), ["NA", "null"]),
        (("nan", "inf", "nan"), ["inf", "nan"]),
        ((" 1", "0 ", "1"), ["0", "1"]),
        (("1_0", "9", "10"), ["10", "1_0", "9"]),  # Python's int() reads 1_0 as 10
        (("caf\u00e9", "cafe\u0301", "a"), ["a", "caf\u00e9"]),
        (("a", "A"), ["A", "a"]),
    ],
)
def test_classes_are_the_labels_that_occur_in_order(labels: Any, names: list[str]) -> None:
    table = columns(*labels)
    assert table.classes() == names
    assert set(table.rows(names).labels.tolist()) == set(range(len(names)))


def test_whole_numbers_are_names_or_positions() -> None:
    table = columns(1, 0, 1, labels=["1", "0"])
    assert table.rows(table.classes()).labels.tolist() == [0, 1, 0]
    coded = replace(table, names=["no", "yes"])
    assert coded.classes() == ["no", "yes"]
    assert coded.rows(coded.classes()).labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            columns("1", "0", "1.0"),
            "column 'label' (key 'label') has '1' on row 0 (counted from 0) and '1.0' on row 2 "
            "(counted from 0). "
            "Write each number in one way, or list the classes in `labels`.",
        ),
        (columns("1", "1"), "has the label '1' on every row. A task needs at least two classes"),
        (columns(-1, -1), "classes. Unlabelled test splits have -1; name another split."),
        (columns(*(i / 7 for i in range(30))), "30 different values in 30 rows, too many for"),
        (
            columns("x", None, "y"),
            "column 'label' is empty in 1 of 3 rows, first on row 1",
        ),
        (columns("x", "y", texts=["a", "  "]), "column 'text' is empty in 1 of 2 rows"),
        (columns("x", "y", texts=["a", 7]), "column 'text' has 7, a whole number, on row 1 (count"),
        (columns("x", ["y"]), "column 'label' has ['y'], a list, on row 1"),
        (
            columns("ham", "spma", labels=["ham", "spam"]),
            "label 'spma' on row 1 (counted from 0) is not among `labels`. Did you mean 'spam'",
        ),
        (columns("1", "x", regression=True), "'x' in column 'label' on row 1 (counted from 0) is"),
        (columns("1", "1_0", regression=True), "'1_0' in column 'label' on row 1 (counted from 0)"),
        (columns("1", "inf", regression=True), "on row 1 (counted from 0) is not a number up to"),
        (columns(True, False, regression=True), "true in column 'label' on row 0 (counted from 0)"),
        (columns("1", "-1e308", regression=True), "'-1e308' in column 'label' on row 1"),
        (
            columns("1", "1e39", regression=True),
            "'1e39' in column 'label' on row 1 (counted from 0) is not a number up to 1e38",
        ),
        (columns("a", "b", texts=[" ", ""], skip_blank=True), "no row has a text"),
        (columns("a", "a", "b", texts=["x", " ", "z"]), "leave them out with skip_blank = true"),
    ],
)
def test_unusable_cells_are_named_with_their_row(table: Table, message: str) -> None:
    assert message in error(table)


def test_a_missing_column_is_named_with_those_that_exist() -> None:
    with pytest.raises(DataError, match=r"here: there is no column 'text'. Did you mean 'txt'\?"):
        check_columns(["text"], ["txt", "label"], "here")
    with pytest.raises(DataError, match="2 columns are called 'text'"):
        check_columns(["text"], ["text", "text"], "here")


def test_rows_without_a_text_can_be_skipped_and_are_counted() -> None:
    table = columns("a", None, "c", "b", texts=["x", " ", None, "z"], skip_blank=True)
    assert table.classes() == ["a", "b"]
    rows = table.rows(["a", "b"])
    assert list(rows.first) == ["x", "z"]
    assert rows.index.tolist() == [0, 3]
    assert table.blank == 2
    table = columns("a", "b", "7", texts=["x", " ", "z"], skip_blank=True, labels=["a", "b"])
    assert "label '7' on row 2 (counted from 0)" in error(table)


def test_a_column_that_occurs_twice_is_named() -> None:
    with pytest.raises(DataError, match=r"^here: 2 columns are called 'a'\. Rename one\.$"):
        check_columns(["a"], ["a", "b", "a"], "here")


FRAME = pd.DataFrame(
    {
        "subject": ["Hi", 'a "quoted" one', "tab or, comma", "ünïcode\u2028text"],
        "body": ["NA", "two\nlines", "null", "z"],
        "kind": ["spam", "ham", "spam", "eggs"],
        "stars": [1, 5, 1, 3],
    }
)


def write(frame: pd.DataFrame, path: Path) -> None:
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True, force_ascii=False)
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Task]:
    """Load a task of `content` as `file`; its validation rows are the same by default."""

    def loaded(content: Any, file: str = "t.csv", **changes: Any) -> Task:
        path = tmp_path / file
        for target in (path, path.with_stem("v")):
            if isinstance(content, pd.DataFrame):
                write(content, target)
            else:
                target.write_bytes(content if isinstance(content, bytes) else content.encode())
        keys: dict[str, Any] = {"train": file, "text": "text", "label": "label", **changes}
        if "validation_fraction" not in keys:
            keys.setdefault("validation", path.with_stem("v").name)
        own = {"mine": FileTaskSpec(**keys)}
        task_identity("mine", data=None, base=tmp_path, own=own)
        return load_task("mine", data=None, base=tmp_path, own=own)

    return loaded


@pytest.mark.parametrize("file", ["t.csv", "t.jsonl", "t.parquet"])
def test_every_format_gives_the_same_rows(load: Callable[..., Task], file: str) -> None:
    task = load(FRAME, file, text=["subject", "body"], label="kind")
    assert task.labels == ("eggs", "ham", "spam")
    assert task.metrics == ("accuracy",)
    assert task.name == task.head == "mine"
    for rows in (task.train, task.validation):
        assert list(rows.first) == FRAME["subject"].tolist()
        assert list(rows.second or ()) == FRAME["body"].tolist()
        assert rows.labels.tolist() == [2, 1, 2, 0]
        assert rows.labels.dtype == np.int64
        assert rows.index.tolist() == [0, 1, 2, 3]


def test_tsv_as_pandas_writes_it(load: Callable[..., Task]) -> None:
    task = load(FRAME.drop(columns="body"), "t.tsv", text="subject", label="stars")
    assert list(task.train.first) == FRAME["subject"].tolist()
    assert task.labels == ("1", "3", "5")


def test_tsv_with_plain_quotes(load: Callable[..., Task]) -> None:
    content = 'text\tlabel\n"half a quote\ta\n5" long\tb\n'
    assert list(load(content, "t.tsv", quotes=False).train.first) == ['"half a quote', '5" long']
    for broken in (content + "c\ta\n", 'text\tlabel\n"half\ta\nother"\tb\nc\ta\n'):
        with pytest.raises(DataError, match=r"spans several lines.* Set quotes = false"):
            load(broken, "t.tsv")


@pytest.mark.parametrize("text", [["a", "b"], [["a", "b"]]])
def test_a_quote_in_a_later_column_of_tsv_is_refused(load: Callable[..., Task], text: Any) -> None:
    content = 'a\tb\tlabel\none\t"two\t1\nthree\tfour\t0\nfive\tsix" x\t0\nseven\teight\t1\n'
    with pytest.raises(DataError, match="spans several lines"):
        load(content, "t.tsv", text=text)


def test_another_separator(load: Callable[..., Task]) -> None:
    content = "text;label\na, b;x\nc;y\n"
    assert list(load(content, separator=";").train.first) == ["a, b", "c"]
    with pytest.raises(DataError, match="no column 'text'"):
        load(content.replace(",", ""))


def test_typed_labels_keep_their_types_or_are_an_error(load: Callable[..., Task]) -> None:
    def lines(*labels: Any) -> str:
        return "".join(json.dumps({"text": "a", "label": label}) + "\n" for label in labels)

    assert load(lines(0.0, 1.0, 1.0), "t.jsonl").labels == ("0", "1")
    assert load(lines(0, 1.0, 0), "t.jsonl").train.labels.tolist() == [0, 1, 0]
    for mixed in (lines(0, 1.0, 1), lines(0, 1.0, 1).replace("\n", " ")):
        with pytest.raises(DataError, match=r"'label'\) has both 1 and 1\.0\."):
            load(mixed, "t.jsonl")
    assert load(lines(0, 1.0, 1), "t.jsonl", labels=[0, 1]).train.labels.tolist() == [0, 1, 1]
    assert load(lines(0, 1.0, 1), "t.jsonl", regression=True).train.labels.tolist() == [0, 1, 1]
    for labels in ((1, "1", 0), (True, 1)):
        with pytest.raises(DataError, match=r"not a valid jsonl file .*label\) changed from"):
            load(lines(*labels), "t.jsonl")
    frame = pd.DataFrame({"text": ["a", "b"], "label": pd.Categorical(["no", "yes"])})
    assert load(frame, "t.parquet").labels == ("no", "yes")


def test_targets_are_texts_as_they_are_written(load: Callable[..., Task]) -> None:
    for cells, targets in (([3, 2.5, 4], ["3", "2.5", "4"]), ([True, False], ["true", "false"])):
        lines = "".join(json.dumps({"text": "a", "y": cell}) + "\n" for cell in cells)
        assert load(lines, "t.jsonl", label="y", target="y").train.targets == targets
    spaced = json.dumps({"text": "a", "y": " 3.0 "})
    assert load(spaced, "t.jsonl", label="y", target="y").train.targets == [" 3.0 "]


def test_declared_labels_keep_their_order_and_may_be_absent(load: Callable[..., Task]) -> None:
    task = load(FRAME, text="body", label="kind", labels=["spam", "ham", "eggs", "bacon"])
    assert task.labels == ("spam", "ham", "eggs", "bacon")
    assert task.train.labels.tolist() == [0, 1, 0, 2]


def test_regression(load: Callable[..., Task]) -> None:
    task = load(FRAME, text="body", label="stars", regression=True)
    assert task.regression
    assert task.outputs == 1
    assert task.metrics == ("pearson", "spearman")
    assert task.train.labels.tolist() == [1.0, 5.0, 1.0, 3.0]
    assert task.train.labels.dtype == np.float32


def test_one_file_for_both_splits_is_an_error(load: Callable[..., Task], tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to("t.csv")
    for name in ("t.csv", "./t.csv", "link.csv"):
        with pytest.raises(DataError, match="train and validation are the same file"):
            load("text,label\na,x\nb,y\n", validation=name)


def test_validation_rows_are_held_out_of_one_file(load: Callable[..., Task]) -> None:
    frame = pd.DataFrame({"text": [f"t{i}" for i in range(20)], "label": ["a", "b"] * 10})
    task = load(frame, validation_fraction=0.2)
    assert np.bincount(task.validation.labels).tolist() == [2, 2]
    assert sorted([*task.train.index, *task.validation.index]) == list(range(20))
    assert task.validation.first[0] == f"t{task.validation.index[0]}"
    assert task.validation.index.tolist() == HELD_OUT
    with pytest.raises(DataError, match=r"validation_fraction = 0\.01 of 20 rows leaves one side"):
        load(frame, validation_fraction=0.01)


def test_rows_of_one_group_are_held_out_together(load: Callable[..., Task]) -> None:
    columns = {"text": [f"t{i}" for i in range(40)], "label": ["a", "b"] * 20}
    frame = pd.DataFrame({**columns, "about": [f"q{i // 4}" for i in range(40)]})
    task = load(frame, validation_fraction=0.2, group=["about"])
    assert (len(task.train), len(task.validation)) == (32, 8)
    assert not set(task.train.groups) & set(task.validation.groups)  # type: ignore[arg-type]


HELD_OUT = [2, 3, 4, 9]
"""Always the same rows, in every version."""


def test_a_long_text_and_a_byte_order_mark(load: Callable[..., Task]) -> None:
    long = "word " * 50_000
    task = load(b"\xef\xbb\xbftext,label\r\n" + f'"{long}",a\r\n\r\nshort,b\r\n'.encode())
    assert list(task.train.first) == [long, "short"]


JSON_ROW = json.dumps({"text": "a", "label": "x"}) + "\n"


@pytest.mark.parametrize(
    ("content", "file", "message"),
    [
        ("", "t.csv", "is empty"),
        ("\n \n", "t.jsonl", "is empty"),
        ("text,label\n", "t.csv", "the file has no rows"),
        ("text,label\na,x\nb,y,z\n", "t.csv", "line 3: Expected 2 columns, got 3: b,y,z"),
        ("text,label\na\n", "t.csv", "line 2: Expected 2 columns, got 1"),
        ('text,label\na,x\n"b,y\nc,x\n', "t.csv", "line 3: Expected 2 columns"),
        ('text,label\n\n"a\n\na",x\nb,y,z\n', "t.csv", "line 6: Expected 2 columns, got 3"),
        ("txt,label\na,x\n", "t.csv", "there is no column 'text'. Did you mean 'txt'?"),
        ("text,label\na,x\n  ,y\n,y\n", "t.csv", "column 'text' is empty in 2 of 3 rows"),
        (JSON_ROW + "{'text': 1}\n", "t.jsonl", "Missing a name for object member. in row 1"),
        (JSON_ROW + "[1]\n", "t.jsonl", "changed from object to array in row 1"),
        ('{"txt": "a", "label": 1}\n', "t.jsonl", "there is no column 'text'. Did you mean 'txt'?"),
        (JSON_ROW + '{"label": "y"}\n', "t.jsonl", "column 'text' is empty in 1 of 2 rows"),
        (JSON_ROW + '{"text": 7, "label": "y"}', "t.jsonl", "changed from string to number"),
        (
            "text,label\na,x\ncafé,x\n".encode("latin-1"),
            "t.csv",
            "t.csv', line 3: is not UTF-8 but perhaps W",
        ),
        (
            "text,label\ncafé,x\n".encode("latin-1"),
            "t.jsonl",
            "iconv -f WINDOWS-1252 -t UTF-8 t.jsonl > NEW",
        ),
        ("text,label\na,x\n".encode("utf-16"), "t.csv", "line 1: is not UTF-8 but perhaps UTF-16."),
        (b"PAR1 cut off", "t.parquet", "not a valid Parquet file ("),
    ],
)
def test_a_broken_file_is_an_error_of_one_line(
    load: Callable[..., Task], content: str | bytes, file: str, message: str
) -> None:
    with pytest.raises(DataError) as caught:
        load(content, file)
    assert message in str(caught.value)
    assert str(caught.value).startswith("task 'mine', train = ")
    assert "\n" not in str(caught.value)


def test_a_label_that_the_training_rows_lack(load: Callable[..., Task], tmp_path: Path) -> None:
    # Lines as an editor counts them: with the header, empty lines and quoted ones.
    (tmp_path / "dev.csv").write_text('text,label\n\n"a\n\na",ham\n"b\nb",spma\n')
    with pytest.raises(DataError) as caught:
        load("text,label\na,ham\nb,spam\n", validation="dev.csv")
    assert "validation = 'dev.csv': label 'spma' on line 6 is not" in str(caught.value)
    assert "Did you mean 'spam'?" in str(caught.value)


def test_a_missing_file_is_named_with_those_that_exist(
    load: Callable[..., Task], tmp_path: Path
) -> None:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "dev.csv").write_text("")
    with pytest.raises(DataError, match=r"devv.csv cannot be read: No such.* Did you mean 'dev"):
        load(FRAME, validation="devv.csv", text="body", label="kind")
    with pytest.raises(DataError, match=r"none/dev.csv cannot be read: No such"):
        load(FRAME, validation="none/dev.csv", text="body", label="kind")
    with pytest.raises(DataError, match=r"folder.csv cannot be read: Is a directory"):
        load(FRAME, validation="folder.csv", text="body", label="kind")


def test_an_unknown_metric_is_an_error_before_the_run(load: Callable[..., Task]) -> None:
    with pytest.raises(DataError, match=r"\[task.mine\] metrics: 'f2' is not a classification met"):
        load(FRAME, text="body", label="kind", metrics=["f2"])


def test_rows_without_text_are_left_out_on_request(load: Callable[..., Task]) -> None:
    content = "text,label\na,x\n,y\n  ,x\nd,y\n"
    with pytest.raises(DataError, match="column 'text' is empty in 2 of 4 rows"):
        load(content)
    task = load(content, skip_blank=True)
    assert list(task.train.first) == ["a", "d"]
    assert task.source["blank"] == {"train": 2, "validation": 2}
    assert task.source["skip_blank"] is True


def test_a_class_to_leave_out_that_no_row_has_is_refused(load: Callable[..., Task]) -> None:
    assert load(FRAME, text="body", label="kind", without=["spam"]).labels == ("eggs", "ham")
    message = r"task 'mine', without: no row is of the class 'sspam'\. Did you mean 'spam'\?"
    with pytest.raises(DataError, match=message):
        load(FRAME, text="body", label="kind", without=["sspam"])


def test_the_identity_of_a_task_without_blanks_stays(load: Callable[..., Task]) -> None:
    assert not {"skip_blank", "blank"} & load("text,label\na,x\nb,y\n").source.keys()


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "t.csv")
    spec = FileTaskSpec(train="t.csv", validation_fraction=0.5, text="text", label="label")
    with pytest.raises(DataError, match="cannot be read: it is not a regular file"):
        task_identity("mine", data=None, base=tmp_path, own={"mine": spec})


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
def test_a_damaged_parquet_file_is_one_line(load: Callable[..., Task], part: float) -> None:
    buffer = io.BytesIO()
    FRAME.to_parquet(buffer)
    content = bytearray(buffer.getvalue())
    start = int(part * len(content))
    content[start : start + 300] = b"\xff" * 300
    with pytest.raises(DataError, match=r"not a valid Parquet file \("):
        load(bytes(content), "t.parquet", text=["subject", "body"], label="kind")

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from clbench.errors import DataError
from clbench.tasks.files import FileTaskSpec
from clbench.tasks.load import load_task, task_identity
from clbench.tasks.task import Task

FRAME = pd.DataFrame(
    {
        "subject": ["Hi", 'a "quoted" one', "tab or, comma", "ünïcode\u2028text"],
        "body": ["x", "two\nlines", "y", "z"],
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
    """Load a task of `content` as `file`, its validation rows being the same by default."""

    def loaded(content: Any, file: str = "t.csv", **changes: Any) -> Task:
        path = tmp_path / file
        for target in (path, path.with_stem("v")):
            if isinstance(content, pd.DataFrame):
                write(content, target)
            elif isinstance(content, bytes):
                target.write_bytes(content)
            else:
                target.write_text(content, encoding="utf-8")
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
    with pytest.raises(DataError, match="set quotes = false"):
        load(content, "t.tsv")
    with pytest.raises(DataError, match="line 2 runs on to line 3, which TSV does not allow"):
        load('text\tlabel\n"half\ta\nother"\tb\n', "t.tsv")


@pytest.mark.parametrize("file", ["t.csv", "t.jsonl", "t.parquet"])
def test_number_labels_sort_as_numbers(load: Callable[..., Task], file: str) -> None:
    frame = pd.DataFrame({"text": ["a", "b", "c"], "label": [10, 9, 10]})
    assert load(frame, file).labels == ("9", "10")
    assert load(frame, file).train.labels.tolist() == [1, 0, 1]
    assert load(frame, file, labels=[10, 9]).train.labels.tolist() == [0, 1, 0]
    assert load(frame.astype({"label": float}), file).labels == (
        ("9", "10") if file != "t.csv" else ("10.0", "9.0")
    )


def test_true_and_false_and_categories(load: Callable[..., Task]) -> None:
    frame = pd.DataFrame({"text": ["a", "b"], "label": [True, False]})
    assert load(frame, "t.parquet").labels == ("false", "true")
    frame = pd.DataFrame({"text": ["a", "b"], "label": pd.Categorical(["no", "yes"])})
    assert load(frame, "t.parquet").labels == ("no", "yes")


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


def test_one_file_under_two_names(load: Callable[..., Task], tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to("t.csv")
    for name in ("./t.csv", "link.csv"):
        with pytest.raises(DataError, match=r"is the file of train = 't\.csv'"):
            load("text,label\na,x\nb,y\n", validation=name)


def test_validation_rows_held_out_of_one_file(load: Callable[..., Task]) -> None:
    frame = pd.DataFrame({"text": [f"t{i}" for i in range(20)], "label": ["a", "b"] * 10})
    task = load(frame, validation_fraction=0.2)
    assert np.bincount(task.validation.labels).tolist() == [2, 2]
    assert sorted([*task.train.index, *task.validation.index]) == list(range(20))
    assert task.validation.first[0] == f"t{task.validation.index[0]}"
    assert load(frame, validation_fraction=0.2).validation.digest == task.validation.digest
    with pytest.raises(DataError, match=r"validation_fraction = 0\.01 of 20 rows leaves one side"):
        load(frame, validation_fraction=0.01)


def test_a_long_text_and_a_byte_order_mark(load: Callable[..., Task]) -> None:
    long = "word " * 50_000
    task = load(b"\xef\xbb\xbftext,label\r\n" + f'"{long}",a\r\nshort,b\r\n'.encode())
    assert task.train.first[0] == long


def test_blank_lines_are_skipped_and_counted(load: Callable[..., Task]) -> None:
    assert len(load("text,label\n\na,x\n\nb,y\n\n").train) == 2
    with pytest.raises(DataError, match=r"line 6 has 3 fields, the header has 2"):
        load('text,label\n\n"a\nb",x\n\nc,d,y\n')


JSON_ROW = json.dumps({"text": "a", "label": "x"}) + "\n"


@pytest.mark.parametrize(
    ("content", "file", "message"),
    [
        ("", "t.csv", "is empty"),
        ("\n \n", "t.jsonl", "is empty"),
        ("text,label\n", "t.csv", "there are no rows in it"),
        ("text,label\na,x\nb,y,z\n", "t.csv", "line 3 has 3 fields, the header has 2"),
        ("text,label\na\n", "t.csv", "line 2 has 1 field, the header has 2"),
        ('text,label\na,x\n"b,y\nc,x\n', "t.csv", "line 3 is broken: unexpected end of data"),
        ('text,label\n"b" c,y\n', "t.csv", "line 2 is broken"),
        ("txt,label\na,x\n", "t.csv", "no column 'text' (key 'text'). Did you mean 'txt'?"),
        ("text,lable\na,x\n", "t.csv", "no column 'label' (key 'label'). Did you mean 'lable'?"),
        ("text,text,label\na,b,x\n", "t.csv", "2 columns are called 'text' (key 'text')"),
        ("text,label\na,x\n  ,y\n,y\n", "t.csv", "2 rows are without a text in column 'text', "),
        ("text,label\na,x\nb,\n", "t.csv", "1 row is without a label in column 'label', the f"),
        (
            "text,label\na,x\nb,x\n",
            "t.csv",
            "every label in column 'label' is 'x'. Use a file with rows of at least two classes.",
        ),
        ("text,label\na,-1\nb,-1\n", "t.csv", "every label in column 'label' is -1"),
        (JSON_ROW + "{'text': 1}\n", "t.jsonl", "line 2 is not valid JSON: Expecting property"),
        (JSON_ROW + JSON_ROW[:-3], "t.jsonl", "line 2 is not valid JSON"),
        ("[" + JSON_ROW.strip() + ",\n" + JSON_ROW + "]", "t.jsonl", "write one object a line"),
        (JSON_ROW + "[1]\n", "t.jsonl", "line 2 holds a list, not an object"),
        ('{"txt": "a", "label": 1}\n', "t.jsonl", "no column 'text' (key 'text'). Did you mean"),
        (JSON_ROW + '{"label": "y"}\n', "t.jsonl", "1 row is without a text in column 'text', the"),
        (JSON_ROW + '{"text": null, "label": "y"}', "t.jsonl", "first on line 2"),
        (JSON_ROW + '{"text": NaN, "label": "y"}', "t.jsonl", "without a text"),
        (
            JSON_ROW + '{"text": 7, "label": "y"}',
            "t.jsonl",
            "holds 7 on line 2, a whole number and no text",
        ),
        (JSON_ROW + '{"text": "b", "label": NaN}', "t.jsonl", "without a label"),
        (JSON_ROW + '{"text": "b", "label": ["y"]}', "t.jsonl", "holds a list on line 2"),
        (JSON_ROW + '{"text": "\\ud83d", "label": "y"}', "t.jsonl", "half of a surrogate pair"),
        ("text,label\ncafé,x\n".encode("latin-1"), "t.csv", "line 2 is not UTF-8 (byte 0xe9)"),
        (
            "text,label\na,x\n".encode("utf-16"),
            "t.csv",
            "is UTF-16, not UTF-8. Save the file as UTF-8.",
        ),
        (b"PAR1 cut off", "t.parquet", "this is no whole Parquet file"),
        ("text,label\na,x\n", "t.parquet", "this is no whole Parquet file"),
    ],
)
def test_broken_files_are_told_in_one_line(
    load: Callable[..., Task], content: str | bytes, file: str, message: str
) -> None:
    with pytest.raises(DataError) as caught:
        load(content, file)
    assert message in str(caught.value)
    assert str(caught.value).startswith("task 'mine'")
    assert "\n" not in str(caught.value)


def test_a_truncated_parquet_file(load: Callable[..., Task], tmp_path: Path) -> None:
    FRAME.to_parquet(tmp_path / "whole.parquet")
    content = (tmp_path / "whole.parquet").read_bytes()
    for cut in (1, 8, len(content) // 2):
        with pytest.raises(DataError, match="no whole Parquet file"):
            load(content[:-cut], "t.parquet", text="body", label="kind")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"text": ["a", None], "label": [0, 1]}, "the first on row 1 (counted from 0)"),
        ({"text": ["a", np.nan], "label": [0, 1]}, "without a text in column 'text'"),
        (
            {"text": [1, 2], "label": [0, 1]},
            "holds 1 on row 0 (counted from 0), a whole number and no text",
        ),
        ({"text": [b"a", b"b"], "label": [0, 1]}, "bytes and no text"),
        ({"text": ["a", "b"], "label": [0, np.nan]}, "1 row is without a label"),
        ({"text": ["a", "b"], "label": [[0], [1]]}, "holds a list"),
        ({"body": ["a", "b"], "label": [0, 1]}, "no column 'text'"),
        ({"text": [], "label": []}, "there are no rows"),
    ],
)
def test_bad_cells_in_parquet(
    load: Callable[..., Task], frame: dict[str, list[Any]], message: str
) -> None:
    with pytest.raises(DataError) as caught:
        load(pd.DataFrame(frame), "t.parquet")
    assert message in str(caught.value)


def test_too_many_classes_are_taken_for_a_mistake(load: Callable[..., Task]) -> None:
    frame = pd.DataFrame({"text": ["a"] * 30, "label": np.arange(30) / 7})
    with pytest.raises(DataError, match="30 different values in 30 rows, too many for classes"):
        load(frame)


def test_a_label_that_the_training_rows_lack(load: Callable[..., Task], tmp_path: Path) -> None:
    (tmp_path / "dev.csv").write_text("text,label\na,ham\nb,spma\n")
    rows = "text,label\na,ham\nb,spam\n"
    with pytest.raises(DataError) as caught:
        load(rows, validation="dev.csv")
    assert "validation = 'dev.csv': label 'spma' on line 3 is not among" in str(caught.value)
    assert "Did you mean 'spam'?" in str(caught.value)
    with pytest.raises(DataError, match="label 'ham' on line 2 is not among `labels`"):
        load(rows, labels=["spam", "eggs"])


@pytest.mark.parametrize("value", ["x", "inf", "nan"])
def test_a_target_that_is_no_number(load: Callable[..., Task], value: str) -> None:
    with pytest.raises(DataError, match=f"'{value}' in column 'label' on line 3 is no finite"):
        load(f"text,label\na,1\nb,{value}\n", regression=True)


def test_missing_files_name_what_is_there(load: Callable[..., Task], tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "dev.csv").write_text("")
    with pytest.raises(DataError, match=r"no file .*devv.csv. Did you mean 'dev.csv'"):
        load(FRAME, validation="devv.csv", text="body", label="kind")
    with pytest.raises(DataError, match="There is no folder"):
        load(FRAME, validation="none/dev.csv", text="body", label="kind")
    with pytest.raises(DataError, match="is a folder"):
        load(FRAME, validation="folder.csv", text="body", label="kind")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_that_may_not_be_read(load: Callable[..., Task], tmp_path: Path) -> None:
    (tmp_path / "dev.csv").write_text("text,label\n")
    (tmp_path / "dev.csv").chmod(0)
    with pytest.raises(DataError, match="cannot be read: Permission denied"):
        load(FRAME, validation="dev.csv", text="body", label="kind")


def test_identity_follows_content_and_mapping_but_not_the_place(tmp_path: Path) -> None:
    def identity(folder: str, content: str, **changes: Any) -> dict[str, Any]:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "t.csv").write_text(content)
        keys = {"train": "t.csv", "validation_fraction": 0.5, "text": "text", "label": "label"}
        own = {"mine": FileTaskSpec(**{**keys, **changes})}
        return task_identity("mine", data=None, base=tmp_path / folder, own=own)

    first = identity("a", "text,label\na,x\n")
    assert json.loads(json.dumps(first)) == first
    assert identity("b", "text,label\na,x\n") == first
    assert identity("b", "text,label\na,y\n") != first
    assert identity("a", "text,label\na,x\n", validation_fraction=0.4) != first

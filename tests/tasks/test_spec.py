from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from clbench.tasks.spec import (
    FileTaskSpec,
    HubTaskSpec,
    OwnTaskTable,
    SyntheticName,
    SyntheticTaskSpec,
    label_name,
)
from clbench.tasks.synthetic import SPECS


def spec(**changes: Any) -> FileTaskSpec:
    keys = {"train": "t.csv", "validation": "v.csv", "text": "body", "label": "kind"}
    return FileTaskSpec(**{key: value for key, value in {**keys, **changes}.items() if value})


def test_text_columns_and_default_metrics() -> None:
    one, two = spec(), spec(text=["subject", "body"], regression=True)
    assert one.text == ["body"]
    assert spec(text=[["subject", "body"], "more"]).columns == ["subject", "body", "more", "kind"]
    assert one.scores == ("accuracy",)
    assert two.scores == ("pearson", "spearman")
    assert spec(metrics=["f1", "accuracy"]).scores == ("f1", "accuracy")


@pytest.mark.parametrize(
    ("path", "kind"),
    [("a.csv", "csv"), ("a.TSV", "tsv"), ("a.b.ndjson", "jsonl"), ("d/a.pq", "parquet")],
)
def test_the_suffix_decides_the_format(path: str, kind: str) -> None:
    assert spec(train=path).format_of(path) == kind
    assert spec(train=path, format="tsv").format_of(path) == "tsv"


def test_settings_name_classes_as_rows_do() -> None:
    table = spec(without=[3, "cafe\u0301 "], answers={"cafe\u0301": "coffee", "a": "b"})
    assert table.without == ["3", "caf\u00e9"]
    assert table.answers == {"caf\u00e9": "coffee", "a": "b"}


def test_labels_may_be_numbers_in_the_suite() -> None:
    assert spec(labels=[0, 1.0, "two"]).labels == ["0", "1", "two"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"validation": None}, "either validation = FILE or validation_fraction"),
        ({"validation_fraction": 0.5}, "either validation = FILE or validation_fraction"),
        ({"validation": None, "validation_fraction": 1.5}, "less than 1"),
        ({"text": ["a", "b", "c"]}, "at most 2 items"),
        ({"text": ["body", "body"]}, "text, choices and label must name different columns"),
        ({"text": [["body", "body"]]}, "text, choices and label must name different columns"),
        ({"text": "kind"}, "text, choices and label must name different columns"),
        ({"choices": ["a"]}, "at least 2 items"),
        ({"text": ["a", "b"], "choices": ["c", "d"]}, "multiple choice takes one text"),
        ({"choices": ["c", "d"], "regression": True}, "multiple choice takes one text"),
        ({"without": ["a"], "regression": True}, "remove regression or without"),
        ({"labels": ["a", "a"]}, "labels must name each class once"),
        ({"without": ["a", "a"]}, "without must name each class once"),
        ({"labels": ["a", "b"], "without": ["b"]}, "labels and without both name 'b'"),
        ({"labels": ["a"]}, "at least 2 items"),
        ({"labels": ["1", "2"], "regression": True}, "has no classes"),
        ({"train": "t.xlsx"}, "suffix of 't.xlsx' is not that of a known format"),
        ({"format": "excel"}, "'csv', 'tsv', 'jsonl' or 'parquet'"),
        ({"separator": "\n"}, "must be one character"),
        ({"texts": "body"}, "Extra inputs"),
        ({"label": None}, "Field required"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_keys_that_do_not_fit_together_are_an_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        spec(**changes)
    assert len(caught.value.errors()) == 1
    assert message in str(caught.value)


def test_the_keys_of_a_table_decide_its_kind() -> None:
    read = TypeAdapter(OwnTaskTable).validate_python
    assert isinstance(read({"synthetic": "qa"}), SyntheticTaskSpec)
    hub = read({"hub": "a/b", "text": "t", "splits": {"validation": "test"}})
    assert isinstance(hub, HubTaskSpec)
    assert (hub.label, hub.split("train"), hub.split("validation")) == ("label", "train", "test")
    assert read(hub) is hub
    with pytest.raises(ValidationError, match="'train' or 'validation'"):
        read({"hub": "a/b", "text": "t", "splits": {"dev": "test"}})
    with pytest.raises(ValidationError, match="must be the name of a dataset, such as owner/name"):
        read({"hub": "../b", "text": "t"})


def test_tables_can_name_every_built_in_task() -> None:
    assert get_args(SyntheticName) == tuple(SPECS)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (1, "1"),
        (1.0, "1"),
        (" 1 ", "1"),
        (True, "true"),
        (1.5, "1.5"),
        (None, None),
        (float("nan"), None),
        ("  ", None),
    ],
)
def test_one_class_has_one_name(value: object, name: str | None) -> None:
    assert label_name(value) == name

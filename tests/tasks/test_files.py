from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from clbench.tasks.files import FileTaskSpec, label_name


def spec(**changes: Any) -> FileTaskSpec:
    keys = {"train": "t.csv", "validation": "v.csv", "text": "body", "label": "kind"}
    return FileTaskSpec(**{key: value for key, value in {**keys, **changes}.items() if value})


def test_one_column_two_columns_and_defaults() -> None:
    one, two = spec(), spec(text=["subject", "body"], regression=True)
    assert one.columns == ("body", "kind")
    assert two.columns == ("subject", "body", "kind")
    assert one.scores == ("accuracy",)
    assert two.scores == ("pearson", "spearman")
    assert spec(metrics=["f1", "accuracy"]).scores == ("f1", "accuracy")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("a.csv", "csv"),
        ("a.TSV", "tsv"),
        ("a.b.jsonl", "jsonl"),
        ("a.ndjson", "jsonl"),
        ("d/a.parquet", "parquet"),
        ("a.pq", "parquet"),
    ],
)
def test_the_format_is_told_by_the_suffix(path: str, kind: str) -> None:
    assert spec(train=path).format_of(path) == kind
    assert spec(train=path, format="tsv").format_of(path) == "tsv"


def test_labels_may_be_numbers_in_the_suite() -> None:
    assert spec(labels=[0, 1.0, "two"]).labels == ["0", "1", "two"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"validation": None}, "either validation = FILE or validation_fraction"),
        ({"validation_fraction": 0.5}, "either validation = FILE or validation_fraction"),
        ({"validation": None, "validation_fraction": 1.5}, "less than 1"),
        ({"validation": "t.csv"}, "name one file"),
        ({"text": ["a", "b", "c"]}, "at most 2 items"),
        ({"text": ["body", "body"]}, "text names the column 'body' twice; name two columns"),
        ({"text": "kind"}, "text and label both name the column 'kind'; they must differ"),
        ({"labels": ["a", "a"]}, "once only"),
        ({"labels": ["a"]}, "at least 2 items"),
        ({"labels": ["1", "2"], "regression": True}, "has no labels"),
        ({"metrics": ["pearson"]}, "'pearson' is none for a task with classes: accuracy, f1"),
        ({"metrics": ["f1"], "regression": True}, "'f1' is none for regression: pearson"),
        ({"train": "t.xlsx"}, "format of 't.xlsx' cannot be told"),
        ({"format": "excel"}, "'csv', 'tsv', 'jsonl' or 'parquet'"),
        ({"texts": "body"}, "Extra inputs"),
        ({"label": None}, "Field required"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        spec(**changes)
    assert len(caught.value.errors()) == 1
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (1, "1"),
        (1.0, "1"),
        (" 1 ", "1"),
        (True, "true"),
        (1.5, "1.5"),
        (-1, "-1"),
        (None, None),
        (float("nan"), None),
        ("  ", None),
    ],
)
def test_one_class_has_one_name(value: object, name: str | None) -> None:
    assert label_name(value) == name

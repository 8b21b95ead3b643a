from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clbench.core.errors import DataError
from clbench.tasks.spec import FileTaskSpec
from clbench.tasks.tables import Table, check_columns


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
            "column 'label' (key 'label') has '1' on row 0 and '1.0' on row 2 (counted from 0). "
            "Write each number in one way, or list the classes in `labels`.",
        ),
        (columns(*(i / 7 for i in range(30))), "30 different values in 30 rows, too many for"),
        (
            columns("x", None, "y"),
            "column 'label' is empty in 1 of 3 rows, first in row 1",
        ),
        (columns("x", "y", texts=["a", "  "]), "column 'text' is empty in 1 of 2 rows"),
        (columns("x", "y", texts=["a", 7]), "column 'text' has 7, a whole number, on row 1 (count"),
        (columns("x", ["y"]), "column 'label' has ['y'], a list, on row 1"),
        (
            columns("ham", "spma", labels=["ham", "spam"]),
            "label 'spma' on row 1 (counted from 0) is not among `labels`. Did you mean 'spam'",
        ),
        (columns("1", "x", regression=True), "'x' in column 'label' on row 1 (counted from 0) is"),
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

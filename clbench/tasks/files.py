"""The `[task.NAME]` table of a suite file: a user's own data."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

Format = Literal["csv", "tsv", "jsonl", "parquet"]
Name = Annotated[str, Field(min_length=1)]

SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
"""File formats by suffix."""

CLASS_METRICS = ("accuracy", "f1", "matthews")
REGRESSION_METRICS = ("pearson", "spearman")


class FileTaskSpec(BaseModel):
    """One task from files.

    Attributes
    ----------
    train, validation
        Paths, relative to the suite file.
    validation_fraction
        Share of the training rows to report on where there is no validation file;
        stratified by label and always the same rows.
    text
        Column of the text, or a list of the two columns of a pair.
    label
        Column of the label.
    labels
        Names of the classes in the order of their numbers, and the only ones allowed. By
        default those of the training file, sorted (as numbers if all are whole numbers).
    regression
        Whether the label is a number to predict.
    metrics
        The first is the score that p_o and p_s hold. By default accuracy, and Pearson and
        Spearman correlation for regression.
    format
        ``csv``, ``tsv``, ``jsonl`` or ``parquet``; by default by the file's suffix.
    separator
        The character between the fields of a CSV or TSV file; by default a comma or a tab.
    quotes
        Whether double quotes enclose fields of CSV and TSV; set to false where they are
        plain characters.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    train: Name
    validation: Name | None = None
    validation_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    text: Annotated[list[Name], Field(min_length=1, max_length=2)]
    label: Name
    labels: Annotated[list[str], Field(min_length=2)] | None = None
    regression: bool = False
    metrics: Annotated[list[str], Field(min_length=1)] | None = None
    format: Format | None = None
    separator: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    quotes: bool = True

    @field_validator("text", mode="before")
    @classmethod
    def _one_or_two(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("labels", mode="before")
    @classmethod
    def _plain_names(cls, value: Any) -> Any:
        return [label_name(item) for item in value] if isinstance(value, list) else value

    @field_validator("labels")
    @classmethod
    def _distinct(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and len(set(value)) != len(value):
            raise PydanticCustomError("task", "each label may be named once only")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.validation is None) == (self.validation_fraction is None):
            raise PydanticCustomError(
                "task", "give either validation = FILE or validation_fraction, such as 0.1"
            )
        if self.validation == self.train:
            raise PydanticCustomError(
                "task",
                "train and validation name one file; leave validation out and set "
                "validation_fraction = 0.1 to hold rows of it out",
            )
        if len(set(self.text)) != len(self.text):
            raise PydanticCustomError(
                "task",
                f"text names the column {self.text[0]!r} twice; name two columns for pairs of "
                "texts, or one",
            )
        if self.label in self.text:
            raise PydanticCustomError(
                "task", f"text and label both name the column {self.label!r}; they must differ"
            )
        if self.separator in ("\n", "\r", '"'):
            raise PydanticCustomError(
                "task", f"separator: {self.separator!r} cannot stand between fields"
            )
        if self.regression and self.labels is not None:
            raise PydanticCustomError(
                "task", "a regression task has no labels; leave out one of the two keys"
            )
        allowed = REGRESSION_METRICS if self.regression else CLASS_METRICS
        wrong = [metric for metric in self.metrics or () if metric not in allowed]
        if wrong:
            kind = "regression" if self.regression else "a task with classes"
            raise PydanticCustomError(
                "task", f"metrics: {wrong[0]!r} is none for {kind}: {', '.join(allowed)}"
            )
        for path in filter(None, (self.train, self.validation)):
            if self.format is None and PurePath(path).suffix.lower() not in SUFFIXES:
                raise PydanticCustomError(
                    "task",
                    f"the format of {path!r} cannot be told by its suffix; "
                    "set format to csv, tsv, jsonl or parquet",
                )
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is read: the texts, then the label."""
        return (*self.text, self.label)

    @property
    def scores(self) -> tuple[str, ...]:
        """The metrics, defaults filled in."""
        return tuple(self.metrics or (REGRESSION_METRICS if self.regression else ("accuracy",)))

    def separator_of(self, path: str) -> str:
        """The character between the fields of `path`, where it is a CSV or TSV file."""
        return self.separator or ("\t" if self.format_of(path) == "tsv" else ",")

    def format_of(self, path: str) -> Format:
        """The format that `path` is read as."""
        return self.format or SUFFIXES[PurePath(path).suffix.lower()]


def label_name(value: Any) -> Any:
    """A label as text, so that 1, 1.0 and "1" name one class; None for a missing one.

    Whole floats lose their point since columns of whole numbers with gaps become floats.
    What can be no label (a list, a table, bytes) is given back as it came.
    """
    if value is None or value != value:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, str):
        return value.strip() or None
    return value if isinstance(value, (list, dict, bytes)) else str(value)

"""The ``[task.NAME]`` tables of a suite file: a task in files, on the hub, or built in."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self
from unicodedata import normalize

import pydantic
from pydantic_core import PydanticCustomError

from clbench.core.errors import DataError
from clbench.core.registry import Seed
from clbench.tasks.synthetic import TRAIN_ROWS, VALIDATION_ROWS
from clbench.tasks.template import Template

Format = Literal["csv", "tsv", "jsonl", "parquet"]
Name = Annotated[str, pydantic.Field(min_length=1)]
Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")
SyntheticName = Literal[
    "sentiment", "acceptability", "paraphrase", "qa", "entailment", "entailment3"
]
"""The keys of `clbench.tasks.synthetic.SPECS`."""


def _matching(pattern: str, requirement: str) -> pydantic.AfterValidator:
    """Return a check that a text has the form `pattern`; the message is `requirement`."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise _error(requirement)
        return text

    return pydantic.AfterValidator(check)


HubName = Annotated[
    str,
    _matching(r"\w[\w.-]*(/\w[\w.-]*)?", "must be the name of a dataset, such as owner/name"),
]
Answer = Annotated[
    str, _matching(r"\S(.*\S)?", "must be one line of text, without blanks around it")
]
Answers = Annotated[list[Answer], pydantic.Field(min_length=2)]
Joined = Annotated[list[Name], pydantic.Field(min_length=1)]
Separator = Annotated[
    str, _matching(r'[^\n\r"]', "must be one character, and no quote or line break")
]

SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
"""File formats by suffix."""


def label_name(value: Any) -> Any:
    """Return a label as text, so that 1, 1.0 and "1" are one class; None if it is missing.

    Whole floats lose their point, as columns of whole numbers with gaps are read as floats. Text is
    in Unicode's form NFC, in which a letter with an accent is one character.
    """
    if value is None or value != value:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return normalize("NFC", str(value)).strip() or None


LabelName = Annotated[
    str, pydantic.BeforeValidator(lambda v: v if isinstance(v, list | dict) else label_name(v))
]
"""The name of a class or domain in settings; numbers become text as in `label_name`."""


class TableSpec(pydantic.BaseModel):
    """The columns of a task in files or on the hub.

    Attributes
    ----------
    text
        Column of the text, or a list of the two columns of a pair. A list in place of a column
        joins several with blanks, without empty cells.
    label
        Column of the label.
    target
        Column of a text to write, in place of `label`: a task for language models without classes.
    prompt, answers
        What a language model reads and writes: see `clbench.tasks.template.Template`. Answers are
        in the order of the classes, or a table by class; for regression, numbers.
    choices
        For multiple choice, the columns of the choices; the label is the number of the right one.
    group
        Columns whose texts tell groups of rows apart, for metrics that score groups.
    labels
        Names of the classes in the order of their numbers; no other label is allowed. By
        default those of the training rows, sorted (as numbers if all are whole numbers).
    without
        Names of classes whose rows are left out; `labels` do not list them.
    regression
        Whether the label is a number to predict instead of a class.
    metrics
        The first is the score in p_o and p_s. By default accuracy, or Pearson and Spearman
        correlation for regression.
    skip_blank
        Whether to leave out rows without a text, which are refused otherwise.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    text: Annotated[list[Name | Joined], pydantic.Field(min_length=1, max_length=2)]
    label: Name
    target: Name | None = None
    prompt: Name | None = None
    answers: Answers | dict[LabelName, Answer] | None = None
    choices: Annotated[list[Name], pydantic.Field(min_length=2)] | None = None
    group: Annotated[list[Name], pydantic.Field(min_length=1)] | None = None
    labels: Annotated[list[LabelName], pydantic.Field(min_length=2)] | None = None
    without: Annotated[list[LabelName], pydantic.Field(min_length=1)] | None = None
    regression: bool = False
    metrics: Annotated[list[str], pydantic.Field(min_length=1)] | None = None
    skip_blank: bool = False

    @pydantic.model_validator(mode="before")
    @classmethod
    def _label_is_target(cls, values: Any) -> Any:
        if not isinstance(values, dict) or (target := values.get("target")) is None:
            return values
        others = {"choices": None, "group": None, "label": target, "labels": None}
        for key, as_read in (others | {"regression": False}).items():  # also a table of its own
            if values.get(key, as_read) != as_read:
                raise _error(f"a task with a target has no classes; remove {key}")
        return {**values, "label": target}

    @pydantic.field_validator("text", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @pydantic.model_validator(mode="after")
    def _check_keys_together(self) -> Self:
        texts = [*chain(*self.texts), *(self.choices or [])]
        if len({*texts, self.label}) <= len(texts):
            raise _error("text, choices and label must name different columns")
        if self.choices and (len(self.text) > 1 or self.regression):
            raise _error("multiple choice takes one text and classes: the numbers of the choices")
        for key, names in (("labels", self.labels or []), ("without", self.without or [])):
            if names and self.regression:
                raise _error(f"a regression task has no classes; remove regression or {key}")
            if len({*names}) < len(names):
                raise _error(f"{key} must name each class once")
        if both := sorted({*(self.labels or [])} & {*(self.without or [])}):
            raise _error(f"labels and without both name {both[0]!r}; labels are those that stay")
        if self.answers and (self.target or self.choices):
            raise _error("answers are those of classes; remove answers")
        if self.regression and isinstance(self.answers, dict):
            raise _error('answers of a regression task are a list of numbers, such as ["0", "5"]')
        try:
            self.template(self.labels or [])
        except DataError as error:
            raise _error(str(error).rstrip(".")) from error
        return self

    @property
    def has_classes(self) -> bool:
        """Whether labels are classes, not numbers or texts to write."""
        return not (self.regression or self.target)

    def template(self, classes: Sequence[str], where: str = "") -> Template:
        """Return the template of prompts and answers for these classes.

        Raises a DataError, which begins with `where`, if the prompt is invalid, or answers do not
        fit the classes.
        """
        answers = self.answers or {}
        if isinstance(answers, list):
            if self.regression:
                classes = answers
            elif classes and len(classes) != len(answers):
                raise DataError(f"{where}{len(classes)} classes, but {len(answers)} answers.")
            answers = dict(zip(classes, answers, strict=False))
        elif classes and (unknown := sorted(answers.keys() - set(classes))):
            raise DataError(f"{where}answers: there is no class {unknown[0]!r}.")
        singles = [texts[0] if len(texts) == 1 else None for texts in self.texts]
        columns = (*singles, *(self.choices or ()))
        if self.prompt is None:
            return replace(Template.default(len(singles) == 2), answers=answers)
        return Template(self.prompt, answers, columns)

    @property
    def texts(self) -> list[list[str]]:
        """The columns of each text, which are joined."""
        return [[column] if isinstance(column, str) else column for column in self.text]

    @property
    def columns(self) -> list[str]:
        """All columns to read, each once."""
        texts = chain(*self.texts, self.choices or [], self.group or [])
        return list(dict.fromkeys([*texts, self.label]))

    def identity(self, *, exclude: set[str]) -> dict[str, Any]:
        """Return the settings that decide the rows, in a form that older versions also gave."""
        exclude = exclude | {"prompt", "answers"}  # recipes hold templates where they matter
        newer = {"skip_blank", "choices", "group", "without", "target", "field"}
        unset = {key for key in newer if not getattr(self, key, None)}
        return self.model_dump(exclude=exclude | unset)

    @property
    def scores(self) -> tuple[str, ...]:
        """The metrics, or the default ones."""
        if self.target:
            return tuple(self.metrics or ("exact", "token-f1"))
        default = ("pearson", "spearman") if self.regression else ("accuracy",)
        return tuple(self.metrics or default)


class FileTaskSpec(TableSpec):
    """A task in files.

    Attributes
    ----------
    train, validation
        Paths, relative to the suite file.
    validation_fraction
        Share of the training rows to hold out if there is no validation file; stratified by
        label, and always the same rows.
    format
        Format of the files; by default each file's suffix decides.
    separator
        Character between the fields of a CSV or TSV file; by default a comma or a tab.
    quotes
        Whether double quotes enclose fields of CSV and TSV, or are plain characters.
    """

    train: Name
    validation: Name | None = None
    validation_fraction: Annotated[float, pydantic.Field(gt=0.0, lt=1.0)] | None = None
    format: Format | None = None
    separator: Separator | None = None
    quotes: bool = True

    @pydantic.model_validator(mode="after")
    def _check_files_and_formats(self) -> Self:
        if (self.validation is None) == (self.validation_fraction is None):
            raise _error("give either validation = FILE or validation_fraction, such as 0.1")
        for path in self.paths.values():
            if self.format is None and PurePath(path).suffix.lower() not in SUFFIXES:
                raise _error(
                    f"the suffix of {path!r} is not that of a known format; "
                    "set format to csv, tsv, jsonl or parquet"
                )
        return self

    @property
    def paths(self) -> dict[Split, str]:
        """The path of each split that has a file."""
        paths: dict[Split, str] = {"train": self.train}
        return paths if self.validation is None else {**paths, "validation": self.validation}

    def format_of(self, path: str) -> Format:
        """Return the format of the file at `path`."""
        return self.format or SUFFIXES[PurePath(path).suffix.lower()]


class HubTaskSpec(TableSpec):
    """A task on the Hugging Face hub.

    Attributes
    ----------
    hub
        ``owner/name`` of the dataset.
    config
        Name of its configuration, if it has several.
    revision
        Commit or tag of the dataset; without one, its rows may change.
    field
        Key of the list of rows in JSON files that hold more than rows.
    folder
        Another name of the configuration's folder in local copies.
    splits
        Names of the training and validation split in the dataset.
    labels
        Names of classes 0, 1, … for a column of numbers; by default those of the dataset. If the
        dataset names its classes, they may be in another order.
    rows, classes
        Training and validation rows of the whole dataset, and number of classes if `labels` does
        not tell; for lists.
    description, licence
        One line for lists, and the licence of the dataset.
    """

    hub: HubName
    config: Name | None = None
    revision: Name | None = None
    label: Name = "label"
    field: Name | None = None
    folder: Annotated[Name | None, pydantic.Field(exclude_if=lambda v: v is None)] = None
    splits: dict[Split, Name] = {}
    rows: Annotated[list[int], pydantic.Field(min_length=2, max_length=2)] | None = None
    classes: Annotated[int, pydantic.Field(ge=2)] | None = None
    description: str = ""
    licence: str = ""

    def split(self, split: Split) -> str:
        """Return the dataset's name of a split."""
        return self.splits.get(split, split)


class SyntheticTaskSpec(pydantic.BaseModel):
    """A built-in task in another size, with other texts or with noise.

    Attributes
    ----------
    synthetic
        A name of `clbench.tasks.synthetic.SPECS`, such as ``sentiment``.
    train, validation
        Rows of each split.
    seed
        Seed of the choice of texts and of the noise.
    label_noise
        Probability that a training row gets the label of another class.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    synthetic: SyntheticName
    train: Annotated[int, pydantic.Field(ge=2, le=TRAIN_ROWS)] = 2000
    validation: Annotated[int, pydantic.Field(ge=1, le=VALIDATION_ROWS)] = 500
    seed: Seed = 0
    label_noise: Annotated[float, pydantic.Field(ge=0.0, le=1.0)] = 0.0


def _kind(table: Any) -> str:
    for key in ("synthetic", "hub"):
        if key in table if isinstance(table, dict) else hasattr(table, key):
            return f"table with a key `{key}`"
    return "table of files"


OwnTaskSpec = FileTaskSpec | HubTaskSpec | SyntheticTaskSpec
"""The content of a ``[task.NAME]`` table."""

OwnTaskTable = Annotated[
    Annotated[FileTaskSpec, pydantic.Tag("table of files")]
    | Annotated[HubTaskSpec, pydantic.Tag("table with a key `hub`")]
    | Annotated[SyntheticTaskSpec, pydantic.Tag("table with a key `synthetic`")],
    pydantic.Discriminator(_kind),
]
"""`OwnTaskSpec` for pydantic: the keys `hub` and `synthetic` decide the kind."""


def _error(text: str) -> PydanticCustomError:
    return PydanticCustomError("task", text)

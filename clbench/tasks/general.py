"""General tasks: questions on what a language model can do without training, as tables."""

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, StrictUndefined, TemplateError

from clbench.core.errors import DataError
from clbench.core.files import digest
from clbench.core.seeds import numpy_stream
from clbench.tasks.hub import HubDataset, copy_of
from clbench.tasks.instructions import follows

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    """One item of a general task.

    Attributes
    ----------
    prompts
        For each wording, one prompt, or one for each choice where choices stand in prompts.
    answers
        Texts to rank behind a prompt, with a blank before them; none if the answer is written.
    choices, right, target
        The choices and the number of the right one, if there are any; and the right answer.
    text, row
        The first wording without solved rows, and the row's columns.
    """

    prompts: tuple[tuple[str, ...], ...]
    answers: tuple[str, ...]
    choices: tuple[str, ...]
    right: int
    target: str
    text: str = field(repr=False)
    row: Row = field(repr=False)


@dataclass(frozen=True)
class GeneralTask:
    """A table of ``general.toml``; prompts and answers are Jinja templates of a row's columns.

    Attributes
    ----------
    axis
        What it is about, such as ``knowledge``.
    hub, revision, licence, config, split
        Where the rows are.
    configs
        Several configurations, from which rows come evenly, each with what templates know as
        ``answers``.
    prompts, preamble
        Several wordings of the prompt, the published one first; and what stands before everything.
    shots, shots_from, shots_by
        How many solved rows stand before: the first ones of a split (by default of the same, where
        they are not asked), with the same value in a column if one is named.
    choices, right
        Expressions of the list of choices and of the right one's position.
    ending
        What follows a choice, if the choices stand in the prompts.
    by_length
        Whether log-probabilities are divided by the characters of the choices (``acc_norm`` of
        lm-evaluation-harness).
    answer, target
        A solved row's answer, and what is right, where answers are written.
    extract, take, form
        Patterns of answers in what is written, of which the ``first`` or ``last`` counts; and of
        the form that is asked for: of a single line all, else a part.
    stops, length
        Texts that end an answer, and its most tokens.
    chat, rules
        Whether the model's chat template is used; whether IFEval's rules check answers.
    """

    name: str
    revision: str
    licence: str
    axis: str
    hub: str
    split: str
    prompts: Sequence[str] = (
        "Question: {{ question }}\nAnswer:",
        "Q: {{ question }}\nA:",
        "{{ question }}\nThe answer is",
    )
    config: str | None = None
    configs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    preamble: str = ""
    shots: int = 0
    shots_from: str | None = None
    shots_by: str | None = None
    choices: str | None = None
    right: str = "label"
    ending: str | None = None
    by_length: bool = False
    answer: str = ""
    target: str = ""
    extract: str = ""
    take: Literal["first", "last"] = "first"
    form: str | None = None
    stops: Sequence[str] = ()
    length: int = 0
    chat: bool = False
    rules: bool = False

    def questions(self, data: Path | None, count: int, seed: int) -> list[Question]:
        """Return at most about `count` questions: the first ones of a fixed order of the rows.

        Raises a DataError if the rows cannot be read, or lack a column.
        """
        return [self.question(*each) for each in self.rows(data, count, seed)]

    def rows(self, data: Path | None, count: int, seed: int) -> list[tuple[Row, list[Row]]]:
        """Return rows to ask, each with its solved ones; parameters and errors as `questions`."""
        found: list[tuple[Row, list[Row]]] = []
        own, each = self.shots_from or self.split, math.ceil(count / max(1, len(self.configs)))
        for config, (answers, source) in self._sources().items():
            dataset, _ = source.load(data)
            table, more = dataset[self.split], {"config": config, "answers": answers}
            skipped = 0 if self.shots_from else self.shots
            order = numpy_stream("audit", self.name, config or "", seed).permutation(
                max(len(table) - skipped, 0)
            )
            solved: list[Row] = [{**row, **more} for row in dataset[own]] if self.shots else []
            for row in table.select(skipped + order[:each]):
                by = self.shots_by
                fitting = solved if by is None else [s for s in solved if s[by] == row[by]]
                found.append(({**row, **more}, fitting[: self.shots]))
        return found

    def origin(self, data: Path | None) -> dict[str, Any]:
        """Return what decides the rows: digests of files in a local copy, or the hub's revision."""
        files = {
            f"{config}/{path.name}": digest(path)
            for config, (_, source) in self._sources().items()
            for paths in source.files(data).values()
            for path in paths
        }
        if files:
            return {"dataset": "mirror", "files": files}
        return {"dataset": self.hub, "config": self.config, "revision": self.revision}

    @property
    def template(self) -> dict[str, Any]:
        """What decides how rows are asked in the first wording, and answers are judged."""
        of_rows = ("name", "revision", "licence", "axis", "hub")
        values = {key: value for key, value in asdict(self).items() if key not in of_rows}
        return {**values, "prompts": self.prompts[:1]}

    def _sources(self) -> dict[str | None, tuple[Sequence[str], HubDataset]]:
        """Return the answers and the dataset of each configuration."""
        splits = tuple({self.split: 0, self.shots_from or self.split: 0})
        configs: list[tuple[str | None, Sequence[str]]] = [*self.configs.items()]
        where, folders = f"task {self.name!r}", () if configs else ("data",)
        return {
            config: (
                answers,
                HubDataset(where, self.hub, config, self.revision, splits, folders=folders),
            )
            for config, answers in configs or [(self.config, ())]
        }

    def question(self, row: Row, solved: Sequence[Row] = ()) -> Question:
        """Return a row as a question, behind solved rows."""
        choices, right = self._choices(row)
        prompts = []
        for prompt in self.prompts:
            before = self._text(self.preamble, row)
            for one in solved:
                before += f"{self._text(prompt, one)} {self.solution(one)}\n\n"
            stands = choices if self.ending else ("",)
            prompts.append(tuple(before + self._text(prompt, {**row, "choice": c}) for c in stands))
        answers = [self._text(self.ending, row)] if self.ending else choices
        return Question(
            tuple(prompts),
            tuple(f" {answer}" for answer in answers),
            tuple(choices),
            right,
            choices[right] if choices else self._text(self.target, row),
            self._text(self.prompts[0], {**row, "choice": "_"}),
            row,
        )

    def grade(self, question: Question, text: str) -> tuple[float, float, float]:
        """Return whether a written text is right, in the form asked for, and loosely right.

        NaN where that does not apply: forms are those of numbers, loose checks those of rules.
        """
        if self.rules:
            row = question.row
            verdicts = follows(row["instruction_id_list"], row["kwargs"], row["prompt"], text)
            strict, loose = (all(each) for each in zip(*verdicts, strict=True))
            return float(strict), math.nan, float(loose)
        found = [each.strip() for each in re.findall(self.extract, text)]
        found = [found[0 if self.take == "first" else -1]] if found else [""]
        match = re.search if "\n" not in self.stops else re.fullmatch
        right = found[0].replace(",", "").rstrip(".") == question.target
        return float(right), float(match(self.form or "", text.strip()) is not None), math.nan

    def solution(self, row: Row) -> str:
        """Return the answer of a solved row."""
        choices, right = self._choices(row)
        return choices[right] if choices else self._text(self.answer, row)

    def _choices(self, row: Row) -> tuple[list[str], int]:
        """Return the choices of a row and the number of the right one; none if it is written."""
        if self.choices is None:
            return [], 0
        with self._errors():
            choices = [str(choice) for choice in _value(self.choices, row)]
            right = int(_value(self.right, row))
        if not 0 <= right < len(choices):
            raise DataError(f"{self._where}: there is no choice {right} of {len(choices)}.")
        return choices, right

    def _text(self, template: str, row: Row) -> str:
        with self._errors():
            return _template(template).render(row)

    @property
    def _where(self) -> str:
        return f"task {self.name!r}, split {self.split!r} of {self.hub}"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            hint = f"a row lacks something ({error}). Use an unchanged copy of it."
            raise DataError(f"{self._where}: {hint}") from error


def _unmarked(text: str) -> str:
    """Return a text of HellaSwag without the marks of WikiHow, as lm-evaluation-harness does."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


_environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
_environment.filters["unmarked"] = _unmarked
_template = cache(_environment.from_string)
_expression = cache(partial(_environment.compile_expression, undefined_to_none=False))


def _value(expression: str, row: Row) -> Any:
    return _expression(expression)(**row)


def _read() -> dict[str, GeneralTask]:
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    sources = tables.pop("sources")
    for table in tables.values():
        table |= {**tables.get(table.pop("like", ""), {}), **table}
    return {
        name: GeneralTask(name, *sources[table["hub"]], **table) for name, table in tables.items()
    }


GENERAL: dict[str, GeneralTask] = _read()
"""All general tasks by name."""
WORDINGS = min(len(task.prompts) for task in GENERAL.values())
"""Wordings that all of them have."""


def at_hand(data: Path | None) -> bool:
    """Return whether a general task is among the copies in a folder, or the hub is in reach."""
    if any(copy_of(data, task.hub) is not None for task in GENERAL.values()):
        return True
    try:
        GENERAL["copa"].rows(None, 1, 0)  # the smallest one
    except DataError:
        return False
    return True

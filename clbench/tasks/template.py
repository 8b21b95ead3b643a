"""Templates: a task's rows as prompts and answers for language models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from string import Formatter
from typing import Any, Self

from clbench.core.errors import DataError, join_names
from clbench.core.options import checks_arguments

Pieces = tuple[str | int, ...]
"""Literal texts, and positions of columns whose text comes in between."""


@checks_arguments
@dataclass(frozen=True)
class Template:
    """The words around a row's texts, and the answers.

    Attributes
    ----------
    prompt
        Text with fields in braces: ``{text}`` and ``{text2}`` for a row's first and second text,
        or the names of their columns; for multiple choice also ``{choice1}`` and so on. Doubled
        braces stand for themselves.
    answers
        Answer by class name; a class without one is its own answer, with blanks for underscores.
        For regression, answers that are numbers: the prediction is their mean, weighted by
        probability.
    columns
        Names of the task's columns in the order of `Rows.texts`, where fields may use them.

    Raises
    ------
    DataError
        If the prompt has no field, an unknown one, or unbalanced braces.
    """

    prompt: str = "{text}\nAnswer:"
    answers: Mapping[str, str] = field(default_factory=dict)
    columns: Sequence[str | None] = (None,)

    def __post_init__(self) -> None:
        if not any(isinstance(piece, int) for piece in self.pieces):
            raise DataError(f"prompt {self.prompt!r} has no field. Use {self._known()}.")

    @classmethod
    def default(cls, pair: bool) -> Self:
        """Return the template of a task that has none."""
        return cls("{text}\n{text2}\nAnswer:", columns=(None, None)) if pair else cls()

    @cached_property
    def pieces(self) -> Pieces:
        """The prompt in parts."""
        fields = self._fields()
        pieces: list[str | int] = []
        try:
            parts = list(Formatter().parse(self.prompt))
        except ValueError as error:
            raise DataError(
                f"prompt {self.prompt!r}: {error}. Write {{{{ and }}}} for braces."
            ) from error
        for literal, name, spec, conversion in parts:
            if literal:
                pieces.append(literal)
            if name is None:
                continue
            if spec or conversion:
                raise DataError(
                    f"prompt {self.prompt!r}: fields have no format. Write {{{name}}} alone."
                )
            if name not in fields:
                raise DataError(
                    f"prompt {self.prompt!r}: there is no field {{{name}}}. Use {self._known()}, "
                    "and {{ and }} for braces."
                )
            pieces.append(fields[name])
        return tuple(pieces)

    def _known(self) -> str:
        return join_names(f"{{{name}}}" for name in self._fields())

    def _fields(self) -> dict[str, int]:
        """Return the column of each field."""
        fields = {"text": 0}
        for position in range(1, len(self.columns)):
            fields[f"text{position + 1}"] = position
            fields[f"choice{position}"] = position
        names = {name: i for i, name in enumerate(self.columns) if name is not None}
        return fields | names  # a column may be called text or text2

    def render(self, texts: Sequence[str]) -> str:
        """Return the prompt of a row with these texts, as they are: braces in them are text."""
        return "".join(p if isinstance(p, str) else texts[p] for p in self.pieces)

    def answer(self, label: str) -> str:
        """Return the answer for a class."""
        return self.answers.get(label, label.replace("_", " "))

    def after(self, text: str) -> Self:
        """Return the template with a text, in which braces are text, before the prompt."""
        literal = text.replace("{", "{{").replace("}", "}}")
        return replace(self, prompt=literal + self.prompt)

    def to_json(self) -> dict[str, Any]:
        """Return the settings that decide prompts and answers, for recipes."""
        return {"prompt": self.prompt, "answers": dict(self.answers)}

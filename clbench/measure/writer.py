"""How a language model writes, and which answers its texts are."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from transformers import PreTrainedTokenizerBase

from clbench.models import encoding
from clbench.tasks.task import IntArray
from clbench.training.batches import TaskData
from clbench.training.context import Context
from clbench.training.writing import lines, write_rows

Array = np.typing.NDArray[np.float32]
SPARE = 8
"""Tokens beside an answer's: blanks around it, and the end token."""


@dataclass(frozen=True)
class Writer:
    """Lets a language model write.

    Attributes
    ----------
    tokenizer
        The model's tokenizer.
    stops
        Tokens that end a text.
    most
        Most tokens of a text, where any is allowed.
    answer_by
        Whether tasks with classes are scored by what is written, too.
    """

    tokenizer: PreTrainedTokenizerBase
    stops: tuple[int, ...]
    most: int
    answer_by: Literal["likelihood", "generation"]

    def writes(self, data: TaskData) -> bool:
        """Whether a task is scored by what the model writes."""
        rows = data.rows
        is_text = isinstance(rows, encoding.PromptRows) and rows.targets is not None
        return is_text or self.answer_by == "generation"

    def length(self, data: TaskData) -> int:
        """Return the most tokens to write for a row.

        Where answers are given, a longer text is none of them: a token holds a byte or more.
        """
        rows = data.rows
        if not isinstance(rows, encoding.PromptRows) or rows.names is None:
            return self.most
        return SPARE + max(len(name.encode()) for names in rows.names for name in names)

    def texts(self, context: Context, data: TaskData) -> list[str]:
        """Return what the model writes for each row: one line, without blanks around it."""
        return lines(self.tokenizer, write_rows(context, data, self.stops, self.length(data)))


def chosen_answers(texts: list[str], rows: encoding.PromptRows) -> IntArray:
    """Return the number of the answer that each text is, shape (n,); -1 if it is none."""
    assert rows.names is not None
    names = rows.names * len(texts) if len(rows.names) == 1 else rows.names
    found = [own.index(t) if t in own else -1 for t, own in zip(texts, names, strict=True)]
    return np.array(found, dtype=np.int64)


def as_outputs(choices: IntArray, rows: encoding.PromptRows) -> Array:
    """Return choices as logits, shape (n, k), for metrics of classes.

    What is no answer counts as the class after the right one: as an error. For regression, it
    counts as the mean of all values, and outputs are of shape (n, 1).
    """
    assert rows.names is not None
    if rows.values is not None:
        values = np.asarray([*rows.values, np.mean(rows.values)], dtype=np.float32)
        return values[choices][:, None]
    k = len(rows.names[0])
    numbers = np.where(choices < 0, (rows.labels + 1) % k, choices)
    return np.eye(k, dtype=np.float32)[numbers]

"""The built-in tasks ``synthetic/<name>``: generated English sentences that come with clbench.

For tests and first steps; claims need real data. `tools/synthetic` generates the file of rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from clbench.core.seeds import numpy_stream
from clbench.tasks.task import Rows, Task, TaskSource
from clbench.tasks.template import Template

FILE = Path(__file__).with_name("synthetic.parquet")
TEXTS = "texts"
"""Name of the unlabelled texts in `FILE`."""


@dataclass(frozen=True)
class SyntheticTask:
    """The loader of a built-in task, whose rows are always the same.

    `kind` is a key of `SPECS`; `name` is by default ``synthetic/<kind>``. The metrics are those of
    the GLUE task that it resembles; `options` are arguments of `generate`.
    """

    kind: str
    labels: tuple[str, ...]
    description: str
    pair: bool = True
    metrics: tuple[str, ...] = ("accuracy",)
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    prompt: str = ""
    answers: tuple[str, ...] = ()

    def template(self) -> Template:
        """Return the template of prompts and answers."""
        answers = dict(zip(self.labels, self.answers or self.labels, strict=True))
        return Template(self.prompt, answers, (None, None) if self.pair else (None,))

    def __call__(self, source: TaskSource) -> Task:
        """Return the task."""
        name, rows = self.name or f"synthetic/{self.kind}", self._rows
        return Task(
            name,
            self.labels,
            self.metrics,
            rows["train"],
            rows["validation"],
            head=name,
            source=self.identity(source),
            template=self.template(),
        )

    def identity(self, source: TaskSource) -> dict[str, Any]:
        """Return digests of the rows."""
        digests = {split: rows.digest for split, rows in self._rows.items()}
        return {"dataset": "synthetic", "config": self.kind, "rows": digests}

    @property
    def classes(self) -> int:
        """The number of classes, for lists."""
        return len(self.labels)

    @cached_property
    def _rows(self) -> dict[str, Rows]:
        rows = {}
        for split, generated in generate(self.kind, **self.options).items():
            first, second, labels = (list(part) for part in zip(*generated, strict=True))
            rows[split] = Rows.of(first, second if self.pair else None, labels)
        return rows


SPECS = {
    task.kind: task
    for task in (
        SyntheticTask(
            "sentiment",
            ("negative", "positive"),
            "praise or blame in a review (like SST-2)",
            False,
            prompt="{text}\nSentiment:",
        ),
        SyntheticTask(
            "acceptability",
            ("faulty", "sound"),
            "is the grammar sound (like CoLA)",
            False,
            ("accuracy", "matthews"),
            prompt="{text}\nGrammar:",
        ),
        SyntheticTask(
            "paraphrase",
            ("different", "same"),
            "do both tell the same event (like MRPC)",
            metrics=("accuracy", "f1"),
            prompt="{text}\n{text2}\nSame or different:",
        ),
        SyntheticTask(
            "qa",
            ("no", "yes"),
            "does the text answer the question (like QNLI)",
            prompt="{text2}\n{text}\nAnswered:",
        ),
        SyntheticTask(
            "entailment",
            ("entailed", "not"),
            "does the second follow (like RTE)",
            prompt="{text}\n{text2} True or false:",
            answers=("true", "false"),
        ),
        SyntheticTask(
            "entailment3",
            ("entailed", "neutral", "contradicted"),
            "does the second follow, is it open, or false (like MNLI)",
            prompt="{text}\n{text2} True, false or open:",
            answers=("true", "open", "false"),
        ),
    )
}
"""The built-in tasks by kind."""

TRAIN_ROWS, VALIDATION_ROWS = 6000, 1200
SIZES = {
    **{(name, "train"): TRAIN_ROWS for name in SPECS},
    **{(name, "validation"): VALIDATION_ROWS for name in SPECS},
    (TEXTS, "train"): 6000,
    (TEXTS, "validation"): 2000,
}
"""Rows in `FILE` by task and split, in the order of the file."""


def generate(
    name: str,
    *,
    train: int = 2000,
    validation: int = 500,
    seed: int = 0,
    label_noise: float = 0.0,
) -> dict[str, list[tuple[str, str | None, int]]]:
    """Return rows of a built-in task.

    The rows depend only on name, split and seed: a shorter split is the beginning of a longer
    one, and neither split depends on the size of the other. No text is in both splits, whatever
    the seeds. Each block of C rows, for C classes, holds each class once. Seed 0 takes the first
    rows of the file, any other seed a sample; large splits of two seeds share rows. The other
    parameters are those of `clbench.tasks.spec.SyntheticTaskSpec`. A row of ``train`` and
    ``validation`` is ``(text, second text or None, label)``.
    """
    rows = {
        split: [rows[i] for i in _sample(name, split, size, seed)]
        for split, size in (("train", train), ("validation", validation))
        for rows in [_read(name, split)]
    }
    rng, classes = Random(f"{name}/noise/{seed}"), len(SPECS[name].labels)
    for i, (first, second, label) in enumerate(rows["train"]):
        chance, step = rng.random(), rng.randrange(1, classes)
        if chance < label_noise:
            rows["train"][i] = (first, second, (label + step) % classes)
    return rows


def unlabelled(n: int, seed: int = 0, *, held_out: bool = False) -> list[str]:
    """Return `n` distinct unlabelled texts, none of which is in a task's validation split.

    With `held_out`, none of them is in a training split instead. Seeds work as in `generate`.
    """
    split = "validation" if held_out else "train"
    rows = _read(TEXTS, split)
    return [rows[i][0] for i in _sample(TEXTS, split, n, seed)]


@cache
def _read(task: str, split: str) -> list[tuple[str, str | None, int]]:
    """Return all rows of one split in `FILE`, in order."""
    import pyarrow.parquet as pq

    group = list(SIZES).index((task, split))
    columns = ["first", "second", "label"]
    table = pq.ParquetFile(FILE).read_row_group(group, columns=columns)
    return list(zip(*(table[column].to_pylist() for column in columns), strict=True))


def _sample(task: str, split: str, size: int, seed: int) -> list[int]:
    """Return the positions of `size` rows, in blocks that hold each class once."""
    if seed == 0:
        return list(range(size))
    block = len(SPECS[task].labels) if task in SPECS else 1
    blocks = numpy_stream("synthetic", task, split, seed).permutation(SIZES[task, split] // block)
    positions: list[int] = (blocks[:, None] * block + np.arange(block)).ravel()[:size].tolist()
    return positions

"""The built-in synthetic tasks as tasks: `synthetic/<name>`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from clbench.errors import DataError
from clbench.tasks.registry import TaskSource
from clbench.tasks.spec import SyntheticTaskSpec
from clbench.tasks.synthetic import SPECS, generate
from clbench.tasks.task import Rows, Task

METRICS = {
    "acceptability": ("accuracy", "matthews"),
    "paraphrase": ("accuracy", "f1"),
}
"""Those of the GLUE tasks that they resemble; accuracy alone for the others."""


@dataclass(frozen=True)
class SyntheticTask:
    """One synthetic task, as a loader: its rows are always the same.

    Attributes
    ----------
    spec_name
        Its name in `clbench.tasks.synthetic.SPECS`.
    own_name
        The task's name where it is not ``synthetic/<spec_name>``.
    options
        Keyword arguments of `clbench.tasks.synthetic.generate`, as pairs; by default 2000
        training and 500 validation rows without noise.
    """

    spec_name: str
    own_name: str | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def own(cls, name: str, spec: SyntheticTaskSpec) -> SyntheticTask:
        """The loader of a ``[task.NAME]`` table."""
        options = spec.model_dump(exclude={"synthetic"})
        return cls(spec.synthetic, name, tuple(options.items()))

    def __call__(self, source: TaskSource) -> Task:
        """Generate the rows; nothing is read from disk.

        Raises
        ------
        DataError
            If the grammar has not that many texts.
        """
        spec = SPECS[self.spec_name]
        name = self.own_name or f"synthetic/{spec.name}"
        return Task(
            name,
            spec.labels,
            self.metrics,
            self._splits["train"],
            self._splits["validation"],
            head=name,
            source=self.identity(source),
        )

    @property
    def metrics(self) -> tuple[str, ...]:
        """Its metrics; the first is the score."""
        return METRICS.get(self.spec_name, ("accuracy",))

    @property
    def description(self) -> str:
        """One line for lists."""
        return SPECS[self.spec_name].description

    def identity(self, source: TaskSource) -> dict[str, Any]:
        """Digests of the generated rows: they change when, and only when, the rows do."""
        digests = {split: rows.digest for split, rows in self._splits.items()}
        return {"dataset": "synthetic", "config": self.spec_name, "rows": digests}

    @cached_property
    def _splits(self) -> dict[str, Rows]:
        splits = {}
        try:
            generated = generate(self.spec_name, **dict(self.options))
        except ValueError as fault:
            raise DataError(f"task {self.own_name!r}: {fault}") from fault
        for split, rows in generated.items():
            first, second, labels = zip(*rows, strict=True)
            pair = SPECS[self.spec_name].pair
            splits[split] = Rows.of(list(first), list(second) if pair else None, labels)
        return splits


LOADERS = SimpleNamespace(**{name: SyntheticTask(name) for name in SPECS})
"""The loaders by name."""

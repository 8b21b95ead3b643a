"""What a cell's scores depend on, gathered without loading models or rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clbench.errors import SuiteError
from clbench.suite.faults import shown
from clbench.suite.plugins import source_digest
from clbench.suite.schema import ScenarioSpec
from clbench.tasks.spec import OwnTaskSpec
from clbench.training.protocol import BY_TASK, Protocol

RECIPE_VERSION = 5
"""Raised whenever a change of clbench changes scores, so that old cells are not taken for new."""


class Identities:
    """Digests of models, tasks and shifts, each computed once.

    Parameters
    ----------
    protocol
        Of all cells.
    data, base, own
        Where tasks come from; see `clbench.tasks.load.task_identity`.
    """

    def __init__(
        self,
        protocol: Protocol,
        *,
        data: Path | None,
        base: Path,
        own: Mapping[str, OwnTaskSpec],
    ) -> None:
        self._protocol = protocol
        self._data = data
        self._base = base
        self._own = own
        self._model: dict[str, Any] | None = None
        self._corpus: dict[str, Any] | None = None
        self._tasks: dict[str, dict[str, Any]] = {}

    def recipe(self, scenario: ScenarioSpec) -> dict[str, Any]:
        """The part of a recipe that all cells of a scenario share."""
        return {
            "version": RECIPE_VERSION,
            "scenario": {"name": scenario.name, "shift": scenario.shift, **scenario.settings},
            "shift": self._shift(scenario.shift),
            "files": self._files(scenario),
            "tasks": {name: self._task(name) for name in scenario.task_names},
            "model": self._model_identity(),
            "corpus": self._corpus_identity(),
            "protocol": self._protocol_of(scenario),
        }

    def _protocol_of(self, scenario: ScenarioSpec) -> dict[str, Any]:
        """The protocol without names of model and corpus and what concerns other tasks.

        The identities of model and corpus stand for them, wherever their files lie.
        """
        values = self._protocol.model_dump(mode="json", exclude={"model", "revision", "corpus"})
        for key in BY_TASK:
            values[key] = {
                task: value
                for task, value in values[key].items()
                if task.partition("[")[0] in scenario.task_names
            }
        return values

    def _model_identity(self) -> dict[str, Any]:
        if self._model is None:
            from clbench.models.locate import model_identity

            self._model = model_identity(self._protocol.model, self._protocol.revision)
        return self._model

    def _corpus_identity(self) -> dict[str, Any]:
        if self._corpus is None:
            from clbench.tasks.corpus import corpus_identity

            self._corpus = corpus_identity(self._protocol.corpus)
        return self._corpus

    def _task(self, name: str) -> dict[str, Any]:
        if name not in self._tasks:
            from clbench.tasks.load import task_identity

            self._tasks[name] = task_identity(name, data=self._data, base=self._base, own=self._own)
        return self._tasks[name]

    def _shift(self, name: str) -> str | None:
        from clbench.shifts.base import SHIFTS

        return source_digest(SHIFTS.where(name))

    def _files(self, scenario: ScenarioSpec) -> dict[str, str]:
        """Digests of files that the settings name, such as a saved split."""
        digests = {}
        for key, value in scenario.settings.items():
            if isinstance(value, str) and Path(value).suffix and (self._base / value).is_file():
                try:
                    content = (self._base / value).read_bytes()
                except OSError as fault:
                    raise SuiteError(
                        f"{shown(self._base / value)}: cannot be read: {fault.strerror}."
                    ) from fault
                digests[key] = hashlib.blake2b(content, digest_size=16).hexdigest()
        return digests

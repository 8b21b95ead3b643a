"""Checks of scenarios for dry runs, as far as they go without embeddings."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import numpy.typing as npt

from clbench.runner.prepare import ScenarioPreparer
from clbench.shifts.scenario import Scenario, build_scenario
from clbench.suite.schema import ScenarioSpec
from clbench.tasks.task import Rows


class _EmbeddingNeededError(Exception):
    """A scenario cannot be built any further without embeddings."""


class InputChecker(ScenarioPreparer):
    """Checks scenarios as far as that shows without embeddings, for dry runs."""

    def check(self, spec: ScenarioSpec) -> Scenario | None:
        """Raise what `prepare` would raise, up to the first embedding if any; save nothing.

        Return the scenario, or None if it needs embeddings.
        """
        self._subset = self.protocol.subset_seed(0)
        with self._building(spec), suppress(_EmbeddingNeededError):
            scenario = build_scenario(spec.name, spec.shift, spec.settings, self, severity=False)
            self._check_subset(scenario)
            return scenario
        return None

    def embed(self, rows: Rows) -> npt.NDArray[np.float32]:
        """End the check."""
        raise _EmbeddingNeededError

"""Check the inputs of a plan as far as that shows without embeddings, for dry runs."""

from contextlib import suppress
from dataclasses import replace

import numpy as np

from clbench.core.errors import ClbenchError
from clbench.measure.rows import PreparedScenario
from clbench.models.folder import count_parameters, weight_files
from clbench.models.locate import local_folder
from clbench.runner.prepare import ScenarioPreparer
from clbench.runner.resources import machine_mb
from clbench.suite.schema import ScenarioSpec
from clbench.tasks.task import Rows


class _EmbeddingNeededError(ClbenchError):
    """A scenario cannot be built any further without embeddings."""


class InputChecker(ScenarioPreparer):
    """Checks scenarios as far as that shows without embeddings, for dry runs."""

    def check_model(self) -> tuple[str, ...]:
        """As in `ScenarioPreparer`; do not load weights that this machine has no memory for."""
        protocol = self.protocol
        files = weight_files(local_folder(protocol.model, protocol.revision), protocol.model)
        size = 4e-6 * count_parameters(files, without="")
        if size < machine_mb():
            return super().check_model()
        return (f"{protocol.model}: not loaded, as its weights take {size / 1000:.1f} GB.",)

    def check(self, spec: ScenarioSpec) -> PreparedScenario | None:
        """Raise what `prepare` would raise, up to the first embedding if any; save nothing.

        Return the scenario without its scorers, or None if it needs embeddings.
        """
        self._subset = self.protocol.subset_seed(0)
        with suppress(_EmbeddingNeededError):
            scenario = self._build(spec, severity=False)
            # Scorers of other columns may train a head.
            prepared = self.tokenise(replace(scenario, extra_columns=()))
            return replace(prepared, scenario=scenario)
        return None

    def embed(self, rows: Rows) -> np.typing.NDArray[np.float32]:
        """End the check."""
        raise _EmbeddingNeededError

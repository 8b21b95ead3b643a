"""From a scenario of a suite file to its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from clbench.shifts.base import ShiftContext
from clbench.shifts.scenario import Scenario


class ScenarioLike(Protocol):
    """What of a suite's scenario is needed here."""

    @property
    def name(self) -> str:
        """The scenario's name."""
        ...

    @property
    def shift(self) -> str:
        """The registered name of its shift."""
        ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """The rest of its table."""
        ...


def build_scenario(spec: ScenarioLike, context: ShiftContext, *, severity: bool = True) -> Scenario:
    """The scenario of `spec`, checked and described.

    Parameters
    ----------
    spec
        Its name, shift and settings.
    context
        Rows, lengths and embeddings.
    severity
        Whether to measure the severity, which embeds up to 1000 rows of each task.

    Raises
    ------
    UnknownNameError, SettingsError
        If the shift or its settings are wrong.
    ShiftError
        If a part has no rows, or rows of one class only.
    """
    raise NotImplementedError

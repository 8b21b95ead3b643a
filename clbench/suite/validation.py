"""Checks of settings that need the class that they are for."""

from __future__ import annotations

from collections.abc import Iterable

from clbench.errors import ClbenchError, SettingsError, SuiteError
from clbench.suite.baselines import Baseline
from clbench.suite.faults import raise_faults
from clbench.suite.read import Suite
from clbench.suite.schema import ScenarioSpec


def check_shifts(suite: Suite, scenarios: Iterable[ScenarioSpec]) -> None:
    """Construct the shift of each scenario.

    Raises
    ------
    SuiteError
        With the faults of all scenarios of the file.
    """
    from clbench.shifts.registry import SHIFTS

    faults = []
    for scenario in scenarios:
        try:
            SHIFTS.get(scenario.shift)(**scenario.settings)
        except SettingsError as fault:
            number = suite.scenario_names.index(scenario.name) + 1
            faults.append(f"[[scenario]] {number} {scenario.name!r}: {_sentence(fault)}")
    raise_faults(suite.path, faults)


def check_methods(baselines: Iterable[Baseline]) -> None:
    """Construct the method of each baseline.

    Raises
    ------
    SuiteError
        For the first baseline file whose settings do not fit its method.
    SettingsError
        The same for a baseline that has no file.
    PluginError
        If a method cannot be imported or is none.
    """
    from clbench.methods.registry import METHODS

    for baseline in baselines:
        method = METHODS.get(baseline.method)
        try:
            method(**baseline.settings)
        except SettingsError as fault:
            if baseline.path is None:
                raise
            raise SuiteError(f"{baseline.path}: [settings] {_sentence(fault)}") from fault


def stages_of(scenario: ScenarioSpec) -> int:
    """How many tasks a scenario has: those of ``tasks``, else the parts of its one task.

    A shift of one's own that divides a task tells the number of parts by an attribute or
    setting ``k``; without one it is taken for 2.
    """
    tasks = scenario.settings.get("tasks")
    if isinstance(tasks, list):
        return len(tasks)
    from clbench.shifts.registry import SHIFTS

    parts = getattr(SHIFTS.get(scenario.shift)(**scenario.settings), "k", 2)
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1:
        raise ClbenchError(f"shift {scenario.shift!r}: its k must be a number of parts.")
    return parts


def _sentence(fault: Exception) -> str:
    text = str(fault)
    return text if text.endswith(".") else f"{text}."

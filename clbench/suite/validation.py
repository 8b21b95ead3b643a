"""Checks of settings that need the class that they are for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from clbench.errors import ClbenchError, SettingsError
from clbench.settings import Configured
from clbench.suite.baselines import Baseline
from clbench.suite.faults import explain, raise_faults
from clbench.suite.read import Suite
from clbench.suite.schema import ScenarioSpec
from clbench.training.protocol import Protocol


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
        number = suite.scenario_names.index(scenario.name) + 1
        found = _faults(SHIFTS.get(scenario.shift), scenario.settings)
        faults += [f"[[scenario]] {number} {scenario.name!r} {text}" for text in found]
    raise_faults(suite.path, faults)


def check_methods(baselines: Iterable[Baseline], protocol: Protocol) -> None:
    """Construct the method of each baseline, and have it look at the protocol.

    Raises
    ------
    SuiteError
        For the first baseline file whose settings do not fit its method.
    SettingsError
        The same for a baseline that has no file, and for one that does not fit the protocol.
    PluginError
        If a method cannot be imported or is none.
    """
    from clbench.methods.base import METHODS

    for baseline in baselines:
        kind = METHODS.get(baseline.method)
        faults = _faults(kind, baseline.settings)
        if not faults:
            try:
                kind(**baseline.settings).check_protocol(protocol)
            except SettingsError as fault:
                raise SettingsError(f"{baseline.name}, with this protocol: {fault}") from fault
        if baseline.path is not None:
            raise_faults(baseline.path, [f"{baseline.table} {text}" for text in faults])
        elif faults:
            raise SettingsError(
                f"method {baseline.method!r}: {' '.join(faults)} Settings are given in a "
                "baseline file, under [settings]."
            )


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


def _faults(kind: type[Configured], settings: Mapping[str, Any]) -> list[str]:
    """What is wrong with the settings of a shift or method, each as ``"key: …"``."""
    model = kind.settings_model()
    try:
        # As JSON, where a whole number may stand for a number and a list for a tuple, but
        # a text may not stand for either.
        model.model_validate_json(json.dumps(dict(settings)), strict=True)
    except ValidationError as fault:
        return explain(fault, settings, model)
    try:
        kind(**settings)
    except SettingsError as fault:
        text = str(fault)
        return [text if text.endswith(".") else f"{text}."]
    return []

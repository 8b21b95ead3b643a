"""The recipes of cells: everything that decides their scores, as plain JSON values."""

import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from clbench.core.files import digest
from clbench.models.locate import model_identity
from clbench.shifts.base import SHIFTS
from clbench.suite.baselines import Baseline
from clbench.suite.plugins import source_digest
from clbench.suite.read import Suite
from clbench.suite.schema import ScenarioSpec
from clbench.tasks.corpus import corpus_identity
from clbench.tasks.metrics import METRICS, TEXT_METRICS
from clbench.tasks.registry import TASKS, task_identity, template_identity
from clbench.training.protocol import BY_TASK, Protocol

RECIPE_VERSION = 5
"""Increase it when a change of clbench changes scores: finished cells then become outdated."""
VERSIONS = {"icarl": 2}
"""The same for the cells of single methods of clbench, by name; others have version 1."""


def protocol_of(scenario: ScenarioSpec, protocol: Protocol) -> Protocol:
    """Return the protocol of a scenario's cells: that of a run, with one pass if it is online."""
    # Before its settings are checked, that is all that is known of them.
    return protocol.one_pass() if scenario.settings.get("online") is True else protocol


def protocol_section(scenario: ScenarioSpec, protocol: Protocol) -> dict[str, Any]:
    """Return a scenario's protocol as recipes hold it, without values of other tasks."""
    values = protocol.model_dump(mode="json", exclude={"model", "revision", "corpus"})
    for key in BY_TASK:
        by_task, tasks = values[key].items(), _possible_tasks(scenario)
        values[key] = {name: v for name, v in by_task if name.partition("[")[0] in tasks}
    return values


def _possible_tasks(scenario: ScenarioSpec) -> tuple[str, ...]:
    """Return what may name a task: with a shift of a plug-in, any text in the settings."""
    shift = scenario.shift
    is_own = shift in SHIFTS and source_digest(SHIFTS.where(shift)) is None
    return scenario.task_names if is_own else scenario.texts


def shared_recipes(
    suite: Suite, protocol: Protocol, data: Path | None
) -> Callable[[ScenarioSpec, Protocol], dict[str, Any]]:
    """Return a function from a scenario and its protocol to what the recipes of its cells share.

    The recipe identifies models, tasks and corpora by their contents, not their paths.
    """
    base, own = suite.base, suite.file.task
    model = model_identity(protocol.model, protocol.revision)
    corpus = corpus_identity(protocol.corpus)
    template = cache(partial(template_identity, own=own))
    identity = cache(partial(task_identity, data=data, base=base, own=own))

    def recipe(scenario: ScenarioSpec, protocol: Protocol) -> dict[str, Any]:
        tasks = [name for name in _possible_tasks(scenario) if name in own or name in TASKS]
        values = protocol_section(scenario, protocol)
        # Metrics of clbench have no digest and are not part of the recipe.
        metrics = {
            name: code
            for name in values["task_metric"].values()
            if name not in TEXT_METRICS and (code := source_digest(METRICS.where(name)))
        }
        files = {  # that the settings name, such as a saved split
            key: digest(base / value)
            for key, value in scenario.settings.items()
            if isinstance(value, str) and Path(value).suffix and (base / value).is_file()
        }
        asked = {name: [identity(name), template(name)] for name in protocol.capability_tasks}
        speaks = protocol.is_language_model
        return {
            "version": RECIPE_VERSION,
            "scenario": {"name": scenario.name, "shift": scenario.shift, **scenario.settings},
            "shift": source_digest(SHIFTS.where(scenario.shift)),
            "files": files,
            "tasks": {name: identity(name) for name in tasks},
            **({"templates": {name: template(name) for name in tasks}} if speaks else {}),
            **({"capability_tasks": asked} if asked else {}),
            **({"metrics": metrics} if metrics else {}),
            "model": model,
            "corpus": corpus,
            "protocol": values,
        }

    return recipe


def own_recipe(baseline: Baseline, seed: int, reference_of: int | None) -> dict[str, Any]:
    """Return what the recipe of one cell adds to the shared one: its method and its seed."""
    method: dict[str, Any] = {
        "name": baseline.method,
        "settings": dict(baseline.settings),
        "source": baseline.digest,
    }
    if baseline.digest is None and baseline.method in VERSIONS:
        method["version"] = VERSIONS[baseline.method]
    return {"method": method, "seed": seed, "reference_of": reference_of}


def json_sections(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return the sections of a recipe as JSON, for `fingerprint`."""
    encode = json.JSONEncoder(sort_keys=True).encode
    return {name: encode(section) for name, section in recipe.items()}


def fingerprint(sections: Mapping[str, str]) -> str:
    """Return the digest of a recipe, given as the JSON of its sections."""
    text = ", ".join(f'"{name}": {sections[name]}' for name in sorted(sections))
    return digest(f"{{{text}}}")

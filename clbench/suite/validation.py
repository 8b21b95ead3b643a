"""Checks of a suite that need the registered tasks, shifts and methods."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from clbench.core import errors
from clbench.core.registry import Configured
from clbench.core.user_code import user_code
from clbench.methods.base import METHODS, at_rate
from clbench.shifts.base import SHIFTS
from clbench.shifts.scenario import Scenario
from clbench.suite.baselines import Baseline
from clbench.suite.read import Suite, raise_errors
from clbench.suite.schema import Question, ScenarioSpec
from clbench.suite.sweeps import check_sweep
from clbench.tasks.metrics import METRICS, TEXT_METRICS
from clbench.tasks.registry import TASKS, score_metrics
from clbench.training.protocol import BY_TASK, Protocol


def unknown_names(suite: Suite, scenarios: Iterable[ScenarioSpec]) -> list[str]:
    """Return an error for each task, metric or shift that does not exist."""
    own, protocol = suite.file.task, suite.file.protocol
    plugin = f" For your own, add {errors.named('plugins', 'FILE')}."

    def task_error(location: str, task: str) -> list[str]:
        if task in own or task in TASKS:
            return []
        hint = errors.did_you_mean(task, [*own, *TASKS], "clbench list tasks")
        return [f"{location}: there is no task {task!r}.{hint}{plugin}"]

    problems = [
        f"[task.{errors.quote_key(name)}]: a task {name!r} already exists. Rename yours."
        for name in own
        if name in TASKS
    ]
    for key in BY_TASK:
        for task in getattr(protocol, key):
            # A part of a task, such as glue/sst2[short], may have its own epochs or steps.
            problems += task_error(
                f"[protocol] {key}.{errors.quote_key(task)}", task.partition("[")[0]
            )
    for task, metric in protocol.task_metric.items():
        whole, bracket, _ = task.partition("[")
        metrics = score_metrics(whole, own) or [*METRICS, *TEXT_METRICS]
        if bracket:
            problems.append(
                f"[protocol] task_metric.{errors.quote_key(task)}: the parts of a task have one "
                f"metric. Name the task, {whole!r}."
            )
        elif metric not in metrics:
            problems.append(
                f"[protocol] task_metric.{errors.quote_key(task)}: the task has no metric "
                f"{metric!r}. Use {' or '.join(metrics)}."
            )
    for scenario in scenarios:
        location = _location(suite, scenario)
        if scenario.shift not in SHIFTS:
            hint = errors.did_you_mean(scenario.shift, SHIFTS, "clbench list shifts")
            problems.append(
                f"{location} shift: there is no shift {scenario.shift!r}.{hint}{plugin}"
            )
        for task in scenario.task_names:
            key = "task" if scenario.settings.get("task") == task else "tasks"
            problems += task_error(f"{location} {key}", task)
    return problems


def check_shifts(suite: Suite, scenarios: Iterable[ScenarioSpec]) -> None:
    """Construct each scenario's shift; raise one SuiteError with all errors in their settings."""
    problems = []
    for scenario in scenarios:
        shift = SHIFTS.get(scenario.shift)
        with user_code(f"shift {scenario.shift!r}"):
            problems += _settings_errors(shift, scenario.settings, _location(suite, scenario))
    raise_errors(suite.path, problems)


def check_methods(baselines: Iterable[Baseline], protocol: Protocol) -> None:
    """Construct each baseline's method and let it check the protocol.

    Raises a SuiteError or SettingsError for the first baseline whose settings do not fit its method
    or the protocol, or a PluginError if a method cannot be imported.
    """
    for baseline in baselines:
        kind = METHODS.get(baseline.method)
        with user_code(f"method {baseline.method!r}"):
            problems = _settings_errors(kind, baseline.settings, baseline.table)
        if baseline.path is not None:
            raise_errors(baseline.path, problems)
        elif problems:
            raise errors.SettingsError(
                f"method {baseline.method!r}: {'; '.join(problems).rstrip('.')}."
            )
        check_sweep(baseline)
        with _checks(f"{baseline.name}, with this protocol"):
            method = baseline.build()
            if protocol.head not in method.head_kinds:
                raise errors.SettingsError(
                    f"it needs head = {method.head_kinds[0]!r} in [protocol]. Set that, or leave "
                    "the method out."
                )
            if method.needs_decoder and protocol.is_language_model:
                _check_decoder(protocol)
            method.check_protocol(at_rate(method, protocol))


def check_tasks(baselines: Iterable[Baseline], scenario: Scenario, protocol: Protocol) -> None:
    """Let each baseline's method check the tasks of a scenario; raise its SettingsError."""
    for baseline in baselines:
        with _checks(f"{baseline.name}, on {scenario.name}"):
            method = baseline.build()
            method.check_protocol(at_rate(method, protocol))
            method.check_tasks(scenario.tasks)


@contextmanager
def _checks(where: str) -> Iterator[None]:
    """Begin the errors of a method's checks with `where`."""
    try:
        with user_code(where):
            yield
    except errors.SettingsError as error:
        raise errors.SettingsError(f"{where}: {error}") from error


def _check_decoder(protocol: Protocol) -> None:
    from clbench.models.checkpoint import load_config

    if getattr(load_config(protocol.model, protocol.revision), "is_encoder_decoder", False):
        raise errors.SettingsError(
            f"it needs a decoder, and model {protocol.model!r} is an encoder-decoder. Use another "
            "model, or leave the method out."
        )


def check_shared_head(question: Question, scenario: Scenario) -> None:
    """Raise a SuiteError if the question has the score ``told`` but each task has its own head."""
    asked = "told" in question.scores and question.covers(scenario.name)
    if asked and not any(task.own for task in scenario.tasks):
        raise errors.SuiteError(
            "[question] scores: 'told' is for tasks that share a head, but each task of scenario "
            f"{scenario.name!r} has its own head. Remove 'told', or use another scenario."
        )


def _settings_errors(kind: type[Configured], settings: Mapping[str, Any], table: str) -> list[str]:
    model = kind.settings_model()
    try:
        # As JSON; see `clbench.suite.read.check_file`.
        model.model_validate_json(json.dumps(dict(settings)), strict=True)
        kind(**settings)
    except ValidationError as error:
        return errors.describe_errors(error, settings, model=model, table=table)
    except errors.SettingsError as error:
        return [f"{table} {error}"]
    return []


def stages_of(scenario: ScenarioSpec) -> int:
    """Return the number of tasks of a scenario: its shift's ``k``, else those in ``tasks``, else 2.

    A shift that divides a task sets the number of parts in ``k``.
    """
    tasks = scenario.settings.get("tasks")
    default = len(tasks) if isinstance(tasks, list) else 2
    parts = getattr(SHIFTS.get(scenario.shift)(**scenario.settings), "k", default)
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1:
        raise errors.ClbenchError(f"shift {scenario.shift!r}: k must be a whole number, 1 or more.")
    return parts


def _location(suite: Suite, scenario: ScenarioSpec) -> str:
    return f"[[scenario]] {suite.scenario_names.index(scenario.name) + 1} {scenario.name!r}"

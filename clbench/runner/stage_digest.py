"""The identity of a trained stage, by which cells find it in the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from clbench.core import __version__
from clbench.measure.rows import PreparedScenario
from clbench.runner.stage_cache import recipe_digest
from clbench.suite.plan import Cell
from clbench.tasks.task import IntArray, Task
from clbench.tasks.template import Template
from clbench.training.protocol import Protocol


def stage_digest(
    cell: Cell,
    scenario: PreparedScenario,
    protocol: Protocol,
    numerics: Mapping[str, Any],
    *,
    stages: Sequence[int],
    shared: bool,
    needs_length: bool,
    grown: Mapping[str, int],
) -> str:
    """Return the digest of everything that decides the weights after the last of `stages`.

    Parameters
    ----------
    cell, scenario
        The cell, and its scenario.
    protocol
        The cell's protocol at the rate of its method.
    numerics
        `ComputeSettings.identity`.
    stages
        Numbers of the tasks that were trained on, the last one included.
    shared
        Whether vanilla's training serves the stage, so that the method does not matter.
    needs_length
        Whether the method trains differently if more tasks follow.
    grown
        Outputs in use of heads that grow, where the others do not matter.
    """
    recipe, vocabulary = cell.recipe, scenario.vocabulary
    tasks = scenario.scenario.tasks[: stages[-1] + 1]
    scorers = scenario.scorers if cell.reference_of is None else ()
    speaks, measured = protocol.is_language_model, bool(protocol.capability_rows)
    seen, probes = [tasks[i].seen for i in stages], bool(protocol.probe_rows)
    # Only plug-in metrics have a digest.
    codes = [recipe.get("metrics")]
    codes += [task.get("metric_code") for task in recipe.get("tasks", {}).values()]
    return recipe_digest(
        {
            **({"metric_code": codes} if any(codes) else {}),
            **({"seen": seen} if any(seen) else {}),
            # The history holds scores for classes of the task's own, too.
            **({"grown": [list(task.own) for task in tasks]} if grown else {}),
            **({"templates": [_words_of(tasks[i]) for i in stages]} if speaks else {}),
            "clbench": __version__,
            "numerics": dict(numerics),
            "protocol": protocol.model_dump(mode="json", exclude={"corpus", "lm_eval"}),
            "corpus": recipe.get("corpus") if scorers or measured or not shared else None,
            **({"asked": recipe.get("capability_tasks")} if measured else {}),
            "model": recipe.get("model"),
            "scenario": cell.scenario.series,
            "heads": {task.head: grown.get(task.head, task.outputs) for task in tasks},
            "vocabulary": None if vocabulary is None else _digest_of(vocabulary),
            "seed": cell.seed,
            "stages": [[i, tasks[i].name, tasks[i].train.digest] for i in stages],
            "scored": [[tasks[i].validation.digest] for i in stages],
            # The history holds scores of extra columns, which depend on the shift's settings.
            "columns": recipe.get("scenario") if scorers else None,
            # The history holds scores of probes on later tasks, too.
            **({"probed": [t.train.digest for t in scenario.scenario.tasks]} if probes else {}),
            "method": None if shared else recipe.get("method"),
            **({} if shared or not needs_length else {"length": len(scenario.scenario.tasks)}),
        }
    )


def _words_of(task: Task) -> dict[str, Any]:
    template = task.template or Template.default(task.is_pair)
    answers = [template.answer(label) for label in task.labels]
    return {**template.to_json(), "answers": answers, "labels": list(task.labels)}


def _digest_of(numbers: IntArray) -> str:
    return hashlib.blake2b(numbers.tobytes(), digest_size=16).hexdigest()

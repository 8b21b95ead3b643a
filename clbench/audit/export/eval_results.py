"""Evaluation results for a model's repository on the Hugging Face hub.

The format is that of https://huggingface.co/docs/hub/eval-results: files in ``.eval_results``,
each a list of results on benchmark datasets of the hub. Values are written as in JSON, which YAML
contains.
"""

import json
from collections.abc import Iterator

from clbench.audit.record import Record, measures
from clbench.core.errors import DataError
from clbench.core.files import folders

NO_RESULTS = ("format", "calibration", "features", "language")
"""Parts whose scores are not those of a model that does the task."""


def export(record: Record) -> Iterator[tuple[str, str]]:
    """Yield ``MODEL/.eval_results/TASK.yaml`` for each task on the hub that a model did itself.

    Raises a DataError if there is none.
    """
    content, found = record.content, False
    places = folders(model["model"] for model in content["models"])
    for model in content["models"]:
        own = [m for m in measures(model) if m.primary and m.part not in NO_RESULTS]
        own = [m for m in own if m.items["source"].get("hub")]
        names = folders(each.title for each in own)
        for each in own:
            items, numbers, source, found = each.items, each.numbers, each.items["source"], True
            revision = {"revision": source["revision"]} if source.get("revision") else {}
            note = (
                f"{items['metric']} on {numbers['n']} items by clbench audit; base model "
                f"{content['base']}: {numbers['base']:.4f}, change {each}, {numbers['verdict']}"
            )
            more = [text for text in content["notes"] if text.startswith(f"{items['task']}: ")]
            task = source.get("config") or "default"
            result = {
                "dataset": {"id": source["hub"], "task_id": task, **revision},
                "value": numbers["tuned"],
                "date": content["date"],
                "notes": "; ".join([note, *more]),
            }
            path = f"{places[model['model']]}/.eval_results/{names[each.title]}.yaml"
            yield path, f"- {json.dumps(result, ensure_ascii=False, indent=1)}\n"
    if not found:
        raise DataError(
            f"{record.folder}: no model answers a task of the hub itself, so there are no results "
            "for it. Audit a model with a head for such a task; logs do not name the hub's tasks."
        )

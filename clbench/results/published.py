"""Published results, and their comparison with the scores of a run."""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

import pandas as pd

from clbench.results.cell import CellResult
from clbench.suite.read import packaged_files, read_suite
from clbench.training.protocol import Protocol

OVER_SEEDS: dict[str, Callable[[list[float]], float]] = {"median": median, "maximum": max}
"""Statistics over several runs. A single published run is compared with our mean."""

COMPARED = (
    *("lr", "batch_size", "task_batch_size", "max_length", "schedule", "warmup", "weight_decay"),
    *("clip_norm", "head_dropout", "pooling", "task_metric"),
)
"""Settings of the protocol in which a run may differ from its suite."""


def published() -> pd.DataFrame:
    """Return all published results, one a row.

    Returns
    -------
    pandas.DataFrame
        ``source``, ``table``; the ``suite`` and ``scenario`` that reproduce the result, if any (a
        pattern such as ``four-tasks-*`` stands for a mean over scenarios, ``n`` runs of each);
        the ``task`` of a single-task result; ``method`` by our name; ``score`` (p_s for a single
        task) in a ``metric``; ``statistic`` over ``n`` runs; ``value``, a fraction; ``model``,
        ``split``, ``protocol``; a ``note``; and how our suite ``differs`` from the paper.
    """
    files = packaged_files("results/published", "*.csv").values()
    return pd.concat(
        [pd.read_csv(path, keep_default_na=False) for path in files], ignore_index=True
    )


def compare_published(suite: str, cells: Sequence[CellResult]) -> pd.DataFrame:
    """Compare the cells of a run with the published results of its suite.

    Returns
    -------
    pandas.DataFrame
        ``source``, ``table``, ``scenario``, ``method``, ``score``, ``statistic``, ``published``,
        ``ours`` (the same statistic over seeds; the mean for a single published run), ``seeds``,
        ``difference`` (ours minus published), ``differs`` (differences in protocol) and ``note``.
        If a table covers several models, only the run's model is compared, or else the first.
        Empty for a suite without published results.
    """
    theirs = published()
    theirs = theirs[theirs["suite"] == suite]
    models = {cell.model for cell in cells} & set(theirs["model"]) or set(theirs["model"][:1])
    good = [cell for cell in cells if cell.is_scored]
    names = read_suite(suite).scenario_names if suite and len(theirs) else []
    rows: list[dict[str, Any]] = []
    for row in theirs[theirs["model"].isin(models)].to_dict("records"):
        scenarios = fnmatch.filter(names, row["scenario"])
        runs = [
            [c for c in good if (c.scenario, c.baseline) == (name, row["method"])]
            for name in scenarios
        ]
        matching = [cell for some in runs for cell in some]
        values = [v for cell in matching if (v := cell.scores.get(row["score"])) is not None]
        # A mean over some of the scenarios only would be another one.
        if not values or not all(runs):
            continue
        ours = OVER_SEEDS.get(row["statistic"], fmean)(values)
        texts = ("source", "table", "scenario", "method", "score", "statistic")
        seeds = len({cell.seed for cell in matching})
        numbers = {"published": row["value"], "ours": ours, "seeds": seeds}
        numbers["difference"] = ours - row["value"]
        differences = dict.fromkeys(d for some in runs for d in _differences(row, some))
        notes = {"differs": "; ".join(differences), "note": row["note"]}
        rows.append({key: row[key] for key in texts} | numbers | notes)
    return pd.DataFrame(rows)


def _rows(protocol: Mapping[str, Any]) -> str:
    """Return how many rows of a split a protocol takes."""
    if protocol.get("limit") is None:
        return "all rows"
    unit = "class" if protocol.get("limit_per") == "class" else "split"
    return f"at most {protocol['limit']} rows a {unit}"


def _differences(row: Mapping[Any, Any], cells: Sequence[CellResult]) -> list[str]:
    """Return the recorded differences between our runs and the published ones."""
    protocol: Mapping[str, Any] = cells[0].settings.get("protocol", {})
    model = cells[0].model
    differences = [] if model == row["model"] else [f"model {model}, theirs {row['model']}"]
    followed = read_suite(row["suite"]).file.protocol
    values = followed.model_dump(mode="json")
    if (rows := _rows(protocol)) != (rows_followed := _rows(values)):
        differences.append(f"{rows}, theirs {rows_followed}")
    if (split := protocol.get("score_on", "validation")) != row["split"]:
        differences.append(f"scored on {split} rows, theirs on {row['split']}")
    if len(cells) != row["n"]:
        word = row["statistic"] if row["statistic"] in OVER_SEEDS else "mean"
        ours = "1 seed" if len(cells) == 1 else f"{word} of {len(cells)} seeds"
        theirs = "one run" if row["n"] == 1 else f"{row['n']} runs"
        differences.append(f"{ours}, theirs {theirs}")
    differences += _lengths(cells, followed)
    differences += [
        f"{key} {protocol[key]}, theirs {values[key]}"
        for key in COMPARED
        if key in protocol and protocol[key] != values[key]
    ]
    return differences + ([row["differs"]] if row["differs"] else [])


def _lengths(cells: Sequence[CellResult], theirs: Protocol) -> list[str]:
    """Return the tasks trained for another number of steps or epochs than in the paper."""
    differences = []
    tasks = cells[0].tasks[len(cells[0].tasks) - len(cells[0].stages) :]
    for position, task in enumerate(tasks):
        stages = [cell.stages[position] for cell in cells]
        if (steps := theirs.task_steps.get(task)) is not None:
            if other := sorted({stage.steps for stage in stages} - {steps}):
                differences.append(f"{' or '.join(map(str, other))} steps, theirs {steps}")
            continue
        epochs = theirs.task_epochs.get(task.partition("[")[0], theirs.epochs)
        if passes := sorted({stage.epochs for stage in stages} - {epochs}):
            ours = " or ".join(f"{value:g}" for value in passes)
            unit = "epoch" if ours == "1" else "epochs"
            differences.append(f"{task}: {ours} {unit}, theirs {epochs}")
    return differences

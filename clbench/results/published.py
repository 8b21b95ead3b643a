"""The papers' tables, beside which a run's scores can be set; never shown as ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from clbench.suite.read import packaged_files, read_suite

if TYPE_CHECKING:
    import pandas as pd

    from clbench.results.cell import CellResult, StageRecord
    from clbench.training.protocol import Protocol

COLUMNS = (
    *("source", "table", "suite", "scenario", "task", "method", "score", "metric", "statistic"),
    *("value", "n", "model", "split", "protocol", "note"),
)
OVER_SEEDS: dict[str, Callable[[list[float]], float]] = {"median": median, "maximum": max}
"""What a table says of several runs; of single runs, our mean stands beside it."""


COMPARED = (
    *("lr", "batch_size", "task_batch_size", "max_length", "schedule", "warmup", "weight_decay"),
    *("clip_norm", "head_dropout", "pooling", "task_metric"),
)
"""Settings of a protocol that are named where a run's differ from its suite's."""


def published() -> pd.DataFrame:
    """Every published figure, one a row.

    Returns
    -------
    pandas.DataFrame
        Columns: ``source``, ``table``; ``suite`` and ``scenario`` of ours, where one follows the
        table, and the ``task`` where it is one; ``method`` by our name; ``score`` (p_s for a
        single task) in a ``metric``; ``statistic`` over ``n`` runs; ``value``, a fraction;
        ``model``, ``split``, ``protocol``, and a ``note``, as where a column head is inferred.
    """
    import pandas as pd

    files = packaged_files("results/published", "*.csv")
    frames = [pd.read_csv(path, keep_default_na=False) for path in files.values()]
    return pd.concat(frames, ignore_index=True)


def beside(suite: str, cells: Sequence[CellResult]) -> pd.DataFrame:
    """Published figures of a suite with ours and the difference.

    Parameters
    ----------
    suite
        Its name; one that follows no paper has no rows.
    cells
        Of a run of it.

    Returns
    -------
    pandas.DataFrame
        ``source``, ``table``, ``scenario``, ``method``, ``score``, ``statistic``, ``published``,
        ``ours`` (the same statistic over seeds, the mean beside a single run), ``seeds``,
        ``difference`` (ours less theirs), ``differs`` (what differs in protocol, in words) and
        ``note``. Of a table with several models the rows of ours, or of the suite's own.
    """
    import pandas as pd

    theirs = published()
    theirs = theirs[theirs["suite"] == suite]
    models = {cell.model for cell in cells} & set(theirs["model"]) or set(theirs["model"][:1])
    rows: list[dict[str, Any]] = []
    for row in theirs[theirs["model"].isin(models)].to_dict("records"):
        mine = [
            cell
            for cell in cells
            if cell.status == "ok"
            and cell.reference_of is None
            and (cell.scenario, cell.baseline) == (row["scenario"], row["method"])
        ]
        values = [v for cell in mine if (v := cell.scores.get(row["score"])) is not None]
        if not values:
            continue
        ours = OVER_SEEDS.get(row["statistic"], fmean)(values)
        rows.append(
            {
                **{key: row[key] for key in ("source", "table", "scenario", "method", "score")},
                "statistic": row["statistic"],
                "published": row["value"],
                "ours": ours,
                "seeds": len(values),
                "difference": ours - row["value"],
                "differs": "; ".join(_differences(row, mine)),
                "note": row["note"],
            }
        )
    columns = "source table scenario method score statistic published ours seeds difference"
    return pd.DataFrame(rows, columns=[*columns.split(), "differs", "note"])


def _differences(row: dict[Any, Any], cells: Sequence[CellResult]) -> list[str]:
    """How our runs differ from theirs, as far as our records tell."""
    cell = cells[0]
    protocol = cell.settings.get("protocol", {})
    found = []
    if cell.model != row["model"]:
        found.append(f"model {cell.model}, theirs {row['model']}")
    if protocol.get("limit") is not None:
        found.append(f"at most {protocol['limit']} rows of a split, theirs all")
    if protocol.get("score_on", "validation") != row["split"]:
        found.append(f"scored on {protocol['score_on']} rows, theirs on {row['split']}")
    if len(cells) != row["n"]:
        word = row["statistic"] if row["statistic"] in OVER_SEEDS else "mean"
        theirs = "one run" if row["n"] == 1 else f"{row['n']} runs"
        ours = "1 seed" if len(cells) == 1 else f"{word} of {len(cells)} seeds"
        found.append(f"{ours}, theirs {theirs}")
    followed = read_suite(row["suite"]).file.protocol
    for position, task in enumerate(cell.tasks[len(cell.tasks) - len(cell.stages) :]):
        found += _other_length(task, [c.stages[position] for c in cells], followed)
    values = followed.model_dump(mode="json")
    found += [
        f"{key} {protocol[key]}, theirs {values[key]}"
        for key in COMPARED
        if key in protocol and protocol[key] != values[key]
    ]
    if row["method"].startswith("recadam"):
        found.append("k and t0 fixed, theirs chosen by task on the reported split")
    if cell.shift == "sentence-length":
        found.append("split by length, theirs close to a random one")
    return found


def _other_length(task: str, stages: Sequence[StageRecord], theirs: Protocol) -> list[str]:
    """Where stages were of another length than the suite gives them."""
    steps = theirs.task_steps.get(task)
    if steps is not None:
        taken: list[float] = sorted({stage.steps for stage in stages} - {steps})
        return [f"{' or '.join(map(str, taken))} steps, theirs {steps}"] if taken else []
    epochs = theirs.task_epochs.get(task.partition("[")[0], theirs.epochs)
    taken = sorted({stage.epochs for stage in stages} - {epochs})
    passes = " or ".join(f"{value:g}" for value in taken)
    return [f"{task}: {passes} epochs, theirs {epochs}"] if taken else []

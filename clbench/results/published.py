"""The papers' tables, beside which a run's scores can be set; never shown as ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clbench.suite import library

if TYPE_CHECKING:
    import pandas as pd

    from clbench.results.cell import CellResult

COLUMNS = (
    *("source", "table", "suite", "scenario", "task", "method", "score", "statistic", "value"),
    *("n", "model", "split", "protocol", "note"),
)


def published() -> pd.DataFrame:
    """Every published figure, one a row.

    Returns
    -------
    pandas.DataFrame
        Columns: ``source``, ``table``; ``suite`` and ``scenario`` of ours, where one follows the
        table, else ``task``; ``method`` by our name; ``score``; ``statistic`` over ``n`` runs;
        ``value``, a fraction; ``model``, ``split``, ``protocol``, and a ``note``, as where a
        column head is inferred.
    """
    import pandas as pd

    files = library.published()
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
        ``source``, ``table``, ``scenario``, ``method``, ``score``, ``published``, ``ours`` (mean
        over seeds), ``seeds``, ``difference`` (ours less theirs), ``differs`` (what differs in
        protocol, in words) and ``note``.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    theirs = published()
    for row in theirs[theirs["suite"] == suite].to_dict("records"):
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
        ours = sum(values) / len(values)
        rows.append(
            {
                **{key: row[key] for key in ("source", "table", "scenario", "method", "score")},
                "published": row["value"],
                "ours": ours,
                "seeds": len(values),
                "difference": ours - row["value"],
                "differs": "; ".join(_differences(row, mine)),
                "note": row["note"],
            }
        )
    columns = "source table scenario method score published ours seeds difference differs note"
    return pd.DataFrame(rows, columns=columns.split())


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
        theirs = "one run" if row["n"] == 1 else f"{row['n']} runs"
        ours = "1 seed" if len(cells) == 1 else f"mean of {len(cells)} seeds"
        found.append(f"{ours}, theirs {theirs}")
    if cell.shift == "sentence-length":
        found.append("split by length, theirs close to a random one")
    return found

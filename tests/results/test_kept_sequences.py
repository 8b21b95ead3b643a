"""Scores of the kept runs of sequences, recomputed from the rows that were right."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clbench.results.archive import read_archive
from clbench.results.cell import CellResult, cell_scores

ROOT = Path(__file__).parents[2] / "results" / "reference"
STUDIES = ("findings-clinc150", "findings-clinc150-stage")
CELLS = {
    f"{study}-{Path(name).stem}": data
    for study in STUDIES
    for name, data in read_archive(ROOT / study).items()
}


def share(text: str) -> float:
    """Return the share of right rows from the text of a cell file."""
    count, bits = text.split(":")
    return float(
        np.unpackbits(np.frombuffer(base64.b64decode(bits), np.uint8))[: int(count)].mean()
    )


def matrix(content: dict[str, Any]) -> Any:
    """Return R, from the rows where they are kept and the score is accuracy; NaN above."""
    size = len(content["tasks"])
    R = np.full((size, size), np.nan)
    for i in range(size):
        for j in range(i + 1):
            metrics, text = content["metrics"][i][j], content["correct"][i][j]
            R[i, j] = content["R"][i][j]
            if text is not None and R[i, j] == metrics.get("accuracy"):
                R[i, j] = share(text)
    return R


@pytest.mark.parametrize("name", CELLS)
def test_scores_follow_from_the_rows(name: str) -> None:
    content = json.loads(CELLS[name])
    R = matrix(content)
    scores = cell_scores(CellResult.model_validate(content))
    last, diagonal = R[-1], np.diag(R)
    expected = {
        "p_o": last[0],
        "p_s": last[-1],
        "average": last.mean(),
        "average_over_time": np.nanmean(R, axis=1).mean(),
        "bwt": (last - diagonal)[:-1].mean(),
        "forgetting": R[0, 0] - last[0],
        "mean_forgetting": (np.nanmax(R[:-1, :-1], axis=0) - last[:-1]).mean(),
    }
    for kind in ("told", "elsewhere"):
        kept = [metrics[kind] for metrics in content["metrics"][-1] if kind in metrics]
        if kept:
            expected[kind] = np.mean(kept)
    for score, value in expected.items():
        assert scores[score] == pytest.approx(value, abs=1e-9), score
    told = scores.get("told")
    assert told is None or told >= scores["average"]  # type: ignore[operator]

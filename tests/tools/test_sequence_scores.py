"""The scores of sequences are what papers define, recomputed from the kept files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from clbench.results.archive import read_archive
from clbench.results.score_tables import score_rows
from clbench.results.store import Store
from tools import findings_sequences as page


@pytest.mark.parametrize("study", page.STUDIES, ids=lambda study: study.name)
def test_scores_follow_from_r_as_papers_define_them(study: page.Study) -> None:
    """Recompute with NumPy, from the files: Lopez-Paz & Ranzato 2017; Chaudhry et al. 2018."""
    rows = score_rows(Store(study.folder).read().cells)
    by_key = {(row["scenario"], row["method"], row["seed"]): row for row in rows}
    checked = 0
    for file, data in read_archive(study.folder).items():
        cell = json.loads(data)
        r = np.array(cell["R"], dtype=float)  # [stage, task], NaN above the diagonal
        last = len(r) - 1
        best = np.nanmax(r[:last, :last], axis=0)
        expected = {
            "average": r[last].mean(),
            "bwt": (r[last] - np.diag(r))[:last].mean(),
            "mean_forgetting": (best - r[last, :last]).mean(),
            "average_over_time": np.nanmean(r, axis=1).mean(),
        }
        row = by_key[cell["scenario"], cell["baseline"], cell["seed"]]
        for name, value in expected.items():
            assert row[name] == pytest.approx(value, abs=1e-12), (file, name)
        checked += 1
    assert checked == len(rows) >= (9 if study is page.WRITTEN else 20)

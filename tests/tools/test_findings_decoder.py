"""The page of findings on decoders says what the kept cells say."""

from __future__ import annotations

import json
from functools import cache
from statistics import fmean

import numpy as np
import pytest

from clbench.results.archive import read_archive
from clbench.suite.read import read_suite
from tools import findings_decoder as page


@cache
def text() -> str:
    """Return the page without line breaks."""
    return " ".join(page.PAGE.read_text(encoding="utf-8").split())


def test_the_page_has_the_tables_of_the_cells() -> None:
    current = page.PAGE.read_text(encoding="utf-8")
    contents = page.tables()
    assert page.filled(current, contents) == current
    assert all(f"<!-- {name} -->" in current for name in contents)


def test_all_methods_of_the_suite_have_all_kept_seeds() -> None:
    frame = page.kept()
    by_baseline = {frozenset(own["seed"]) for _, own in frame.groupby("baseline")}
    assert len(by_baseline) == 1
    assert len(frame) == len(next(iter(by_baseline))) * frame["baseline"].nunique()
    assert {*frame["baseline"]} == {*read_suite("findings-decoder").file.methods} - page.LEFT_OUT


def test_scores_follow_from_the_files() -> None:
    frame = page.kept().set_index(["baseline", "seed"])
    checked = 0
    for file, data in read_archive(page.FOLDER).items():
        cell = json.loads(data)
        if (key := (cell["baseline"], cell["seed"])) not in frame.index:
            continue
        row = frame.loc[key]
        assert (row["p_o"], row["p_s"]) == tuple(cell["R"][-1]), file
        first, *_, last = cell["capabilities"]
        assert row["text_loss_added"] == pytest.approx(last["text_loss"] - first["text_loss"])
        assert all(row[name] == last[name] for name in page.MEASURES if name != "p_s")
        checked += 1
    assert checked == len(frame)


def test_r_squared_of_a_quadratic_and_of_unseen_groups() -> None:
    x, groups = np.arange(9.0), np.repeat([0, 1, 2], 3)
    assert page.r_squared(x, 3 - x + x**2, groups, unseen=False) == pytest.approx(1.0)
    assert page.r_squared(x, 3 - x + x**2, groups, unseen=True) == pytest.approx(1.0)
    # Each group is flat at another level: the quadratic through the other two misses it.
    y, z = np.repeat([0.0, 1.0, 0.0], 3), np.tile([0.0, 1.0, 2.0], 3)
    assert page.r_squared(z, y, groups, unseen=False) == pytest.approx(0.0)
    # Predicted .5, 0 and .5, which are the means of the others: no better, no worse.
    assert page.r_squared(z, y, groups, unseen=True) == pytest.approx(0.0)


def test_a_curve_is_a_share_of_what_vanilla_learned() -> None:
    curve, frame = page.curve("vanilla"), page.kept()
    names = sorted(name for name in frame["baseline"].unique() if name.startswith("vanilla"))
    own = curve[:, names.index("vanilla")]
    assert fmean(own[:, 0]) == pytest.approx(1.0)
    assert -own[:, 1].mean() == pytest.approx(frame.query("baseline == 'vanilla'")["p_o"].mean())

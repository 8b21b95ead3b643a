"""The page of findings on the GLUE sequence says what the kept cells say."""

from __future__ import annotations

import json
from functools import cache

import pytest

from clbench.results.archive import read_archive
from clbench.suite.read import read_suite
from tools import findings_glue as page
from tools.findings import plain


@cache
def text() -> str:
    """Return the page without line breaks."""
    return " ".join(page.PAGE.read_text(encoding="utf-8").split())


def test_seeds_are_those_declared_and_verdicts_wait_for_all_of_them() -> None:
    suite = read_suite("findings-glue-minilm").file
    assert [*page.RATES, *page.LORA] == suite.methods
    seeds = [*page.compared()["seed"].unique()]
    assert seeds == suite.seeds[: len(seeds)]  # in order: none was chosen
    assert len(page.compared()) == len(page.kept()) == len(suite.methods) * len(seeds)
    numbers = {2: "Two", 3: "Three", 4: "Four"}
    assert f"{numbers[len(seeds)]} of the five declared seeds are here." in text()
    assert {"glue-equal", "glue-rates"}.isdisjoint(page.tables())


def test_what_the_page_says_of_the_tasks() -> None:
    means = page.compared().groupby("baseline").mean()
    rte, _, cola, _ = page.cells()[0].floors
    assert (means["RTE learned"] - rte).abs().max() < 0.04
    most = plain(means["CoLA learned"].max() - cola)
    assert f"CoLA's correlation at {most} or less, and SST-2 comes last" in text()


def test_scores_follow_from_the_files() -> None:
    frame = page.kept().set_index(["baseline", "seed"])
    for data in read_archive(page.FOLDER).values():
        cell = json.loads(data)
        row, scores = frame.loc[cell["baseline"], cell["seed"]], cell["R"]
        assert row["learned"] == scores[1][1]
        assert row["lost"] == pytest.approx(scores[1][1] - scores[3][1])
        assert row["average"] == pytest.approx(sum(scores[3]) / 4)
        kept = [scores[3][task] - scores[task][task] for task in range(3)]
        assert row["bwt"] == pytest.approx(sum(kept) / 3)
        assert cell["settings"]["protocol"]["precision"] == "bf16"
        assert cell["settings"]["protocol"]["task_metric"] == {"glue/cola": "matthews"}
        sizes = [part["validation"] for part in cell["scenario_report"]["parts"]]
        assert sizes == [277, 408, 1043, 872]  # all of GLUE

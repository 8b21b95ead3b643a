"""The page of findings on the GLUE sequence says what the kept cells say."""

from __future__ import annotations

import json
from functools import cache

import pytest

from clbench.results.archive import read_archive
from clbench.results.store import Store
from clbench.suite.read import read_suite
from tools import findings_glue as page
from tools.findings import REFERENCE, interval, plain, signed


@cache
def text() -> str:
    """Return the page without line breaks."""
    return " ".join(page.PAGE.read_text(encoding="utf-8").split())


def test_all_declared_seeds_are_here_and_verdicts_would_wait_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suite = read_suite("findings-glue-minilm").file
    assert [*page.RATES, *page.LORA] == suite.methods
    assert [*page.compared()["seed"].unique()] == suite.seeds
    assert len(page.compared()) == len(page.kept()) == len(suite.methods) * len(suite.seeds)
    assert {"glue-equal", "glue-rates"} < {*page.tables()}
    fewer = page.compared().query("seed < 4")
    monkeypatch.setattr(page, "compared", lambda: fewer)
    assert {"glue-equal", "glue-rates"}.isdisjoint(page.tables())


def test_what_the_page_says_of_the_tasks() -> None:
    means = page.compared().groupby("baseline").mean()
    rte, mrpc, cola, _ = page.cells()[0].floors
    assert (means["RTE learned"] - rte).abs().max() < 0.04
    most = plain(means["CoLA learned"].max() - cola)
    assert f"CoLA's correlation is {most} or less, and SST-2 comes last" in text()
    left = page.by_seed("learned") - page.by_seed("lost")
    low = left["lora-shared"].idxmin()
    assert (left["lora-shared"] < mrpc - 0.02).sum() == 1
    fall = plain(page.by_seed("lost").loc[low, "lora-shared"])
    assert f"on one of its seeds MRPC falls by {fall}, below the most frequent class" in text()


def test_what_the_page_says_of_lora() -> None:
    means = page.compared().groupby("baseline").mean()
    equal = page.primary()
    assert equal.verdict == "no difference shown"
    learned, lost = (plain(means.loc["lora-double", score]) for score in ("learned", "lost"))
    most_frequent = page.cells()[0].floors[page.MRPC]
    gained = {name: plain(value - most_frequent) for name, value in means["learned"].items()}
    words = (
        f"it brings MRPC to {learned}, {gained['lora-double']} above the most frequent class, and"
    )
    assert f"{words} loses {lost};" in text()
    assert means.loc["vanilla-quarter", "learned"] < means.loc["lora-double", "learned"]
    assert means.loc["lora-double", "learned"] < means.loc["vanilla-half", "learned"]
    assert f"loses {plain(-equal.difference)} less, without a verdict" in text()
    assert f"leave room for a lead of LoRA of {plain(equal.difference_high)} at most" in text()
    full = means.loc["vanilla"]
    words = f"brings MRPC {gained['vanilla']} above the most frequent class and loses"
    assert f"{words} {plain(full['lost'])}. Its BWT is {signed(full['bwt'])}, where" in text()
    shown = {
        key: interval(-each.difference, -each.difference_high, -each.difference_low)
        for key, each in page.against_rates().items()
        if each.verdict != "no difference shown"
    }
    words = {
        ("learned", "vanilla-quarter", "lora-shared"): "learns {} less of MRPC than a quarter",
        ("average", "vanilla", "lora-shared"): "ends {} behind the full rate",
        ("average", "vanilla-half", "lora-double"): "At 1e-3 it ends {} behind half the rate",
    }
    assert words.keys() == shown.keys()
    for key, sentence in words.items():
        assert sentence.format(shown[key].replace("+", "")) in text()


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


def test_float32_learns_and_loses_the_same() -> None:
    same = page.kept().set_index(["baseline", "seed"])
    cells = Store(REFERENCE / "findings-glue-minilm-float32").read().cells
    assert {cell.baseline for cell in cells} == {"vanilla", page.PRIMARY}
    gaps = []
    for cell in cells:
        assert cell.settings["protocol"]["precision"] == "float32"
        learned, left = (cell.R[stage][page.MRPC] or 0.0 for stage in (page.MRPC, -1))
        own = same.loc[cell.baseline, 0]
        gaps += [abs(learned - own["learned"]), abs(learned - left - own["lost"])]
    assert f"{max(gaps):.3f}" == "0.002"
    assert "learns and loses the same of MRPC within .002" in text()


def test_the_glue_sequence_says_nothing_with_the_built_in_model() -> None:
    cells = Store(REFERENCE / "findings-glue-sequence").read().cells
    learned = [
        [(cell.R[i][i] or 0.0) - (cell.floors[i] or 0.0) for i in range(4)] for cell in cells
    ]
    assert {cell.seed for cell in cells} == {0}
    assert len(cells) == 9
    assert max(abs(value) for row in learned for value in row[:3]) < 0.10
    assert max(row[3] for row in learned) > 0.25
    assert "ends within .10 of the share of the most frequent class on the others" in text()


def test_the_glue_sequence_says_little_with_minilm() -> None:
    cells = Store(REFERENCE / "findings-glue-sequence-pilot").read().cells
    assert {(cell.baseline, cell.seed) for cell in cells} == {("vanilla", 100), ("lora-fast", 100)}
    for cell in cells:
        rte, mrpc, cola, sst2 = (cell.R[i][i] - cell.floors[i] for i in range(4))
        assert max(abs(rte), abs(cola)) < 0.03
        assert min(mrpc, sst2) > 0.1
        assert max(stage.rows for stage in cell.stages) == 4000
    assert "learns MRPC and SST-2, and ends within .03 of that share on RTE and CoLA" in text()


def test_the_declared_glue_sequence_names_what_its_pilot_learned_and_lost() -> None:
    found = {}
    for cell in Store(REFERENCE / "findings-glue-minilm-pilot").read().cells:
        assert cell.seed == 100
        learned, left = cell.R[1][1] or 0.0, cell.R[-1][1] or 0.0
        found[cell.baseline] = plain(learned), plain(learned - left)
        forgettable = [(cell.R[i][i] or 0.0) - (cell.floors[i] or 0.0) > 0.05 for i in range(3)]
        if cell.baseline in ("vanilla", "lora-slow"):  # lora-slow has the rate of lora-double
            assert forgettable == [False, True, False]
    path = REFERENCE.parents[1] / "scenarios" / "findings-glue-minilm.toml"
    declared = " ".join(path.read_text("utf-8").replace("#", "").split())
    words = (
        "a quarter of the rate had {} of MRPC right after it and lost {}, the whole {} and {}; "
        "LoRA at 1e-3 {} and {}, at 2e-3 {} and {}, so"
    )
    names = ("vanilla-quarter", "vanilla", "lora-slow", "lora-fast")
    assert words.format(*(each for name in names for each in found[name])) in declared
    words = (
        "LoRA at 1e-3 had {} of MRPC right after learning it and lost {} by the end, plain "
        "fine-tuning at a quarter of 1e-4 {} and {}, at the full {} and {}."
    )
    names = ("lora-slow", "vanilla-quarter", "vanilla")
    assert words.format(*(each for name in names for each in found[name])) in text()

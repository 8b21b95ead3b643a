"""The page of findings on SmolLM2 says what the kept cells say."""

from __future__ import annotations

import json
from functools import cache

import pytest

from clbench.results.archive import read_archive
from clbench.suite.read import read_suite
from tools import findings_smollm2 as page
from tools.findings import filled, plain


@cache
def text() -> str:
    """Return the page without line breaks."""
    return " ".join(page.PAGE.read_text(encoding="utf-8").split())


def mean(baseline: str, score: str) -> float:
    """Return the mean of a score over the seeds that are compared."""
    return float(page.by_seed(score)[baseline].mean())


def test_the_page_has_the_tables_of_the_cells() -> None:
    current = page.PAGE.read_text(encoding="utf-8")
    contents = page.tables()
    assert filled(current, contents) == current
    assert all(f"<!-- {name} -->" in current for name in contents)


def test_what_the_page_says_of_verdicts() -> None:
    found = page.against_rates()
    assert f"None of the {len(found)} comparisons with the rates has a verdict" in text()
    assert {each.verdict for each in found.values()} == {"no difference shown"}
    assert page.compared()["seed"].nunique() == 3  # "three of five declared seeds"
    assert all(isinstance(each, int) for each in page.on_curve().values())
    ends = [plain(mean(rate, "p_s")) for rate in page.RATES]
    assert "about equally well ({}, {} and {}), so the".format(*ends) in text()


def test_what_the_page_says_of_means() -> None:
    names = ("vanilla-half", "vanilla", "lora-fast", "ewc-fewer", "wise-ft")
    ends = [plain(mean(name, "text_loss_added")) for name in names]
    words = "It adds {} nats a token to the loss on text, the full rate {}, LoRA {}, EWC {} and"
    assert f"{words} WiSE-FT {{}}, while".format(*ends) in text()
    assert max(names, key=lambda name: mean(name, "p_s")) == "vanilla-half"
    assert f"higher mean on the sentiment ({plain(mean('vanilla-half', 'p_s'))}) and" in text()
    half = mean("vanilla-half", "p_o")
    assert [name for name in names if mean(name, "p_o") > half] == ["wise-ft"]
    ends = [plain(mean("wise-ft", "p_o")), plain(half)]
    assert "the topics in the end ({}, half the rate {}).".format(*ends) in text()
    loss = plain(mean("vanilla-quarter", "text_loss_added"))
    ends = [plain(mean(name, "p_o_before")) for name in ("vanilla-quarter", "vanilla", "lora-fast")]
    words = (
        "quarter of the rate adds {}, but has learned fewer topics to begin with ({} right after"
    )
    assert f"{words} them, against {{}} at".format(loss, *ends[:2]) in text()
    assert f"So has LoRA at ten times the rate ({ends[2]})" in text()
    frame = page.kept()
    one = frame[frame["baseline"].isin(page.LEFT_OUT)].set_index("baseline")
    assert {*one["seed"]} == {0}
    ends = [plain(one.loc["replay", score]) for score in ("p_o", "text_loss_added")]
    assert "keeps most topics ({}), and adds most to the loss on text ({});".format(*ends) in text()
    general = plain(one.loc["generic-replay-tenth", "text_loss_added"])
    assert f"lowers that loss below the start ({general})." in text()
    first = frame[frame["seed"] == 0].set_index("baseline")
    assert first["p_o"].idxmax() == first["text_loss_added"].idxmax() == "replay"


def test_all_that_is_compared_has_all_seeds() -> None:
    suite = read_suite("findings-smollm2-short").file
    frame = page.compared()
    assert {*frame["baseline"]} == {*suite.methods} - page.LEFT_OUT
    assert len(frame) == frame["baseline"].nunique() * frame["seed"].nunique()
    seeds = [*frame["seed"].unique()]
    assert seeds == suite.seeds[: len(seeds)]  # in order: none was chosen


def test_scores_follow_from_the_files() -> None:
    frame = page.kept().set_index(["baseline", "seed"])
    for data in read_archive(page.FOLDER).values():
        cell = json.loads(data)
        row = frame.loc[cell["baseline"], cell["seed"]]
        assert (row["p_o"], row["p_s"]) == tuple(cell["R"][-1])
        first, *_, last = cell["capabilities"]
        assert row["text_loss_added"] == pytest.approx(last["text_loss"] - first["text_loss"])
        assert cell["settings"]["protocol"]["precision"] == "float32"
        assert [part["train"] for part in cell["scenario_report"]["parts"]] == [640, 640]
        assert cell["scenario_report"]["parts"][0]["validation"] == page.SCORED

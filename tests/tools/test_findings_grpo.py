"""The page of the decoder study says of GRPO what the kept cells say."""

from __future__ import annotations

from functools import cache

import pytest

from clbench.results.statistics import Comparison
from clbench.suite.read import read_suite
from tools import findings_grpo as grpo
from tools.findings import interval, plain
from tools.findings_decoder import PAGE
from tools.findings_grpo import OFTEN, SELDOM, Study

STUDIES = pytest.mark.parametrize(("study", "steps"), [(SELDOM, 160), (OFTEN, 40)])


@cache
def text() -> str:
    """Return the page without line breaks."""
    return " ".join(PAGE.read_text(encoding="utf-8").split())


def less(found: Comparison | int) -> str:
    """Return a shown loss as a positive number with its interval."""
    assert isinstance(found, Comparison)
    assert found.verdict == "worse"
    ends = -found.difference, -found.difference_high, -found.difference_low
    return interval(*ends).replace("+", "")


@STUDIES
def test_all_declared_cells_are_here(study: Study, steps: int) -> None:
    suite = read_suite(study.name).file
    assert {*study.rates, *study.others} == {*suite.methods}
    assert [*grpo.kept(study)["seed"].unique()] == suite.seeds
    assert len(grpo.kept(study)) == len(suite.methods) * len(suite.seeds)


@STUDIES
def test_scores_follow_from_the_files(study: Study, steps: int) -> None:
    frame = grpo.kept(study).set_index(["baseline", "seed"])
    for cell in study.cells():
        row = frame.loc[cell["baseline"], cell["seed"]]
        (before, _), (old, new) = cell["R"]
        assert (row["p_o"], row["p_s"]) == (old, new)
        assert row["forgetting"] == pytest.approx(before - old)
        assert [stage["steps"] for stage in cell["stages"]] == [8, steps]
        assert cell["settings"]["protocol"]["precision"] == "float32"


def test_what_the_page_says_of_a_model_that_is_seldom_right_before() -> None:
    means = grpo.kept(SELDOM).groupby("baseline").mean()
    equal = {name: grpo.on_curve(SELDOM)["p_o", name] for name in SELDOM.others}
    names = ("grpo-tenth", "grpo-quarter", "grpo-reward-tenth")
    tenth, quarter, alone = (less(equal[name]) for name in names)
    learned = [plain(means.loc[name, "p_s"]) for name in names[:2]]
    assert (
        f"{learned[0]} of them at a tenth of the rate and {learned[1]} at a quarter, but keep "
        f"fewer old ones than plain fine-tuning that learned as much in as many steps, by {tenth} "
        f"and {quarter}, and by {alone} where right answers alone teach"
    ) in text()
    dft = [less(equal[name]) for name in SELDOM.twins]
    assert f"keeps {dft[0]} and {dft[1]} less at these rates" in text()
    beside = {
        key: found
        for key, found in grpo.beside_dft(SELDOM).items()
        if found.verdict != "no difference shown"
    }
    ((key, fewer),) = beside.items()
    assert key == ("p_s", "dft-tenth", "grpo-reward-tenth")
    assert f"right answers alone teach {less(fewer)} fewer new ones" in text()
    share = f"{100 * grpo.first_reward(SELDOM):.0f}"
    assert f"the first answers drawn are right in {share} % of the cases" in text()


def test_what_the_page_says_of_a_model_that_is_often_right_before() -> None:
    means = grpo.kept(OFTEN).groupby("baseline").mean()
    found = grpo.on_curve(OFTEN)
    shown = {key: each for key, each in found.items() if isinstance(each, Comparison)}
    assert {each.verdict for each in shown.values()} == {"no difference shown"}
    assert {f.verdict for f in grpo.beside_dft(OFTEN).values()} == {"no difference shown"}
    quarter, alone, dft = (
        interval(each.difference, each.difference_low, each.difference_high)
        for name in ("grpo-quarter", "grpo-reward-quarter", "dft-quarter")
        for each in [shown["p_o", name]]
    )
    learned = plain(means.loc["grpo-quarter", "p_s"])
    assert (
        f"of which the first answers are right in {100 * grpo.first_reward(OFTEN):.0f} %" in text()
    )
    assert (
        f"GRPO at a quarter of the rate learns {learned} of them, and neither for it ({quarter}) "
        f"nor for right answers alone ({alone}) or DFT ({dft}) at that rate a difference"
    ) in text()


def test_what_the_page_says_of_kl() -> None:
    means = grpo.kept(SELDOM).groupby("baseline").mean()
    kl, kept, new = (means[score] for score in ("forward_kl", "p_o", "p_s"))
    low, high = "vanilla-twentieth", "vanilla-tenth"
    assert kl["grpo-tenth"] > kl[low]
    assert new["grpo-tenth"] < new[low]
    assert (
        f"GRPO at a tenth of the rate is farther from the base ({plain(kl['grpo-tenth'])}) than "
        f"plain fine-tuning at a twentieth ({plain(kl[low])}), which learned more"
    ) in text()
    assert kl["grpo-tenth"] < kl[high]
    assert kept["grpo-tenth"] < kept[high]
    assert (
        f"but keeps fewer old facts ({plain(kept['grpo-tenth'])}) than plain fine-tuning at a "
        f"tenth ({plain(kept[high])}), which is farther from it ({plain(kl[high])})"
    ) in text()

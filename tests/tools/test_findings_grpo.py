"""The page of the decoder study says of GRPO what the kept cells say."""

from __future__ import annotations

import json
from functools import cache
from statistics import fmean

import pytest

from clbench.results.archive import read_archive
from clbench.results.statistics import Comparison
from clbench.suite.read import read_suite
from tools import findings_grpo as grpo
from tools.findings import interval, plain
from tools.findings_decoder import PAGE


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


def first_rewards() -> list[float]:
    """Return the mean reward of the first answers to the new facts, of each cell of GRPO."""
    cells = map(json.loads, read_archive(grpo.FOLDER).values())
    return [c["stages"][1]["curves"]["reward"][0][1] for c in cells if c["method"] == "grpo"]


def test_all_declared_cells_are_here() -> None:
    suite = read_suite(grpo.FOLDER.name).file
    assert [*grpo.RATES, *grpo.DFT, *grpo.GRPO] == suite.methods
    assert [*grpo.kept()["seed"].unique()] == suite.seeds
    assert len(grpo.kept()) == len(suite.methods) * len(suite.seeds)


def test_scores_follow_from_the_files() -> None:
    frame = grpo.kept().set_index(["baseline", "seed"])
    for data in read_archive(grpo.FOLDER).values():
        cell = json.loads(data)
        row = frame.loc[cell["baseline"], cell["seed"]]
        (before, _), (old, new) = cell["R"]
        assert (row["p_o"], row["p_s"]) == (old, new)
        assert row["forgetting"] == pytest.approx(before - old)
        assert [stage["steps"] for stage in cell["stages"]] == [8, 160]
        assert cell["settings"]["protocol"]["precision"] == "float32"


def test_what_the_page_says_of_grpo_and_dft() -> None:
    means = grpo.kept().groupby("baseline").mean()
    equal = {name: grpo.on_curve()["p_o", name] for name in (*grpo.DFT, *grpo.GRPO)}
    tenth, quarter, alone = (less(equal[name]) for name in grpo.GRPO)
    learned = [plain(means.loc[name, "p_s"]) for name in grpo.GRPO[:2]]
    assert (
        f"{learned[0]} of them at a tenth of the rate and {learned[1]} at a quarter, but keep "
        f"fewer old ones than plain fine-tuning that learned as much in as many steps, by {tenth} "
        f"and {quarter}, and by {alone} where right answers alone teach"
    ) in text()
    dft = [less(equal[name]) for name in grpo.DFT]
    assert f"keeps {dft[0]} and {dft[1]} less at these rates" in text()
    beside = {k: f for k, f in grpo.beside_dft().items() if f.verdict != "no difference shown"}
    ((key, fewer),) = beside.items()
    assert key == ("p_s", "dft-tenth", "grpo-reward-tenth")
    assert f"right answers alone teach {less(fewer)} fewer new ones" in text()
    rewards = first_rewards()
    assert len(rewards) == 30
    assert (
        f"the first answers drawn are right in {100 * fmean(rewards):.0f} % of the cases" in text()
    )


def test_what_the_page_says_of_kl() -> None:
    means = grpo.kept().groupby("baseline").mean()
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

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helpers.commands import Call
from helpers.report_runs import STEADY, cells, make_run

from clbench.results.comparisons import comparisons_frame
from clbench.results.power import power_frame, seeds_needed
from clbench.suite.schema import Question


def test_the_seeds_of_a_run_follow_from_its_spread() -> None:
    comparisons = comparisons_frame(cells(**STEADY), Question(scores=["p_o"]))
    table = power_frame(comparisons, 0.05).set_index("method")
    mas = comparisons.set_index(["method", "score"]).loc[("mas", "p_o")]
    expected = seeds_needed(mas["spread"], 0.05, alpha=0.025)  # two methods share the error rate
    assert table.loc["mas", "seeds"] == expected
    low, high = table.loc["mas", ["seeds_low", "seeds_high"]]
    # three seeds: the ends of a spread are sqrt(2 / 7.37776) and sqrt(2 / 0.0506356) of it
    assert low == seeds_needed(mas["spread"] * 0.520658, 0.05, alpha=0.025)
    assert high == seeds_needed(mas["spread"] * 6.284735, 0.05, alpha=0.025)


def test_power_prints_a_line_for_each_comparison(clbench: Call, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    code, out, _ = clbench("power", str(folder), "--difference", ".02")
    assert code == 0
    assert len(re.findall(r"^(?:one|two) +ewc +p_[os] ", out, re.MULTILINE)) == 4
    assert "in each of these 4 comparisons, at 5 % error for all of them" in out


def test_power_allows_for_the_looks_of_a_run(clbench: Call, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    suite = json.loads((folder / "suite.json").read_text())
    suite["suite"]["looks"] = [[5, 10, 20]]
    (folder / "suite.json").write_text(json.dumps(suite))
    _, out, _ = clbench("power", str(folder), "--difference", ".02")
    text = " ".join(out.split())
    assert "at 3.75 % error for all of them (the share of the last look), with" in text
    assert "without looks" not in text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--difference", "0"], "--difference 0: must be above 0 and below 2"),
        (["--difference", ".1", "--power", "1"], "--power 1: must be above 0 and below 1"),
    ],
)
def test_wrong_options_are_one_line(
    clbench: Call, tmp_path: Path, options: list[str], text: str
) -> None:
    code, _, err = clbench("power", str(make_run(tmp_path / "run")), *options)
    assert code == 2
    assert text in err


def test_two_seeds_say_nothing_about_the_spread(clbench: Call, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    for seed in (2, 3):
        for path in (folder / "cells").glob(f"*seed{seed}.json"):
            path.unlink()
    code, out, err = clbench("power", str(folder), "--difference", ".1")
    assert (code, out) == (2, "")
    assert "compares no method with vanilla on 3 seeds or more" in err


def test_comparisons_of_two_seeds_are_left_out_of_the_family() -> None:
    runs = cells("a", **STEADY) + cells("b", **{n: v[:2] for n, v in STEADY.items()})
    table = power_frame(comparisons_frame(runs, Question(scores=["p_o"])), 0.05)
    alone = power_frame(comparisons_frame(cells("a", **STEADY), Question(scores=["p_o"])), 0.05)
    assert list(table["scenario"]) == ["a", "a"]
    assert table["seeds"].tolist() == alone["seeds"].tolist()


def test_a_run_without_a_comparison_is_an_error(clbench: Call, tmp_path: Path) -> None:
    code, _, err = clbench("power", str(tmp_path), "--difference", ".1")
    assert code == 2
    assert "holds no run" in err

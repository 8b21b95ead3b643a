from __future__ import annotations

import pandas as pd
import pytest

from clbench.report.comparisons import comparisons_frame, sentences


def frame(**methods: list[tuple[float, float]]) -> pd.DataFrame:
    """p_o and p_s by seed, from seed 0 on."""
    rows = [
        {
            "scenario": "pair", "shift": "dataset", "method": name, "seed": seed, "p_o": p_o,
            "p_s": p_s, "forgetting": 0.9 - p_o, "status": "ok",
        }
        for name, values in methods.items()
        for seed, (p_o, p_s) in enumerate(values)
    ]  # fmt: skip
    return pd.DataFrame(rows)


STEADY = frame(
    vanilla=[(0.60, 0.8), (0.70, 0.9), (0.65, 0.7)],
    ewc=[(0.65, 0.7), (0.751, 0.8), (0.70, 0.6)],  # .05 better, .1 worse
    mas=[(0.70, 0.8), (0.68, 0.9), (0.68, 0.7)],
)


def row(table: pd.DataFrame, method: str, score: str) -> pd.Series:
    (match,) = [r for _, r in table.iterrows() if (r["method"], r["score"]) == (method, score)]
    return match


def test_differences_are_by_seed_at_a_level_for_all_methods() -> None:
    table = comparisons_frame(STEADY)
    ewc = row(table, "ewc", "p_o")
    assert ewc["difference"] == pytest.approx((0.05 + 0.051 + 0.05) / 3)
    assert ewc["level"] == pytest.approx(1 - 0.05 / 2)  # two methods against vanilla
    assert ewc["verdict"] == "better"
    assert (ewc["p"], ewc["p_holm"]) == (0.25, 0.5)
    assert row(table, "ewc", "p_s")["verdict"] == "worse"
    assert row(table, "ewc", "forgetting")["verdict"] == "better"  # less of it
    mas = row(table, "mas", "p_o")
    assert mas["verdict"] == "no difference shown"
    assert mas["seeds_needed"] > 3
    vanilla = row(table, "vanilla", "p_o")
    assert vanilla["why"] == "the reference"
    assert vanilla["n"] == 3
    assert vanilla["median"] == pytest.approx(0.65)


def test_why_no_number_of_seeds_would_settle_a_comparison() -> None:
    table = comparisons_frame(
        frame(
            vanilla=[(0.60, 0.8), (0.70, 0.8), (0.65, 0.8)],
            same=[(0.60, 0.8), (0.70, 0.8), (0.65, 0.8)],
            near=[(0.70, 0.8), (0.61, 0.8), (0.6401, 0.8)],  # 0.00003 on average
        )
    )
    same, near = row(table, "same", "p_o"), row(table, "near", "p_o")
    assert same["verdict"] == near["verdict"] == "no difference shown"
    assert same["why"] == "the difference is exactly 0 on every seed"
    assert near["why"] == "more than 1000 seeds would be needed to settle it"


def test_failed_cells_and_missing_scores_are_ignored() -> None:
    broken = STEADY.copy()
    broken.loc[broken.index[-1], "status"] = "failed"
    broken.loc[broken.index[3], "p_o"] = float("nan")
    table = comparisons_frame(broken)
    assert row(table, "mas", "p_o")["pairs"] == 2
    assert row(table, "mas", "p_o")["verdict"] == "no verdict"
    assert "only 2 common seeds; at least 3" in row(table, "mas", "p_o")["why"]
    assert row(table, "ewc", "p_o")["n"] == 2
    assert row(table, "ewc", "p_s")["n"] == 3


def test_sentences_follow_the_verdicts() -> None:
    first, second = sentences(comparisons_frame(STEADY), "pair")
    assert first.startswith("ewc (p_o +0.050, +0.0")
    assert first.endswith("p_s -0.100, worse) keeps more of the old task than vanilla.")
    assert "No difference in p_o from vanilla is shown for mas (+0.037; about" in second


@pytest.mark.parametrize(
    ("methods", "text"),
    [
        ({"vanilla": [(0.6, 0.8)] * 3}, "Only vanilla was run."),
        ({"ewc": [(0.6, 0.8)] * 3}, "vanilla was not run, so there is nothing to compare with."),
        (
            {"vanilla": [(0.6, 0.8), (0.5, 0.8)], "ewc": [(0.9, 0.8), (0.9, 0.8)]},
            "No verdict: at least 3 common seeds are needed (here 2).",
        ),
        (
            {"vanilla": [(0.6, 0.8)], "ewc": [(0.9, 0.8), (0.9, 0.8)]},
            "No verdict: at least 3 common seeds are needed (here 1).",
        ),
    ],
)
def test_sentences_say_why_there_is_no_verdict(
    methods: dict[str, list[tuple[float, float]]], text: str
) -> None:
    assert sentences(comparisons_frame(frame(**methods)), "pair") == [text]

from __future__ import annotations

import pytest
from report_runs import STEADY, cells

from clbench.report.sentences import sentences
from clbench.results.comparisons import comparisons_frame
from clbench.suite.question import Question


def lines(**methods: list[tuple[float, float]]) -> list[str]:
    return sentences(comparisons_frame(cells(**methods), Question()), "pair", "vanilla")


def test_sentences_follow_the_verdicts() -> None:
    first, second = lines(**STEADY)
    assert first.startswith("ewc (p_o +0.200, +0.")
    assert first.endswith("worse) keeps more of the old task than vanilla.")
    assert second.startswith("No difference in p_o from vanilla is shown for mas (+0.037, -0.")


def test_a_method_within_the_margin_is_said_to_be_equivalent() -> None:
    base = [(0.6 + 0.01 * seed, 0.8) for seed in range(10)]
    near = [(p_o + 0.002 * (seed % 2), 0.8) for seed, (p_o, _) in enumerate(base)]
    assert lines(vanilla=base, near=near)[0].endswith(
        "differs from vanilla in p_o by less than matters."
    )


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
    assert lines(**methods) == [text]

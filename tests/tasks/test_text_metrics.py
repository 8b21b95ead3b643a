"""Metrics of written texts against values worked out by hand."""

from __future__ import annotations

import importlib.util

import pytest

from clbench.core.errors import SettingsError
from clbench.tasks import metrics
from clbench.tasks.metrics import TEXT_METRICS, right_texts, score_texts


@pytest.mark.parametrize(
    ("metric", "prediction", "target", "score"),
    [
        ("exact", " yes ", "yes", 1.0),
        ("exact", "Yes", "yes", 0.0),
        ("token-f1", "The cat sat.", "a cat slept", 0.5),  # cat of {cat, sat}, {cat, slept}
        ("token-f1", "cat cat", "cat", 2 / 3),
        ("token-f1", "the", "a", 1.0),  # nothing left of both
        ("token-f1", "", "cat", 0.0),
        ("numeric", "so 3 + 4 = 1,007.0", "1007", 1.0),
        ("numeric", "12", "21", 0.0),
        ("numeric", "none", "0", 0.0),
        ("numeric", "-2", "2", 0.0),
        ("numeric", "5-3", "3", 1.0),
        ("numeric", ".5", "0.5", 1.0),
        ("numeric", "3,4", "34", 0.0),
        ("numeric", "x = 1,2,3", "3", 1.0),
        ("numeric", "A-3", "-3", 0.0),
        ("numeric", "1e5", "100,000", 1.0),
        ("first-letter", " A. Because", "A", 1.0),
        ("first-letter", "B", "A", 0.0),
        ("first-letter", "", "", 0.0),
        ("edit-similarity", "abcd", "bcde", 0.75),  # bcd: 2 · 3 of 8 characters
    ],
)
def test_a_row_is_scored(metric: str, prediction: str, target: str, score: float) -> None:
    assert TEXT_METRICS[metric](prediction, target) == pytest.approx(score)


def test_scores_are_means_over_rows() -> None:
    assert score_texts(["exact", "numeric"], ["1", "x"], ["1", "y"]) == {
        "exact": 0.5,
        "numeric": 0.5,
    }
    assert right_texts(["1", "x"], ["1", "y"]).tolist() == [True, False]


@pytest.mark.skipif(importlib.util.find_spec("rouge_score") is None, reason="needs rouge-score")
def test_rouge_l_is_that_of_the_library() -> None:
    # The longest common subsequence is "police the gunman", 3 of 4 words on both sides.
    score = TEXT_METRICS["rouge-l"]("police kill the gunman", "police ended the gunman")
    assert score == pytest.approx(0.75)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rouge_score.rouge_scorer", None)
    metrics._rouge.cache_clear()
    with pytest.raises(SettingsError, match=r"pip install 'clbench\[text\]'"):
        TEXT_METRICS["rouge-l"]("a", "b")

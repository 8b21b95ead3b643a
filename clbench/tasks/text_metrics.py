"""Metrics of written texts against targets, row by row; greater is better."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from clbench.core.errors import SettingsError

RowMetric = Callable[[str, str], float]
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NUMBER = re.compile(
    r"(?<![\d.])(?:(?<!\w)[-+])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
)


def normalise(text: str) -> str:
    """Return a text in lower case, without punctuation, articles and extra blanks.

    As in the evaluation of SQuAD (Rajpurkar et al. 2016).
    """
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact(prediction: str, target: str) -> float:
    """Return 1 if both texts are equal but for blanks around them, else 0."""
    return float(prediction.strip() == target.strip())


def token_f1(prediction: str, target: str) -> float:
    """Return F1 over the words of both normalised texts (SQuAD: Rajpurkar et al. 2016)."""
    first, second = normalise(prediction).split(), normalise(target).split()
    if not first or not second:
        return float(first == second)
    shared = sum((Counter(first) & Counter(second)).values())
    return 2 * shared / (len(first) + len(second))


def numeric(prediction: str, target: str) -> float:
    """Return 1 if the last number in the prediction equals that in the target, else 0."""
    first, second = (_NUMBER.findall(text) for text in (prediction, target))
    if not first or not second:
        return 0.0
    return float(_value(first[-1]) == _value(second[-1]))


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def first_letter(prediction: str, target: str) -> float:
    """Return 1 if both texts begin with the same letter, as the choice of an answer, else 0."""
    return float(prediction.strip()[:1] == target.strip()[:1] != "")


def edit_similarity(prediction: str, target: str) -> float:
    """Return twice the number of matching characters per character of both texts (difflib)."""
    return SequenceMatcher(None, prediction.strip(), target.strip(), autojunk=False).ratio()


def rouge_l(prediction: str, target: str) -> float:
    """Return ROUGE-L's F-measure (Lin 2004) with stemming, through ``rouge-score``."""
    return float(_rouge().score(target, prediction)["rougeL"].fmeasure)


@cache
def _rouge() -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise SettingsError(
            "metric 'rouge-l' needs rouge-score: pip install 'clbench[text]', or choose other "
            "metrics, such as token-f1."
        ) from error
    return RougeScorer(["rougeL"], use_stemmer=True)


TEXT_METRICS: dict[str, RowMetric] = {
    "exact": exact,
    "token-f1": token_f1,
    "numeric": numeric,
    "first-letter": first_letter,
    "edit-similarity": edit_similarity,
    "rouge-l": rouge_l,
}
"""Metrics of one row, given prediction and target; their scores are means over rows."""


def score_texts(
    metrics: Sequence[str], predictions: Sequence[str], targets: Sequence[str]
) -> dict[str, float]:
    """Return the mean score by metric, in the order of `metrics`."""
    pairs = list(zip(predictions, targets, strict=True))
    return {name: float(np.mean([TEXT_METRICS[name](*pair) for pair in pairs])) for name in metrics}


def right_texts(predictions: Sequence[str], targets: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return which predictions are exact, shape (n,)."""
    return np.array([exact(p, t) == 1.0 for p, t in zip(predictions, targets, strict=True)])

"""Metrics of outputs and of written texts against values worked out by hand."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import clbench
from clbench.core.errors import (
    DataError,
    NonFiniteLossError,
    PluginError,
    SettingsError,
    UnknownNameError,
)
from clbench.tasks import metrics
from clbench.tasks.metrics import (
    METRICS,
    TEXT_METRICS,
    floor_score,
    metrics_for,
    right_texts,
    score,
    score_texts,
)
from clbench.tasks.registry import TASKS


def logits(predicted: list[int], classes: int) -> np.ndarray:
    return np.eye(classes, dtype=np.float32)[predicted]


def test_class_metrics_of_two_classes() -> None:
    # Three hits, one miss, three right rejections, one false alarm.
    labels = np.array([1, 1, 1, 0, 0, 0, 0, 1])
    outputs = logits([1, 1, 0, 0, 0, 1, 0, 1], 2)
    scores = score(["accuracy", "f1", "matthews"], outputs, labels)
    assert scores == {"accuracy": 6 / 8, "f1": 2 * 3 / (2 * 3 + 1 + 1), "matthews": (9 - 1) / 16}


def test_the_floor_always_predicts_what_is_most_frequent_in_training() -> None:
    train, labels = np.array([1, 1, 2, 0]), np.array([0, 1, 0, 2, 1])
    assert floor_score("accuracy", train, labels, 3) == 2 / 5
    assert floor_score("accuracy", np.array([2, 2, 0, 0]), labels, 3) == 2 / 5  # the smaller class
    assert floor_score("f1", np.array([1, 1, 0]), np.array([0, 1, 1, 0]), 2) == 2 / 3
    assert floor_score("pearson", np.array([1.0, 4.0]), np.array([2.0, 3.0, 5.0]), 1) == 0.0


@pytest.mark.usefixtures("forget")
def test_a_metric_that_cannot_score_a_constant_gives_no_floor() -> None:
    @clbench.metric("needs-two-values")
    def needs_two_values(outputs, labels):  # type: ignore[no-untyped-def]
        raise SystemExit(f"{np.ptp(outputs)} is too narrow")

    assert floor_score("needs-two-values", np.array([0]), np.array([0, 1]), 2) is None


def test_f1_of_two_classes_is_that_of_class_1() -> None:
    labels = np.array([0, 0, 0, 1])
    assert score(["f1"], logits([0, 0, 0, 0], 2), labels) == {"f1": 0.0}
    assert score(["f1"], logits([1, 1, 1, 1], 2), labels) == {"f1": 2 / 5}


def test_f1_of_a_shared_head_is_over_the_classes_of_the_rows() -> None:
    labels = np.array([2, 2, 3, 3])
    assert score(["f1"], logits([2, 2, 3, 3], 10), labels) == {"f1": 1.0}
    assert score(["f1"], logits([2, 2, 3, 0], 10), labels)["f1"] == (1 + 2 / 3) / 2


def test_class_metrics_of_three_classes() -> None:
    labels = np.array([0, 0, 1, 1, 2, 2])
    scores = score(["accuracy", "f1", "matthews"], logits([0, 1, 1, 1, 2, 0], 3), labels)
    assert scores["accuracy"] == 4 / 6
    assert scores["f1"] == pytest.approx((2 / 4 + 4 / 5 + 2 / 3) / 3)
    # c = 4 of s = 6; sum p_k t_k = 2*2 + 3*2 + 1*2 = 12; 12 / sqrt((36 - 14) * (36 - 12)).
    assert scores["matthews"] == pytest.approx(12 / np.sqrt(22 * 24))


def test_the_first_of_equal_logits_is_the_answer() -> None:
    assert score(["accuracy"], np.zeros((2, 3)), np.array([0, 1])) == {"accuracy": 0.5}


@pytest.mark.parametrize("shape", [(3,), (3, 1)], ids=["flat", "column"])
def test_pearson_of_flat_and_column_outputs(shape: tuple[int, ...]) -> None:
    outputs = np.array([1.0, 2.0, 3.0], np.float32).reshape(shape)
    labels = np.array([1.0, 3.0, 2.0], np.float32)
    assert score(["pearson"], outputs, labels)["pearson"] == pytest.approx(0.5)


def test_spearman_shares_the_ranks_of_ties() -> None:
    # Ranks 1 2 3 4 against 1 2.5 2.5 4: 4.5 / sqrt(5 * 4.5).
    scores = score(["spearman"], np.array([10.0, 20, 30, 400]), np.array([1.0, 2, 2, 3]))
    assert scores["spearman"] == pytest.approx(4.5 / np.sqrt(22.5))


def test_spearman_sees_order_only() -> None:
    scores = score(["pearson", "spearman"], np.array([1.0, 10, 1000]), np.array([1.0, 2, 3]))
    assert scores["spearman"] == pytest.approx(1.0)
    assert scores["pearson"] < 0.9


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_constant_outputs_correlate_with_nothing(metric: str) -> None:
    assert score([metric], np.full(5, 0.1, np.float32), np.arange(5.0)) == {metric: 0.0}
    assert score([metric], np.arange(5.0), np.full(5, 0.1)) == {metric: 0.0}


def test_matthews_is_0_if_one_class_is_predicted() -> None:
    assert score(["matthews"], logits([1, 1, 1], 2), np.array([0, 1, 1])) == {"matthews": 0.0}


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_pearson_of_extreme_values_is_finite(scale: float) -> None:
    scores = score(["pearson"], np.array([1.0, 2, 3]) * scale, np.array([1.0, 3, 2]))
    assert scores["pearson"] == pytest.approx(0.5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("metric", ["accuracy", "pearson"])
def test_outputs_that_are_not_finite_are_a_divergence(metric: str, bad: float) -> None:
    outputs = np.ones((4, 2)) if metric == "accuracy" else np.ones(4)
    outputs[2] = bad
    with pytest.raises(NonFiniteLossError, match="1 of 4 rows"):
        score([metric], outputs, np.array([0, 1, 0, 1]))


def test_an_unknown_metric_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'accuracy'"):
        score(["acuracy"], np.ones((1, 2)), np.array([0]))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_class_metrics_equal_their_formulas(pairs: list[tuple[int, int]]) -> None:
    labels, predicted = (np.array(side) for side in zip(*pairs, strict=True))
    counts = np.zeros((4, 4))
    np.add.at(counts, (labels, predicted), 1)
    rows, columns, total = counts.sum(1), counts.sum(0), counts.sum()
    each = 2 * np.diag(counts) / np.maximum(rows + columns, 1)
    spread = (total**2 - columns @ columns) * (total**2 - rows @ rows)
    covariance = np.trace(counts) * total - rows @ columns
    scores = score(["accuracy", "f1", "matthews"], logits(list(predicted), 4), labels)
    assert scores["accuracy"] == np.trace(counts) / total
    assert scores["f1"] == pytest.approx(each[rows > 0].mean(), abs=1e-12)
    expected = covariance / np.sqrt(spread) if spread else 0.0
    assert scores["matthews"] == pytest.approx(expected, abs=1e-12)


@pytest.fixture
def forget() -> Iterator[None]:
    names = set(METRICS.names())
    yield
    for name in set(METRICS.names()) - names:
        del METRICS._entries[name]


@pytest.mark.usefixtures("forget")
def test_a_registered_metric_is_scored_like_a_built_in_one() -> None:
    @clbench.metric("top-2")
    def top_2(outputs: np.ndarray, labels: np.ndarray) -> float:
        return float((outputs.argsort(axis=1)[:, -2:] == labels[:, None]).any(axis=1).mean())

    @clbench.metric("minus-mae", regression=True)
    def minus_mae(outputs: np.ndarray, labels: np.ndarray) -> float:
        return -float(np.abs(outputs - labels).mean())

    outputs = np.array([[3.0, 2, 1], [1, 2, 3]])
    assert score(["top-2", "accuracy"], outputs, np.array([1, 0])) == {"top-2": 0.5, "accuracy": 0}
    column = np.array([[1.0], [2.0]])
    assert score(["minus-mae"], column, np.array([2.0, 4.0])) == {"minus-mae": -1.5}
    assert "top-2" in metrics_for(regression=False)
    assert metrics_for(regression=True) == ["minus-mae", "pearson", "spearman"]


@pytest.mark.usefixtures("forget")
def test_a_metric_that_is_not_decorated_or_not_finite_is_an_error() -> None:
    clbench.metric("broken")(lambda outputs, labels: float("nan"))
    with pytest.raises(DataError, match="Metric 'broken' returned nan, not a finite number"):
        score(["broken"], np.ones((1, 2)), np.array([0]))
    with pytest.raises(PluginError, match=r"decorate it with @clbench.metric\('name'\)"):
        METRICS.add("plain", lambda outputs, labels: 1.0)  # type: ignore[arg-type]


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize("value", [None, "good", np.zeros(3), 1j])
def test_a_metric_that_returns_no_number_is_named(value: object) -> None:
    clbench.metric("odd")(lambda outputs, labels: value)  # type: ignore[arg-type, return-value]
    with pytest.raises(PluginError, match="metric 'odd' must return a number, not "):
        score(["odd"], np.ones((3, 2)), np.array([0, 1, 0]))


@pytest.mark.usefixtures("forget")
def test_a_metric_cannot_change_the_labels_of_the_next() -> None:
    @clbench.metric("cheating")
    def cheating(outputs: np.ndarray, labels: np.ndarray) -> float:
        labels[:] = outputs.argmax(axis=1)
        return 1.0

    outputs, labels = np.array([[2.0, 1], [2, 1]]), np.array([0, 1])
    assert score(["cheating", "accuracy"], outputs, labels)["accuracy"] == 0.5
    assert labels.tolist() == [0, 1]


@pytest.mark.usefixtures("forget")
def test_a_metric_that_changes_global_state_is_an_error() -> None:
    @clbench.metric("wide")
    def wide(outputs: np.ndarray, labels: np.ndarray) -> float:
        torch.set_default_dtype(torch.float64)
        return float(np.random.rand())  # noqa: NPY002

    text = "metric 'wide' changes torch's default type for the whole process."
    with pytest.raises(PluginError, match=text):
        score(["wide"], np.ones((4, 2)), np.array([0, 1, 0, 1]))
    assert torch.get_default_dtype() == torch.float32


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


def test_no_constant_wins_the_main_score_of_a_packaged_task() -> None:
    loaders = {name: TASKS.get(name) for name in TASKS}
    main = {name: getattr(loader, "metrics", ("accuracy",))[0] for name, loader in loaders.items()}
    assert main["super_glue/multirc"] == "accuracy"
    for name, metric in main.items():
        if metric in TEXT_METRICS:  # of texts that are written, which have no constant
            continue
        count = 7
        for share in range(1, count):
            labels = np.array([0] * share + [1] * (count - share))
            best = 0.0 if METRICS.get(metric).regression else max(share, count - share) / count
            for constant in (0, 1):
                floor = floor_score(metric, np.full(3, constant), labels, 2)
                assert floor is not None
                assert floor <= best, name

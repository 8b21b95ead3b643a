from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clbench.errors import DataError, NonFiniteLossError
from clbench.tasks.metrics import METRICS, score


def logits(predicted: list[int], classes: int) -> np.ndarray:
    return np.eye(classes, dtype=np.float32)[predicted]


def test_two_classes_by_hand() -> None:
    # Three hits, one miss, three right rejections, one false alarm.
    labels = np.array([1, 1, 1, 0, 0, 0, 0, 1])
    outputs = logits([1, 1, 0, 0, 0, 1, 0, 1], 2)
    found = score(["accuracy", "f1", "matthews"], outputs, labels)
    assert found == {"accuracy": 6 / 8, "f1": 2 * 3 / (2 * 3 + 1 + 1), "matthews": (9 - 1) / 16}


def test_f1_of_two_classes_looks_at_class_1_only() -> None:
    labels = np.array([0, 0, 0, 1])
    assert score(["f1"], logits([0, 0, 0, 0], 2), labels) == {"f1": 0.0}
    assert score(["f1"], logits([1, 1, 1, 1], 2), labels) == {"f1": 2 / 5}


def test_three_classes_by_hand() -> None:
    labels = np.array([0, 0, 1, 1, 2, 2])
    found = score(["accuracy", "f1", "matthews"], logits([0, 1, 1, 1, 2, 0], 3), labels)
    assert found["accuracy"] == 4 / 6
    assert found["f1"] == pytest.approx((2 / 4 + 4 / 5 + 2 / 3) / 3)
    # c = 4 of s = 6; sum p_k t_k = 2*2 + 3*2 + 1*2 = 12; 12 / sqrt((36 - 14) * (36 - 12)).
    assert found["matthews"] == pytest.approx(12 / np.sqrt(22 * 24))


def test_the_first_of_equal_logits_is_the_answer() -> None:
    assert score(["accuracy"], np.zeros((2, 3)), np.array([0, 1])) == {"accuracy": 0.5}


@pytest.mark.parametrize("shape", [(3,), (3, 1)], ids=["flat", "column"])
def test_pearson_by_hand(shape: tuple[int, ...]) -> None:
    outputs = np.array([1.0, 2.0, 3.0], np.float32).reshape(shape)
    labels = np.array([1.0, 3.0, 2.0], np.float32)
    assert score(["pearson"], outputs, labels)["pearson"] == pytest.approx(0.5)


def test_spearman_shares_the_ranks_of_ties() -> None:
    # Ranks 1 2 3 4 against 1 2.5 2.5 4: 4.5 / sqrt(5 * 4.5).
    found = score(["spearman"], np.array([10.0, 20, 30, 400]), np.array([1.0, 2, 2, 3]))
    assert found["spearman"] == pytest.approx(4.5 / np.sqrt(22.5))


def test_spearman_sees_order_only() -> None:
    found = score(["pearson", "spearman"], np.array([1.0, 10, 1000]), np.array([1.0, 2, 3]))
    assert found["spearman"] == pytest.approx(1.0)
    assert found["pearson"] < 0.9


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_constant_outputs_correlate_with_nothing(metric: str) -> None:
    assert score([metric], np.full(5, 0.1, np.float32), np.arange(5.0)) == {metric: 0.0}
    assert score([metric], np.arange(5.0), np.full(5, 0.1)) == {metric: 0.0}


def test_one_class_predicted_has_matthews_0() -> None:
    assert score(["matthews"], logits([1, 1, 1], 2), np.array([0, 1, 1])) == {"matthews": 0.0}


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_pearson_of_extreme_values_is_finite(scale: float) -> None:
    found = score(["pearson"], np.array([1.0, 2, 3]) * scale, np.array([1.0, 3, 2]))
    assert found["pearson"] == pytest.approx(0.5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("metric", METRICS)
def test_outputs_that_are_no_numbers_are_a_divergence(metric: str, bad: float) -> None:
    outputs = np.ones((4, 2)) if metric in ("accuracy", "f1", "matthews") else np.ones(4)
    outputs[2] = bad
    with pytest.raises(NonFiniteLossError, match="1 of 4 rows"):
        score([metric], outputs, np.array([0, 1, 0, 1]))


def test_unknown_metric_and_no_rows() -> None:
    with pytest.raises(DataError, match="Did you mean 'accuracy'"):
        score(["acuracy"], np.ones((1, 2)), np.array([0]))
    with pytest.raises(DataError, match="no rows"):
        score(["accuracy"], np.ones((0, 2)), np.array([], dtype=np.int64))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40),
)
def test_class_metrics_equal_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    from sklearn import metrics

    labels, predicted = (np.array(side) for side in zip(*pairs, strict=True))
    found = score(["accuracy", "f1", "matthews"], logits(list(predicted), 4), labels)
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(labels, predicted))
    expected = metrics.f1_score(
        labels, predicted, labels=range(4), average="macro", zero_division=0
    )
    assert found["f1"] == pytest.approx(expected)
    if len(set(labels) | set(predicted)) > 1:
        expected = metrics.matthews_corrcoef(labels, predicted)
        assert found["matthews"] == pytest.approx(expected)


@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2, max_size=30).filter(
        lambda pairs: all(len(set(side)) > 1 for side in zip(*pairs, strict=True))
    )
)
def test_correlations_equal_scipy(pairs: list[tuple[int, int]]) -> None:
    from scipy import stats

    x, y = (np.array(side, dtype=np.float64) for side in zip(*pairs, strict=True))
    found = score(["pearson", "spearman"], x, y)
    assert found["pearson"] == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-9)
    assert found["spearman"] == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-9)

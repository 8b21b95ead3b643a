from __future__ import annotations

import pytest

from clbench.figures import rate_distributions

GROUPS = ["embeddings", "layer 0", "head"]


def test_every_distribution_is_a_line_with_its_values() -> None:
    pairs = {"a": [1e-5, 2e-5, 3e-5], "b": [3e-5, 2e-5, 1e-5]}
    figure = rate_distributions(pairs, [2e-5, 2e-5, 2e-5], groups=GROUPS, flat=1e-5)
    (axes,) = figure.axes
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}
    assert lines["a"] == pairs["a"]
    assert lines["combined"] == [2e-5] * 3
    assert lines["flat rate 1e-05"] == [1e-5, 1e-5]
    assert axes.get_yscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == GROUPS


def test_another_number_of_rates_is_refused() -> None:
    with pytest.raises(ValueError, match="a has 2 rates for 3 groups"):
        rate_distributions({"a": [1e-5, 1e-5]}, groups=GROUPS)
    with pytest.raises(ValueError, match="combined has 0 rates for 3 groups"):
        rate_distributions({"a": [1e-5] * 3}, [], groups=GROUPS)

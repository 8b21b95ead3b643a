"""The scores of rows after a stage."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clbench.measure.rows import RowScorer
from clbench.tasks.task import Rows, Task


@pytest.mark.parametrize("columns", [2, 4])
def test_f1_does_not_change_when_a_growing_head_grows(columns: int) -> None:
    labels = np.array([0, 0, 1, 1])
    rows = Rows.of(["a"] * 4, None, labels)
    task = Task("t", ("a", "b", "c", "d"), ("f1",), rows, rows, "h", own=(0, 1), seen=2)
    scenario: Any = SimpleNamespace(
        scenario=SimpleNamespace(tasks=[task]),
        scored=[SimpleNamespace(rows=rows)],
        scorers=(),
        writer=None,
    )
    outputs = np.eye(4)[[0, 1, 1, 1]][:, :columns]
    context: Any = SimpleNamespace(outputs=lambda data: outputs)
    method: Any = SimpleNamespace(scoring=lambda task: nullcontext())
    ((scores,), _) = RowScorer(scenario, method, context, None).row(0)
    assert scores is not None
    assert scores["f1"] == pytest.approx((2 / 3 + 4 / 5) / 2)  # both classes, not the second one
    assert scores["told"] == 3 / 4

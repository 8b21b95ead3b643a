from __future__ import annotations

import pytest
from helpers.fake_context import make_task, text

from clbench.tasks.task import Task


@pytest.fixture
def by_length() -> Task:
    """Training lengths 1 to 8 in mixed order, validation lengths 1 to 6."""
    train = [text(words=n) for n in (8, 1, 5, 4, 2, 7, 3, 6)]
    return make_task(
        train,
        [text(words=n) for n in (1, 4, 5, 6, 3, 2)],
        labels=([0, 0, 1, 1, 1, 1, 0, 0], [0, 1, 0, 1, 1, 0]),
    )

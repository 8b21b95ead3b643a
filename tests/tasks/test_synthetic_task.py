from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from clbench.tasks.load import load_task, task_identity
from clbench.tasks.registry import TASKS
from clbench.tasks.synthetic import SPECS, generate


@pytest.mark.parametrize("name", SPECS)
def test_every_synthetic_task(name: str) -> None:
    full = f"synthetic/{name}"
    task = load_task(full, data=None, base=Path(), own={})
    assert task.name == task.head == full
    assert task.labels == SPECS[name].labels
    assert task.is_pair == SPECS[name].pair
    assert (len(task.train), len(task.validation)) == (2000, 500)
    first, second, label = generate(name, train=3, validation=0)["train"][2]
    assert task.train.first[2] == first
    assert task.train.labels[2] == label
    if task.is_pair:
        assert task.train.second is not None
        assert task.train.second[2] == second
    counts = np.bincount(task.train.labels, minlength=task.outputs)
    assert counts.max() - counts.min() <= 1
    assert task.metrics[0] == "accuracy"
    assert getattr(TASKS.get(full), "description", "")


def test_identity_is_that_of_the_rows() -> None:
    found = task_identity("synthetic/qa", data=None, base=Path(), own={})
    task = load_task("synthetic/qa", data=None, base=Path(), own={})
    assert found["rows"] == {"train": task.train.digest, "validation": task.validation.digest}
    assert json.loads(json.dumps(found)) == found
    other = task_identity("synthetic/sentiment", data=None, base=Path(), own={})
    assert other["rows"] != found["rows"]

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from clbench.errors import DataError
from clbench.tasks.load import load_task, task_identity
from clbench.tasks.registry import TASKS
from clbench.tasks.spec import SyntheticName, SyntheticTaskSpec
from clbench.tasks.synthetic import SPECS, generate
from clbench.tasks.task import Task


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


def test_tables_name_every_synthetic_task() -> None:
    assert get_args(SyntheticName) == tuple(SPECS)


def test_a_table_asks_for_other_rows_and_noise() -> None:
    def load(**keys: Any) -> Task:
        own = {"noisy": SyntheticTaskSpec(synthetic="sentiment", **keys)}
        return load_task("noisy", data=None, base=Path(), own=own)

    noisy = load(train=300, validation=40, label_noise=0.3)
    clean = load(train=300, validation=40)
    assert noisy.name == noisy.head == "noisy"
    assert (len(noisy.train), len(noisy.validation)) == (300, 40)
    assert list(noisy.train.first) == list(clean.train.first)
    changed = np.mean(noisy.train.labels != clean.train.labels)
    assert 0.2 < changed < 0.4
    assert noisy.validation.digest == clean.validation.digest
    assert load(train=300, seed=1).train.digest != clean.train.digest
    own = {"noisy": SyntheticTaskSpec(synthetic="sentiment", label_noise=0.3)}
    found = task_identity("noisy", data=None, base=Path(), own=own)
    assert found["name"] == "noisy"
    assert found["rows"]["train"] != clean.train.digest


def test_more_rows_than_the_grammar_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("clbench.tasks.synthetic.generate")
    monkeypatch.setattr(module, "_PATIENCE", 1)
    own = {"vast": SyntheticTaskSpec(synthetic="sentiment", train=50_000)}
    with pytest.raises(DataError, match=r"task 'vast': .* fewer than 50000 texts"):
        load_task("vast", data=None, base=Path(), own=own)

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from clbench.tasks.registry import TASKS, load_task, task_identity
from clbench.tasks.spec import SyntheticTaskSpec
from clbench.tasks.synthetic import SPECS, generate, unlabelled
from clbench.tasks.task import Task

DIGESTS = {
    "sentiment": ("67a07d141a23dbc679c73912e58d63eb", "abf7d018f4957fa742b0c801ef81f832"),
    "acceptability": ("2563b58c1308d0ade7a46d21a75acb0e", "c55010ffc9d0aa002a9617689e602025"),
    "paraphrase": ("d7b8002e2a2976a57a50dd6c3a850955", "220395f6d29346dce1a76afc56cf92da"),
    "qa": ("12ff692b816b5c30a99a5391bb9205ed", "54fcbb381d83c84abcdb251dfa8f4a4e"),
    "entailment": ("4c43745b4c5abde831ca851b75537083", "698e9989be1761ba3d80936049f72ecc"),
    "entailment3": ("5945bdff7d87bacf67ce20acc7b04dc4", "7e01c0891188dada6288a4c1b548ecb3"),
}
"""Of the training and validation rows. They never change, and scores depend on them."""


@pytest.mark.parametrize("kind", SPECS)
def test_the_rows_of_a_built_in_task_never_change(kind: str) -> None:
    name = f"synthetic/{kind}"
    task = load_task(name, data=None, base=Path(), own={})
    assert task.name == task.head == name
    assert task.labels == SPECS[kind].labels
    assert task.is_pair == SPECS[kind].pair
    assert (len(task.train), len(task.validation)) == (2000, 500)
    assert (task.train.digest, task.validation.digest) == DIGESTS[kind]
    assert task.metrics[0] == "accuracy"
    assert getattr(TASKS.get(name), "description", "")
    identity = task_identity(name, data=None, base=Path(), own={})
    digests = {"train": task.train.digest, "validation": task.validation.digest}
    assert identity == {"name": name, "dataset": "synthetic", "config": kind, "rows": digests}
    assert json.loads(json.dumps(identity)) == identity


def test_a_table_asks_for_other_rows_and_noise() -> None:
    def load(**keys: Any) -> Task:
        own = {"noisy": SyntheticTaskSpec(synthetic="sentiment", **keys)}
        task = load_task("noisy", data=None, base=Path(), own=own)
        identity = task_identity("noisy", data=None, base=Path(), own=own)
        assert identity["rows"]["train"] == task.train.digest
        return task

    noisy = load(train=300, validation=40, label_noise=0.3)
    clean = load(train=300, validation=40)
    assert noisy.name == noisy.head == "noisy"
    assert (len(noisy.train), len(noisy.validation)) == (300, 40)
    assert list(noisy.train.first) == list(clean.train.first)
    assert 0.2 < np.mean(noisy.train.labels != clean.train.labels) < 0.4
    assert noisy.validation.digest == clean.validation.digest
    assert load(train=300, seed=1).train.digest != clean.train.digest


def test_more_rows_than_the_file_has_are_an_error_with_the_maximum() -> None:
    with pytest.raises(ValidationError, match="less than or equal to 6000"):
        SyntheticTaskSpec(synthetic="sentiment", train=50_000)
    with pytest.raises(ValidationError, match="less than or equal to 1200"):
        SyntheticTaskSpec(synthetic="sentiment", validation=1201)


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("name", ["sentiment", "entailment3"])
def test_a_smaller_split_is_the_beginning_of_a_larger_balanced_one(name: str, seed: int) -> None:
    small = generate(name, train=100, validation=10, label_noise=0.2, seed=seed)
    large = generate(name, train=151, validation=61, label_noise=0.2, seed=seed)
    assert large["train"][:100] == small["train"]
    assert large["validation"][:10] == small["validation"]
    counts = Counter(row[2] for row in generate(name, train=998, seed=seed)["train"])
    assert max(counts.values()) - min(counts.values()) <= 1


def test_another_seed_samples_other_rows() -> None:
    rows = [
        {row[:2] for row in generate("qa", train=300, seed=seed)["train"]} for seed in (0, 3, 4)
    ]
    assert [len(some) for some in rows] == [300] * 3
    assert all(len(a & b) < 60 for a, b in ((rows[0], rows[1]), (rows[1], rows[2])))
    assert len(generate("entailment3", train=6000, seed=3)["train"]) == 6000


def test_noise_changes_labels_of_training_rows_only() -> None:
    clean = generate("entailment3", validation=300)
    noisy = generate("entailment3", validation=300, label_noise=0.25)
    assert noisy["validation"] == clean["validation"]
    assert [row[:2] for row in noisy["train"]] == [row[:2] for row in clean["train"]]
    changed = np.mean([a[2] != b[2] for a, b in zip(noisy["train"], clean["train"], strict=True)])
    assert 0.21 < changed < 0.29
    every = generate("sentiment", train=50, label_noise=1.0)["train"]
    assert all(a[2] != b[2] for a, b in zip(every, generate("sentiment")["train"], strict=False))


def test_unlabelled_texts_are_distinct_and_in_no_validation_split() -> None:
    texts = unlabelled(2000, seed=1)
    assert texts == unlabelled(2000, seed=1)
    assert len(set(texts)) == 2000
    assert unlabelled(50, seed=1) == texts[:50]
    for name in SPECS:
        assert not {row[0] for row in generate(name)["validation"]} & set(texts)
    assert not set(texts) & set(unlabelled(2000, seed=2, held_out=True))

"""Relearning: a rotated head comes back after a few rows, destroyed features do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import without_padding
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from clbench.audit.audit import audit
from clbench.audit.comparison import compare
from clbench.audit.items import load_items, prompted
from clbench.audit.models import load_base
from clbench.audit.page import write_audit
from clbench.audit.relearn import Relearned, lesson, missing, trained
from clbench.audit.scores import ItemScores, Part
from clbench.core.errors import ClbenchError
from clbench.models.locate import TINY
from clbench.tasks.registry import load_task

TASK = "synthetic/sentiment"
NAMES = ("negative", "positive")
QUICK: Any = {"tasks": [TASK], "rows": 200, "texts": 30}


def save(model: Any, folder: Path) -> str:
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(TINY).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A classifier that has learned the task, from rows that are not scored."""
    torch.manual_seed(0)
    labels: Any = {
        "id2label": dict(enumerate(NAMES)),
        "label2id": dict(zip(NAMES, (0, 1), strict=True)),
    }
    model = AutoModelForSequenceClassification.from_pretrained(TINY, **labels)
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    rows = load_task(TASK, data=None, base=Path(), own={}).train
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    for start in range(0, 800, 16):
        inputs = tokenizer(list(rows.first[start : start + 16]), padding=True, return_tensors="pt")
        target = torch.from_numpy(rows.labels[start : start + 16]).long()
        optimizer.zero_grad()
        cross_entropy(model(**inputs).logits, target).backward()
        optimizer.step()
    return save(model, tmp_path_factory.mktemp("learned"))


def damaged(learned: str, folder: Path, change: Callable[[Any], None]) -> str:
    model = AutoModelForSequenceClassification.from_pretrained(learned)
    with torch.no_grad():
        change(model)
    return save(model, folder)


def rotate_head(model: Any) -> None:
    """Turn the head by half a turn, so that it names the other class."""
    model.classifier.weight.neg_()


def destroy_features(model: Any) -> None:
    torch.manual_seed(1)
    for value in model.base_model.encoder.parameters():
        value.copy_(value.flatten()[torch.randperm(value.numel())].view_as(value))


def test_rotated_heads_come_back_and_destroyed_features_do_not(
    learned: str, tmp_path: Path
) -> None:
    tuned = [
        damaged(learned, tmp_path / "rotated", rotate_head),
        damaged(learned, tmp_path / "destroyed", destroy_features),
    ]
    found = audit(learned, tuned, relearn=32, **QUICK)
    page = write_audit(found, tmp_path / "page").read_text()
    stored = json.loads((tmp_path / "page" / "audit.json").read_text())["models"]
    for model, own in zip(found.models, stored, strict=True):
        behaviour = next(task for task in model.comparison.tasks if task.part == "behaviour")
        assert behaviour.change.word == "forgot"
        (each,) = model.relearned
        assert str(each) in page
        assert own["relearned"][0]["word"] == each.word
        assert own["relearned"][0]["left"]["difference"] == each.left.difference
        # What is left is the loss, less what came back, plus what the base model gained.
        loss = behaviour.change.difference
        left = loss + each.tuned.difference - each.base.difference
        assert each.left.difference == pytest.approx(left)
    rotated, destroyed = (model.relearned[0] for model in found.models)
    assert rotated.word == "not forgotten"
    assert rotated.tuned.difference > 0.4
    assert rotated.left.high > 0
    assert destroyed.word == "forgotten"
    assert destroyed.left.difference < -0.2
    assert rotated.base == destroyed.base  # one control for both


def test_nothing_is_relearned_where_nothing_is_lost(learned: str, tmp_path: Path) -> None:
    (model,) = audit(
        learned, [damaged(learned, tmp_path, lambda m: None)], relearn=8, **QUICK
    ).models
    assert model.relearned == ()
    assert "Nothing to relearn: no loss in behaviour or an axis is shown." in model.notes


def test_losses_that_have_no_lesson_are_named() -> None:
    keys = tuple(map(str, range(100)))
    parts: tuple[Part, ...] = ("instructions", "arithmetic")
    before, after = (
        [ItemScores("own", part, np.full(100, value), keys) for part in parts]
        for value in (1.0, 0.0)
    )
    comparison = compare(before, after, 0.02)
    regained = Relearned("own, arithmetic", 8, *[comparison.changes[1].change] * 3)
    note = "Lost, but not relearned"
    assert missing(comparison, [regained]) == f"{note}: own, instructions."
    comparison = compare(before[:1], after[:1], 0.02)
    assert missing(comparison, []) == f"{note}: own, instructions."
    assert missing(compare(before[1:], after[1:], 0.02), [regained]) == ""


def test_relearned_rows_are_not_scored(learned: str) -> None:
    items = load_items([TASK], data=None, rows=1000)
    assert items[0].training  # training rows are scored, too
    base, device = load_base(learned), torch.device("cpu")
    own = lesson(items[0], 20, 0, device)
    encoded = own.rows(base)
    rows: Any = encoded[0]
    texts = base.tokenizer.batch_decode(np.split(rows.ids, rows.offsets[1:-1]))
    scored = base.tokenizer(list(items[0].rows.first), truncation=True, max_length=128)["input_ids"]
    assert len(rows) == len(texts) == 20
    assert int(rows.labels.sum()) == 10
    assert not {*texts} & {*base.tokenizer.batch_decode(scored)}
    before = {name: value.clone() for name, value in base.model.state_dict().items()}
    trained(base, *encoded, 1e-3)
    after = base.model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    with pytest.raises(ClbenchError, match=r"relearn=.*has .* training rows that are not scored"):
        lesson(items[0], 10**6, 0, device)


def test_a_decoder_without_padding_relearns_as_a_classifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = without_padding(tmp_path / "decoder")
    AutoModelForSequenceClassification.from_pretrained(folder).save_pretrained(folder)
    base, (items,) = load_base(folder), load_items([TASK], data=None, rows=50)
    monkeypatch.setattr("clbench.audit.relearn.STEPS", 2)
    own = lesson(items, 16, 0, torch.device("cpu"))
    after = trained(base, *own.rows(base), 1e-3)
    assert after.model.config.pad_token_id is base.model.config.pad_token_id is None
    assert not torch.equal(after.model.score.weight, base.model.score.weight)


def test_a_decoder_whose_answers_were_swapped_relearns_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file, count in (("train", 400), ("dev", 120)):
        pairs = [("day", "good"), ("night", "bad")] * (count // 2)
        rows = [f"the {file} {w} was {m} {i},{m}" for i, (w, m) in enumerate(pairs)]
        (tmp_path / f"{file}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    suite = tmp_path / "mood.toml"
    suite.write_text(
        'methods = ["vanilla"]\n[task.mood]\ntrain = "train.csv"\nvalidation = "dev.csv"\n'
        'text = "text"\nlabel = "label"\n[[scenario]]\nshift = "sentence-length"\ntask = "mood"\n'
    )
    plain = load_base("tiny-gpt")
    (items,) = load_items([str(suite)], data=None, rows=100)
    with monkeypatch.context() as patch:
        patch.setattr("clbench.audit.relearn.STEPS", 60)
        rows = lesson(items, 300, 0, torch.device("cpu")).rows(plain)
        learned = trained(plain, *rows, 1e-3).model

    def keep(name: str) -> str:
        learned.save_pretrained(tmp_path / name)
        plain.tokenizer.save_pretrained(tmp_path / name)
        return str(tmp_path / name)

    base = keep("base")
    asked = prompted(plain, items.task, items.rows.take(np.array([0])))
    first = asked.candidates[0, :, 0].tolist()
    with torch.no_grad():
        table = learned.get_output_embeddings().weight
        table[first] = table[first[::-1]].clone()
    options: Any = {**QUICK, "tasks": [str(suite)], "rows": 100}
    (model,) = audit(base, [keep("tuned")], relearn=32, relearn_rate=1e-3, **options).models
    behaviour = next(task for task in model.comparison.tasks if task.part == "behaviour")
    assert behaviour.base == 1.0
    assert behaviour.change.word == "forgot"
    (each,) = model.relearned
    assert each.word == "not forgotten"
    assert each.left.difference == 0.0

"""The script that made the built-in model: one command, stops and goes on, writes a card."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from checkpoints import make_checkpoint

from clbench.tasks.synthetic import unlabelled
from tools.pretrain_tiny.__main__ import main
from tools.pretrain_tiny.encode import Encoded, encode, train_tokenizer
from tools.pretrain_tiny.loop import Recipe, Trainer
from tools.pretrain_tiny.network import Shape, Student
from tools.pretrain_tiny.teacher import Teacher, precompute
from tools.pretrain_tiny.texts import read_corpus

SMALL = ["--layers", "2", "--hidden", "16", "--heads", "2", "--positions", "64", "--vocab", "600"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    lines = [" ".join(unlabelled(3, seed=s)) for s in range(140)]
    (tmp_path / "held-out.txt").write_text("\n".join(lines[120:]))
    file = tmp_path / "text.txt"
    file.write_text("\n".join(lines[:120]))
    return file


@pytest.fixture
def corpus(text: Path) -> Encoded:
    segments = read_corpus([str(text)]).segments
    return encode(train_tokenizer(segments, 600, []), segments)


def test_one_command_makes_a_model_and_another_goes_on_from_it(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    def run(out: str, *more: str) -> dict[str, object]:
        held_out = str(text.with_name("held-out.txt"))
        command = ["--text", str(text), "--held-out", held_out, "--minutes", "0.02"]
        folders = ["--out", str(tmp_path / out), "--work", str(tmp_path / f"{out}-work")]
        given = ["pretrain", *command, *folders, "--threads", "1", *SMALL, *more]
        monkeypatch.setattr(sys, "argv", given)
        main()
        facts: dict[str, object] = json.loads((tmp_path / out / "pretraining.json").read_text())
        return facts

    first = run("first")
    assert isinstance(first["steps"], int)
    assert first["steps"] > 0
    assert first["earlier"] == []
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "first")
    tokens = AutoTokenizer.from_pretrained(tmp_path / "first")("the soup", return_tensors="pt")
    assert model(**tokens).logits.shape[-1] == model.config.vocab_size
    second = run("second", "--start", str(tmp_path / "first"), "--seed", "1")
    assert second["earlier"] == [{k: first[k] for k in ("steps", "tokens_seen")}]
    assert second["segments"] == first["segments"]
    card = (tmp_path / "second" / "README.md").read_text()
    assert f"{first['steps']} steps:" in card
    with pytest.raises(SystemExit, match="holds another run: seed differs"):
        run("second", "--start", str(tmp_path / "first"), "--seed", "2")


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        ("text.txt", "no usable text in --held-out: every line of it is in --text"),
        ("nowhere.txt", "No such file"),
    ],
)
def test_text_that_cannot_be_used_ends_in_one_line(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, held_out: str, message: str
) -> None:
    given = ["pretrain", "--text", str(text), "--held-out", str(tmp_path / held_out)]
    folders = ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    monkeypatch.setattr(sys, "argv", [*given, *folders])
    with pytest.raises(SystemExit, match=message):
        main()
    assert not (tmp_path / "out").exists()


def trainer(corpus: Encoded, folder: Path) -> Trainer:
    torch.manual_seed(0)
    student = Student(Shape(layers=1, hidden=16, heads=2, positions=64, vocab=600))
    pairs = torch.empty((0, 2), dtype=torch.int32).numpy()
    return Trainer(student, corpus, pairs, None, Recipe(minutes=1, threads=1, limit=64), folder)


def test_a_stopped_run_goes_on_with_equal_weights(tmp_path: Path, corpus: Encoded) -> None:
    examples = torch.tensor([[i, -1] for i in range(12)]).numpy()
    whole = trainer(corpus, tmp_path / "whole")
    for part in (examples[:4], examples[4:8], examples[8:]):
        whole.step(part)
    stopped = trainer(corpus, tmp_path / "stopped")
    stopped.step(examples[:4])
    stopped.step(examples[4:8])
    stopped.save()
    again = trainer(corpus, tmp_path / "stopped")
    assert again.load()
    assert again.state.step == 2
    again.step(examples[8:])
    for a, b in zip(again.values, whole.values, strict=True):
        assert torch.equal(a, b)


def test_a_teachers_answers_to_another_text_are_refused(tmp_path: Path, text: Path) -> None:
    segments = read_corpus([str(text)]).segments
    encoded = encode(train_tokenizer(segments, 600, []), segments)
    teacher = Teacher(str(make_checkpoint("bert", tmp_path / "teacher")))
    teacher.longest = 40
    first = precompute(teacher, encoded, segments, tmp_path / "cache", 8)
    assert first.sentences.shape[0] == len(segments)
    assert first.words.any()
    again = precompute(teacher, encoded, segments, tmp_path / "cache", 8)
    assert (again.words == first.words).all()
    fewer = segments[:-1]
    with pytest.raises(ValueError, match="answers to another text"):
        precompute(
            teacher, encode(train_tokenizer(fewer, 600, []), fewer), fewer, tmp_path / "cache", 8
        )

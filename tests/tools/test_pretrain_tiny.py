"""The script that made the built-in model: one command, stops and goes on, writes a card."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from checkpoints import make_checkpoint
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from clbench.models.locate import tiny_folder
from clbench.tasks.synthetic import unlabelled
from tools.pretrain_tiny.__main__ import main
from tools.pretrain_tiny.data import held_out_batches
from tools.pretrain_tiny.encode import EncodedRows, encode, train_tokenizer
from tools.pretrain_tiny.loop import Recipe, Trainer, masked_accuracy
from tools.pretrain_tiny.network import Shape, Student, read_start, spread, start_from
from tools.pretrain_tiny.readme import write_readme
from tools.pretrain_tiny.teacher import Teacher, precompute
from tools.pretrain_tiny.texts import read_corpus, without_shared

SMALL = ["--layers", "2", "--hidden", "16", "--heads", "2", "--positions", "64", "--vocab", "600"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    lines = [" ".join(unlabelled(3, seed=s)) for s in range(140)]
    (tmp_path / "held-out.txt").write_text("\n".join(lines[120:]))
    file = tmp_path / "text.txt"
    file.write_text("\n".join(lines[:120]))
    return file


@pytest.fixture
def corpus(text: Path) -> EncodedRows:
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
    assert second["earlier"] == [
        {"layers": 2, **{k: first[k] for k in ("steps", "tokens_seen", "segments", "held_out")}}
    ]
    assert second["segments"] == first["segments"]
    card = (tmp_path / "second" / "README.md").read_text()
    assert f"{first['steps']} steps:" in card
    assert "# second" in card
    assert "license: unknown" in card
    for foreign in ("Wikipedia", "GLUE", "MiniLM", "Apache"):
        assert foreign not in card, "the card of other text tells of ours"
    again = run("second", "--start", str(tmp_path / "first"), "--seed", "1")
    assert (again["steps"], again["curve"]) == (second["steps"], second["curve"])
    assert again["epochs"] == second["epochs"]
    with text.with_name("held-out.txt").open("a") as file:
        file.write("\nSomething quite different stands here now, held out as well.\n")
    with pytest.raises(SystemExit, match="holds another run: held-out text differs"):
        run("second", "--start", str(tmp_path / "first"), "--seed", "1")
    with pytest.raises(SystemExit, match=r"holds another run: .*seed differs"):
        run("second", "--start", str(tmp_path / "first"), "--seed", "2")


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        ("text.txt", "no usable text in --held-out: every line of it is in --text"),
        ("nowhere.txt", "No such file"),
        ("binary.txt", r"binary\.txt: no UTF-8 text \(byte 0\)"),
        ("broken.parquet", r"broken\.parquet: no Parquet table that can be read"),
        ("short.txt", "no usable text in --held-out: no segment of 8 tokens"),
    ],
)
def test_text_that_cannot_be_used_ends_in_one_line(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, held_out: str, message: str
) -> None:
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no more of it")
    (tmp_path / "short.txt").write_text("a b c d e\n")
    given = ["pretrain", *SMALL, "--text", str(text), "--held-out", str(tmp_path / held_out)]
    given += ["--minutes", "0.01"]
    folders = ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    monkeypatch.setattr(sys, "argv", [*given, *folders])
    with pytest.raises(SystemExit, match=message):
        main()
    assert not (tmp_path / "out").exists()


def test_held_out_text_that_is_cut_otherwise_is_still_found_in_the_training_text() -> None:
    shared = "The old captain sold the wooden ship in the harbor."
    held_out = [f"{shared} Nobody had asked for it, and nobody paid.", "Not in it, not a word."]
    assert without_shared(held_out, [f"It was late. {shared}", "Something else."]) == held_out[1:]


def test_a_start_with_too_few_layers_is_refused(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint("bert", tmp_path / "start")
    held_out = str(text.with_name("held-out.txt"))
    given = ["pretrain", "--text", str(text), "--held-out", held_out, *SMALL, "--layers", "4"]
    folders = ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    monkeypatch.setattr(sys, "argv", [*given, *folders, "--start", str(tmp_path / "start")])
    with pytest.raises(SystemExit, match="has 3 layers, too few for the 4 here"):
        main()


def test_of_a_deeper_start_layers_at_even_distances_are_taken(tmp_path: Path) -> None:
    folder = tiny_folder()
    given = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    depth, hidden, heads = (
        config[k] for k in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    student = Student(Shape(2, hidden, heads, config["max_position_embeddings"]))
    start_from(student, tokenizer, read_start(folder))
    own = student.net.state_dict()
    for layer, kept in enumerate([0, depth - 1]):
        for part in ("attention.self.query.weight", "output.LayerNorm.bias"):
            value = given[f"bert.encoder.layer.{kept}.{part}"].float()
            assert torch.equal(own[f"bert.encoder.layer.{layer}.{part}"], value)
    assert spread(4, 6) == [0, 2, 3, 5]
    assert spread(3, 12) == [0, 6, 11]
    assert spread(6, 6) == [0, 1, 2, 3, 4, 5]
    assert spread(1, 6) == [0]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", "{", r"config\.json cannot be read"),
        ("config.json", '{"model_type": "roberta"}', "not that of a BERT"),
        ("config.json", '{"model_type": "bert"}', "no number as num_hidden_layers"),
        ("tokenizer.json", "{}", r"tokenizer\.json cannot be read"),
        ("model.safetensors", "no tensors", r"model\.safetensors cannot be read"),
        ("pretraining.json", '{"steps": 1}', r"pretraining\.json lacks one of steps"),
    ],
)
def test_a_start_that_cannot_be_used_ends_in_one_line(
    tmp_path: Path, file: str, content: str, message: str
) -> None:
    folder = tmp_path / "start"
    shutil.copytree(tiny_folder(), folder)
    (folder / file).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_start(folder)


def test_a_start_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "start"
    shutil.copytree(tiny_folder(), folder)
    weights = load_file(folder / "model.safetensors")
    layer = {n: v for n, v in weights.items() if ".layer.1." not in n}
    headless = {n: v for n, v in weights.items() if n != "cls.predictions.bias"}
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for given, message in ((layer, "has not the 4 layers"), (headless, "lacks cls.predictions")):
        save_file(given, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ValueError, match=message):
            start_from(Student(Shape()), tokenizer, read_start(folder))


def test_one_segment_is_too_little_to_train_on(tmp_path: Path) -> None:
    segments = ["The old captain sold the wooden ship."]
    tiny = trainer(encode(train_tokenizer(segments, 600, []), segments), tmp_path)
    with pytest.raises(ValueError, match="too short to train on"):
        tiny.run([], lambda: None)


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path, corpus: EncodedRows) -> None:
    trainer(corpus, tmp_path).save()
    with pytest.raises(ValueError, match="holds another network"):
        trainer(corpus, tmp_path, hidden=32).load()


def test_masked_accuracy_counts_as_bert_does_and_masks_alone(
    tmp_path: Path, corpus: EncodedRows
) -> None:
    student = trainer(corpus, tmp_path).student
    with torch.no_grad():  # a model that answers what it is shown
        student.net.bert.encoder.layer[0].attention.output.LayerNorm.weight.zero_()
        student.net.bert.encoder.layer[0].output.LayerNorm.weight.zero_()
        student.net.bert.encoder.layer[0].output.LayerNorm.bias.zero_()
        student.net.cls.predictions.bias[4] = 100.0  # [MASK], which is never right
    batches = held_out_batches(corpus, vocab=600, limit=64, seed=0)
    score = masked_accuracy(student, batches)
    assert score.accuracy == score.blind == 0.0
    common = int(torch.tensor(corpus.ids).bincount().argmax())
    with torch.no_grad():
        student.net.cls.predictions.bias[common] = 200.0
    score = masked_accuracy(student, batches)
    labels = torch.cat([b.labels[b.labels >= 0] for b in batches])
    shown = torch.cat([b.ids[b.labels >= 0] for b in batches])
    assert score.accuracy == pytest.approx(float((labels == common).double().mean()))
    at_masks = labels[shown == 4]
    assert score.blind == pytest.approx(float((at_masks == common).double().mean()))
    assert score.blind != score.accuracy


def test_the_card_in_the_package_is_what_its_facts_give(tmp_path: Path) -> None:
    shutil.copytree(tiny_folder(), tmp_path / "tiny")
    (tmp_path / "tiny" / "README.md").unlink()
    write_readme(tmp_path / "tiny")
    assert (tmp_path / "tiny" / "README.md").read_text() == (
        tiny_folder() / "README.md"
    ).read_text()


def test_the_card_compares_with_the_random_twin_of_this_shape_only(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(tiny_folder(), folder)
    cells = json.loads((folder / "evaluation.json").read_text())["cells"]
    (folder / "evaluation.json").write_text(
        json.dumps(
            {"cells": {k.replace("/random-", "/random-other-"): v for k, v in cells.items()}}
        )
    )
    write_readme(folder)
    assert "Fine-tuned, against" not in (folder / "README.md").read_text()


def test_tokens_seen_are_those_that_fit_the_positions(tmp_path: Path, corpus: EncodedRows) -> None:
    small = trainer(corpus, tmp_path)
    examples = torch.tensor([[0, -1], [1, 2]]).numpy()
    small.step(examples)
    n = corpus.lengths
    assert small.state.tokens == min(n[0], 62) + min(n[1] + n[2], 61)


def trainer(corpus: EncodedRows, folder: Path, hidden: int = 16) -> Trainer:
    torch.manual_seed(0)
    student = Student(Shape(layers=1, hidden=hidden, heads=2, positions=64, vocab=600))
    pairs = torch.empty((0, 2), dtype=torch.int32).numpy()
    return Trainer(student, corpus, pairs, None, Recipe(minutes=1, threads=1, limit=64), folder)


def test_a_stopped_run_goes_on_with_equal_weights(tmp_path: Path, corpus: EncodedRows) -> None:
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

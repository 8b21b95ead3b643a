"""The script behind the built-in model trains, stops, continues and writes a card."""

from __future__ import annotations

import json
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from helpers.checkpoints import make_checkpoint
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from clbench.models.locate import local_folder
from clbench.training.device import Precision
from tools.pretrain_tiny import __main__ as script
from tools.pretrain_tiny.card import write_card
from tools.pretrain_tiny.data import MaskedText, held_out_batches, masked_accuracy
from tools.pretrain_tiny.decoder import END, RunningText, train_bpe
from tools.pretrain_tiny.encode import EncodedRows, encode, train_tokenizer
from tools.pretrain_tiny.loop import Recipe, Trainer
from tools.pretrain_tiny.network import Shape, Student, spread, start_from
from tools.pretrain_tiny.teacher import Teacher, precompute
from tools.pretrain_tiny.texts import read_corpus, without_shared

SMALL = ["--layers", "2", "--hidden", "16", "--heads", "2", "--positions", "64", "--vocab", "600"]
TINY = local_folder("tiny")
FLOAT32 = Precision("float32", "cpu")


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A training text, with held-out.txt beside it."""
    monkeypatch.setattr(script, "synthetic_texts", lambda: ["The soup was good."])
    parts = ["The old captain", "A young cook", "Nobody", "The crew"]
    parts += ["sold", "painted", "forgot", "the wooden ship", "a bowl of soup", "the north pier"]
    lines = [
        f"{a} {b} {c} in the winter of {year}. {d} {e} {f} twice."
        for year, (a, d) in enumerate(((a, d) for a in parts[:4] for d in parts[:4]), 1900)
        for b, e in (("sold", "painted"), ("forgot", "sold"), ("painted", "forgot"))
        for c, f in ((parts[7], parts[8]), (parts[8], parts[9]))
    ]
    (tmp_path / "held-out.txt").write_text("\n".join(lines[80:]))
    file = tmp_path / "text.txt"
    file.write_text("\n".join(lines[:80]))
    return file


@pytest.fixture
def corpus(text: Path) -> EncodedRows:
    segments = read_corpus([str(text)]).segments
    return encode(train_tokenizer(segments, 600, []), segments)


def trainer(corpus: EncodedRows, folder: Path) -> Trainer:
    torch.manual_seed(0)
    student = Student(Shape(layers=1, hidden=16, heads=2, positions=64, vocab=600))
    pairs = torch.empty((0, 2), dtype=torch.int32).numpy()
    text = MaskedText(corpus, pairs, None, vocab=600, limit=64)
    return Trainer(student, text, Recipe(minutes=1, threads=1), folder)


def test_one_command_makes_a_model_and_another_starts_from_it(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    def run(out: str, *more: str) -> dict[str, object]:
        held_out = str(text.with_name("held-out.txt"))
        command = ["--text", str(text), "--held-out", held_out, "--minutes", "0.001"]
        folders = ["--out", str(tmp_path / out), "--work", str(tmp_path / f"{out}-work")]
        monkeypatch.setattr(sys, "argv", ["", *command, *folders, "--threads", "1", *SMALL, *more])
        script.main()
        facts: dict[str, object] = json.loads((tmp_path / out / "pretraining.json").read_text())
        return facts

    first = run("first")
    assert isinstance(first["steps"], int)
    assert first["steps"] > 0
    assert first["earlier"] == []
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "first")
    tokens = AutoTokenizer.from_pretrained(tmp_path / "first")("the soup", return_tensors="pt")
    assert model(**tokens).logits.shape[-1] == model.config.vocab_size
    start = ("--start", str(tmp_path / "first"))
    second = run("second", *start)
    keys = ("steps", "tokens_seen", "segments", "held_out")
    assert second["earlier"] == [{key: first[key] for key in keys}]
    card = (tmp_path / "second" / "README.md").read_text()
    assert f"{first['steps']} steps" in card
    assert "# second" in card
    assert "license: unknown" in card
    again = run("second", *start)
    assert (again["steps"], again["curve"]) == (second["steps"], second["curve"])
    with pytest.raises(SystemExit, match=r"holds another run: seed differs"):
        run("second", *start, "--seed", "2")


def test_the_same_command_makes_a_decoder(
    tmp_path: Path,
    text: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    files = ["--text", str(text), "--held-out", str(text.with_name("held-out.txt"))]
    folders = ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    size = ["--minutes", "0.001", "--threads", "1", "--tokens", "256"]
    monkeypatch.setattr(sys, "argv", ["", "--decoder", *files, *folders, *size, *SMALL])
    script.main()
    facts = json.loads((tmp_path / "out" / "pretraining.json").read_text())
    assert 0 < facts["tokens_seen"] <= 256 * facts["steps"]  # the last batch of a pass is smaller
    assert "decoder" in (tmp_path / "out" / "README.md").read_text()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    for odd in ("a {b}\n\tc  d", "näïve — 1234", "<unk> [PAD]"):
        assert tokenizer.decode(tokenizer(odd)["input_ids"]) == odd
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    inputs = tokenizer("The old captain sold", return_tensors="pt")
    assert model(input_ids=inputs["input_ids"]).logits.shape[-1] == len(tokenizer)
    for option in ("--teacher", "--start"):
        monkeypatch.setattr(sys, "argv", ["", "--decoder", option, "x", *files, *folders])
        with pytest.raises(SystemExit):
            script.main()
        assert "--decoder takes neither --teacher nor --start" in capsys.readouterr().err


def test_running_text_joins_neighbours_and_predicts_every_next_token() -> None:
    segments = ["ab", "cd", "ef"]
    tokenizer = train_bpe(segments, 300)
    encoded = encode(tokenizer, segments)
    pairs = torch.tensor([[0, 1], [2, 0]], dtype=torch.int32).numpy()
    text = RunningText.of(encoded, pairs, tokenizer, window=2, budget=4)
    assert tokenizer.decode(text.stream.tolist(), skip_special_tokens=False) == (
        f"ab\ncd{END}ef{END}"
    )
    first, *others = text.epoch([0, 0])
    windows = text.batch(first)
    assert windows.shape == (2, 3)
    starts = sorted(int(start) for part in (first, *others) for start in part)
    assert len(starts) == len(set(starts))
    assert {b - a for a, b in pairwise(starts)} == {2}
    for start, window in zip(first, windows, strict=True):
        assert window.tolist() == text.stream[start : start + 3].tolist()
    with pytest.raises(ValueError, match="fewer than 51 tokens"):
        RunningText.of(encoded, pairs, tokenizer, window=50, budget=4)


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        ("text.txt", "--held-out has no usable text"),
        ("nowhere.txt", "No such file"),
        ("binary.txt", r"binary\.txt cannot be read: 'utf-8' codec"),
        ("broken.parquet", r"broken\.parquet cannot be read"),
        ("short.txt", "no usable text in --held-out: no segment of 8 tokens"),
    ],
)
def test_unusable_text_ends_with_one_line(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, held_out: str, message: str
) -> None:
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no more of it")
    (tmp_path / "short.txt").write_text("a b c d e\n")
    files = ["--text", str(text), "--held-out", str(tmp_path / held_out)]
    folders = ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    monkeypatch.setattr(sys, "argv", ["", *SMALL, *files, *folders])
    with pytest.raises(SystemExit, match=message):
        script.main()
    assert not (tmp_path / "out").exists()


def test_held_out_text_cut_at_other_places_is_still_found_in_the_training_text() -> None:
    shared = "The old captain sold the wooden ship in the harbor."
    held_out = [f"{shared} Nobody had asked for it, and nobody paid.", "Not in it, not a word."]
    assert without_shared(held_out, [f"It was late. {shared}", "Something else."]) == held_out[1:]


def test_neighbours_and_columns_of_a_row_become_pairs(tmp_path: Path, text: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"a": [f"first text {i}" for i in range(100)], "genre": ["x"] * 100})
    frame["b"] = [f"second text {i}" for i in range(100)]
    frame.to_parquet(tmp_path / "table.parquet")
    corpus = read_corpus([str(tmp_path / "table.parquet")])
    assert corpus.segments[:4] == ["first text 0", "second text 0", "first text 1", "second text 1"]
    assert corpus.pair_array().tolist() == [[2 * i, 2 * i + 1] for i in range(100)]
    running = read_corpus([str(text)])
    assert sum(running.sources.values()) == len(running.segments)


def test_layers_of_a_deeper_start_are_taken_at_even_distances() -> None:
    weights = load_file(TINY / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    student = Student(Shape(layers=2))
    start_from(student, tokenizer, TINY)
    own = student.net.state_dict()
    for layer, source in ((0, 0), (1, 3)):
        for part in ("attention.self.query.weight", "output.LayerNorm.bias"):
            value = weights[f"bert.encoder.layer.{source}.{part}"].float()
            assert torch.equal(own[f"bert.encoder.layer.{layer}.{part}"], value)
    assert spread(4, 6) == [0, 2, 3, 5]
    assert spread(1, 6) == [0]


def test_a_start_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    with pytest.raises(ValueError, match="needs --layers 4 or fewer and --heads 3"):
        start_from(Student(Shape(layers=6)), tokenizer, TINY)
    folder = Path(shutil.copytree(TINY, tmp_path / "start"))
    weights = load_file(folder / "model.safetensors")
    del weights["bert.encoder.layer.1.output.dense.bias"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"layer\.1\.output\.dense\.bias is missing"):
        start_from(Student(Shape()), tokenizer, folder)


def test_one_segment_is_too_little_to_train_on(tmp_path: Path) -> None:
    segments = ["The old captain sold the wooden ship."]
    tiny = trainer(encode(train_tokenizer(segments, 600, []), segments), tmp_path)
    with pytest.raises(ValueError, match="too short to train on"):
        tiny.run(dict, lambda: None)


def test_masked_accuracy_counts_chosen_tokens_and_those_shown_as_masks(
    tmp_path: Path, corpus: EncodedRows
) -> None:
    student = trainer(corpus, tmp_path).student
    with torch.no_grad():  # the answer depends on the bias alone
        student.net.bert.encoder.layer[0].attention.output.LayerNorm.weight.zero_()
        student.net.bert.encoder.layer[0].output.LayerNorm.weight.zero_()
        student.net.bert.encoder.layer[0].output.LayerNorm.bias.zero_()
        student.net.cls.predictions.bias[4] = 100.0  # [MASK], which is never right
    batches = held_out_batches(corpus, vocab=600, limit=64, seed=0)
    score = masked_accuracy(student, batches, FLOAT32)
    assert score.accuracy == score.blind_accuracy == 0.0
    common = int(torch.tensor(corpus.ids).bincount().argmax())
    with torch.no_grad():
        student.net.cls.predictions.bias[common] = 200.0
    score = masked_accuracy(student, batches, FLOAT32)
    labels = torch.cat([b.labels[b.labels >= 0] for b in batches])
    shown = torch.cat([b.ids[b.labels >= 0] for b in batches])
    assert score.accuracy == pytest.approx(float((labels == common).double().mean()))
    at_masks = labels[shown == 4]
    assert score.blind_accuracy == pytest.approx(float((at_masks == common).double().mean()))
    assert score.blind_accuracy != score.accuracy


def test_the_card_compares_only_with_the_random_twin_of_this_shape(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TINY, tmp_path / "tiny"))
    write_card(folder)
    card = (folder / "README.md").read_text()
    assert "| mrpc | 4 | 76.1 ± 1.2 | 65.6 ± 1.3 | 10.5 ± 1.5 |" in card
    cells = (folder / "evaluation.json").read_text().replace("/random-", "/random-other-")
    (folder / "evaluation.json").write_text(cells)
    write_card(folder)
    assert "Fine-tuned, against" not in (folder / "README.md").read_text()


def test_only_tokens_that_fit_the_positions_are_counted(
    tmp_path: Path, corpus: EncodedRows
) -> None:
    small = trainer(corpus, tmp_path)
    small.step(torch.tensor([[0, -1], [1, 2]]).numpy())
    n = corpus.lengths
    assert small.state.tokens == min(n[0], 62) + min(n[1] + n[2], 61)


def test_a_stopped_run_continues_with_equal_weights(tmp_path: Path, corpus: EncodedRows) -> None:
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


def test_a_teachers_targets_are_cached_for_one_text(tmp_path: Path, text: Path) -> None:
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
    shorter = encode(train_tokenizer(fewer, 600, []), fewer)
    with pytest.raises(ValueError, match="targets for another text"):
        precompute(teacher, shorter, fewer, tmp_path / "cache", 8)

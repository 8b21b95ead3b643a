"""Methods on what a language model writes, against numbers computed plainly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import save_generator
from methods.test_answering_methods import CPU, Cell, task_data
from torch import Tensor

from clbench.core.errors import DataError
from clbench.methods import on_policy
from clbench.methods.base import Vanilla
from clbench.methods.distillation import distillation
from clbench.methods.on_policy import GRPO, SDFT, OnPolicy, SelfReplay, SelfSFT, answers_of
from clbench.models.answering import build_answering_model
from clbench.training import writing
from clbench.training.batches import TaskData
from clbench.training.writing import padded_tokens, prompt_rows, prompts_of, uniform, write_rows

PROMPTS = [[5, 9, 11], [7], [8, 6, 12, 13, 14, 9]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_generator("llama", tmp_path_factory.mktemp("generator"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLBENCH_CACHE", str(tmp_path / "cache"))


def plainly_drawn(model: Any, prompt: list[int], draws: Tensor, heat: float) -> list[int]:
    """Return tokens drawn one by one from whole passes, without a cache."""
    tokens = list(prompt)
    for number in draws.tolist():
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([tokens])).logits[0, -1].double() / heat
        logits[0] = -torch.inf  # padding
        sums = logits.softmax(-1).cumsum(-1)
        tokens.append(int((sums <= number * sums[-1]).sum()))
    return tokens[len(prompt) :]


def test_a_drawn_text_depends_on_its_row_and_numbers_alone(folder: Path) -> None:
    stage = Cell(folder, Vanilla()).stage(0)
    model = stage.model.backbone.eval()
    draws = uniform((3, 6), torch.Generator().manual_seed(0))
    data = TaskData(0, "t", "t", False, prompt_rows(PROMPTS), 0)
    texts = write_rows(stage, data, [], 6, draws, 0.7)
    expected = [plainly_drawn(model, p, d, 0.7) for p, d in zip(PROMPTS, draws, strict=True)]
    assert texts == expected
    torch.manual_seed(77)  # whatever else draws
    torch.rand(5)
    stage.protocol = stage.protocol.model_copy(update={"eval_batch_size": 2})
    assert write_rows(stage, data, [], 6, draws, 0.7) == expected
    ended = write_rows(stage, data, [expected[0][2]], 6, draws, 0.7)
    assert ended[0] == expected[0][:3]  # with the token that ends it


def test_drawn_tokens_have_the_frequencies_of_the_model(folder: Path) -> None:
    stage = Cell(folder, Vanilla()).stage(0)
    data = TaskData(0, "t", "t", False, prompt_rows([[5, 9]] * 2000), 0)
    draws = uniform((2000, 1), torch.Generator().manual_seed(1))
    texts = write_rows(stage, data, [], 1, draws, 1.0)
    with torch.no_grad():
        logits = stage.model.backbone(input_ids=torch.tensor([[5, 9]])).logits[0, -1]
    share = logits[1:].softmax(-1)
    counts = torch.tensor([text[0] for text in texts]).bincount(minlength=len(logits))[1:]
    spread = (share * (1 - share) / 2000).sqrt()
    assert ((counts / 2000 - share).abs() <= 4.5 * spread + 1e-3).all()


def test_replayed_texts_are_from_the_model_before_the_stage(folder: Path) -> None:
    method = SelfReplay(share=0.5, texts=6, text_length=8, temperature=0.7)
    cell = Cell(folder, method)
    cell.train(0)
    first, stage = answers_of(method._data.rows), cell.stage(1)
    start = prompts_of(method._data.rows)
    assert start == [[1]] * 6  # its own beginning
    before = cell.context.snapshot()
    draws = uniform((6, 8), torch.Generator().manual_seed(stage.random_seed("written")))
    data = replace(method._data, rows=prompt_rows(start))
    stops = [int(method._tokenizer.eos_token_id)]
    expected = write_rows(stage, data, stops, 8, draws, 0.7)
    assert expected != write_rows(stage, data, stops, 8, draws, 1.0)
    cell.train(1)
    assert answers_of(method._data.rows) == expected != first
    after = write_rows(stage, data, stops, 8, draws, 0.7)
    cell.context.restore(before)
    assert write_rows(stage, data, stops, 8, draws, 0.7) == expected != after


def test_no_more_texts_are_written_than_the_steps_read(folder: Path) -> None:
    method = SelfReplay(share=0.5, texts=1000, text_length=8)
    stage = Cell(folder, method).stage(0)
    method.before_stage(stage)
    assert (stage.own_steps, method._rate) == (2, 4.0)
    assert len(method._data.rows) == 2 * 4 + 1


def test_the_loss_of_texts_is_that_of_transformers(folder: Path) -> None:
    method = SelfReplay(share=0.5, weight=2.0, texts=6, text_length=8)
    cell = Cell(folder, method)
    stage = cell.stage(0)
    method.before_stage(stage)
    cell.context.model.eval()
    texts = next(method._stream)
    assert len(texts) == 4
    again = next(cell.method._pass(torch.Generator(), torch.Generator(), size=6))
    total, count = 0.0, 0
    rows = method._data.rows
    for prompt, answer in zip(prompts_of(rows), answers_of(rows), strict=True):
        ids, labels = (torch.tensor([start + answer]) for start in (prompt, [-100]))
        with torch.no_grad():
            loss = cell.context.model.backbone(input_ids=ids, labels=labels).loss
        total, count = total + float(loss) * len(answer), count + len(answer)
    assert float(method.text_loss(stage, again).detach()) == pytest.approx(total / count, rel=1e-5)
    stage.step = 1
    batch = stage.data.batch(np.arange(2), CPU)
    method._stream = iter([texts])
    expected = stage.loss(batch) + 2.0 * 4 / 2 * method.text_loss(stage, texts)
    torch.testing.assert_close(method.loss(stage, batch), expected)


def test_old_prompts_are_those_of_earlier_tasks(folder: Path) -> None:
    method = SelfReplay(share=0.5, texts=5, text_length=8, prompts="old")
    assert [m.keeps_rows for m in (method, SelfReplay())] == [True, False]
    assert [method.acts_in(0), method.acts_in(1), SelfReplay().acts_in(0)] == [False, True, True]
    cell = Cell(folder, method)
    method.before_stage(cell.stage(1))
    old = prompts_of(cell.tasks[0].rows)
    assert len(method._data.rows) == 5
    assert all(prompt in old for prompt in prompts_of(method._data.rows))


def test_texts_are_stored_by_weights_and_seed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    own = write_rows
    monkeypatch.setattr(writing, "write_rows", lambda *a: calls.append(1) or own(*a))

    def texts(seed: int = 0, factor: float = 1.0) -> Any:
        cell = Cell(folder, SelfReplay(share=0.5, texts=4, text_length=8))
        cell.context.seed = seed
        with torch.no_grad():
            cell.context.model.backbone.lm_head.weight.mul_(factor)
        cell.method.before_stage(cell.stage(0))
        return answers_of(cell.method._data.rows)

    first = texts()
    assert [texts() == first, texts(seed=1) == first, texts(factor=2.0) == first] == [
        True,
        *[False] * 2,
    ]
    assert len(calls) == 3


def sft(
    folder: Path, monkeypatch: pytest.MonkeyPatch, samples: list[str], data: Any, **settings: Any
) -> tuple[Any, list[str], Any]:
    """Return the training data of `self-sft` if the model writes `samples`, as texts."""
    method = SelfSFT(samples=2, temperature=0.6, **settings)
    cell = Cell(folder, method)
    cell.tasks[0] = data
    encode = method._tokenizer
    end = int(encode.eos_token_id)
    written = [[*encode(text, add_special_tokens=False)["input_ids"], end] for text in samples]
    asked: list[Any] = []
    monkeypatch.setattr(writing, "draw_rows", lambda *a: asked.extend(a[1:]) or written)
    stage = cell.stage(0)
    (result,) = method.training_data(stage)
    rows, stops, most, temperature = asked
    assert prompts_of(rows.rows) == [p for p in prompts_of(data.rows) for _ in range(2)]
    assert (stops, temperature) == (method._stops, method.temperature)
    assert most == max(map(len, answers_of(data.rows))) + 8
    answers = answers_of(result.rows)
    assert all(answer[-1] == end for answer in answers)
    return result, encode.batch_decode([answer[:-1] for answer in answers]), stage


def test_only_right_answers_take_the_place_of_given_ones(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = task_data(0)
    data = replace(data, rows=data.rows.take([0, 1, 2]))
    gold = [" " + ("no", "yes")[label] for label in data.rows.labels]
    right = [text.strip() for text in gold]
    samples = ["maybe", f"  {right[0]}", "perhaps", "so so", right[2], f"  {right[2]}"]
    result, texts, stage = sft(folder, monkeypatch, samples, data)
    assert texts == [f"  {right[0]}", gold[1], right[2]]  # the first right one, as it was written
    assert "2 of 3 prompts have a right answer among 2" in stage.notes[0]
    assert prompts_of(result.rows) == prompts_of(data.rows)
    result, texts, _ = sft(folder, monkeypatch, samples, data, otherwise="drop")
    assert texts == [f"  {right[0]}", right[2]]
    assert prompts_of(result.rows) == [prompts_of(data.rows)[i] for i in (0, 2)]
    with pytest.raises(DataError, match="no answer to a prompt of 't0' is right"):
        sft(folder, monkeypatch, ["maybe"] * 6, data, otherwise="drop")


def test_texts_are_right_by_the_tasks_metric(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = task_data(1)
    data = replace(data, rows=data.rows.take([0, 1]), metric="token-f1")
    given = ["not at all", "quite"]
    data.rows.labels[:] = [0, 1]
    own = SelfSFT()
    Cell(folder, own)
    end = int(own._tokenizer.eos_token_id)
    gold = [[*own._tokenizer(" " + t, add_special_tokens=False)["input_ids"], end] for t in given]
    data = replace(data, rows=replace(data.rows, answers=writing.padded_tokens(gold)))
    samples = ["no", "not all", "quiet", "quite so"]  # F1: 0, .8, 0, .667
    for threshold, expected in ((0.6, samples[1::2]), (0.7, ["not all", " quite"])):
        _, texts, _ = sft(folder, monkeypatch, samples, data, threshold=threshold)
        assert texts == expected
    _, texts, _ = sft(folder, monkeypatch, samples, data)
    assert texts == [" not at all", " quite"]


def test_the_first_line_of_a_longer_text_is_not_right(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Cell(folder, method := SelfSFT(samples=1)).stage(0)
    first, whole = (
        method._tokenizer(text, add_special_tokens=False)["input_ids"]
        for text in ("yes", "yes\nbut not always")
    )
    answers = padded_tokens([[*whole, int(method._tokenizer.eos_token_id)]] * len(stage.data.rows))
    rows = replace(stage.data.rows, answers=answers)
    stage.tasks = [replace(stage.data, rows=rows, metric="exact"), *stage.tasks[1:]]
    monkeypatch.setattr(writing, "draw_rows", lambda _, data, *__: [first] * len(data.rows))
    (data,) = method.training_data(stage)
    assert answers_of(data.rows) == answers_of(rows)


@pytest.mark.parametrize("divergence", ["reverse", "forward"])
def test_sdft_is_the_divergence_from_a_teacher_that_sees_the_answer(
    folder: Path, divergence: Any
) -> None:
    method = SDFT(divergence=divergence, temperature=0.6)
    cell = Cell(folder, method)
    stage = cell.stage(0)
    method.before_stage(stage)
    cell.context.model.eval()
    batch = stage.data.batch(np.array([1, 4, 6]), CPU)
    with torch.no_grad():  # the student has moved, the teacher has not
        for weight in stage.trainable():
            weight.add_(
                0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(3))
            )
    rows = stage.data.rows.take(batch.positions)
    prompts, gold = prompts_of(rows), answers_of(rows)
    most = max(map(len, gold)) + 8
    draws = uniform((3, most), cell.stage(0).rng("answers"))
    data = TaskData(0, "t", "t", False, prompt_rows(prompts), 0)
    answers = write_rows(stage, data, method._stops, most, draws, 0.6)
    gap = method._tokenizer("\n\n", add_special_tokens=False)["input_ids"]
    teacher = build_answering_model(str(folder)).backbone.eval()
    student, terms = stage.model.backbone, []
    for prompt, right, answer in zip(prompts, gold, answers, strict=True):
        shown = [*prompt, *right[:-1], *gap, *prompt]
        logits = []
        for model, start in ((student, prompt), (teacher, shown)):
            ids = torch.tensor([[*start, *answer]])
            logits.append(model(input_ids=ids).logits[0, len(start) - 1 : -1].log_softmax(-1))
        p, q = logits[0], logits[1].detach()
        first, second = (p, q) if divergence == "reverse" else (q, p)
        terms.append((first.exp() * (first - second)).sum(-1))
    expected = torch.cat(terms).mean()
    wanted = torch.autograd.grad(expected, stage.trainable())
    stage.step = 1
    loss = method.loss(stage, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-6)
    found = torch.autograd.grad(loss, stage.trainable())
    for one, other in zip(found, wanted, strict=True):  # none flows through the teacher
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("divergence", "alpha"), [("reverse", 1.0), ("forward", 0.0)])
def test_the_divergence_of_a_token_is_that_of_trl(divergence: str, alpha: float) -> None:
    trl = pytest.importorskip("trl.experimental.sdft.loss_utils")
    draw = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(5, 7, generator=draw) for _ in range(2))
    pair = (teacher, student) if divergence == "reverse" else (student, teacher)
    ours = distillation(*pair, temperature=1.0, regression=False)
    theirs = trl.compute_full_logit_self_distillation_loss(
        student, teacher, distillation_alpha=alpha
    )
    torch.testing.assert_close(ours, theirs.mean())


def test_sdft_tells_what_its_teacher_knows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Cell(folder, method := SDFT()).stage(0)
    monkeypatch.setattr(on_policy, "SHOWN", 3)
    rows: Any = stage.data.rows.take(np.array([0, 3, 7]))  # of eight rows
    prompts, gold = prompts_of(rows), answers_of(rows)
    gap = method._tokenizer("\n\n", add_special_tokens=False)["input_ids"]
    shown = [[*p, *g[:-1], *gap, *p] for p, g in zip(prompts, gold, strict=True)]
    asked = []

    def write(_: Any, data: TaskData, *settings: Any) -> list[list[int]]:
        assert settings == (method._stops, max(map(len, gold)) + 8)  # nothing is drawn
        asked.append(prompts_of(data.rows))
        return gold if len(asked) == 1 else [gold[0], [0], [0]]

    monkeypatch.setattr(writing, "write_rows", write)
    method.before_stage(stage)
    assert asked == [shown, prompts]
    (note,) = stage.notes
    told = "right answer to 3 of 3 rows with the answer in its context, and to 1 without."
    assert note == f"sdft: {stage.name}: the model gives the {told}"


def test_sdft_tells_what_is_right_by_the_metric(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Cell(folder, method := SDFT()).stage(0)
    stage.tasks = [replace(stage.data, metric="exact"), *stage.tasks[1:]]
    monkeypatch.setitem(on_policy.TEXT_METRICS, "exact", lambda own, given: 0.5 + bool(own))
    method.before_stage(stage)
    assert stage.notes[0].endswith(
        "to 8 of 8 rows with the answer in its context, and to 8 without."
    )


def test_the_teacher_follows_the_model(folder: Path) -> None:
    method = SDFT(ema=0.25)
    cell = Cell(folder, method)
    cell.train(0)
    stage = cell.stage(1)
    method.before_stage(stage)
    name, start = next(iter(cell.context.snapshot().items()))
    torch.testing.assert_close(method._teacher[name], start)  # begins anew with each stage
    weight = dict(stage.model.named_parameters())[name]
    with torch.no_grad():
        weight.add_(1.0)
    method.after_step(stage)
    torch.testing.assert_close(method._teacher[name], start + 0.25)


def test_the_teacher_follows_a_model_in_bf16(folder: Path) -> None:
    method = SDFT(ema=0.01)
    cell = Cell(folder, method)
    stage = cell.stage(0)
    stage.model.bfloat16()
    method.before_stage(stage)
    name, start = next(iter(cell.context.snapshot().items()))
    weight = dict(stage.model.named_parameters())[name]
    with torch.no_grad():
        weight.mul_(1.0625)
    for _ in range(100):
        method.after_step(stage)
    expected = start.float() + (1.0 - 0.99**100) * (weight.detach() - start).float()
    torch.testing.assert_close(method._teacher[name], expected)
    stage.step = 1
    batch = stage.data.batch(np.arange(4), CPU)
    method.loss(stage, batch).backward()
    assert weight.grad is not None


@pytest.mark.parametrize(
    "make", [SelfReplay, SDFT, lambda: GRPO(samples=2), lambda: SelfSFT(samples=1)]
)
def test_two_runs_agree_and_differ_from_vanilla(folder: Path, make: Any) -> None:
    weights = []
    for method in (make(), make(), Vanilla()):
        cell = Cell(folder, method)
        torch.manual_seed(len(weights))
        for index in (0, 1):
            cell.train(index)
        weights.append(cell.context.snapshot())
        if isinstance(method, OnPolicy):
            assert not any(key.startswith("_") for key in method.state())
    same = [all(torch.equal(weights[0][n], w[n]) for n in w) for w in weights[1:]]
    assert same == [True, make().name == "self-sft"]  # which knows no right answer

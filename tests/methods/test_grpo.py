"""GRPO: the loss, rewards and advantages, against numbers computed plainly and with TRL."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import save_generator
from methods.test_answering_methods import CPU, Cell

from clbench.methods.on_policy import GRPO, answers_of
from clbench.training import writing
from clbench.training.batches import TaskData
from clbench.training.writing import prompt_rows, prompts_of, uniform, write_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_generator("llama", tmp_path_factory.mktemp("generator"))


def grpo_pieces(
    folder: Path, **settings: Any
) -> tuple[GRPO, Any, Any, list[list[int]], list[list[int]]]:
    """Return a method, a stage, a batch, its prompts by answer, and the answers it will write."""
    method = GRPO(samples=3, temperature=0.6, **settings)
    cell = Cell(folder, method)
    stage = cell.stage(0)
    cell.context.model.eval()
    batch = stage.data.batch(np.array([1, 4, 6]), CPU)
    rows = stage.data.rows.take(batch.positions)
    prompts = [prompt for prompt in prompts_of(rows) for _ in range(3)]
    most = max(map(len, answers_of(rows))) + 8
    draws = uniform((9, most), cell.stage(0).rng("answers"))
    data = TaskData(0, "t", "t", False, prompt_rows(prompts), 0)
    return method, stage, batch, prompts, write_rows(stage, data, method._stops, most, draws, 0.6)


@pytest.mark.parametrize("advantage", ["normalised", "centred", "reward"])
def test_grpo_reinforces_answers_by_their_advantage(
    folder: Path, monkeypatch: pytest.MonkeyPatch, advantage: Any
) -> None:
    method, stage, batch, prompts, written = grpo_pieces(folder, advantage=advantage)
    rewards = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.25, 1.0, 0.5]])
    monkeypatch.setattr(method, "scores", lambda *_: rewards.flatten().tolist())
    spread = [((group - group.mean()) ** 2).sum().div(2).sqrt() + 1e-4 for group in rewards]
    expected = {
        "reward": rewards,
        "centred": rewards - rewards.sum(1, keepdim=True) / 3,
        "normalised": (rewards - rewards.sum(1, keepdim=True) / 3) / torch.stack(spread)[:, None],
    }[advantage]
    terms = []
    for prompt, answer, weight in zip(prompts, written, expected.flatten(), strict=True):
        logits = stage.model.backbone(input_ids=torch.tensor([[*prompt, *answer]])).logits / 0.6
        chances = logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        terms.append(-weight * chances[range(len(answer)), answer])
    wanted = torch.cat(terms).mean()
    gradients = torch.autograd.grad(wanted, stage.trainable())
    stage.step = 1
    loss = method.loss(stage, batch)
    torch.testing.assert_close(loss, wanted, rtol=1e-4, atol=1e-6)
    for one, other in zip(torch.autograd.grad(loss, stage.trainable()), gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_an_encoder_decoder_learns_from_its_answers(tmp_path: Path) -> None:
    method = GRPO(samples=3, temperature=0.6, advantage="reward")
    cell = Cell(save_generator("t5", tmp_path), method)
    rows: Any = replace(cell.tasks[0].rows, encoder_decoder=True)
    cell.tasks[0] = replace(cell.tasks[0], rows=rows)
    stage = cell.stage(0)
    cell.context.model.eval()
    batch = stage.data.batch(np.array([0, 5]), CPU)
    rows = stage.data.rows.take(np.repeat(batch.positions, 3))
    most = max(map(len, answers_of(rows))) + 8
    draws = uniform((6, most), cell.stage(0).rng("answers"))
    asked = replace(stage.data, rows=replace(rows, answers=None))
    written = write_rows(stage, asked, method._stops, most, draws, 0.6)
    rewards = [0.0, 1.0, 0.5, 0.0, 0.25, 0.0]
    method.scores = lambda *_: rewards  # type: ignore[method-assign]
    terms = []
    for prompt, answer, weight in zip(prompts_of(rows), written, rewards, strict=True):
        start = [stage.model.config.decoder_start_token_id]
        logits = stage.model.backbone(
            input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([start + answer[:-1]])
        ).logits[0]
        chances = (logits / 0.6).log_softmax(-1)
        terms.append(-weight * chances[range(len(answer)), answer])
    stage.step = 1
    loss = method.loss(stage, batch)
    torch.testing.assert_close(loss, torch.cat(terms).mean(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("rewards", "notes"),
    [([1.0, 1.0, 1.0], 1), ([0.8, 0.8, 0.8], 1), ([0.0, 0.0, 0.0], 1), ([0.0, 1.0, 0.0], 0)],
)
def test_a_note_says_that_nothing_was_learned(
    folder: Path, rewards: list[float], notes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Cell(folder, method := GRPO(samples=3)).stage(0)
    monkeypatch.setattr(method, "scores", lambda *_: rewards * 2)
    method.before_stage(stage)
    stage.step = 1
    loss = method.loss(stage, stage.data.batch(np.array([0, 5]), CPU))
    assert bool(loss) == (not notes)  # equal rewards leave no rounding error of their mean
    resumed = GRPO(samples=3)
    resumed.load_state(method.state())
    resumed.after_stage(stage)
    told = f"grpo: {stage.name}: no answer to a prompt was ever rewarded more than another, "
    assert stage.notes == [told + "so nothing was learned."] * notes


def test_grpo_rewards_right_answers_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, stage, batch, *_ = grpo_pieces(folder)
    gold = answers_of(stage.data.rows.take(batch.positions))
    wrong = method._tokenizer(" perhaps", add_special_tokens=False)["input_ids"]
    written = [gold[0], wrong, gold[0][:-1], wrong, wrong, wrong, wrong, gold[2], wrong]
    monkeypatch.setattr(writing, "write_rows", lambda *_: written)
    seen = []
    monkeypatch.setattr(
        method, "advantages", lambda rewards: seen.append(rewards) or torch.zeros_like(rewards)
    )
    assert float(method.loss(stage, batch).detach()) == 0.0
    assert seen[0].tolist() == [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_advantages_and_defaults_are_those_of_trl() -> None:
    trl = pytest.importorskip("trl.trainer.grpo_trainer")
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.5, 0.25, 1.0, 0.0], [1.0] * 4])
    spread = trl.nanstd(rewards, dim=1)[:, None]
    theirs = (rewards - rewards.mean(1, keepdim=True)) / (spread + 1e-4)
    method = GRPO()
    torch.testing.assert_close(method.advantages(rewards), theirs)
    defaults = {field.name: field.default for field in fields(trl.GRPOConfig)}
    names = ("num_generations", "temperature", "beta", "scale_rewards", "loss_type")
    assert [defaults[n] for n in names] == [
        method.samples,
        method.temperature,
        0.0,
        "group",
        "dapo",
    ]

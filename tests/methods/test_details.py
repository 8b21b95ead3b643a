"""Details of drawn answers, distillation and EWC that no other test notices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import Cell as Small
from helpers.checkpoints import make_checkpoint, save_generator
from methods.test_answering_methods import CPU, Cell
from methods.test_token_weights import ASKED, LABELS, Fixed, batch_of, logits

from clbench.methods import on_policy
from clbench.methods.distillation import KLAnchor, LwF
from clbench.methods.ewc import EWC, REWC, fisher_rows, second_moments, task_fisher
from clbench.methods.on_policy import GRPO, SDFT, SelfReplay, SelfSFT, answers_of
from clbench.methods.token_weights import DFT
from clbench.training import writing
from clbench.training.writing import prompts_of


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_generator("llama", tmp_path_factory.mktemp("generator"))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("bert", tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLBENCH_CACHE", str(tmp_path / "cache"))


def test_the_curve_of_weights_is_the_mean_over_predicted_tokens() -> None:
    stage, seen = Fixed(logits(0), logits(1)), {}
    stage.sample = lambda name, value: seen.update({name: float(value)})  # type: ignore
    DFT().loss(stage, batch_of(LABELS))  # type: ignore[arg-type]
    p = logits(0).softmax(-1)
    own = [float(p[i, j, LABELS[i, j]]) for i, j in zip(*np.nonzero(ASKED), strict=True)]
    assert seen["token_weight"] == pytest.approx(np.mean(own), rel=1e-5)


def test_an_answer_that_a_line_break_ended_ends_with_the_end_token(
    generator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Cell(generator, method := SelfSFT(samples=1)).stage(0)
    end = int(method._tokenizer.eos_token_id)
    gold = answers_of(stage.data.rows)
    stop = next(token for token in method._stops if token != end)
    written = [[*answer[:-1], stop] for answer in gold]
    monkeypatch.setattr(writing, "draw_rows", lambda *_: written)
    (data,) = method.training_data(stage)
    assert "8 of 8 prompts have a right answer" in stage.notes[0]
    assert answers_of(data.rows) == gold


def test_what_the_teacher_reads_loses_its_start(
    generator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Cell(generator, method := SDFT()).stage(0)
    pair = [[5, 9, 11, 7], [8]], [[12, 13, 1], [12, 1]]
    whole = method.examples(stage, *pair, 4)
    monkeypatch.setattr(on_policy, "usable_length", lambda config: 11)
    assert method.examples(stage, *pair, 4) == [each[-7:] for each in whole]
    assert len(whole[0]) > 7 >= len(whole[1])
    monkeypatch.setattr(on_policy, "usable_length", lambda config: 3)
    assert method.examples(stage, *pair, 4) == [each[-1:] for each in whole]
    monkeypatch.setattr(on_policy, "usable_length", lambda config: None)
    assert method.examples(stage, *pair, 4) == whole


def test_in_a_chat_the_end_token_ends_the_turn_of_the_example(generator: Path) -> None:
    stage = Cell(generator, method := SDFT()).stage(0)
    stage.protocol = stage.protocol.model_copy(update={"chat": True})
    line = method._tokenizer("\n", add_special_tokens=False)["input_ids"]
    assert method.examples(stage, [[5, 9]], [[12, 1]], 4) == [[5, 9, 12, 1, *line, 5, 9]]


def test_a_text_begins_once(generator: Path) -> None:
    stage = Cell(generator, method := SDFT()).stage(0)
    start = method._tokenizer.bos_token_id
    if start is None:
        start = method._tokenizer.bos_token_id = 2
    gap = method._tokenizer("\n\n", add_special_tokens=False)["input_ids"]
    found = method.examples(stage, [[start, 9], [start]], [[12, 1], [12, 1]], 4)
    assert found == [[start, 9, 12, *gap, 9], [start, 12, *gap, start]]


@pytest.mark.parametrize("make", [SDFT, lambda: GRPO(samples=2)], ids=("sdft", "grpo"))
def test_every_step_draws_anew(generator: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Cell(generator, method := make()).stage(0)
    method.before_stage(stage)
    draws: list[torch.Tensor] = []
    own = writing.write_rows

    def spy(*a: Any) -> Any:
        draws.append(a[4])
        return own(*a)

    monkeypatch.setattr(writing, "write_rows", spy)
    for stage.step in (1, 2):
        method.loss(stage, stage.data.batch(np.arange(2), CPU))
    assert len(draws) == 2
    assert not torch.equal(*draws)


def test_old_prompts_are_those_of_all_earlier_tasks(generator: Path) -> None:
    method = SelfReplay(share=0.5, texts=40, text_length=8, prompts="old")
    cell = Cell(generator, method)
    cell.tasks = [cell.tasks[0], cell.tasks[1], replace(cell.tasks[0], task=2, name="t2")]
    stage = cell.stage(2)
    stage.protocol = stage.protocol.model_copy(update={"steps": 20})
    method.before_stage(stage)
    used = {tuple(prompt) for prompt in prompts_of(method._data.rows)}
    for task in (0, 1):
        assert used & {tuple(prompt) for prompt in prompts_of(cell.tasks[task].rows)}


def test_what_an_earlier_stage_learned_does_not_count(generator: Path) -> None:
    stage = Cell(generator, method := GRPO(samples=3)).stage(1)
    method.has_learned = True  # in the first stage
    method.before_stage(stage)
    method.after_stage(stage)
    assert "nothing was learned" in stage.notes[0]


def test_outputs_of_new_classes_are_not_distilled(encoder: Path) -> None:
    cell = Small(encoder, LwF(temperature=1.0), shown=(2, 4))
    cell.stage(0)
    stage = cell.begin(1)
    cell.model.eval()
    assert cell.method._targets["a"].shape == (12, 2)
    batch = stage.data.batch(np.arange(4), stage.device)
    old = stage.logits(batch).detach()[:, :2].double()
    with torch.no_grad():
        cell.model.head("a").weight.mul_(1.5)
    new = stage.logits(batch).detach()[:, :2].double()
    gap = (old.softmax(1) * (old.log_softmax(1) - new.log_softmax(1))).sum(1).mean()
    loss = cell.method.loss(stage, batch) - stage.loss(batch)
    assert float(loss.detach()) == pytest.approx(float(gap), rel=1e-3)


@pytest.mark.parametrize("count", [2, 4])
def test_parts_of_a_step_weigh_the_anchor_as_the_whole(generator: Path, count: int) -> None:
    """The divergence alone, far from the base model, with three texts in two and four parts."""
    totals = {}
    for parts in (1, count):
        cell = Cell(generator, KLAnchor(at="text", texts=3, text_length=16, weight=1.0))
        with torch.no_grad():
            for number, value in enumerate(cell.context.model.parameters()):
                draw = torch.Generator().manual_seed(number)
                value.add_(0.1 * torch.randn(value.shape, generator=draw))
        cell.context.model.eval()
        stage = cell.stage(0)
        stage.step, method = 1, cell.method
        method.before_stage(stage)
        batch = stage.data.batch(np.arange(8), CPU)
        stage.parts, total = parts, 0.0
        for stage.part, (part, stage.part_share) in enumerate(batch.parts(parts)):
            gap = method.loss(stage, part) - stage.loss(part)
            total += stage.part_share * float(gap.detach())
        totals[parts] = total
    assert totals[1] > 0.1
    # each part takes the mean over its own texts; they have equally many places
    assert totals[count] == pytest.approx(totals[1], rel=1e-3)


def test_the_scores_of_single_choices_are_held_by_their_squares(encoder: Path) -> None:
    cell = Small(encoder, LwF(weight=2.0))
    cell.model.heads["t0"] = torch.nn.Linear(32, 1)  # of a task of choices
    stage = cell.begin(1)
    cell.model.eval()
    batch = stage.data.batch(np.arange(4), stage.device)
    with torch.no_grad():
        cell.model.head("t0").bias.add_(3.0)
    gap = cell.method.loss(stage, batch) - stage.loss(batch)
    assert float(gap.detach()) == pytest.approx(2.0 * 9.0, rel=1e-4)


def test_fisher_information_is_that_of_as_many_rows_as_asked_for(encoder: Path) -> None:
    cell = Small(encoder, EWC())
    stage = cell.open(0)
    for examples, sizes in ((6, [4, 2]), (4, [4]), (3, [3]), (None, [4, 4, 4]), (99, [4, 4, 4])):
        found = list(fisher_rows(stage, examples))
        assert [len(batch) for batch in found] == sizes
        assert [len(batch.inputs["input_ids"]) for batch in found] == sizes


def test_labels_are_drawn_from_the_stages_own_stream(encoder: Path) -> None:
    def fisher(seed: int, index: int = 0) -> torch.Tensor:
        stage = Small(encoder, EWC(), seed=seed, heads=("a", "a")).open(index)
        names = ["heads.a.weight"]
        rows = list(Small(encoder, EWC(), heads=("a", "a")).open(0).batches("fixed"))
        stage.batches = lambda name: iter(rows)  # type: ignore[method-assign]
        return task_fisher(stage, names, mode="sampled", examples=None)["heads.a.weight"]

    assert torch.equal(fisher(0), fisher(0))
    assert not torch.equal(fisher(0), fisher(1))
    assert not torch.equal(fisher(0), fisher(0, 1))


def test_axes_are_the_eigenvectors_of_the_second_moments(encoder: Path) -> None:
    """By hand: tokens without a gradient, such as padding, do not count."""
    cell = Small(encoder, REWC())
    stage = cell.open(0)
    cell.model.eval()
    layer = cell.model.backbone.encoder.layer[1].output.dense
    name = "backbone.encoder.layer.1.output.dense.weight"
    batch = stage.data.batch(np.arange(12), stage.device)
    real = batch.inputs["attention_mask"].bool()
    assert not real.all()
    seen: dict[str, torch.Tensor] = {}
    handle = layer.register_forward_hook(
        lambda module, inputs, output: seen.update(x=inputs[0].detach(), y=output)
    )
    loss = torch.nn.functional.cross_entropy(stage.logits(batch), batch.labels, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, seen["y"])
    handle.remove()
    left, right = second_moments(stage, {name: layer}, [batch], None)[name]
    g, x = gradient[real], seen["x"][real]
    torch.testing.assert_close(left, g.T @ g, rtol=1e-3, atol=1e-6)
    used = (gradient != 0).any(-1)
    x = seen["x"][used]
    torch.testing.assert_close(right, x.T @ x, rtol=1e-3, atol=1e-4)
    assert not used.all()


def test_the_importance_of_earlier_tasks_is_along_the_new_axes(encoder: Path) -> None:
    """The sum in the axes of the second task is the old one carried over, plus the new one."""
    cell = Small(encoder, REWC(mode="empirical", examples=None), heads=("a", "b", "c"))
    cell.stage(0)
    name = next(iter(cell.method.rotations))
    old, before = cell.method.fisher[name].clone(), cell.method.rotations[name]
    stage, _ = cell.train(1)
    cell.method.after_stage(stage)
    after = cell.method.rotations[name]
    assert any(
        a is not None and not torch.allclose(a, b) for a, b in zip(after, before, strict=True)
    )
    left, right = (
        None if a is None else (a.T @ b).square() for a, b in zip(after, before, strict=True)
    )
    carried = old if left is None else left @ old
    carried = carried if right is None else carried @ right.T
    cell.model.eval()
    weight, new = dict(cell.model.named_parameters())[name], torch.zeros_like(old)
    for row in range(12):
        one = stage.data.batch(np.array([row]), stage.device)
        (g,) = torch.autograd.grad(stage.loss(one), weight)
        g = g if after[0] is None else after[0].T @ g
        g = g if after[1] is None else g @ after[1]
        new += g.square() / 12
    expected = carried + new
    torch.testing.assert_close(
        cell.method.fisher[name], expected, rtol=2e-2, atol=1e-3 * float(expected.max())
    )


def test_the_last_batch_is_cut(encoder: Path) -> None:
    stage = Small(encoder, EWC()).open(0)
    assert sum(map(len, fisher_rows(stage, 6))) == 6


def test_labels_of_the_axes_are_drawn_as_those_of_the_fisher_information(
    encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clbench.methods import ewc

    seen, own = [], ewc.second_moments
    monkeypatch.setattr(ewc, "second_moments", lambda *a: seen.append(a[3]) or own(*a))
    for mode in ("sampled", "empirical"):
        Small(encoder, REWC(mode=mode, examples=4)).stage(0)  # type: ignore[arg-type]
    assert [rng is None for rng in seen] == [False, True]

"""Methods on language models that answer in words, against numbers computed plainly."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import make_generator, make_tokenizer, save_generator
from torch import Tensor

from clbench.fisher.diagonal import diagonal_fisher
from clbench.methods.base import Method, Vanilla
from clbench.methods.distillation import KLAnchor, LwF
from clbench.methods.generic_replay import TextReplay
from clbench.methods.replay import DerPlusPlus, Replay
from clbench.methods.synapses import MAS, output_sensitivity
from clbench.methods.token_weights import ASFT
from clbench.models.answering import AnsweringModel, build_answering_model
from clbench.models.prompts import PromptEncoder
from clbench.tasks.task import Rows, Task
from clbench.tasks.template import Template
from clbench.training.batches import TaskData
from clbench.training.context import Context
from clbench.training.device import Precision
from clbench.training.engine import train_stage
from clbench.training.protocol import Protocol
from clbench.training.stage import Stage

CPU = torch.device("cpu")
PROTOCOL = Protocol(
    head="language-model", epochs=1, batch_size=4, lr=1e-3, max_length=60, curve_points=0
)
WORDS = (("no", "yes"), ("not at all", "quite"))


def task_data(number: int, *, encoder_decoder: bool = False) -> TaskData:
    """Return eight prompts of different lengths; the answers of the second task are longer."""
    rng = np.random.default_rng(number)
    texts = ["".join(rng.choice(list("abc {}\n"), rng.integers(1, 9))) + "x" for _ in range(8)]
    rows = Rows.of(texts, None, rng.integers(0, 2, 8))
    template = Template("{text}:", dict(zip("np", WORDS[number], strict=True)))
    task = Task(
        f"t{number}", ("n", "p"), ("accuracy",), rows, rows, f"t{number}", template=template
    )
    encoder = PromptEncoder(make_tokenizer(), 60, encoder_decoder=encoder_decoder)
    encoded = encoder.encode(task, rows, to_train=True)
    return TaskData(number, task.name, task.head, False, encoded, 0)


class Cell:
    """Two stages of a language model."""

    def __init__(self, folder: Path, method: Method) -> None:
        self.method, self.tasks = method, [task_data(0), task_data(1)]
        model = build_answering_model(str(folder))
        precision = Precision("float32", "cpu")
        self.context = Context(model, str(folder), None, PROTOCOL, CPU, precision, 0, "s", 2, None)
        self.base = self.context.snapshot()
        method.setup(self.context)

    def stage(self, index: int) -> Stage:
        context = {name: getattr(self.context, name) for name in Context.__dataclass_fields__}
        stage = Stage(**context, index=index, tasks=self.tasks, total_steps=2)
        stage.reads_earlier_rows = self.method.keeps_rows
        return stage

    def train(self, index: int) -> None:
        stage = self.stage(index)
        train_stage(stage, self.method)
        self.method.after_stage(stage)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_generator("llama", tmp_path_factory.mktemp("generator"))


def log_probs(cell: Cell, batch: Any, weights: Any = None) -> Tensor:
    """Return the distributions at all predicted tokens, shape (n, v)."""
    with torch.no_grad():
        model = cell.context.model
        outputs = (
            model(batch.inputs, batch.head)
            if weights is None
            else torch.func.functional_call(model, dict(weights), (batch.inputs, batch.head))
        )
    return outputs[batch.labels != -100].log_softmax(-1)


class Texts(TextReplay):
    """Adds four texts of loss 1 to each step."""

    name = "texts"
    share: float = 0.5

    def _pass(self, order: Any, masks: Any, *, size: int) -> Any:
        yield {"input_ids": torch.zeros(size, 1)}

    def text_loss(self, stage: Stage, texts: Any) -> Tensor:
        return 1.0 + 0.0 * next(stage.model.parameters()).sum()


@pytest.mark.parametrize("index", [0, 1])
def test_a_text_weighs_as_much_as_a_row_of_the_whole_step(folder: Path, index: int) -> None:
    losses = {}
    for name, method in (("plain", Vanilla), ("whole", Texts), ("parts", Texts)):
        stage = Cell(folder, method()).stage(index)
        update = {"accumulation": 2 if name == "parts" else 1}
        stage.protocol = stage.protocol.model_copy(update=update)
        losses[name] = np.array(train_stage(stage, method()).curves["loss"])
    np.testing.assert_allclose(losses["whole"] - losses["plain"], 1.0, atol=1e-5)
    np.testing.assert_allclose(losses["parts"], losses["whole"], atol=1e-4)


@pytest.mark.parametrize(
    "make",
    [
        partial(Replay, memory=5),
        partial(DerPlusPlus, memory=5, alpha=1.0),
        partial(KLAnchor, at="text", texts=3, text_length=16),
    ],
    ids=("replay", "der++", "kl-anchor"),
)
def test_the_parts_of_a_step_read_as_much_as_the_whole(folder: Path, make: Any) -> None:
    read: dict[int, list[int]] = {1: [], 2: [], 4: []}
    losses = []
    for count, rows in read.items():
        cell = Cell(folder, make())
        cell.train(0)
        stage = cell.stage(1)
        stage.protocol = stage.protocol.model_copy(update={"accumulation": count})
        cell.context.model.register_forward_pre_hook(
            lambda model, arguments, rows=rows: rows.append(len(arguments[0]["input_ids"]))
        )
        losses += train_stage(stage, cell.method).curves["loss"]
    assert sum(read[1]) == sum(read[2]) == sum(read[4])
    assert max(read[1]) > max(read[2]) > max(read[4])
    np.testing.assert_allclose(losses, losses[0], rtol=1e-4)


def test_curves_have_one_point_at_a_step_that_is_accumulated(folder: Path) -> None:
    cell = Cell(folder, ASFT())
    stage = cell.stage(0)
    stage.protocol = stage.protocol.model_copy(update={"accumulation": 2})
    curves = train_stage(stage, cell.method).curves
    for name in ("token_weight", "divergence"):
        steps = [step for step, _ in curves[name]]
        assert len(steps) == len(set(steps)) > 1


def test_lwf_distils_every_token_of_the_new_answers(folder: Path) -> None:
    cell = Cell(folder, LwF(temperature=1.0, weight=0.5))
    cell.train(0)
    before = cell.context.snapshot()
    cell.train(1)
    stage = cell.stage(1)
    stage.step = 1  # no point of a curve
    method = cell.method
    assert isinstance(method, LwF)
    assert all(torch.equal(method._before[n], before[n]) for n in before)  # type: ignore[index]
    batch = stage.data.batch(np.array([0, 3, 5]), CPU)
    old, new = log_probs(cell, batch, before), log_probs(cell, batch)
    divergence = (old.exp() * (old - new)).sum(-1).mean()
    assert divergence > 1e-6
    loss = method.loss(stage, batch).detach()
    assert torch.allclose(loss, stage.loss(batch).detach() + 0.5 * divergence, atol=1e-6)


@pytest.mark.parametrize("at", ["prompts", "text"])
def test_kl_anchor_compares_the_named_tokens_with_the_base_model(folder: Path, at: Any) -> None:
    cell = Cell(folder, KLAnchor(weight=2.0, at=at, tokens=3, texts=2, text_length=16))
    stage = cell.stage(0)
    cell.method.before_stage(stage)
    batch = stage.data.batch(np.array([1, 2]), CPU)
    stage.step = 1
    start = cell.method.loss(stage, batch).detach()
    assert torch.allclose(start, stage.loss(batch).detach(), atol=1e-6)  # nothing has changed yet
    cell.train(0)
    method, stage = cell.method, cell.stage(0)
    assert isinstance(method, KLAnchor)
    stage.step = 1
    method.before_stage(stage)
    compared = method._compared(stage, batch)
    assert compared.labels.shape == (2, 3)
    ends = batch.inputs["predict"][:, :1] - 1 if at == "prompts" else 15
    assert (compared.inputs["predict"] <= ends).all()
    old, new = log_probs(cell, compared, cell.base), log_probs(cell, compared)
    divergence = (old.exp() * (old - new)).sum(-1).mean()
    assert divergence > 1e-6
    stage = cell.stage(0)
    stage.step = 1
    method.before_stage(stage)
    loss = method.loss(stage, batch).detach()
    assert torch.allclose(loss, stage.loss(batch).detach() + 2.0 * divergence, atol=1e-5)


def test_der_compares_the_stored_logits_of_every_answer_token(folder: Path) -> None:
    cell = Cell(folder, DerPlusPlus(memory=4, alpha=1.0, beta=0.0))
    cell.train(0)
    stored = cell.context.snapshot()
    cell.train(1)
    method, stage = cell.method, cell.stage(1)
    assert isinstance(method, DerPlusPlus)
    (part, *others) = method.draw(stage, "outputs")
    assert part.batch.task == 0
    gap = 0.0
    for drawn in (part, *others):
        with cell.context.swapped(stored if drawn.batch.task == 0 else cell.context.snapshot()):
            old = cell.context.model(drawn.batch.inputs, "t").detach()
        new = cell.context.model(drawn.batch.inputs, "t").detach()
        real = drawn.batch.labels != -100
        gap += float((old[real] - new[real]).square().mean()) * drawn.share
    assert gap > 1e-6
    again = cell.stage(1)
    found = method._distance(again, method.draw(again, "outputs"))
    assert float(found.detach()) == pytest.approx(gap, rel=1e-4)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_fisher_is_the_mean_of_squared_gradients_of_single_answers(name: str) -> None:
    """Tied tables and answers of different lengths are covered."""
    model, data = AnsweringModel(make_generator(name)), task_data(1)
    batch = data.batch(np.arange(6), CPU)
    fisher = diagonal_fisher(model, [batch], "task", "empirical")
    wanted: dict[str, Tensor] = {}
    for row in range(6):
        alone = data.batch(np.array([row]), CPU)
        model.zero_grad()
        Stage.criterion(model(alone.inputs, "t"), alone).backward()
        for weight, parameter in model.named_parameters():
            assert parameter.grad is not None
            square = parameter.grad.square() / 6
            wanted[weight] = wanted[weight] + square if weight in wanted else square
    for weight, value in fisher.items():
        scale = float(wanted[weight].max())
        assert torch.allclose(value, wanted[weight], atol=1e-4 * scale, rtol=1e-3), weight


def test_sensitivity_of_an_answer_does_not_depend_on_the_rows_beside_it(folder: Path) -> None:
    cell = Cell(folder, MAS())
    stage, model = cell.stage(1), cell.context.model.eval()
    lengths = (stage.data.batch(np.arange(8), CPU).labels != -100).sum(1).numpy()
    rows = np.argsort(lengths, kind="stable")  # the first two, a trial, have equal lengths
    assert lengths[rows[0]] == lengths[rows[1]] < lengths[rows[-1]]
    expected = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    for row in rows:
        alone = stage.data.batch(np.array([row]), CPU)
        model.zero_grad()
        model(alone.inputs, "t").square().sum().backward()
        for name, weight in model.named_parameters():
            assert weight.grad is not None
            expected[name] += weight.grad.abs() / 8
    for name, value in output_sensitivity(stage, rows).items():
        atol = 1e-4 * float(expected[name].max())
        assert torch.allclose(value, expected[name], rtol=1e-3, atol=atol), name

"""Losses that weight tokens, against numbers worked out in NumPy and against other libraries."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from helpers.checkpoints import make_generator, save_generator
from helpers.hosted import make_decoder, plain_trainer, weights
from methods.test_answering_methods import CPU, Cell, log_probs
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from clbench.core.errors import ClbenchError
from clbench.hf import protect
from clbench.methods.token_weights import ASFT, DFT, EAFT, TALR, TokenWeights, median_loss
from clbench.models.locate import TINY_GPT
from clbench.tasks.registry import load_task
from clbench.training.batches import Batch
from clbench.training.stage import Stage

LABELS = torch.tensor([[3, 0, 1], [2, -100, -100], [4, 4, -100]])
ASKED = (LABELS != -100).numpy()


def batch_of(labels: Tensor) -> Batch:
    return Batch({}, labels, "t", False, 0, np.arange(len(labels)), labels.numel())


class Fixed:
    """A stage of which a method sees logits alone."""

    token_mean = Stage.token_mean

    def __init__(self, outputs: Tensor, base: Tensor) -> None:
        self.outputs, self.base = outputs, base

    def logits(self, batch: Batch) -> Tensor:
        return self.outputs

    def logits_of(self, weights: Any, batch: Batch) -> Tensor:
        return self.base

    def sample(self, name: str, value: Tensor) -> None:
        pass


def logits(seed: int) -> Tensor:
    return 2.0 * torch.randn(3, 3, 6, generator=torch.Generator().manual_seed(seed))


def log_softmax(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(values - np.log(np.exp(values).sum(-1, keepdims=True)))


def by_hand(name: str) -> tuple[float, np.ndarray[Any, Any]]:
    """Return the loss of three rows, and its gradient, by the papers (ASFT: its authors' code)."""
    z, base = (logits(seed).double().numpy() for seed in (0, 1))
    log_q, log_p = log_softmax(z), log_softmax(base)
    losses = {(i, j): -log_q[i, j, LABELS[i, j]] for i, j in zip(*np.nonzero(ASKED), strict=True)}
    tau = float(np.median([
        (losses[0, 0] + losses[0, 1] + losses[0, 2]) / 3,
        losses[1, 0],
        (losses[2, 0] + losses[2, 1]) / 2,
    ]))  # fmt: skip
    total, slopes = 0.0, np.zeros_like(z)
    for (i, j), loss in losses.items():
        if name == "eaft":
            likeliest = log_softmax(np.sort(z[i, j])[-4:])
            weight = (-(np.exp(likeliest) * likeliest).sum() / math.log(4)) ** 2
        elif name == "talr":
            weight = max(math.exp(-loss / tau), 0.3)
        else:
            weight = math.exp(-loss)
        q, p = np.exp(log_q[i, j]), np.exp(log_p[i, j])
        total += weight * loss
        slopes[i, j] += weight * (q - np.eye(6)[LABELS[i, j]])  # the weight is a constant
        if name == "asft":
            total += 0.5 * (p * (log_p[i, j] - log_q[i, j])).sum()
            slopes[i, j] += 0.5 * (q - p)
    return total / len(losses), slopes / len(losses)


METHODS: dict[str, Callable[[], TokenWeights]] = {
    "dft": DFT,
    "asft": lambda: ASFT(weight=0.5),
    "eaft": lambda: EAFT(top=4, power=2.0),
    "talr": lambda: TALR(floor=0.3),
}


@pytest.mark.parametrize("name", METHODS)
def test_losses_and_gradients_are_those_of_the_papers(name: str) -> None:
    method, outputs = METHODS[name](), logits(0).requires_grad_()
    method._base = {}  # type: ignore[attr-defined]
    stage: Any = Fixed(outputs, logits(1))
    loss = method.loss(stage, batch_of(LABELS))
    loss.backward()
    expected, slopes = by_hand(name)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)
    assert outputs.grad is not None
    np.testing.assert_allclose(outputs.grad.numpy(), slopes, rtol=1e-4, atol=1e-6)
    assert not outputs.grad[~torch.from_numpy(ASKED)].any()


def test_the_floor_and_a_fixed_temperature_of_talr_are_used() -> None:
    losses = torch.tensor([[0.5, 4.0]])
    found = TALR(tau=2.0, floor=0.2).weights(torch.zeros(1, 2, 6), losses, batch_of(LABELS[2:, :2]))
    assert found.flatten().tolist() == pytest.approx([math.exp(-0.25), 0.2])


def test_entropies_of_few_tokens_and_of_sure_predictions_stay_in_range() -> None:
    sure, even = torch.zeros(1, 1, 6), torch.zeros(1, 1, 6)
    sure[..., 2] = 100.0
    for top in (2, 6, 20):
        method, batch = EAFT(top=top), batch_of(LABELS[1:2, :1])
        zero = torch.zeros(1, 1)
        assert float(method.weights(sure, zero, batch)) == pytest.approx(0.0, abs=1e-6)
        assert float(method.weights(even, zero, batch)) == pytest.approx(1.0)


def test_the_median_leaves_out_rows_without_tokens() -> None:
    losses = torch.tensor([[1.0, 3.0], [0.0, 0.0], [5.0, 0.0], [4.0, 4.0]])
    labels = torch.tensor([[1, 1], [-100, -100], [1, -100], [1, 1]])
    assert float(median_loss(losses, batch_of(labels))) == 4.0
    assert float(median_loss(losses[:3], batch_of(labels[:3]))) == 3.5  # of 2 and 5
    nothing = median_loss(losses[1:2], batch_of(labels[1:2]))
    assert float(nothing) == 1.0
    perfect = TALR().weights(torch.zeros(1, 2, 6), torch.zeros(1, 2), batch_of(labels[:1]))
    assert perfect.tolist() == [[1.0, 1.0]]


def test_asft_stays_near_the_first_model_in_every_stage(tmp_path: Path) -> None:
    cell = Cell(save_generator("llama", tmp_path), method := ASFT(weight=2.0))
    cell.train(0)
    stage = cell.stage(1)
    method.before_stage(stage)
    stage.model.eval()
    batch = stage.data.batch(np.arange(4), CPU)
    loss = method.loss(stage, batch).detach()
    log_p, log_q = log_probs(cell, batch, cell.base), log_probs(cell, batch)
    divergence = (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    assert float(divergence) > 1e-3
    torch.testing.assert_close(loss, DFT().loss(stage, batch).detach() + 2.0 * divergence)


@pytest.mark.parametrize("name", ["dft", "asft", "eaft"])
def test_a_batch_in_parts_is_a_batch(name: str) -> None:
    method, outputs = METHODS[name](), logits(0)
    method._base = {}  # type: ignore[attr-defined]
    batch = batch_of(LABELS)
    whole: Any = Fixed(outputs, logits(1))
    parts = []
    for rows, (part, share) in zip((slice(0, 2), slice(2, 3)), batch.parts(2), strict=True):
        stage: Any = Fixed(outputs[rows], logits(1)[rows])
        parts.append(share * float(method.loss(stage, part)))
    assert sum(parts) == pytest.approx(float(method.loss(whole, batch)), rel=1e-5)


# Other libraries. LLaMA-Factory is not installed; these are its formulas, restated from
# src/llamafactory/train/trainer_utils.py at commit ff6d4d12 (August 2026).


def shifted(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits and labels of the tokens that are predicted."""
    asked = labels[:, 1:] != -100
    return outputs[:, :-1][asked], labels[:, 1:][asked]


def llama_factory_dft(outputs: Tensor, labels: Tensor) -> Tensor:
    z, y = shifted(outputs, labels)
    losses = nn.functional.cross_entropy(z, y, reduction="none")
    return (losses * (-losses).exp().detach()).mean()


def llama_factory_asft(outputs: Tensor, labels: Tensor, base: Tensor) -> Tensor:
    z, _ = shifted(outputs, labels)
    reference, _ = shifted(base, labels)
    kl = nn.functional.kl_div(z.log_softmax(-1), reference.softmax(-1), reduction="none")
    return llama_factory_dft(outputs, labels) + 0.1 * kl.sum(-1).mean()


def llama_factory_eaft(outputs: Tensor, labels: Tensor) -> Tensor:
    z, y = shifted(outputs, labels)
    losses = nn.functional.cross_entropy(z, y, reduction="none")
    p = torch.topk(z.detach(), 20).values.softmax(-1)
    return (losses * -(p * p.log()).sum(-1) / 3.0).mean()


@pytest.mark.parametrize("name", ["dft", "asft", "eaft"])
def test_losses_and_gradients_are_those_of_llama_factory(tmp_path: Path, name: str) -> None:
    setting = make_decoder(tmp_path / "model")
    model = setting.model
    trainer = setting.trainer(tmp_path / "run", name)
    inputs = trainer.data_collator([trainer.train_dataset[i] for i in range(4)])
    texts = {key: inputs[key] for key in ("input_ids", "attention_mask")}
    base = model(**texts).logits.detach()
    protect(trainer, name, **({"weight": 0.1} if name == "asft" else {}))
    for value in model.parameters():
        value.data.add_(0.05 * torch.randn(value.shape, generator=torch.Generator().manual_seed(0)))
    outputs = model(**texts).logits
    assert outputs.shape[-1] > 20
    arguments = (base,) if name == "asft" else ()
    expected = globals()[f"llama_factory_{name}"](outputs, inputs["labels"], *arguments)
    expected.backward()
    slopes = [value.grad.clone() for value in model.parameters()]
    model.zero_grad()
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer.training_step(model, dict(inputs))
    scale = 3.0 / math.log(20) if name == "eaft" else 1.0
    assert float(loss) == pytest.approx(scale * float(expected.detach()), rel=1e-5)
    for value, slope in zip(model.parameters(), slopes, strict=True):
        torch.testing.assert_close(value.grad, scale * slope, rtol=1e-4, atol=1e-7)


def rows_for_trl(folder: Path) -> Dataset:
    task = load_task("synthetic/sentiment", data=None, base=folder, own={})
    words = (" yes", " not at all", " no", " it is hard to say")
    return Dataset.from_dict(
        {"prompt": list(task.train.first)[:32], "completion": [words[i % 4] for i in range(32)]}
    )


def trl_weights(folder: Path, method: str | None, **settings: Any) -> tuple[Any, list[float]]:
    """Return the weights after four steps in TRL, and the logged losses."""
    trl = pytest.importorskip("trl")
    arguments = {
        "max_steps": 4, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
        "learning_rate": 1e-3, "report_to": "none", "save_strategy": "no", "use_cpu": True,
        "bf16": False, "seed": 1, "disable_tqdm": True, "logging_steps": 1,
        "lr_scheduler_type": "constant", "adam_epsilon": 1e-5, **settings,
    }  # fmt: skip
    trainer = trl.SFTTrainer(
        str(TINY_GPT),
        args=trl.SFTConfig(str(folder), **arguments),
        train_dataset=rows_for_trl(folder),
    )
    for module in trainer.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if method is not None:
        protect(trainer, method)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return weights(trainer), losses


PACKED = {"padding_free": True, "max_length": None}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_dft_trains_as_in_trl_with_accumulation_and_packed_rows(tmp_path: Path) -> None:
    theirs, their_losses = trl_weights(tmp_path, None, loss_type="dft")
    for settings in ({}, PACKED):
        ours, losses = trl_weights(tmp_path, "dft", loss_type="nll", **settings)
        np.testing.assert_allclose(losses, their_losses, rtol=1e-4)
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=2e-5)
    plain, _ = trl_weights(tmp_path, None, loss_type="nll")
    assert any(float((plain[n] - v).abs().max()) > 1e-4 for n, v in theirs.items())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", ["asft", "talr"])
def test_packed_rows_train_as_padded_ones(tmp_path: Path, method: str) -> None:
    padded, losses = trl_weights(tmp_path, method)
    packed, packed_losses = trl_weights(tmp_path, method, **PACKED)
    np.testing.assert_allclose(packed_losses, losses, rtol=1e-4)
    for name, value in padded.items():
        torch.testing.assert_close(packed[name], value, rtol=1e-3, atol=2e-5)


def test_losses_of_the_trainer_that_would_be_lost_are_refused(tmp_path: Path) -> None:
    folder = save_generator("llama", tmp_path / "model")
    rows = [{"input_ids": [5, 6, 7, 8], "labels": [5, 6, 7, 8]}] * 8
    options = {"use_cpu": True, "report_to": "none", "disable_tqdm": True}
    for arguments, more in (
        ({"label_smoothing_factor": 0.1}, {}),
        ({}, {"compute_loss_func": lambda outputs, labels, **_: outputs.logits.mean()}),
    ):
        trainer = Trainer(
            AutoModelForCausalLM.from_pretrained(folder),
            TrainingArguments(str(tmp_path / "run"), **options, **arguments),  # type: ignore[arg-type]
            train_dataset=rows,  # type: ignore[arg-type]
            **more,  # type: ignore[arg-type]
        )
        with pytest.raises(ClbenchError, match="replaces the Trainer's loss") as caught:
            protect(trainer, "dft")
        assert "\n" not in str(caught.value)


def test_encoder_decoders_are_trained(tmp_path: Path) -> None:
    model = make_generator("t5")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    model.config._name_or_path = str(tmp_path)
    trainer = plain_trainer(tmp_path)
    trainer.model = trainer.model_wrapped = model
    protect(trainer, "dft")
    inputs = {
        "input_ids": torch.tensor([[5, 6, 7], [8, 9, 1]]),
        "attention_mask": torch.ones(2, 3, dtype=torch.long),
        "labels": torch.tensor([[7, 8, 1], [9, 1, -100]]),
    }
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    loss = float(trainer.training_step(model, dict(inputs)))
    outputs = model(**inputs).logits.detach()
    asked = inputs["labels"] != -100
    losses = nn.functional.cross_entropy(outputs[asked], inputs["labels"][asked], reduction="none")
    assert loss == pytest.approx(float((losses * (-losses).exp()).mean()), rel=1e-4)

"""Protected Trainers with what people turn on: accumulation, bf16, processes, PEFT, TRL."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint
from datasets import Dataset
from generators import save_generator
from hosted import Setting, make_decoder, make_encoder
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    Trainer,
    TrainingArguments,
)

from clbench.errors import ClbenchError
from clbench.hf import protect
from clbench.models.locate import TINY_GPT
from clbench.tasks.registry import load_task
from clbench.training.device import fast_bf16

RECADAM = {"gamma": 100.0, "t0": 3.0, "k": 1.0, "scaling": "printed"}
HALVES = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {n: v.detach().clone() for n, v in trainer.model.named_parameters()}


def assert_same(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        if not name.endswith("key.bias"):  # whose gradient is 0 but for rounding
            torch.testing.assert_close(two[name], value, rtol=1e-3, atol=2e-5)


def train(setting: Setting, folder: Path, method: str, options: Any, **settings: Any) -> Trainer:
    setting.model = copy.deepcopy(setting.model)
    trainer = setting.trainer(folder, method, **settings)
    protect(trainer, method, **options)
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    ("make", "method", "options"),
    [
        (make_encoder, "l2-sp", {"alpha": 0.5}),
        (make_encoder, "recadam", RECADAM),
        (make_encoder, "generic-replay",
         {"share": 0.2, "text_length": 16, "texts": 40, "head_steps": 5}),
        (make_encoder, "lwf", {"weight": 5.0}),
        (make_decoder, "l2-sp", {"alpha": 0.5}),
        (make_decoder, "generic-replay", {"share": 0.2, "text_length": 16, "texts": 40}),
    ],
)  # fmt: skip
def test_a_batch_in_two_parts_is_a_batch(
    tmp_path: Path, make: Any, method: str, options: dict[str, Any]
) -> None:
    setting = make(tmp_path / "model")
    whole = train(setting, tmp_path / "a", method, options)
    setting = make(tmp_path / "again")
    assert_same(weights(whole), weights(train(setting, tmp_path / "b", method, options, **HALVES)))


@pytest.mark.skipif(not fast_bf16(torch.device("cpu")), reason="bf16 is slow on this machine")
@pytest.mark.parametrize("method", ["l2-sp", "lwf", "kl-anchor"])
def test_mixed_precision_changes_little(tmp_path: Path, method: str) -> None:
    exact = train(make_decoder(tmp_path / "model"), tmp_path / "a", method, {})
    mixed = train(make_decoder(tmp_path / "again"), tmp_path / "b", method, {}, bf16=True)
    assert mixed.losses != exact.losses
    np.testing.assert_allclose(mixed.losses, exact.losses, rtol=0.02)


def test_the_scale_of_fp16_does_not_reach_the_pull(tmp_path: Path) -> None:
    class Scaler:
        def get_scale(self) -> float:
            return 1024.0

    pulled = []
    for scaler in (None, Scaler()):
        trainer = make_encoder(tmp_path / "model").trainer(tmp_path / "run", "l2-sp")
        protection = protect(trainer, "l2-sp", alpha=0.5)
        trainer.accelerator.scaler = scaler
        for value in trainer.model.parameters():
            value.data.add_(0.01)
            value.grad = torch.full_like(value, 1024.0 if scaler else 1.0)
        protection.edit_gradients()
        pulled.append([p.grad / (1024.0 if scaler else 1.0) for p in trainer.model.parameters()])
    for one, two in zip(*pulled, strict=True):
        torch.testing.assert_close(one, two)
        assert not torch.equal(one, torch.ones_like(one))


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    methods: dict[str, dict[str, Any]] = {
        "l2-sp": {"alpha": 0.5}, "recadam": RECADAM, "mixout": {"p": 0.5}, "lwf": {"weight": 5.0},
    }  # fmt: skip
    make_checkpoint("bert", tmp_path / "model")
    path = os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])
    script = Path(__file__).with_name("two_processes.py")
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
         str(script), str(tmp_path), json.dumps(methods)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        check=True, timeout=300,
    )  # fmt: skip
    for method, options in methods.items():
        one = train(make_encoder(tmp_path / "model"), tmp_path / "run", method, options)
        assert_same(weights(one), load_file(tmp_path / f"{method}.safetensors"))
        logs = json.loads((tmp_path / f"{method}.json").read_text())
        own = [entry for entry in one.state.log_history if "loss" in entry]
        curves = {key for entry in own for key in entry if "/" in key}
        for entry, other in zip(own, logs, strict=True):
            for key in curves & entry.keys():
                if method != "lwf":  # whose term is that of the first process's rows
                    assert other[key] == pytest.approx(entry[key], rel=0.02, abs=1e-6), key
    both = [json.loads((tmp_path / f"points-{rank}.json").read_text()) for rank in (0, 1)]
    assert both[0] == both[1]  # both processes scored at the same steps
    assert {0, 6} <= {*both[0]}


@pytest.mark.parametrize("method", ["l2-sp", "recadam", "lwf"])
def test_a_resumed_training_protects_the_base_model(tmp_path: Path, method: str) -> None:
    options = RECADAM if method == "recadam" else {}
    settings = {"save_strategy": "steps", "save_steps": 3}
    whole = train(make_encoder(tmp_path / "model"), tmp_path / "run", method, options, **settings)
    setting = make_encoder(tmp_path / "model")
    trainer = setting.trainer(tmp_path / "again", method)
    protect(trainer, method, **options)
    trainer.train(resume_from_checkpoint=str(tmp_path / "run/checkpoint-3"))
    assert trainer.state.global_step == 6
    assert len(trainer.losses) == 3
    assert_same(weights(whole), weights(trainer))


@pytest.mark.parametrize("method", ["l2-sp", "recadam", "mixout", "lwf", "generic-replay"])
def test_adapters_are_protected_and_the_base_stays(tmp_path: Path, method: str) -> None:
    peft = pytest.importorskip("peft")
    options = {
        "recadam": RECADAM,
        "l2-sp": {"alpha": 1.0},
        "generic-replay": {"share": 0.2, "text_length": 16, "texts": 40},
    }.get(method, {})
    setting = make_decoder(tmp_path / "model")
    name = setting.model.config._name_or_path
    setting.model = peft.get_peft_model(
        setting.model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    )
    setting.model.get_base_model().config._name_or_path = name
    start = {n: v.detach().clone() for n, v in setting.model.named_parameters()}
    torch.manual_seed(0)
    trainer = train(setting, tmp_path / "run", method, options)
    for key, value in trainer.model.named_parameters():
        assert torch.equal(value, start[key]) != ("lora" in key), key
    kept = trainer.protection.stage.snapshot()
    assert kept
    assert all("lora" in key for key in kept)  # no copy of the frozen weights


def test_a_trainer_can_train_twice(tmp_path: Path) -> None:
    trainer = train(make_encoder(tmp_path / "model"), tmp_path / "run", "recadam", RECADAM)
    before = weights(trainer)
    trainer.train()
    assert any(not torch.equal(v, before[n]) for n, v in weights(trainer).items())
    assert len(trainer.losses) == 12


def test_curves_are_in_the_logs(tmp_path: Path) -> None:
    trainer = train(make_encoder(tmp_path / "model"), tmp_path / "run", "l2-sp", {"alpha": 0.5})
    points = [e["l2-sp/penalty"] for e in trainer.state.log_history if "l2-sp/penalty" in e]
    assert len(points) == 6
    assert points[0] < points[-1]


def test_layers_have_their_rates_and_weight_decay_spares_biases(tmp_path: Path) -> None:
    setting = make_encoder(tmp_path / "model")
    trainer = train(
        setting, tmp_path / "run", "layerwise", {"multiples": [0.1, 1.0, 10.0]}, weight_decay=0.1
    )
    names = {id(value): name for name, value in trainer.model.named_parameters()}
    groups = trainer.optimizer.param_groups
    for group in groups:
        for value in group["params"]:
            name = names[id(value)]
            place = 0 if "embeddings" in name else 1 if "encoder" in name else 2
            assert group["initial_lr"] == pytest.approx(1e-3 * [0.1, 1.0, 10.0][place]), name
            spared = name.endswith("bias") or "LayerNorm" in name
            assert group["weight_decay"] == (0.0 if spared else 0.1), name
    assert sum(len(group["params"]) for group in groups) == len(names)


@pytest.mark.parametrize("method", ["kl-anchor", "lwf", "ewc"])
def test_trl_trains_with_a_method(tmp_path: Path, method: str) -> None:
    trl = pytest.importorskip("trl")
    task = load_task("synthetic/sentiment", data=None, base=tmp_path, own={})
    rows = Dataset.from_dict({"prompt": list(task.train.first)[:64], "completion": [" x"] * 64})

    def make() -> Any:
        return trl.SFTTrainer(
            str(TINY_GPT),
            args=trl.SFTConfig(
                str(tmp_path), max_steps=4, per_device_train_batch_size=8, learning_rate=1e-2,
                report_to="none", save_strategy="no", use_cpu=True, bf16=False, seed=1,
                disable_tqdm=True, logging_steps=1,
            ),
            train_dataset=rows,
        )  # fmt: skip

    def moved(trainer: Any) -> float:
        squares = [
            float((v.detach() - start[n]).square().sum()) for n, v in weights(trainer).items()
        ]
        return sum(squares)

    plain, trainer = make(), make()
    start = weights(plain)
    options: dict[str, Any] = {"weight": 10.0}
    if method == "ewc":
        fisher = {name: torch.ones_like(value) for name, value in start.items()}
        save_file(fisher, tmp_path / "fisher.safetensors")
        options = {"fisher": tmp_path / "fisher.safetensors", "importance": 1e3}
    protect(trainer, method, **options)
    plain.train()
    trainer.train()
    assert moved(trainer) < moved(plain)
    curve = {"kl-anchor": "divergence", "lwf": "distillation", "ewc": "penalty"}[method]
    points = [e[f"{method}/{curve}"] for e in trainer.state.log_history if f"{method}/{curve}" in e]
    assert points[0] == pytest.approx(0.0, abs=1e-4)  # nothing is lost before the first step
    assert points[1] > 1e-4


def plain_trainer(folder: Path, **settings: Any) -> Trainer:
    checkpoint = folder / "model"
    if not checkpoint.exists():
        make_checkpoint("bert", checkpoint)
    arguments = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, **settings}
    return Trainer(
        AutoModelForSequenceClassification.from_pretrained(checkpoint),
        TrainingArguments(str(folder / "run"), **arguments),
        train_dataset=[{"input_ids": [2, i % 20, 3], "labels": i % 2} for i in range(16)],  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("vanilla", {}, "what the Trainer does by itself"),
        ("replay", {}, "keeps rows of earlier tasks"),
        ("wise-ft", {}, "Use `clbench mend`"),
        ("packnet", {}, "has weights for each task|training loop of clbench"),
        ("si", {}, "training loop of clbench"),
        ("nothing", {}, "nothing"),
        ("ewc", {}, "needs fisher="),
        ("l2-sp", {"fisher": {}}, "takes no fisher="),
        ("l2-sp", {"strength": 1.0}, "strength"),
        ("l2-sp", {"lr": 1e-3}, "set learning_rate in TrainingArguments"),
        ("kl-anchor", {}, "needs a model with a language-model head"),
        ("ewc", {"fisher": "nowhere.safetensors"}, "nowhere.safetensors cannot be read"),
        ("ewc", {"fisher": {"a": torch.ones(2)}}, "names no weight"),
        ("ewc", {"fisher": {"classifier.bias": torch.ones(3)}}, r"has the shape \(3,\)"),
        ("ewc", {"fisher": {"classifier.bias": torch.zeros(2)}}, "penalty is always 0"),
        (
            "ewc",
            {"fisher": {"classifier.bias": torch.tensor([1.0, torch.nan])}},
            "below 0 or not finite",
        ),
        (
            "ewc",
            {"fisher": {"classifier.bias": torch.tensor([1.0, -1.0])}},
            "below 0 or not finite",
        ),
        ("generic-replay", {"corpus": "nowhere.txt"}, "nowhere.txt"),
        ("recadam", {"gamma": 1e9}, "overshoot"),
    ],
)
def test_what_a_trainer_cannot_do_is_said_in_one_line(
    tmp_path: Path, method: str, options: dict[str, Any], message: str
) -> None:
    trainer = plain_trainer(tmp_path)
    with pytest.raises(ClbenchError, match=message) as caught:
        protect(trainer, method, **options)
    assert "\n" not in str(caught.value)
    assert type(trainer) is Trainer  # and it trains as before


def test_trainers_that_cannot_be_protected_are_refused(tmp_path: Path) -> None:
    trainer = plain_trainer(tmp_path)
    protect(trainer, "l2-sp")
    with pytest.raises(ClbenchError, match="protected by 'l2-sp' already"):
        protect(trainer, "l2-sp")
    with pytest.raises(ClbenchError, match="compiled"):
        protect(plain_trainer(tmp_path, torch_compile=True), "l2-sp")
    trainer = plain_trainer(tmp_path)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    for method, options in (("layerwise", {"multiples": [0.1, 0.5, 1.0]}), ("recadam", {})):
        with pytest.raises(ClbenchError, match="makes the optimizer, but the Trainer has one"):
            protect(trainer, method, **options)
    protect(trainer, "lwf")  # which trains what the Trainer trains
    with pytest.raises(ClbenchError, match="gradient_checkpointing"):
        protect(plain_trainer(tmp_path, gradient_checkpointing=True), "mixout")
    with pytest.raises(ClbenchError, match="LOMO"):
        protect(plain_trainer(tmp_path, optim="lomo"), "l2-sp")
    with pytest.raises(ClbenchError, match=r"arguments of the Trainer.*lr: must be"):
        protect(plain_trainer(tmp_path, learning_rate=2.0), "l2-sp")
    trainer = plain_trainer(tmp_path)
    trainer.model.bert.requires_grad_(False)
    with pytest.raises(ClbenchError, match="no weight but the head's"):
        protect(trainer, "recadam")
    trainer = plain_trainer(tmp_path)
    protect(trainer, "recadam")
    with pytest.raises(ClbenchError, match="number of steps is known"):
        trainer.create_optimizer()
    with pytest.raises(ClbenchError, match="int is not a Trainer"):
        protect(3, "l2-sp")  # type: ignore[arg-type]
    trainer = plain_trainer(tmp_path, optim="adafactor", max_steps=1)
    protect(trainer, "layerwise", multiples=[0.1, 0.5, 1.0])
    trainer.train()  # any optimizer of groups will do


def test_rows_without_prompts_have_nothing_to_compare(tmp_path: Path) -> None:
    folder = save_generator("llama", tmp_path / "model")
    rows = [{"input_ids": [5, 6, 7, 8], "labels": [5, 6, 7, 8], "attention_mask": [1] * 4}] * 8
    arguments = TrainingArguments(
        str(tmp_path / "run"), use_cpu=True, report_to="none", disable_tqdm=True, max_steps=1
    )
    model = AutoModelForCausalLM.from_pretrained(folder)
    trainer = Trainer(model, arguments, train_dataset=rows)  # type: ignore[arg-type]
    protect(trainer, "kl-anchor")
    with pytest.raises(ClbenchError, match="no prompts to compare"):
        trainer.train()


def test_names_of_the_model_and_of_its_body_both_find_their_weights(tmp_path: Path) -> None:
    for prefix in ("", "bert.", "backbone."):
        trainer = plain_trainer(tmp_path)
        body = {
            f"{prefix}{n}": torch.ones_like(v) for n, v in trainer.model.bert.named_parameters()
        }
        protection = protect(trainer, "ewc", fisher=body)
        assert len(protection.method.fisher) == len(body)
        assert "2 trained weights without Fisher" in protection.notes[0]


def test_a_model_without_a_checkpoint_has_no_pretraining(tmp_path: Path) -> None:
    trainer = plain_trainer(tmp_path)
    trainer.model.config._name_or_path = ""
    with pytest.raises(ClbenchError, match="made from a configuration"):
        protect(trainer, "ewc-mlm")


def test_a_pooler_that_the_language_model_lacks_is_not_held(tmp_path: Path) -> None:
    trainer = plain_trainer(tmp_path, max_steps=2)
    protection = protect(trainer, "ewc-mlm", examples=8, text_length=16, head_steps=3)
    trainer.train()
    assert "8 texts" in protection.notes[0]
    held = set(protection.method._fisher)
    body = {f"backbone.{name}" for name, _ in trainer.model.bert.named_parameters()}
    assert body - held == {"backbone.pooler.dense.weight", "backbone.pooler.dense.bias"}

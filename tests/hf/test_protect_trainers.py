"""Protected Trainers with what people turn on: accumulation, bf16, processes, PEFT, TRL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from helpers.checkpoints import make_checkpoint, save_generator
from helpers.hosted import assert_same, make_decoder, make_encoder, make_for, train, weights
from safetensors.torch import load_file, save_file

from clbench.hf import protect
from clbench.models.locate import TINY_GPT
from clbench.tasks.registry import load_task
from clbench.training.device import fast_bf16

RECADAM = {"gamma": 100.0, "t0": 3.0, "k": 1.0, "scaling": "printed"}
SKIP_BF16 = pytest.mark.skipif(
    not fast_bf16(torch.device("cpu")), reason="bf16 is slow on this machine"
)
TEXTS: dict[str, Any] = {"share": 0.2, "text_length": 16, "texts": 40}
HALVES = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}


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
        (make_decoder, "self-replay", {"share": 0.2, "text_length": 8, "texts": 20}),
        (make_decoder, "kl-anchor", {"weight": 5.0, "at": "text", "texts": 3, "text_length": 16}),
        (make_decoder, "dft", {}),
        (make_decoder, "asft", {"weight": 5.0}),
        (make_decoder, "eaft", {}),
        (make_decoder, "talr", {"tau": 2.0}),
    ],
)  # fmt: skip
def test_a_batch_in_two_parts_is_a_batch(
    tmp_path: Path, make: Any, method: str, options: dict[str, Any]
) -> None:
    setting = make(tmp_path / "model")
    whole = train(setting, tmp_path / "a", method, options)
    setting = make(tmp_path / "again")
    assert_same(weights(whole), weights(train(setting, tmp_path / "b", method, options, **HALVES)))


@SKIP_BF16
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
        "dft": {}, "asft": {"weight": 5.0},
    }  # fmt: skip
    make_checkpoint("bert", tmp_path / "model")
    save_generator("llama", tmp_path / "decoder")
    path = os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])
    script = Path(__file__).with_name("two_processes.py")
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
         str(script), str(tmp_path), json.dumps(methods)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        check=True, timeout=300,
    )  # fmt: skip
    for method, options in methods.items():
        one = train(make_for(method, tmp_path), tmp_path / "run", method, options)
        assert_same(weights(one), load_file(tmp_path / f"{method}.safetensors"))
        logs = json.loads((tmp_path / f"{method}.json").read_text())
        own = [entry for entry in one.state.log_history if "loss" in entry]
        curves = {key for entry in own for key in entry if "/" in key}
        for entry, other in zip(own, logs, strict=True):
            for key in curves & entry.keys():
                if method in ("l2-sp", "recadam", "mixout"):  # others are of one process's rows
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


@pytest.mark.parametrize(
    ("make", "method", "options"),
    [
        (make_encoder, "mixout", {"p": 0.5}),
        (make_encoder, "generic-replay", TEXTS | {"head_steps": 5}),
        (make_decoder, "self-replay", {"share": 0.2, "text_length": 8, "texts": 20}),
        (make_decoder, "kl-anchor", {"weight": 5.0}),
        (make_decoder, "kl-anchor", {"weight": 5.0, "at": "text", "text_length": 16}),
    ],
    ids=lambda value: (
        value.get("at", "") if isinstance(value, dict) else getattr(value, "__name__", value)
    ),
)
def test_random_masks_and_texts_go_on_where_they_stopped(
    tmp_path: Path, make: Any, method: str, options: dict[str, Any]
) -> None:
    settings = {"save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-2}
    whole = train(make(tmp_path / "model"), tmp_path / "run", method, options, **settings)
    for file in (None, "clbench_random_0.safetensors"):
        trainer = make(tmp_path / "model").trainer(tmp_path / "again", method, learning_rate=1e-2)
        notes = protect(trainer, method, **options).notes
        checkpoint = tmp_path / "run/checkpoint-2"
        if file is not None:
            (checkpoint / file).unlink()
        trainer.train(resume_from_checkpoint=str(checkpoint))
        same = np.allclose(trainer.losses, whole.losses[2:], rtol=1e-5)
        assert same == (file is None)
        assert any("masks and texts start anew" in note for note in notes) != same


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


def test_a_second_training_begins_to_recall_again(tmp_path: Path) -> None:
    options = {**RECADAM, "scaling": "stage", "for_steps": 6}
    trainer = train(make_encoder(tmp_path / "model"), tmp_path / "run", "recadam", options)
    before, first = trainer.losses, trainer.optimizer.optimizer
    trainer.args.num_train_epochs = 2
    trainer.train()
    second = trainer.optimizer.optimizer
    assert second is not first
    assert (first.param_groups[0]["t"], second.param_groups[0]["t"]) == (6, 12)
    assert second.param_groups[0]["t0"] == 2 * first.param_groups[0]["t0"]  # for twice the steps
    assert len(trainer.losses) == len(before) + 12


@SKIP_BF16
@pytest.mark.parametrize(
    ("method", "strong", "weak"),
    [
        ("mixout", {"p": 0.9}, {"p": 0.0}),
        ("generic-replay", TEXTS | {"share": 0.5}, TEXTS),
        ("l2-sp", {"alpha": 1e3}, {"alpha": 1e-6}),
    ],
)
def test_weights_in_bf16_are_trained_by_the_method(
    tmp_path: Path, method: str, strong: dict[str, Any], weak: dict[str, Any]
) -> None:
    ends = []
    for options in (strong, weak):
        setting = make_decoder(tmp_path / "model")
        setting.model.to(torch.bfloat16)
        start = dict(setting.model.named_parameters())  # `train` trains a copy
        trainer = train(setting, tmp_path / "run", method, options)
        assert np.isfinite(trainer.losses).all()
        ends.append(weights(trainer))
        assert any(not torch.equal(value, start[name]) for name, value in ends[-1].items())
    assert any(not torch.equal(value, ends[1][name]) for name, value in ends[0].items())


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


@pytest.mark.slow
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

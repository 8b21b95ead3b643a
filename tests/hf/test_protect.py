"""Methods of clbench in the real Trainer: the same losses and weights as in the engine."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.hosted import CPU, Setting, make_decoder, make_encoder
from torch import Tensor

from clbench.fisher.diagonal import diagonal_fisher
from clbench.hf import protect
from clbench.training.batches import TaskData


@pytest.fixture
def encoder(tmp_path: Path) -> Setting:
    return make_encoder(tmp_path / "model")


@pytest.fixture
def decoder(tmp_path: Path) -> Setting:
    return make_decoder(tmp_path / "model")


ENCODER = {
    "ewc": {"importance": 50.0},
    "l2-sp": {"alpha": 0.5, "beta": 0.1},
    "recadam": {"gamma": 100.0, "t0": 3.0, "k": 1.0, "scaling": "printed"},
    "mixout": {"p": 0.5},
    "freeze-bottom": {"layers": 1},
    "layerwise": {"multiples": [0.1, 0.5, 1.0, 2.0]},
    "generic-replay": {"share": 0.2, "text_length": 16, "texts": 40, "head_steps": 5},
    "ewc-mlm": {"importance": 50.0, "examples": 8, "text_length": 16, "head_steps": 5},
}
DECODER = {
    "ewc": {"importance": 50.0},
    "l2-sp": {"alpha": 0.5},
    "recadam": {"gamma": 100.0, "t0": 3.0, "k": 1.0, "scaling": "printed"},
    "mixout": {"p": 0.5},
    "freeze-bottom": {"layers": 1},
    "layerwise": {"decay": 0.4},
    "lwf": {"weight": 2.0},
    "kl-anchor": {"weight": 2.0},
    "generic-replay": {"share": 0.2, "text_length": 16, "texts": 40},
    "self-replay": {"share": 0.2, "text_length": 8},
    "dft": {},
    "asft": {"weight": 0.5},
    "eaft": {"top": 5, "power": 2.0},
    "talr": {},
}


def fisher_of(model: Any, names: list[str], data: TaskData, *, task: bool) -> dict[str, Tensor]:
    """Return a Fisher information that holds some weights much more than others."""
    batches = [data.batch(np.arange(len(data.rows)), CPU)]
    return diagonal_fisher(model, batches, "task", "empirical", names=names)


@pytest.mark.parametrize("name", ENCODER)
def test_an_encoder_in_a_trainer_learns_as_in_the_engine(
    encoder: Setting, tmp_path: Path, name: str
) -> None:
    agrees(encoder, tmp_path, name, ENCODER[name])


@pytest.mark.parametrize("name", DECODER)
def test_a_decoder_in_a_trainer_learns_as_in_the_engine(
    decoder: Setting, tmp_path: Path, name: str
) -> None:
    agrees(decoder, tmp_path, name, DECODER[name])


def agrees(setting: Setting, folder: Path, name: str, settings: dict[str, Any]) -> None:
    """Compare losses and weights of the engine with those of a protected Trainer."""
    state: dict[str, Any] = {}
    options: dict[str, Any] = {}
    built = setting.engine_model
    if name == "ewc":
        names = list(built.backbone_parameters())
        fisher = fisher_of(built, names, setting.data, task=True)
        anchor = {n: v.detach().clone() for n, v in built.named_parameters() if n in fisher}
        state = {"fisher": fisher, "anchor": anchor}
        options["fisher"] = {n.removeprefix("backbone."): v for n, v in fisher.items()}
    plain = copy.deepcopy(setting.model)
    trainer = setting.trainer(folder / "protected", name)
    protect(trainer, name, **options, **settings)
    trainer.train()
    losses = setting.train_engine(name, state, **settings)
    np.testing.assert_allclose(trainer.losses, losses, rtol=2e-5, atol=2e-6)
    trained = {id(v): v for v in trainer.model.parameters()}
    hosted = dict(trainer.protection.stage.model.named_parameters())
    assert {id(v) for v in hosted.values()} == trained.keys()
    for key, value in built.backbone.named_parameters():
        if key.endswith("key.bias"):
            continue  # its gradient is 0 but for rounding, of which Adam makes whole steps
        torch.testing.assert_close(hosted[f"backbone.{key}"], value, rtol=1e-3, atol=2e-5)
    # and a Trainer without the method learns differently
    setting.model = plain
    unprotected = setting.trainer(folder / "plain", name)
    unprotected.train()
    moved = zip(unprotected.model.parameters(), trainer.model.parameters(), strict=True)
    assert any(float((a - b).detach().abs().max()) > 1e-4 for a, b in moved)

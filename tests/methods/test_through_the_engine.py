"""What holds for every method that only regularises: through the engine, whole cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cell import CPU, Cell, differ, weights

from clbench.evaluation.stage_cache import pack, unpack
from clbench.methods.base import Method
from clbench.methods.l2_sp import L2SP
from clbench.methods.lwf import LwF
from clbench.methods.mas import MAS
from clbench.methods.mixout import Mixout
from clbench.methods.si import SI
from clbench.methods.smart import Smart
from clbench.methods.ulmfit import Ulmfit
from clbench.methods.vanilla import Vanilla
from clbench.training.engine import train_stage

Make = Callable[[], Method]
MADE: dict[str, Make] = {
    "l2-sp": L2SP,
    "l2-sp-previous": lambda: L2SP(anchor="previous"),
    "mixout": Mixout,
    "mixout-previous": lambda: Mixout(anchor="previous"),
    "lwf": LwF,
    "ulmfit": Ulmfit,
    "si": SI,
    "mas": lambda: MAS(examples=5),
    "smart": Smart,
}
SEQUENCES = {"shared": ("a", "a", "a"), "returning": ("a", "b", "a")}


@pytest.fixture(params=MADE)
def make(request: pytest.FixtureRequest) -> Make:
    return MADE[request.param]


@pytest.fixture(scope="session")
def plain(folder: Path) -> dict[str, Cell]:
    return {name: Cell(folder, Vanilla(), heads=heads).run() for name, heads in SEQUENCES.items()}


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_differs_from_vanilla_and_repeats(
    folder: Path, plain: dict[str, Cell], make: Make, sequence: str
) -> None:
    first = Cell(folder, make(), heads=SEQUENCES[sequence]).run()
    again = Cell(folder, make(), heads=SEQUENCES[sequence]).run()
    assert differ(first, plain[sequence])
    assert not differ(first, again)
    assert all(torch.isfinite(value).all() for value in weights(first).values())


def test_interrupted_equals_uninterrupted(folder: Path, make: Make) -> None:
    heads = SEQUENCES["returning"]
    whole = Cell(folder, make(), heads=heads)
    whole.stage(0)
    stage = whole.open(1)
    train_stage(stage, whole.method)
    skeleton, tensors = pack(whole.method.state())
    kept = weights(whole)
    whole.method.after_stage(stage)
    whole.stage(2)

    resumed = Cell(folder, make(), heads=heads)
    resumed.model.load_state_dict(kept)
    if state := unpack(skeleton, tensors, CPU):
        resumed.method.load_state(state)
    resumed.method.after_stage(resumed.open(1))
    resumed.stage(2)
    assert not differ(whole, resumed)


def test_lets_go_of_what_belonged_to_a_stage(folder: Path, make: Make) -> None:
    cell = Cell(folder, make()).run()
    fields = cell.method.settings_model().model_fields
    state = {key: value for key, value in vars(cell.method).items() if key not in fields}
    left = {key for key, value in state.items() if value and not isinstance(value, int)}
    assert left <= {"importance", "_pretrained", "_anchor"}
    assert all(parameter.requires_grad for parameter in cell.model.parameters())


def test_regression_after_classes_and_before(folder: Path, make: Make) -> None:
    cell = Cell(folder, make(), heads=("a", "b", "c"))
    values = np.linspace(0.0, 5.0, 12, dtype=np.float32)
    task = cell.tasks[1]
    cell.tasks[1] = replace(task, regression=True, rows=replace(task.rows, labels=values))
    cell.model.heads["b"] = torch.nn.Linear(32, 1)
    before = weights(cell)
    cell.run()
    now = weights(cell)
    assert all(torch.isfinite(value).all() for value in now.values())
    assert not torch.equal(now["heads.b.weight"], before["heads.b.weight"])


def test_frozen_weights_stay(folder: Path, make: Make) -> None:
    cell = Cell(folder, make())
    held = cell.model.backbone.encoder.layer[0]
    held.requires_grad_(False)
    cell.run()
    names = [name for name in cell.start if ".layer.0." in name]
    now = weights(cell)
    assert names
    assert all(torch.equal(now[name], cell.start[name]) for name in names)
    assert cell.moved() > 0

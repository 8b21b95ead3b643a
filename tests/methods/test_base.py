"""The hooks of `Method`, and its registry."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from helpers.cell import Cell, differ, weights
from torch import Tensor

from clbench.core.errors import PluginError
from clbench.methods.base import METHODS, Method, Vanilla, method
from clbench.methods.ewc import EWC
from clbench.training.stage import Stage


class EWCByPenalty(EWC):
    """EWC through autograd: the formula in the hook `penalty`."""

    def edit_gradients(self, stage: Stage) -> None:
        pass

    def penalty(self, stage: Stage) -> Tensor | None:
        if stage.index == 0:
            return None
        now = dict(stage.model.named_parameters())
        names = [name for name in stage.shared_names() if name in self.anchor]
        terms = [(self.fisher[n] * (now[n] - self.anchor[n]).square()).sum() for n in names]
        return self.importance / 2 * torch.stack(terms).sum()


def test_the_penalty_hook_equals_the_pull_on_gradients(folder: Path, vanilla: Cell) -> None:
    by_gradient = Cell(folder, EWC(importance=1e4)).run()
    by_penalty = Cell(folder, EWCByPenalty(importance=1e4)).run()
    for name, value in weights(by_gradient).items():
        torch.testing.assert_close(value, weights(by_penalty)[name], rtol=1e-3, atol=2e-5)
    assert differ(by_gradient, vanilla)


def test_vanilla_repeats_and_snapshots_are_copies(folder: Path, vanilla: Cell) -> None:
    cell = Cell(folder, Vanilla())
    start = copy.deepcopy(cell.start)
    assert not differ(vanilla, cell.run())
    assert vanilla.moved() > 0
    assert all(torch.equal(cell.start[name], start[name]) for name in start)


def test_state_leaves_out_settings_and_private_attributes() -> None:
    ewc = EWC()
    ewc.fisher, ewc._pull = {}, None
    assert ewc.state() == {"fisher": {}}
    other = EWC()
    other.load_state({"fisher": {"w": 1}})
    assert other.fisher == {"w": 1}


def test_only_subclasses_of_method_can_be_registered() -> None:
    with pytest.raises(PluginError, match="not a subclass of clbench"):
        method("wrong")(int)  # type: ignore[type-var]
    with pytest.raises(PluginError, match="'ewc' is registered twice"):
        method("ewc")(type("Other", (Method,), {}))
    assert METHODS.get("ewc") is EWC


@pytest.mark.parametrize("name", ["a b/c", "a--b", "mine.toml/x", ""])
def test_a_name_that_no_command_could_use_is_refused(name: str) -> None:
    with pytest.raises(PluginError, match=r"name of a method|a name consists of"):
        method(name)

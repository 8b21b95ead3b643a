"""What holds for every method, in whole cells through the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.cell import CPU, PROTOCOL, Cell, differ, weights

from clbench.core.errors import SettingsError
from clbench.methods.adversarial import Sam, Smart
from clbench.methods.anchors import Mixout, RecAdam
from clbench.methods.base import METHODS, EarlyStop, Frozen, LowRate, Method, Vanilla
from clbench.methods.by_depth import FreezeBottom, Layerwise, LpFt, Ulmfit
from clbench.methods.class_means import ICaRL, Prototypes
from clbench.methods.distillation import LwF
from clbench.methods.ewc import EWC, REWC, EWCOnline
from clbench.methods.generic_replay import GenericReplay
from clbench.methods.lora import EWCLora, Lora, OLora
from clbench.methods.merging import Dare, Ties, WiseFT
from clbench.methods.on_policy import SelfReplay
from clbench.methods.partial_updates import OSF, Migu, MoFO, PackNet
from clbench.methods.prompts import L2P, ProgressivePrompts
from clbench.methods.quadratic import L2SP
from clbench.methods.random_features import KLDA, RanPAC
from clbench.methods.replay import AGem, DerPlusPlus, Multitask, Replay
from clbench.methods.seq_star import SeqStar
from clbench.methods.synapses import MAS, SI
from clbench.runner.stage_cache import pack, unpack

SHORT = PROTOCOL.model_copy(update={"epochs": 1})
HEADS = ("a", "b", "a")
CASES: dict[str, Callable[[], Method]] = {
    "a-gem": lambda: AGem(memory=8),
    "dare": lambda: Dare(drop=0.5),
    "der++": lambda: DerPlusPlus(memory=8),
    "early-stop": EarlyStop,
    "ewc": lambda: EWC(importance=1e4, examples=5),
    "ewc-lora": lambda: EWCLora(importance=1e4, examples=5, gamma=0.5),
    "ewc-online": lambda: EWCOnline(importance=1e4, examples=5, gamma=0.5),
    "freeze-bottom": FreezeBottom,
    "frozen": Frozen,
    "icarl": lambda: ICaRL(memory=8),
    "klda": lambda: KLDA(features=20, ensemble=2),
    "l2-sp": L2SP,
    "l2-sp-previous": lambda: L2SP(anchor="previous"),
    "l2p": lambda: L2P(pool=4, length=2, select=2),
    "layerwise": lambda: Layerwise(multiples=[0.1, 0.2, 1.0]),
    "layerwise-decay": lambda: Layerwise(decay=0.5),
    "lora": lambda: Lora(adapters="task"),
    "low-rate": LowRate,
    "low-rate-long": lambda: LowRate(lr_multiple=0.5, steps_multiple="inverse"),
    "lp-ft": LpFt,
    "lwf": LwF,
    "mas": lambda: MAS(examples=5),
    "migu": Migu,
    "mixout": Mixout,
    "mixout-previous": lambda: Mixout(anchor="previous"),
    "mofo": MoFO,
    "multitask": Multitask,
    "o-lora": OLora,
    "osf": OSF,
    "osf-half": lambda: OSF(preserve=0.5),
    "packnet": PackNet,
    "prototypes": Prototypes,
    "r-ewc": lambda: REWC(importance=1e4, examples=5, gamma=0.5),
    "progressive-prompts": lambda: ProgressivePrompts(length=2),
    "ranpac": lambda: RanPAC(features=20),
    "recadam": RecAdam,
    "recadam-previous": lambda: RecAdam(anchor="previous", initialisation="random"),
    "replay": lambda: Replay(memory=8, choice="reservoir"),
    "sam": Sam,
    "seq-star": lambda: SeqStar(warmup_epochs=1),
    "si": SI,
    "smart": Smart,
    "ties": Ties,
    "ulmfit": Ulmfit,
    "vanilla": lambda: Vanilla(lr=3e-3),
    "wise-ft": WiseFT,
    "wise-ft-by-depth": lambda: WiseFT(alpha=[0.2, 0.5, 1.0]),
}
WITH_PEFT = {"ewc-lora", "lora", "o-lora"}


@dataclass
class Run:
    """A trained cell, and what an interruption before stage 1 consolidates leaves behind."""

    make: Callable[[], Method]
    cell: Cell
    weights: dict[str, torch.Tensor]
    state: tuple[Any, dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def plain(folder: Path) -> Cell:
    return Cell(folder, Vanilla(), heads=HEADS, protocol=SHORT).run()


@pytest.fixture(scope="module", params=CASES)
def run(request: pytest.FixtureRequest, folder: Path) -> Run:
    make = CASES[request.param]
    if request.param in WITH_PEFT:
        pytest.importorskip("peft")
    cell = Cell(folder, make(), heads=HEADS, protocol=SHORT)
    cell.stage(0)
    stage, _ = cell.train(1)
    interrupted = Run(make, cell, weights(cell), pack(cell.method.state()))
    cell.method.after_stage(stage)
    cell.stage(2)
    return interrupted


def test_every_method_is_among_the_cases() -> None:
    own_files = {"ewc-mlm", "generic-replay"}  # a corpus
    own_files |= {"kl-anchor", "asft", "dft", "eaft", "talr"}  # a language model
    own_files |= {"grpo", "sdft", "self-replay", "self-sft"}
    assert set(METHODS.names()) - own_files <= CASES.keys()


def test_weights_are_finite_and_differ_from_vanilla(run: Run, plain: Cell) -> None:
    assert all(torch.isfinite(value).all() for value in weights(run.cell).values())
    if {*weights(run.cell)} == {*weights(plain)}:  # LoRA adds weights
        assert differ(run.cell, plain)


def test_a_resumed_cell_ends_in_the_same_weights(folder: Path, run: Run) -> None:
    resumed = Cell(folder, run.make(), heads=HEADS, protocol=SHORT)
    resumed.model.load_state_dict(run.weights)
    if state := unpack(*run.state, CPU):
        resumed.method.load_state(state)
    resumed.method.after_stage(resumed.open(1))
    resumed.stage(2)
    assert not differ(run.cell, resumed)


@pytest.mark.parametrize("name", CASES)
def test_a_head_grows(folder: Path, name: str) -> None:
    if name in WITH_PEFT:
        pytest.importorskip("peft")
    cell = Cell(folder, CASES[name](), shown=(2, 4), protocol=SHORT)
    for index, (width, data) in enumerate(zip((2, 4), cell.tasks, strict=True)):
        before = weights(cell)
        stage, _ = cell.train(index)
        saved = weights(cell), pack(cell.method.state())
        cell.method.after_stage(stage)
        assert cell.context.outputs(data).shape == (12, width)
        moved = [key for key, value in weights(cell).items() if not torch.equal(value, before[key])]
        assert any(key.startswith("heads.a") for key in moved)
    assert all(torch.isfinite(value).all() for value in weights(cell).values())
    resumed = Cell(folder, CASES[name](), shown=(2, 4), protocol=SHORT)
    resumed.model.load_state_dict(saved[0])
    if state := unpack(*saved[1], CPU):
        resumed.method.load_state(state)
    resumed.method.after_stage(resumed.open(1))
    assert not differ(cell, resumed)


@pytest.mark.parametrize("name", CASES)
def test_the_first_step_may_have_one_class(folder: Path, name: str) -> None:
    if name in WITH_PEFT:
        pytest.importorskip("peft")
    cell = Cell(folder, CASES[name](), shown=(1, 2, 4), protocol=SHORT).run()
    assert all(torch.isfinite(value).all() for value in weights(cell).values())
    has_note = any("has one class" in note for note in cell.context.notes)
    assert has_note == (name in ("ewc", "ewc-online", "r-ewc", "si"))


@pytest.mark.parametrize("name", ["ewc", "ewc-online", "r-ewc", "si"])
def test_every_step_may_have_one_class(folder: Path, name: str) -> None:
    protocol = SHORT.model_copy(update={"head_loss": "stage"})
    cell = Cell(folder, CASES[name](), shown=(1, 2, 3), protocol=protocol).run()
    stages = [note.split()[2] for note in cell.context.notes if "has one class" in note]
    assert stages == (["0", "1", "2"] if name == "si" else ["0", "1"])  # the last is not held


REGULARISERS = (
    *("der++", "ewc", "l2-sp", "lp-ft", "lwf", "mas", "migu", "mixout", "mofo", "r-ewc", "sam"),
    *("si", "smart", "ulmfit"),
)


@pytest.mark.parametrize("name", REGULARISERS)
def test_a_regression_task_between_two_of_classes_is_learned(folder: Path, name: str) -> None:
    cell = Cell(folder, CASES[name](), heads=("a", "b", "c"), protocol=SHORT)
    cell.regress(1)
    before = weights(cell)
    cell.run()
    now = weights(cell)
    assert all(torch.isfinite(value).all() for value in now.values())
    assert not torch.equal(now["heads.b.weight"], before["heads.b.weight"])
    assert all(parameter.requires_grad for parameter in cell.model.parameters())


@pytest.mark.parametrize("name", [*REGULARISERS, "dare", "ties", "wise-ft"])
def test_frozen_weights_stay(folder: Path, name: str) -> None:
    cell = Cell(folder, CASES[name](), protocol=SHORT)
    cell.model.backbone.encoder.layer[0].requires_grad_(False)
    cell.run()
    now = weights(cell)
    frozen = [name for name in cell.start if ".layer.0." in name]
    assert all(torch.equal(now[name], cell.start[name]) for name in frozen)
    assert cell.moved() > 0


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (Vanilla, {"lr_multiple": 0.0}, "lr_multiple"),
        (Dare, {"drop": 1.0}, "drop"),
        (Dare, {"combine": "max"}, "combine"),
        (EarlyStop, {"share": 0.0}, "share"),
        (EarlyStop, {"share": 1.1}, "share"),
        (FreezeBottom, {"layers": 1.5}, "layers"),
        (FreezeBottom, {"layers": -1}, "layers"),
        (GenericReplay, {"share": 0.0}, "share"),
        (GenericReplay, {"share": 1.0}, "share"),
        (GenericReplay, {"weight": 0.0}, "weight"),
        (ICaRL, {"memory": 0}, "memory"),
        (L2P, {"pool": 4, "select": 5}, "select 5 is more than the 4 prompts of the pool"),
        (Layerwise, {}, "needs either rates .* or multiples"),
        (Layerwise, {"rates": [1e-5] * 3, "multiples": [1.0] * 3}, "either rates .* or multiples"),
        (Layerwise, {"rates": [1e-5, 1e-5]}, "rates"),
        (Layerwise, {"rates": [1e-5, 0.0, 1e-5]}, "rates"),
        (Layerwise, {"multiples": [1.0, -1.0, 1.0]}, "multiples"),
        (Layerwise, {"multiples": [1.0] * 3, "depth": 0}, "depth"),
        (Layerwise, {"multiples": [1.0] * 3, "division": "text"}, "division"),
        (Layerwise, {"multiples": [1.0] * 3, "decay": 0.5}, "either rates .* or a decay"),
        (SelfReplay, {"text_length": 10**12}, "text_length"),
        (Layerwise, {"decay": 1.5}, "decay"),
        (Layerwise, {"decay": 0.5, "depth": 12}, "depth has no effect on a decay"),
        (LowRate, {"steps_multiple": "double"}, "steps_multiple"),
        (LpFt, {"probe": 0.0}, "probe"),
        (LpFt, {"probe": 1.0}, "probe"),
        (LpFt, {"probe_lr": 0.0}, "probe_lr"),
        (Migu, {"share": 0.0}, "share"),
        (MoFO, {"fraction": 0.0}, "fraction"),
        (Prototypes, {"lr_multiple": 2.0}, "no effect on prototypes"),
        (Prototypes, {"shrinkage": 0.0}, "shrinkage"),
        (Prototypes, {"shrinkage": 1.5}, "shrinkage"),
        (Prototypes, {"shrinkage": "ledoit-wolf"}, "shrinkage"),
        (REWC, {"gamma": 2.0}, "gamma"),
        (REWC, {"sides": "left"}, "sides"),
        (Sam, {"rho": 0.0}, "rho"),
        (SeqStar, {"classifier": "euclidean"}, "classifier"),
        (SeqStar, {"head_lr": 0.0}, "head_lr"),
        (SeqStar, {"warmup_epochs": -1}, "warmup_epochs"),
        (Ties, {"keep": 0.0}, "keep"),
        (Ties, {"scale": 0.0}, "scale"),
        (WiseFT, {"alpha": -0.1}, "alpha"),
        (WiseFT, {"alpha": 1.1}, "alpha"),
        (WiseFT, {"alpha": [0.5, 0.5]}, "alpha"),
        (WiseFT, {"alpha": [0.5, 1.5, 0.5]}, "alpha"),
    ],
)
def test_wrong_settings_are_refused(method: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        method(**settings)

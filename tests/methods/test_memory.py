"""The memory, replay and DER++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cell import Cell, differ, weights

from clbench.errors import SettingsError
from clbench.evaluation.stage_cache import pack, unpack
from clbench.methods.a_gem import AGem
from clbench.methods.base import Method
from clbench.methods.der_plus_plus import DerPlusPlus
from clbench.methods.rehearsal import Rehearsal
from clbench.methods.replay import Replay
from clbench.training.stage import Stage

KINDS = [Replay, DerPlusPlus, AGem]
THREE = ("a", "b", "a")


def sizes(method: Rehearsal) -> dict[int, int]:
    return {task: len(entry["positions"]) for task, entry in method.kept.items()}


def filled(folder: Path, method: Rehearsal) -> Cell:
    """A cell whose stages were not trained, but are over."""
    cell = Cell(folder, method, heads=THREE)
    for index in range(3):
        method.after_stage(cell.open(index))
    return cell


def test_equal_parts(folder: Path) -> None:
    method = Rehearsal(memory=8)
    cell = Cell(folder, method, heads=THREE)
    seen = []
    for index in range(3):
        method.after_stage(cell.open(index))
        seen.append(sizes(method))
    assert seen == [{0: 8}, {0: 4, 1: 4}, {0: 3, 1: 3, 2: 2}]
    assert all(len(set(e["positions"])) == len(e["positions"]) for e in method.kept.values())


def test_the_reservoir_holds_the_smallest_keys_of_all(folder: Path) -> None:
    method = Rehearsal(memory=8, choice="reservoir")
    cell = filled(folder, method)
    keys = {
        (task, row): float(key)
        for task in range(3)
        for row, key in enumerate(
            torch.rand(12, generator=cell.open(task).rng("memory"), dtype=torch.float64)
        )
    }
    best = set(sorted(keys, key=lambda place: keys[place])[:8])
    kept = {(task, int(row)) for task, e in method.kept.items() for row in e["positions"]}
    assert kept == best


def test_a_reservoir_is_uniform(folder: Path) -> None:
    """Every row of every task is kept equally often: 8 of 36."""
    counts = np.zeros((3, 12))
    runs = 300
    for seed in range(runs):
        method = Rehearsal(memory=8, choice="reservoir")
        cell = Cell.__new__(Cell)
        cell.method = method
        method.setup(None)  # type: ignore[arg-type]
        for task in range(3):
            keys = torch.rand(12, generator=torch.Generator().manual_seed(97 * seed + task))
            order = np.argsort(keys.numpy())[:8]
            method.kept[task] = {"positions": order, "keys": keys.numpy()[order]}
            for t, count in method.quotas().items():
                method.kept[t] = {k: v[:count] for k, v in method.kept[t].items()}
        for task, entry in method.kept.items():
            counts[task, entry["positions"]] += 1
    share = counts / runs
    assert share.sum() == pytest.approx(8)
    assert np.abs(share.sum(1) - 8 / 3).max() < 0.25  # three standard errors
    assert np.abs(share - 8 / 36).max() < 0.1


def test_draws_are_kept_rows_without_repetition(folder: Path) -> None:
    method = Replay(memory=9, recall=5)
    cell = filled(folder, method)
    stage = cell.open(2)
    stage.reads_earlier_rows = True
    method.kept.pop(2)
    for _ in range(20):
        parts = method.draw(stage, "x")
        places = [(p.batch.task, int(at)) for p in parts for at in p.places]
        assert len(set(places)) == len(places) == 5
        assert sum(p.share for p in parts) == pytest.approx(1.0)
        for part in parts:
            kept = method.kept[part.batch.task]["positions"]
            assert list(part.batch.positions) == [kept[at] for at in part.places]


def test_replay_loss_by_hand(folder: Path) -> None:
    """batch loss + weight · mean over all drawn rows, whatever their tasks."""
    method = Replay(memory=6, recall=6, weight=0.5)
    cell = filled(folder, method)
    stage = cell.open(2)
    stage.model.eval()
    method.kept.pop(2)
    batch = next(iter(stage.batches("b")))
    with torch.no_grad():
        got = method.loss(stage, batch)
        every = []
        for task, entry in method.kept.items():
            data = cell.tasks[task]
            for row in entry["positions"]:
                one = data.batch(np.array([row]), stage.device)
                logits = stage.logits(one).double().numpy()[0]
                every.append(np.log(np.exp(logits).sum()) - logits[int(one.labels[0])])
        expected = float(stage.loss(batch)) + 0.5 * float(np.mean(every))
    assert float(got) == pytest.approx(expected, rel=1e-5)


def test_der_plus_plus_by_hand(folder: Path) -> None:
    method = DerPlusPlus(memory=12, recall=12, alpha=0.3, beta=0.7)
    cell = Cell(folder, method)
    cell.stage(0)
    stage = cell.open(1)
    stage.model.eval()
    with torch.no_grad():
        stage.model.head("t0").weight.mul_(1.5)
        batch = next(iter(stage.batches("b")))
        got = method.loss(stage, batch)
        kept = method.kept[0]
        old = cell.tasks[0].batch(kept["positions"], stage.device)
        now = stage.logits(old).double().numpy()
        then = kept["outputs"].double().numpy()
        labels = old.labels.numpy()
        ce = np.mean(np.log(np.exp(now).sum(1)) - now[np.arange(12), labels])
        expected = float(stage.loss(batch)) + 0.3 * np.mean((now - then) ** 2) + 0.7 * ce
    assert np.abs(now - then).max() > 1e-3
    assert float(got) == pytest.approx(float(expected), rel=1e-5)


def test_stored_outputs_are_those_without_dropout_at_the_end_of_the_stage(folder: Path) -> None:
    method = DerPlusPlus(memory=5)
    cell = Cell(folder, method)
    stage, _ = cell.stage(0)
    rows = cell.tasks[0].batch(method.kept[0]["positions"], stage.device)
    stage.model.eval()
    with torch.no_grad():
        expected = stage.logits(rows)
    torch.testing.assert_close(method.kept[0]["outputs"], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_through_the_engine(folder: Path, vanilla: Cell, kind: type[Method]) -> None:
    first = Cell(folder, kind(memory=8)).run()
    assert not differ(first, Cell(folder, kind(memory=8)).run())
    assert differ(first, vanilla)
    assert kind.keeps_rows
    assert not kind(memory=8).acts_in(0)


@pytest.mark.parametrize("kind", [Replay, DerPlusPlus])
def test_old_heads_follow_the_backbone(folder: Path, kind: type[Method]) -> None:
    cell = Cell(folder, kind(memory=8))
    cell.stage(0)
    before = weights(cell)["heads.t0.weight"]
    cell.stage(1)
    assert not torch.equal(before, weights(cell)["heads.t0.weight"])


def test_gradients_of_one_stage_do_not_reach_the_next(folder: Path) -> None:
    """A head that only kept rows passed through begins its next stage without a gradient."""

    class Watched(AGem):
        """Leaves a gradient on a head that no optimizer holds."""

        def edit_gradients(self, stage: Stage) -> None:
            super().edit_gradients(stage)
            if stage.index == 1:
                stage.model.head("a").weight.grad = torch.ones(2, 32)

        def before_phase(self, stage: Stage) -> None:
            assert stage.model.head("a").weight.grad is None

    Cell(folder, Watched(memory=8), heads=THREE).run()


@pytest.mark.parametrize("kind", KINDS)
def test_state_in_the_middle(folder: Path, kind: Any) -> None:
    """A fresh method with the state of before `after_stage` goes on as the old one."""
    whole = Cell(folder, kind(memory=8), heads=THREE)
    whole.stage(0)
    stage: Stage = whole.open(1)
    from clbench.training.engine import train_stage

    train_stage(stage, whole.method)
    skeleton, tensors = pack(whole.method.state())
    kept = {k: v.clone() for k, v in whole.model.state_dict().items()}
    whole.method.after_stage(stage)
    whole.stage(2)
    again = Cell(folder, kind(memory=8), heads=THREE)
    again.model.load_state_dict(kept)
    again.method.load_state(unpack(skeleton, tensors, torch.device("cpu")))
    again.method.after_stage(again.open(1))
    again.stage(2)
    assert not differ(whole, again)


@pytest.mark.parametrize(
    "settings", [{"memory": 0}, {"choice": "all"}, {"recall": 0}, {"weight": 0.0}, {"weihgt": 1.0}]
)
def test_wrong_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="replay"):
        Replay(**settings)

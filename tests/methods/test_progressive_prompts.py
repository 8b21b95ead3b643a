"""Progressive prompts: where they stand, which are trained, and what is forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import PROTOCOL, Cell, changed, weights
from helpers.checkpoints import make_checkpoint

from clbench.core.errors import SettingsError
from clbench.methods.base import Vanilla
from clbench.methods.prompts import ProgressivePrompts
from clbench.tasks.task import Rows, Task
from clbench.training.protocol import Protocol

THREE = ("a", "b", "a")


def prompt_of(cell: Cell) -> torch.Tensor:
    return cell.model.prompts[0].detach().clone()


@pytest.mark.parametrize(("kind", "at"), [("bert", 1), ("gpt2", 0)])
def test_prompts_stand_after_the_first_token_or_before_the_row(
    kind: str, at: int, tmp_path: Path
) -> None:
    """Prompts that are the embeddings of words give the outputs of rows with these words."""
    checkpoint = make_checkpoint(kind, tmp_path)
    cell, plain = (
        Cell(checkpoint, method, heads=THREE)
        for method in (ProgressivePrompts(length=2), Vanilla())
    )
    words = [[9, 4], [7, 8], [6, 5]]
    with torch.no_grad():
        cell.method.kept = dict(enumerate(cell.model.embed(torch.tensor(words))))
    stage = plain.open(1)
    batch = stage.data.batch(np.arange(12), stage.device)
    ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    added = torch.tensor([7, 8, 9, 4]).expand(12, 4)  # the latest prompt first
    longer = {
        "input_ids": torch.cat([ids[:, :at], added, ids[:, at:]], 1),
        "attention_mask": torch.cat([torch.ones(12, 4, dtype=mask.dtype), mask], 1),
    }
    cell.model.eval()
    plain.model.eval()
    with torch.no_grad(), cell.method.scoring(1):
        expected = plain.model(longer, "b")
        torch.testing.assert_close(cell.model(batch.inputs, "b"), expected)
    with torch.no_grad(), cell.method.scoring(0):
        assert not torch.allclose(cell.model(batch.inputs, "b"), expected, atol=1e-3)


def test_only_the_tasks_prompt_and_head_are_trained(folder: Path) -> None:
    cell = Cell(folder, ProgressivePrompts(length=3), heads=THREE)
    cell.stage(0)
    before = weights(cell)
    cell.stage(1)
    moved = changed(before, cell)
    assert moved == {"prompts.0", "heads.b.weight", "heads.b.bias"}


def test_a_prompt_starts_as_words_of_its_rows(folder: Path) -> None:
    cell = Cell(folder, ProgressivePrompts(length=3), heads=THREE)
    cell.begin(1)
    words = cell.model.embed(torch.from_numpy(np.unique(cell.tasks[1].rows.ids)).long())
    first = prompt_of(cell)
    for vector in first:
        assert (vector == words).all(1).any()
    again = Cell(folder, ProgressivePrompts(length=3), heads=THREE)
    again.begin(1)
    assert torch.equal(prompt_of(again), first)


def test_a_task_with_its_own_head_forgets_nothing(folder: Path) -> None:
    cell = Cell(folder, ProgressivePrompts(), heads=("a", "b", "c"))
    cell.stage(0)
    before = cell.scored(0)
    cell.stage(1)
    middle = cell.scored(1)
    cell.stage(2)
    assert torch.equal(cell.scored(0), before)
    assert torch.equal(cell.scored(1), middle)


def test_a_reference_reads_no_untrained_prompts(folder: Path) -> None:
    cell = Cell(folder, ProgressivePrompts(length=3), heads=THREE)
    cell.stage(2)
    inputs = cell.tasks[2].batch(np.arange(2), cell.context.device).inputs
    with cell.method.scoring(2):
        prompts = cell.method.prompts(cell.model, inputs)
    assert torch.equal(prompts[1].detach(), prompt_of(cell))


def test_multiple_choice_gets_the_prompts_in_every_choice(folder: Path) -> None:
    cell = Cell(folder, ProgressivePrompts(length=2))
    cell.model.heads["t0"] = torch.nn.Linear(32, 1)
    inputs = cell.tasks[0].batch(np.arange(6), cell.context.device).inputs
    single = cell.model.eval()(inputs, "t0").flatten()
    pairs = {name: value.view(3, 2, -1) for name, value in inputs.items()}
    torch.testing.assert_close(cell.model(pairs, "t0").flatten(), single)


def test_rows_give_way_to_prompts_and_the_result_says_so(folder: Path) -> None:
    """Of 40 positions, 32 are left: rows of 36 tokens lose four."""
    cell = Cell(folder, ProgressivePrompts(length=4))
    cell.method.kept, cell.method._task = {0: prompt_of(cell)}, 1
    ids = torch.randint(5, 20, (2, 36), generator=torch.Generator().manual_seed(0))
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    cell.model.eval()
    whole = cell.model(inputs, "t1")
    assert cell.context.notes == [
        "method 'progressive-prompts': rows were truncated to 32 tokens, since the prompts take 8 "
        "of the model's 40 positions."
    ]
    inputs["input_ids"] = torch.cat([ids[:, :32], torch.full((2, 4), 7)], 1)
    torch.testing.assert_close(cell.model(inputs, "t1"), whole)
    with pytest.raises(SettingsError, match=r"has 40 positions, of which prompts of 34 vectors"):
        check(folder, length=17, tasks=2)
    check(folder, length=16, tasks=2)
    with pytest.raises(SettingsError, match=r"prompts of 48 vectors for 3 tasks"):
        check(folder, length=16, tasks=3)


def check(folder: Path, *, length: int, tasks: int) -> None:
    method = ProgressivePrompts(length=length)
    method.check_protocol(Protocol(model=str(folder)))
    rows = Rows.of(["a", "b"], None, [0, 1])
    method.check_tasks([Task("t", ("n", "p"), ("accuracy",), rows, rows, head="t")] * tasks)


def test_regression_is_learned(folder: Path) -> None:
    protocol = PROTOCOL.model_copy(update={"epochs": 8, "lr": 1e-2})
    cell = Cell(folder, ProgressivePrompts(), protocol=protocol, heads=("a",))
    target = cell.regress(0)
    before = cell.scored(0)
    cell.run()
    errors = [(found.squeeze(-1) - target).square().mean() for found in (before, cell.scored(0))]
    assert errors[1] < 0.5 * errors[0]

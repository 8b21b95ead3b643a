"""MIGU against magnitudes worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cell import Cell, weights
from helpers.checkpoints import make_checkpoint, save_generator
from methods.test_answering_methods import Cell as Answering
from methods.test_answering_methods import task_data

from clbench.methods.base import Vanilla
from clbench.methods.partial_updates import Migu, magnitudes
from clbench.methods.selection import linear_layers
from clbench.training.device import Precision

DENSE = "encoder.layer.1.output.dense"


def test_outputs_are_normalised_by_token_and_averaged_without_padding() -> None:
    outputs = torch.tensor([[[1.0, -3.0], [2.0, 2.0]], [[-4.0, 0.0], [0.0, 9.0]]])
    mask = torch.tensor([[1, 1], [1, 0]])
    # Shares of the three real tokens: (1/4, 3/4), (1/2, 1/2) and (1, 0).
    expected = torch.tensor([1.75 / 3, 1.25 / 3])
    torch.testing.assert_close(magnitudes(outputs, mask), expected)
    # Three vectors that are not by token all count; one of zeros has no share.
    others = torch.tensor([[1.0, 1.0], [0.0, 0.0], [3.0, -1.0]])
    torch.testing.assert_close(magnitudes(others, mask), torch.tensor([1.25 / 3, 0.75 / 3]))


def gradients(
    folder: Path, share: float, precision: str = "float32", parts: int = 1
) -> tuple[Any, Any]:
    """Return a stage after the backward passes and `edit_gradients`, and its batch."""
    cell = Cell(folder, Migu(share=share))
    cell.context.precision = Precision("bf16" if precision == "bf16" else "float32", "cpu")
    stage = cell.begin(1)
    batch = stage.data.batch(np.arange(6), stage.device)
    cell.model.eval()
    for stage.part, (part, weight) in enumerate(batch.parts(parts)):
        (cell.method.loss(stage, part) * weight).backward()
    cell.method.edit_gradients(stage)
    return stage, batch


@pytest.mark.parametrize("parts", [1, 2, 6])
def test_only_the_units_with_the_largest_outputs_have_gradients(folder: Path, parts: int) -> None:
    stage, batch = gradients(folder, 0.25, parts=parts)
    seen = {}
    layer = stage.model.backbone.get_submodule(DENSE)
    handle = layer.register_forward_hook(lambda module, inputs, output: seen.update(h=output))
    with torch.no_grad():
        stage.logits(batch)
    handle.remove()
    sizes = np.abs(seen["h"].double().numpy())[batch.inputs["attention_mask"].bool().numpy()]
    expected = np.argsort(-(sizes / sizes.sum(1, keepdims=True)).mean(0))[:8]  # 8 of 32 units
    rows = layer.weight.grad.abs().sum(1).nonzero().flatten()
    assert set(rows.tolist()) == set(expected.tolist())
    assert set(layer.bias.grad.nonzero().flatten().tolist()) == set(expected.tolist())


def test_parts_of_a_batch_count_by_their_tokens(folder: Path) -> None:
    cell = Cell(folder, Migu())
    stage = cell.begin(1)
    cell.model.eval()
    batch = stage.data.batch(np.arange(6), stage.device)
    cell.method.loss(stage, batch)
    whole = cell.method._sizes[DENSE]
    parts = [part for part, _ in batch.parts(2)]
    assert len({int(part.inputs["attention_mask"].sum()) for part in parts}) == 2
    for stage.part, part in enumerate(parts):
        cell.method.loss(stage, part)
    torch.testing.assert_close(cell.method._sizes[DENSE], whole, rtol=1e-5, atol=0.0)


def test_other_weights_keep_their_gradients(folder: Path) -> None:
    stage, batch = gradients(folder, 0.25)
    masked = {
        name: p.grad.clone() for name, p in stage.model.named_parameters() if p.grad is not None
    }
    stage.model.zero_grad()
    stage.loss(batch).backward()
    dense = {f"backbone.{layer}" for layer in linear_layers(stage.model.backbone)}
    for name, parameter in stage.model.named_parameters():
        if parameter.grad is None:
            continue
        if name.rpartition(".")[0] not in dense:
            torch.testing.assert_close(masked[name], parameter.grad, rtol=1e-4, atol=1e-6)
        else:
            zero = (masked[name].view(len(masked[name]), -1) == 0).all(1)
            assert 0.7 < float(zero.float().mean()) < 0.8
            torch.testing.assert_close(
                masked[name][~zero], parameter.grad[~zero], rtol=1e-4, atol=1e-6
            )


def test_the_units_of_gpt2_are_columns(tmp_path: Path) -> None:
    stage, _ = gradients(make_checkpoint("gpt2", tmp_path), 0.25)
    layer = stage.model.backbone.get_submodule("h.1.mlp.c_fc")
    assert layer.weight.shape == (32, 128)
    assert int(layer.weight.grad.abs().sum(0).count_nonzero()) == 32
    assert int(layer.bias.grad.count_nonzero()) == 32


def test_no_hook_outlives_a_step_and_bf16_works(folder: Path) -> None:
    stage, _ = gradients(folder, 0.1, precision="bf16")
    layer = stage.model.backbone.get_submodule(DENSE)
    assert not layer._forward_hooks
    assert int(layer.bias.grad.count_nonzero()) == 3


def test_the_first_task_and_a_share_of_1_are_vanilla() -> None:
    assert [Migu().acts_in(index) for index in range(3)] == [False, True, True]
    assert not Migu(share=1.0).acts_in(1)


def test_the_backbone_moves_less(folder: Path) -> None:
    distances = []
    for method in (Migu(share=0.1), Vanilla()):
        cell = Cell(folder, method)
        before = weights(cell)
        cell.stage(1)
        after = weights(cell)
        names = [n for n in before if ".layer." in n and n.endswith("dense.weight")]
        distances.append(sum(float((after[n] - before[n]).square().sum()) for n in names))
    assert distances[0] < 0.5 * distances[1]


@pytest.mark.parametrize("name", ["gpt2", "llama-untied"])
def test_a_head_that_is_the_embedding_table_is_trained_whole(tmp_path: Path, name: str) -> None:
    cell = Answering(save_generator(name, tmp_path), Migu(share=0.1))
    stage, model = cell.stage(1), cell.context.model.backbone.eval()
    batch = stage.data.batch(np.arange(4), stage.device)
    cell.method.loss(stage, batch).backward()
    head = model.get_output_embeddings().weight
    whole = head.grad.clone()
    cell.method.edit_gradients(stage)
    tied = head is model.get_input_embeddings().weight
    assert tied == (name == "gpt2")
    assert torch.equal(head.grad, whole) == tied


@pytest.mark.parametrize("name", ["llama-untied", "t5"])
def test_padding_of_answers_does_not_count(tmp_path: Path, name: str) -> None:
    cell = Answering(save_generator(name, tmp_path), Migu())
    cell.tasks = [task_data(number, encoder_decoder=name == "t5") for number in range(2)]
    stage, method = cell.stage(1), cell.method
    cell.context.model.eval()
    batch = stage.data.batch(np.arange(8), stage.device)
    assert (batch.labels == -100).any()
    assert batch.labels.shape != batch.inputs["attention_mask"].shape
    method.loss(stage, batch)
    together = method._sizes
    for stage.part in range(8):  # each row without padding
        method.loss(stage, stage.data.batch(np.array([stage.part]), stage.device))
    assert together.keys() == method._sizes.keys()
    for layer, sizes in together.items():
        torch.testing.assert_close(sizes, method._sizes[layer], rtol=1e-4, atol=1e-5)

from __future__ import annotations

import copy
import io
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import make_checkpoint
from recadam_steps import anchors, make, parameters, set_gradients, train
from torch import Tensor, nn

from clbench.optim import RecAdam


def test_a_saved_state_goes_on_bit_for_bit() -> None:
    whole = parameters(torch.float32)
    expected = train(make(whole, anchor=anchors(torch.float32)), whole, 16)
    params = parameters(torch.float32)
    optimizer = make(params, anchor=anchors(torch.float32))
    train(optimizer, params, 7)
    file = io.BytesIO()
    torch.save({"model": params, "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    again = make(saved["model"])  # anchored at the weights of step 7 until the state is loaded
    again.load_state_dict(saved["optimizer"])
    found = train(again, saved["model"], 9, first=7)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def test_copies_and_plain_states() -> None:
    params = parameters(torch.float32)
    optimizer = make(params)
    train(optimizer, params, 2)
    assert copy.deepcopy(optimizer).param_groups[0]["t"] == 2
    theirs = parameters(torch.float32)
    adam = torch.optim.Adam(theirs, lr=1e-4, fused=True)
    train(adam, theirs, 2)
    optimizer.load_state_dict(adam.state_dict())
    assert optimizer.param_groups[0]["lr"] == 1e-4
    assert optimizer.param_groups[0]["gamma"] == 100.0
    assert all("anchor" in optimizer.state[p] for p in params)
    train(optimizer, params, 1)


def test_a_closure_is_called_with_gradients() -> None:
    params = parameters()
    optimizer = make(params)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.stack([p.square().sum() for p in params]).sum()
        loss.backward()
        return loss

    first, second = (optimizer.step(closure).item() for _ in range(2))
    assert second != first


def test_weights_without_a_gradient_stay() -> None:
    params = parameters()
    params[2].requires_grad_(False)
    optimizer = make(params, anchor=anchors())
    params[0].grad = torch.ones_like(params[0])
    optimizer.step()
    start = parameters()
    assert not torch.equal(params[0], start[0])
    assert torch.equal(params[1], start[1])
    assert torch.equal(params[2], start[2])
    make(parameters()).step()  # no gradient at all


def test_the_anchor_is_never_the_parameter_itself() -> None:
    params = parameters()
    optimizer = make(params, anchor=params)
    before = optimizer.state[params[0]]["anchor"].clone()
    train(optimizer, params, 2)
    assert torch.equal(optimizer.state[params[0]]["anchor"], before)


def test_other_types_of_numbers() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        params = parameters(dtype)
        found = train(make(params, anchor=anchors(dtype), lr=1e-2, gamma=50.0), params, 3)
        assert all(torch.isfinite(value).all() for value in found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"lr": 4e-4, "gamma": 5000.0},
            r"lr·gamma = 0\.0004·5000 = 2\. .* below 2500 or lr",
        ),
        ({"lr": 2e-4, "gamma": 5000.0}, r"= 1\. From 1 on the pull overshoots"),
        ({"lr": -1.0}, "lr must be a number, 0 or more, not -1.0"),
        ({"lr": torch.tensor(0.1)}, "lr must be a number"),
        ({"eps": float("nan")}, "eps must be"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers"),
        ({"k": -1.0}, "k must be 0 or more, or infinity"),
        ({"t0": math.inf}, "t0 must be"),
        ({"annealing": "cosine"}, "one of sigmoid, linear, constant, not 'cosine'"),
        ({"anchor": anchors()[:2]}, "anchor has 2 tensors for 3 parameters that recall"),
        ({"anchor": anchors()[::-1]}, r"anchor 0 has shape \(2, 2, 2\), its parameter \(7, 3\)"),
        ({"anchor": anchors(torch.float32)}, "anchor 0 has type torch.float32"),
        ({"anchor": ["a", "b", "c"]}, "anchor 0 is a str, not a tensor"),
        ({"anchor": [a.to("meta") for a in anchors()]}, "anchor 0 has device meta"),
        ({"anchor": "pretrained"}, "anchor must be a list of tensors, not str"),
        ({"anchor": [a / 0 for a in anchors()]}, "anchor 0 has numbers that are not finite"),
        ({"anchor": 5}, "anchor must be a list of tensors, not int"),
        ({"anchor": torch.zeros(3)}, "anchor must be a list of tensors, not Tensor"),
        ({"betas": 0.9}, r"betas must be two numbers from 0 to below 1, not 0\.9"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(parameters(), **options)


def test_anchors_are_given_once() -> None:
    params = parameters()
    groups = [{"params": params[:1], "anchor": anchors()[:1]}, {"params": params[1:]}]
    with pytest.raises(ValueError, match="a group has an anchor of its own, and anchor is given"):
        RecAdam(groups, lr=1e-4, anchor=anchors())


def test_a_model_that_becomes_another_type_before_its_first_step() -> None:
    model = nn.Linear(3, 2)
    optimizer = make(list(model.parameters()), k=0.0)
    model.double()
    start = model.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    # Half of an Adam step of lr = 1e-3, of which the pull (1e-3/2 · 100 = .05) takes some back.
    torch.testing.assert_close(
        start - model.weight.detach(), torch.full_like(start, 5e-4 * 0.95), rtol=1e-5, atol=0.0
    )


def test_a_refused_step_moves_nothing() -> None:
    """The first group would be in order; the second is refused."""
    params = parameters()
    optimizer = RecAdam([{"params": params[:1]}, {"params": params[1:]}], lr=1e-4)
    set_gradients(params, 0)
    before = [p.detach().clone() for p in params]
    optimizer.param_groups[1]["lr"] = 0.02
    with pytest.raises(ValueError, match="at step 1 the pull"):
        optimizer.step()
    assert all(torch.equal(p, value) for p, value in zip(params, before, strict=True))
    assert [group["t"] for group in optimizer.param_groups] == [0, 0]


def test_a_raised_rate_is_refused_at_the_step() -> None:
    params = parameters()
    optimizer = make(params, t0=100)
    optimizer.param_groups[0]["lr"] = 0.02
    with pytest.raises(ValueError, match=r"at step 1 the pull .* = 2 would overshoot"):
        train(optimizer, params, 1)


def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = RecAdam(table.parameters(), lr=1e-3, gamma=10.0)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse=False"):
        optimizer.step()


def test_it_works_in_a_trainer(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

    torch.manual_seed(0)
    folder = make_checkpoint("bert", tmp_path / "model")
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    start = [p.detach().clone() for p in model.bert.parameters()]
    rows = [{"input_ids": [2, i % 20, 3], "labels": i % 2} for i in range(16)]
    optimizer = RecAdam(
        [
            {"params": model.bert.parameters()},
            {"params": model.classifier.parameters(), "recall": False},
        ],
        lr=1e-3,
        gamma=100.0,
        t0=2,
    )

    def trainer(resumed: Any = None) -> Trainer:
        made = Trainer(
            model,
            TrainingArguments(
                str(tmp_path),
                per_device_train_batch_size=4,
                max_steps=6,
                save_steps=3,
                use_cpu=True,
                report_to=[],
                disable_tqdm=True,
                learning_rate=1e-3,
            ),
            train_dataset=rows,  # type: ignore[arg-type]
            optimizers=(optimizer, None),
        )
        made.train(resume_from_checkpoint=resumed)
        return made

    trainer()
    assert optimizer.param_groups[0]["t"] == 6
    assert optimizer.param_groups[0]["lr"] == 0.0  # the Trainer's schedule has run out
    moved = zip(model.bert.parameters(), start, strict=True)
    assert any(not torch.equal(p, s) for p, s in moved)
    finished = [p.detach().clone() for p in model.parameters()]
    trainer(str(tmp_path / "checkpoint-3"))
    assert all(torch.equal(p, f) for p, f in zip(model.parameters(), finished, strict=True))

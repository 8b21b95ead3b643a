from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from recadam_steps import anchors, parameters, set_gradients, train, transcription
from torch import nn

from clbench.optim import RecAdam, anneal


@pytest.mark.parametrize(
    ("annealing", "lam"),
    [
        ("sigmoid", lambda t: 1 / (1 + np.exp(-0.2 * (t - 25)))),
        ("linear", lambda t: min(1, t / 25)),
        ("constant", lambda t: 0.5),
    ],
)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_fifty_steps_are_the_published_ones(annealing: Any, lam: Any, decay: float) -> None:
    params = parameters()
    optimizer = RecAdam(
        params,
        lr=1e-3,
        k=0.2,
        t0=25,
        gamma=300.0,
        weight_decay=decay,
        anchor=anchors(),
        annealing=annealing,
    )
    found = train(optimizer, params, 50)
    expected = transcription(50, lam, lr=1e-3, gamma=300.0, decay=decay)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-6)


def test_betas_and_eps_are_used() -> None:
    params = parameters()
    optimizer = RecAdam(params, 1e-3, (0.8, 0.95), 1e-3, k=0.0, gamma=10.0, anchor=anchors())
    expected = transcription(
        20, lambda t: 0.5, lr=1e-3, gamma=10.0, eps=1e-3, beta1=0.8, beta2=0.95
    )
    for mine, theirs in zip(train(optimizer, params, 20), expected, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-6)


def test_a_schedule_scales_both_terms() -> None:
    params = parameters()
    optimizer = RecAdam(params, lr=1e-3, k=0.2, t0=5, gamma=300.0, anchor=anchors())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for step in range(20):
        set_gradients(params, step)
        optimizer.step()
        schedule.step()
    expected = transcription(
        20, lambda t: 1 / (1 + np.exp(-0.2 * (t - 5))), lr=lambda t: 1e-3 / t, gamma=300.0
    )
    for mine, theirs in zip(params, expected, strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), theirs, rtol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_with_infinite_k_it_is_adam(decay: float) -> None:
    mine, theirs = parameters(torch.float32), parameters(torch.float32)
    kind = torch.optim.AdamW if decay else torch.optim.Adam
    ours = RecAdam(mine, lr=1e-3, k=math.inf, t0=0, gamma=100.0, weight_decay=decay)
    torchs = kind(theirs, lr=1e-3, weight_decay=decay, fused=True)
    for a, b in zip(train(ours, mine, 50), train(torchs, theirs, 50), strict=True):
        assert torch.equal(a, b)


def test_with_large_k_it_is_nearly_adam() -> None:
    mine, theirs = parameters(), parameters()
    ours = RecAdam(mine, lr=1e-3, k=40.0, t0=0, gamma=100.0, anchor=anchors())
    torchs = torch.optim.Adam(theirs, lr=1e-3)
    for a, b in zip(train(ours, mine, 50), train(torchs, theirs, 50), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_it_is_there_after_import_clbench() -> None:
    import clbench

    assert clbench.optim.RecAdam is RecAdam


def test_one_number_by_hand() -> None:
    # λ(1) = 1/2. Adam's first step is lr·sign(g): 3 − ½·0.1 = 2.95; the pull is
    # 0.1·½·4 = 0.2 of the way to 1: 2.95 − 0.2·1.95 = 2.56.
    x = nn.Parameter(torch.tensor([3.0], dtype=torch.float64))
    star = torch.tensor([1.0], dtype=torch.float64)
    optimizer = RecAdam([x], lr=0.1, k=7.0, t0=1, gamma=4.0, eps=0.0, anchor=[star])
    x.grad = torch.tensor([5.0], dtype=torch.float64)
    optimizer.step()
    assert x.item() == pytest.approx(2.56, abs=1e-12)


def test_before_the_switch_it_only_recalls() -> None:
    params = parameters()
    optimizer = RecAdam(params, lr=0.01, k=math.inf, t0=100, gamma=50.0, anchor=anchors())
    found = train(optimizer, params, 3)
    for mine, start, star in zip(found, parameters(), anchors(), strict=True):
        torch.testing.assert_close(mine - star, 0.125 * (start.detach() - star))


def test_at_the_anchor_nothing_pulls() -> None:
    params = parameters(torch.float32)
    start = [p.detach().clone() for p in params]
    optimizer = RecAdam(params, lr=1e-3, k=math.inf, t0=100, gamma=500.0)
    for a, b in zip(train(optimizer, params, 5), start, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("t", "k", "t0", "expected"),
    [
        (1, 0.1, 250, 1 / (1 + math.exp(24.9))),
        (250, 0.1, 250, 0.5),
        (250, math.inf, 250, 0.5),
        (10**9, 1.0, 250, 1.0),
        (1, 1.0, 10**9, 0.0),
        (1, 0.0, 250, 0.5),
        (249, math.inf, 250, 0.0),
        (251, math.inf, 250, 1.0),
    ],
)
def test_sigmoid(t: int, k: float, t0: float, expected: float) -> None:
    assert anneal(t, k=k, t0=t0) == pytest.approx(expected, rel=1e-12)


def test_linear_and_constant() -> None:
    assert [anneal(t, k=1, t0=4, annealing="linear") for t in (1, 2, 4, 9)] == [0.25, 0.5, 1, 1]
    assert anneal(1, k=1, t0=0, annealing="linear") == 1
    assert anneal(1, k=1, t0=4, annealing="constant") == 0.5


def test_the_first_step_is_number_one() -> None:
    params = parameters()
    optimizer = RecAdam(params, lr=1e-3, gamma=10.0)
    train(optimizer, params, 3)
    assert optimizer.param_groups[0]["t"] == 3


def test_groups_with_settings_of_their_own() -> None:
    first, second, third = parameters()
    plain = parameters()
    star = anchors()
    optimizer = RecAdam(
        [
            {"params": first, "lr": 1e-2, "gamma": 20.0},
            {"params": [second], "recall": False},
            {"params": [third], "annealing": "constant", "anchor": None},
        ],
        lr=1e-3,
        gamma=100.0,
        k=0.5,
        t0=3,
        anchor=[star[0], star[2]],
    )
    train(optimizer, [first, second, third], 10)
    train(torch.optim.Adam(plain, lr=1e-3, fused=True), plain, 10)
    assert torch.equal(second, plain[1])
    assert "anchor" not in optimizer.state[second]
    sigmoid = transcription(10, lambda t: 1 / (1 + np.exp(-0.5 * (t - 3))), lr=1e-2, gamma=20.0)
    constant = transcription(10, lambda t: 0.5, lr=1e-3, gamma=100.0)
    np.testing.assert_allclose(first.detach().numpy(), sigmoid[0], rtol=1e-6)
    np.testing.assert_allclose(third.detach().numpy(), constant[2], rtol=1e-6)


def test_a_group_added_later_recalls_its_weights_then() -> None:
    first, second, _ = parameters()
    optimizer = RecAdam([first], lr=1e-3, gamma=10.0)
    first.grad = torch.ones_like(first)
    optimizer.step()
    optimizer.add_param_group({"params": [second], "anchor": [anchors()[1]]})
    assert [group["t"] for group in optimizer.param_groups] == [1, 0]
    assert torch.equal(optimizer.state[second]["anchor"], anchors()[1])
    with pytest.raises(ValueError, match=r"lr·gamma"):
        optimizer.add_param_group({"params": [parameters()[2]], "gamma": 1e4})
    assert len(optimizer.param_groups) == 2

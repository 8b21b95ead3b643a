"""`clbench.optim.RecAdam` against a transcription in NumPy, and its state."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clbench.optim import RecAdam, anneal

SHAPES = ((7, 3), (5,), (2, 2, 2))


def parameters(dtype: torch.dtype = torch.float64, seed: int = 0) -> list[nn.Parameter]:
    rng = np.random.default_rng(seed)
    return [nn.Parameter(torch.tensor(rng.normal(size=shape), dtype=dtype)) for shape in SHAPES]


def anchors(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [p.detach() for p in parameters(dtype, seed=9)]


def set_gradients(params: list[nn.Parameter], step: int) -> None:
    rng = np.random.default_rng(100 + step)
    for p in params:
        p.grad = torch.tensor(rng.normal(size=tuple(p.shape)), dtype=p.dtype)


def train(
    optimizer: torch.optim.Optimizer, params: list[nn.Parameter], steps: int, first: int = 0
) -> list[Tensor]:
    for step in range(first, first + steps):
        set_gradients(params, step)
        optimizer.step()
    return [p.detach().clone() for p in params]


def transcription(
    steps: int,
    lam: Any,
    *,
    lr: Any,
    gamma: float,
    decay: float = 0.0,
    eps: float = 1e-8,
    beta1: float = 0.9,
    beta2: float = 0.999,
) -> list[np.ndarray]:
    """Return the weights after the published steps, in NumPy."""
    theta = [p.detach().numpy().copy() for p in parameters()]
    star = [a.numpy() for a in anchors()]
    m = [np.zeros_like(x) for x in theta]
    v = [np.zeros_like(x) for x in theta]
    for t in range(1, steps + 1):
        rng = np.random.default_rng(100 + t - 1)
        rate = lr(t) if callable(lr) else lr
        weight = lam(t)
        for i, x in enumerate(theta):
            g = rng.normal(size=x.shape)
            m[i] = beta1 * m[i] + (1 - beta1) * g
            v[i] = beta2 * v[i] + (1 - beta2) * g**2
            mhat, vhat = m[i] / (1 - beta1**t), v[i] / (1 - beta2**t)
            x = x - rate * weight * decay * x
            x = x - rate * weight * mhat / (np.sqrt(vhat) + eps)
            theta[i] = x - rate * (1 - weight) * gamma * (x - star[i])
    return theta


def make(params: list[nn.Parameter], **options: Any) -> RecAdam:
    return RecAdam(params, **{"lr": 1e-3, "gamma": 100.0, "t0": 8, "k": 0.5, **options})


@pytest.mark.parametrize(
    ("annealing", "lam"),
    [
        ("sigmoid", lambda t: 1 / (1 + np.exp(-0.2 * (t - 25)))),
        ("linear", lambda t: min(1, t / 25)),
        ("constant", lambda t: 0.5),
    ],
)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_fifty_steps_equal_the_transcription(annealing: Any, lam: Any, decay: float) -> None:
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
    trained = train(optimizer, params, 50)
    expected = transcription(50, lam, lr=1e-3, gamma=300.0, decay=decay)
    for mine, theirs in zip(trained, expected, strict=True):
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
def test_infinite_k_is_adam_to_the_bit(decay: float) -> None:
    mine, theirs = parameters(torch.float32), parameters(torch.float32)
    kind = torch.optim.AdamW if decay else torch.optim.Adam
    ours = RecAdam(mine, lr=1e-3, k=math.inf, t0=0, gamma=100.0, weight_decay=decay)
    torchs = kind(theirs, lr=1e-3, weight_decay=decay, fused=True)
    for a, b in zip(train(ours, mine, 50), train(torchs, theirs, 50), strict=True):
        assert torch.equal(a, b)


def test_large_k_is_close_to_adam() -> None:
    mine, theirs = parameters(), parameters()
    ours = RecAdam(mine, lr=1e-3, k=40.0, t0=0, gamma=100.0, anchor=anchors())
    torchs = torch.optim.Adam(theirs, lr=1e-3)
    for a, b in zip(train(ours, mine, 50), train(torchs, theirs, 50), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_one_step_equals_the_formula() -> None:
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
    trained = train(optimizer, params, 3)
    for mine, start, star in zip(trained, parameters(), anchors(), strict=True):
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
def test_sigmoid_annealing_equals_the_formula(t: int, k: float, t0: float, expected: float) -> None:
    assert anneal(t, k=k, t0=t0) == pytest.approx(expected, rel=1e-12)


def test_linear_and_constant_annealing_equal_the_formula() -> None:
    assert [anneal(t, k=1, t0=4, annealing="linear") for t in (1, 2, 4, 9)] == [0.25, 0.5, 1, 1]
    assert anneal(1, k=1, t0=0, annealing="linear") == 1
    assert anneal(1, k=1, t0=4, annealing="constant") == 0.5


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


def test_a_group_added_later_recalls_its_anchor_or_its_weights_at_that_time() -> None:
    first, second, third = parameters()
    optimizer = RecAdam([first], lr=1e-3, gamma=10.0, anchor=[anchors()[0]])
    first.grad = torch.ones_like(first)
    optimizer.step()
    optimizer.add_param_group({"params": [second]})
    optimizer.add_param_group({"params": [third], "anchor": [anchors()[2]]})
    expected = anchors()[0], second.detach().clone(), anchors()[2]
    with torch.no_grad():
        second += 1.0
    assert [group["t"] for group in optimizer.param_groups] == [1, 0, 0]
    for parameter, anchor in zip((first, second, third), expected, strict=True):
        assert torch.equal(optimizer.state[parameter]["anchor"], anchor)
    with pytest.raises(ValueError, match=r"lr·gamma"):
        optimizer.add_param_group({"params": parameters()[2:], "gamma": 1e4})
    assert len(optimizer.param_groups) == 3


def test_a_saved_state_resumes_bit_for_bit() -> None:
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
    trained = train(again, saved["model"], 9, first=7)
    for a, b in zip(trained, expected, strict=True):
        assert torch.equal(a, b)


def test_copies_and_states_of_plain_adam_load() -> None:
    params, kept = parameters(torch.float32), anchors(torch.float32)
    optimizer = make(params, anchor=kept)
    train(optimizer, params, 2)
    assert copy.deepcopy(optimizer).param_groups[0]["t"] == 2
    theirs = parameters(torch.float32)
    adam = torch.optim.Adam(theirs, lr=1e-4, fused=True)
    train(adam, theirs, 2)
    optimizer.load_state_dict(adam.state_dict())
    assert optimizer.param_groups[0]["lr"] == 1e-4
    assert optimizer.param_groups[0]["gamma"] == 100.0
    for parameter, anchor in zip(params, kept, strict=True):
        assert torch.equal(optimizer.state[parameter]["anchor"], anchor)
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


def test_half_precision_stays_finite() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        params = parameters(dtype)
        trained = train(make(params, anchor=anchors(dtype), lr=1e-2, gamma=50.0), params, 3)
        assert all(torch.isfinite(value).all() for value in trained)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 4e-4, "gamma": 5000.0}, r"lr·gamma = 0\.0004·5000 = 2\. .* below 2500 or lr"),
        ({"lr": 2e-4, "gamma": 5000.0}, r"= 1\. From 1 on the pull overshoots"),
        ({"lr": -1.0}, "lr must be 0 or more, not -1.0"),
        ({"eps": float("nan")}, "eps must be"),
        ({"betas": (0.9, 1.0)}, "betas must be from 0 to below 1"),
        ({"k": -1.0}, "k must be 0 or more"),
        ({"annealing": "cosine"}, "one of sigmoid, linear, constant, not 'cosine'"),
        ({"anchor": anchors()[:2]}, "anchor has 2 tensors .* for 3 parameters"),
        ({"anchor": [*anchors(), torch.zeros(1)]}, "anchor has more tensors"),
        ({"anchor": anchors()[::-1]}, r"anchor has 3 tensors of shapes \[\(2, 2, 2\)"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(parameters(), **options)


def test_a_model_may_change_its_type_before_the_first_step() -> None:
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
    """The first group is valid; the second is refused."""
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

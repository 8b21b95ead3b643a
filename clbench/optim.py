"""Optimizers that can be used on their own, in any training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.optimizer import Optimizer, ParamsT

Annealing = Literal["sigmoid", "linear", "constant"]

_FUSED = ("cpu", "cuda")
"""Kinds of devices where torch's fused Adam is sure to exist."""


class RecAdam(Optimizer):
    """Adam that recalls an anchor at first and learns more and more (Chen et al. 2020).

    Step t = 1, 2, … descends along the loss with weight λ(t) and pulls towards the anchor
    θ* with weight 1 − λ(t), both outside of Adam's moments (Algorithm 1, line 12):

        θ ← θ − lr·λ(t)·m̂/(√v̂ + eps)
        θ ← θ − lr·(1 − λ(t))·gamma·(θ − θ*)

    As in the authors' code the learning rate multiplies both terms, and the second takes
    the outcome of the first; with the rate on the first term only, as printed, gamma = 5000
    would diverge. The second line is an interpolation towards θ* by the pull
    lr·(1 − λ(t))·gamma, which is how it is computed.

    Parameters
    ----------
    params
        As for any torch optimizer. A group may set each of the options below for itself;
        `anchor` too, then with the tensors of that group only. A group with
        ``"recall": False`` is trained by plain Adam, as the paper trains the task head.
    lr
        Learning rate (section 4.1: 2e-5); schedulers may change it.
    betas, eps
        Adam's (Algorithm 1, line 1).
    weight_decay
        Decoupled as in AdamW, and like the rest of the learning weighted by λ(t). The
        paper has none.
    k
        Steepness of the sigmoid, in 1/steps; 0 gives λ = 1/2 throughout, which is
        multi-task learning, and infinity a switch at `t0`. With `t0` = 0 as well it is
        plain Adam (section 3.2). The paper takes the best of 0.05, 0.1, 0.2, 0.5 and 1.
    t0
        Step at which λ is 1/2, or at which it reaches 1 if linear. The paper takes the
        best of 100, 250, 500 and 1000.
    gamma
        Strength of the pull (section 4.1: 5000).
    anchor
        Tensors to recall, in the order of the parameters that recall; used as they are, not
        copied. None takes a copy of the parameters as they are now.
    annealing
        ``sigmoid``: λ(t) = 1/(1 + exp(−k(t − t0))) (section 3.2); ``linear``:
        min(1, t/t0), as in the authors' code; ``constant``: 1/2, the paper's multi-task
        limit.

    Raises
    ------
    ValueError
        If an option is out of range; if lr·gamma is 1 or more, where the pull overshoots
        the anchor (from 2 on it diverges); or if the anchor does not fit the parameters. At
        a step, if a scheduler has raised the rate so far that the pull would be 1 or more.
    RuntimeError
        At a step, for sparse gradients.

    Notes
    -----
    A parameter without a gradient is left as it is, as by torch's optimizers. The anchors
    and each group's t are part of `state_dict`, so that a training that goes on recalls
    what it recalled before, whatever the weights were when the optimizer was made anew.
    Memory: one tensor a parameter more than Adam.

    Examples
    --------
    >>> optimizer = RecAdam(
    ...     [
    ...         {"params": model.bert.parameters()},
    ...         {"params": model.classifier.parameters(), "recall": False},
    ...     ]
    ... )
    >>> trainer = Trainer(model, arguments, optimizers=(optimizer, None))
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 2e-5,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        k: float = 0.1,
        t0: float = 250,
        gamma: float = 5000.0,
        anchor: Iterable[Tensor] | None = None,
        annealing: Annealing = "sigmoid",
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "k": k,
            "t0": t0,
            "gamma": gamma,
            "annealing": annealing,
            "recall": True,
            "t": 0,
            "fused": None,
        }
        super().__init__(params if anchor is None else _divided(params, anchor), defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, which counts its own steps from 0; see `RecAdam` for its options."""
        group = dict(param_group)
        anchor = group.pop("anchor", None)
        super().add_param_group(group)
        added = self.param_groups[-1]
        try:
            _check(added)
            if added["recall"]:
                for parameter, value in zip(
                    added["params"], _anchors(added["params"], anchor), strict=True
                ):
                    self.state[parameter]["anchor"] = value
        except ValueError:
            self.param_groups.pop()
            raise
        # Tells torch to keep the count of Adam's steps beside the weights when loading.
        added["fused"] = all(
            p.device.type in _FUSED and p.is_floating_point() for p in added["params"]
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state back; one of plain Adam leaves the anchors as they are."""
        anchors = {p: state["anchor"] for p, state in self.state.items() if "anchor" in state}
        super().load_state_dict(state_dict)
        for parameter, anchor in anchors.items():
            self.state[parameter].setdefault("anchor", anchor)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for key, value in self.defaults.items():
                group.setdefault(key, value)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns what `closure`, called with gradients enabled, returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # All groups are looked at before any of them moves.
        pulls = [_pull(group, group["t"] + 1) for group in self.param_groups]
        for group, (learn, pull) in zip(self.param_groups, pulls, strict=True):
            group["t"] += 1
            self._step(group, learn, pull)
        return loss

    def _step(self, group: dict[str, Any], learn: float, pull: float) -> None:
        lr = float(group["lr"])
        parameters = [p for p in group["params"] if p.grad is not None]
        if not parameters:
            return
        states = [self._moments(parameter, group["fused"]) for parameter in parameters]
        beta1, beta2 = group["betas"]
        update = adamw if group["weight_decay"] else adam
        update(
            parameters,
            [p.grad for p in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=lr * learn,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        if pull:
            torch._foreach_lerp_(parameters, [state["anchor"] for state in states], pull)

    def _moments(self, parameter: Tensor, fused: bool) -> dict[str, Any]:
        """The state of a parameter that has a gradient, begun if need be."""
        assert parameter.grad is not None
        if parameter.grad.is_sparse:
            raise RuntimeError(
                "RecAdam takes no sparse gradients. Set sparse=False in the embedding."
            )
        state: dict[str, Any] = self.state[parameter]
        if "step" not in state:
            where = parameter.device if fused else torch.device("cpu")
            state["step"] = torch.zeros((), dtype=torch.float32, device=where)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        anchor = state.get("anchor")
        if anchor is not None:
            # The model may have been moved after the optimizer was made, as a Trainer does.
            state["anchor"] = anchor.to(parameter)
        return state


def learning_weight(group: dict[str, Any], t: int | None = None) -> float:
    """λ of a group of `RecAdam` at step `t`, or its present one; 1 where it does not recall."""
    if not group["recall"]:
        return 1.0
    t = group["t"] if t is None else t
    return anneal(t, k=group["k"], t0=group["t0"], annealing=group["annealing"])


def _pull(group: dict[str, Any], t: int) -> tuple[float, float]:
    """λ and the share of the way to the anchor that step `t` goes.

    Raises
    ------
    ValueError
        If it would overshoot.
    """
    learn = learning_weight(group, t)
    pull = float(group["lr"]) * (1.0 - learn) * float(group["gamma"])
    if pull >= 1.0:
        raise ValueError(
            f"RecAdam: at step {t} the pull lr·(1 − λ)·gamma = "
            f"{float(group['lr']):g}·{1.0 - learn:g}·{group['gamma']:g} = {pull:g} would "
            "overshoot the anchor. Keep lr·gamma below 1: lower gamma, or the peak of the "
            "schedule."
        )
    return learn, pull


def anneal(t: float, *, k: float, t0: float, annealing: Annealing = "sigmoid") -> float:
    """λ(t), the weight of learning, between 0 and 1; see `RecAdam`.

    Parameters
    ----------
    t
        Number of the step. The first is 1: Algorithm 1 counts (line 4) before it uses t.
    k, t0, annealing
        As for `RecAdam`.
    """
    if annealing == "constant":
        return 0.5
    if annealing == "linear":
        return min(1.0, t / t0) if t0 > 0 else 1.0
    x = 0.0 if t == t0 else k * (t - t0)
    # Of the two forms each takes the exponential of a number that is not positive.
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def check_pull(lr: float, gamma: float) -> None:
    """Refuse a rate and a strength whose pull overshoots the anchor.

    Raises
    ------
    ValueError
        If lr·gamma is 1 or more.
    """
    if lr * gamma >= 1.0:
        raise ValueError(
            f"RecAdam: lr·gamma = {lr:g}·{gamma:g} = {lr * gamma:g}. From 1 on the pull "
            "overshoots the anchor, from 2 on it diverges. Take gamma below "
            f"{1 / lr:g} or lr below {1 / gamma:g}; as published lr·gamma is 0.1."
        )


def _check(group: dict[str, Any]) -> None:
    for key in ("lr", "eps", "weight_decay", "gamma", "t0"):
        if not (_number(group[key]) and 0 <= group[key] < math.inf):
            raise ValueError(f"RecAdam: {key} must be a number, 0 or more, not {group[key]!r}.")
    if not (_number(group["k"]) and group["k"] >= 0):
        raise ValueError(f"RecAdam: k must be 0 or more, or infinity, not {group['k']!r}.")
    betas = group["betas"]
    if not (isinstance(betas, (tuple, list)) and len(betas) == 2) or not all(
        _number(beta) and 0 <= beta < 1 for beta in betas
    ):
        raise ValueError(f"RecAdam: betas must be two numbers from 0 to below 1, not {betas!r}.")
    if group["annealing"] not in get_args(Annealing):
        raise ValueError(
            f"RecAdam: annealing must be one of {', '.join(get_args(Annealing))}, "
            f"not {group['annealing']!r}."
        )
    if group["recall"]:
        check_pull(group["lr"], group["gamma"])


def _number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _divided(params: ParamsT, anchor: Iterable[Tensor]) -> list[dict[str, Any]]:
    """Groups with the anchors that are theirs."""
    if isinstance(anchor, Tensor | str) or not isinstance(anchor, Iterable):
        raise ValueError(
            f"RecAdam: anchor must be a list of tensors, not {type(anchor).__name__}: one for "
            "each parameter, in their order."
        )
    entries: list[Any] = list(params)
    if not (entries and isinstance(entries[0], dict)):
        entries = [{"params": entries}]
    groups = [{**group, "params": _listed(group["params"])} for group in entries]
    if any(group.get("anchor") is not None for group in groups):
        raise ValueError(
            "RecAdam: a group has an anchor of its own, and anchor is given for all of them. "
            "Leave out one of the two."
        )
    values = list(anchor)
    recalling = [group for group in groups if group.get("recall", True)]
    wanted = sum(len(group["params"]) for group in recalling)
    if len(values) != wanted:
        raise ValueError(
            f"RecAdam: anchor has {len(values)} tensors for {wanted} parameters that recall. "
            "Give one for each, in their order, or None to recall the parameters as they are."
        )
    for group in recalling:
        count = len(group["params"])
        group["anchor"], values = values[:count], values[count:]
    return groups


def _listed(params: Any) -> list[Any]:
    return [params] if isinstance(params, Tensor) else list(params)


def _anchors(parameters: Sequence[Tensor], anchor: Iterable[Tensor] | None) -> list[Tensor]:
    """One tensor a parameter, fit to pull towards."""
    if anchor is None:
        return [parameter.detach().clone() for parameter in parameters]
    values = list(anchor)
    if len(values) != len(parameters):
        raise ValueError(
            f"RecAdam: a group's anchor has {len(values)} tensors for {len(parameters)} parameters."
        )
    return [_anchor(*each) for each in enumerate(zip(parameters, values, strict=True))]


def _anchor(number: int, pair: tuple[Tensor, Any]) -> Tensor:
    parameter, value = pair
    if not isinstance(value, Tensor):
        raise ValueError(f"RecAdam: anchor {number} is a {type(value).__name__}, not a tensor.")
    for what, mine, its in (
        ("shape", tuple(value.shape), tuple(parameter.shape)),
        ("type", value.dtype, parameter.dtype),
        ("device", value.device, parameter.device),
    ):
        if mine != its:
            raise ValueError(
                f"RecAdam: anchor {number} has {what} {mine}, its parameter {its}. Anchors come "
                "in the order of the parameters, on their device and in their type."
            )
    if not bool(torch.isfinite(value).all()):
        raise ValueError(
            f"RecAdam: anchor {number} has numbers that are not finite; the weights would follow."
        )
    same = value.data_ptr() == parameter.data_ptr() and value.numel() > 0
    # The parameter itself would move along, and the pull would be zero for ever.
    return value.detach().clone() if same else value.detach()

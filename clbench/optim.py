"""Optimizers to use on their own, in any training loop."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.optimizer import Optimizer, ParamsT

__all__ = ["RecAdam", "anneal", "check_pull"]

Annealing = Literal["sigmoid", "linear", "constant"]


class RecAdam(Optimizer):
    """Adam that recalls an anchor first and gradually shifts to learning (Chen et al. 2020).

    Step t = 1, 2, … descends along the loss with weight λ(t) and pulls towards the anchor
    θ* with weight 1 − λ(t), both outside of Adam's moments (Algorithm 1, line 12):

        θ ← θ − lr·λ(t)·m̂/(√v̂ + eps)
        θ ← θ − lr·(1 − λ(t))·gamma·(θ − θ*)

    As in the authors' code, the learning rate multiplies both terms, and the second uses
    the result of the first; with the rate on the first term only, as printed, gamma = 5000
    would diverge. The second line is computed as an interpolation towards θ* by the pull
    lr·(1 − λ(t))·gamma.

    Parameters
    ----------
    params
        As for any torch optimizer. A group may set each of the options below for itself,
        `anchor` included. Plain Adam trains a group with ``"recall": False``, as the paper
        trains the task head.
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
        Tensors to recall, one per parameter that recalls, in their order; not copied. None
        takes a copy of the current parameters.
    annealing
        ``sigmoid``: λ(t) = 1/(1 + exp(−k(t − t0))) (section 3.2); ``linear``:
        min(1, t/t0), as in the authors' code; ``constant``: 1/2, the paper's multi-task
        limit.

    Raises
    ------
    ValueError
        If an option is out of range; if lr·gamma is 1 or more, where the pull overshoots
        the anchor (from 2 on it diverges); or if the anchor does not fit the parameters. At
        a step, if a scheduler has raised the rate so far that the pull is 1 or more.

    Notes
    -----
    A parameter without a gradient does not change, as in torch's optimizers. `state_dict`
    has the anchors and each group's t, so that resumed training recalls the same anchor.
    Memory: one tensor per parameter more than Adam.

    Keep the parameters in float32. In bfloat16 a pull smaller than about half a unit in the last
    place is rounded away: at lr·gamma = 0.1 recalling stops about four units from the anchor.

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

    _anchors: Iterator[Tensor] | None = None

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
        self._anchors = None if anchor is None else iter(anchor)
        super().__init__(params, defaults)
        if self._anchors is not None and next(self._anchors, None) is not None:
            raise ValueError(
                "RecAdam: anchor has more tensors than there are parameters that recall."
            )
        self._anchors = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group that counts its own steps from 0; for its options see `RecAdam`."""
        group = dict(param_group)
        anchor = group.pop("anchor", None)
        super().add_param_group(group)
        added = self.param_groups[-1]
        parameters = added["params"]
        try:
            _check(added)
            if added["recall"]:
                if self._anchors is not None:
                    anchor = islice(self._anchors, len(parameters))
                for parameter, value in zip(parameters, _copies(parameters, anchor), strict=True):
                    self.state[parameter]["anchor"] = value
        except ValueError:
            self.param_groups.pop()
            raise
        # "fused" also makes torch keep the count of Adam's steps beside the weights when loading.
        added["fused"] = all(
            p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; one of plain Adam leaves the anchors unchanged."""
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
        """Take one step; return what `closure`, called with gradients enabled, returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Check all groups before any of them moves.
        pulls = [_pull(group, group["t"] + 1) for group in self.param_groups]
        for group, (learn, pull) in zip(self.param_groups, pulls, strict=True):
            group["t"] += 1
            self._step(group, learn, pull)
        return loss

    def _step(self, group: dict[str, Any], learn: float, pull: float) -> None:
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
            lr=float(group["lr"]) * learn,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        if pull:
            torch._foreach_lerp_(parameters, [state["anchor"] for state in states], pull)

    def _moments(self, parameter: Tensor, fused: bool) -> dict[str, Any]:
        """Return the state of a parameter that has a gradient, initialised on first use."""
        state: dict[str, Any] = self.state[parameter]
        if "step" not in state:
            device = parameter.device if fused else torch.device("cpu")
            state["step"] = torch.zeros((), dtype=torch.float32, device=device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        if "anchor" in state:
            # The model may have moved since the optimizer was created, as in a Trainer.
            state["anchor"] = state["anchor"].to(parameter)
        return state


def _pull(group: dict[str, Any], t: int) -> tuple[float, float]:
    """Return λ and the share of the way to the anchor that step `t` covers."""
    if not group["recall"]:
        return 1.0, 0.0
    learn = anneal(t, k=group["k"], t0=group["t0"], annealing=group["annealing"])
    pull = float(group["lr"]) * (1.0 - learn) * float(group["gamma"])
    if pull >= 1.0:
        raise ValueError(
            f"RecAdam: at step {t} the pull lr·(1 − λ)·gamma = {pull:g} would overshoot the "
            "anchor. Keep lr·gamma below 1: lower gamma, or the peak of the schedule."
        )
    return learn, pull


def anneal(t: float, *, k: float, t0: float, annealing: Annealing = "sigmoid") -> float:
    """Return λ(t), the weight of learning at step t = 1, 2, …, between 0 and 1; see `RecAdam`."""
    if annealing == "constant":
        return 0.5
    if annealing == "linear":
        return min(1.0, t / t0) if t0 > 0 else 1.0
    x = 0.0 if t == t0 else k * (t - t0)
    # Each form takes the exponential of a number that is not positive.
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def check_pull(lr: float, gamma: float) -> None:
    """Raise a ValueError if the pull overshoots the anchor: if lr·gamma is 1 or more."""
    if lr * gamma >= 1.0:
        raise ValueError(
            f"RecAdam: lr·gamma = {lr:g}·{gamma:g} = {lr * gamma:g}. From 1 on the pull "
            "overshoots the anchor, from 2 on it diverges. Set gamma below "
            f"{1 / lr:g} or lr below {1 / gamma:g}; as published lr·gamma is 0.1."
        )


def _check(group: dict[str, Any]) -> None:
    for key in ("lr", "eps", "weight_decay", "gamma", "t0", "k"):
        if not group[key] >= 0:
            raise ValueError(f"RecAdam: {key} must be 0 or more, not {group[key]!r}.")
    if not all(0 <= beta < 1 for beta in group["betas"]):
        raise ValueError(f"RecAdam: betas must be from 0 to below 1, not {group['betas']!r}.")
    if group["annealing"] not in (shapes := get_args(Annealing)):
        raise ValueError(
            f"RecAdam: annealing must be one of {', '.join(shapes)}, not {group['annealing']!r}."
        )
    if group["recall"]:
        check_pull(group["lr"], group["gamma"])


def _copies(parameters: Sequence[Tensor], anchor: Iterable[Tensor] | None) -> list[Tensor]:
    """Return the anchor of each parameter: a tensor to pull it towards."""
    if anchor is None:
        return [parameter.detach().clone() for parameter in parameters]
    values = [value.detach() for value in anchor]
    if [value.shape for value in values] != [parameter.shape for parameter in parameters]:
        raise ValueError(
            f"RecAdam: anchor has {len(values)} tensors of shapes "
            f"{[tuple(value.shape) for value in values]}, for {len(parameters)} parameters of "
            f"shapes {[tuple(p.shape) for p in parameters]}. Give one for each, in their order."
        )
    # A parameter that is its own anchor would move with it, so the pull would always be zero.
    return [
        value.clone() if value.data_ptr() == parameter.data_ptr() else value
        for value, parameter in zip(values, parameters, strict=True)
    ]

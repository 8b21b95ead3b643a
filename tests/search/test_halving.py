from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from clbench.errors import SettingsError
from clbench.search.halving import Halving


@pytest.mark.parametrize(
    ("halving", "epochs", "milestones"),
    [
        (Halving(), 10, [1, 2, 4, 8]),  # the paper's 5 + 5 epochs
        (Halving(), 6, [1, 2, 4]),
        (Halving(), 8, [1, 2, 4]),  # after the last epoch there is nothing to stop
        (Halving(), 1, []),
        (Halving(2, 3), 20, [2, 6, 18]),
        (Halving(1, 1.5), 4, [1, 2, 3]),
    ],
)
def test_milestones(halving: Halving, epochs: int, milestones: list[int]) -> None:
    assert halving.milestones(epochs) == milestones


def test_the_cutoff_is_that_of_the_best_share() -> None:
    assert Halving().cutoff([0.1, 0.2, 0.9]) == pytest.approx(0.2)
    assert Halving(reduction=4).cutoff([0.0, 0.1, 0.2, 0.3, 0.4]) == pytest.approx(0.3)


@pytest.mark.parametrize("given", [{"grace": 0}, {"reduction": 1.0}, {"reduction": float("nan")}])
def test_wrong_settings(given: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match="must be"):
        Halving(**given)  # type: ignore[arg-type]


def test_the_reason_that_is_told_is_the_one_that_the_scheduler_had() -> None:
    """The rule is Ray's; what is written down of it must be what it did."""
    from ray.tune.schedulers import AsyncHyperBandScheduler

    halving, epochs, rng = Halving(), 6, random.Random(0)
    scheduler = AsyncHyperBandScheduler(
        time_attr="epoch", metric="reward", mode="max", max_t=epochs, grace_period=1,
        reduction_factor=2, brackets=1,
    )  # fmt: skip
    seen: dict[int, list[float]] = {m: [] for m in halving.milestones(epochs)}
    stopped = 0
    for number in range(60):
        trial = SimpleNamespace(trial_id=str(number))
        scheduler.on_trial_add(None, trial)
        for epoch in range(1, epochs):
            reward = rng.random()
            told = scheduler.on_trial_result(None, trial, {"epoch": epoch, "reward": reward})
            others = seen.get(epoch, [])
            below = bool(others) and reward < halving.cutoff(others)
            assert (told == "STOP") == below
            others.append(reward)
            if below:
                stopped += 1
                break
    assert 20 < stopped < 60

"""The order in which `RayExecutor` submits cells, without Ray."""

from __future__ import annotations

from collections import Counter, OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest

from clbench.core.errors import ClusterError
from clbench.runner.ray_executor import RayExecutor
from clbench.runner.resources import Resources
from clbench.runner.run_state import Listener
from clbench.training.protocol import Protocol


class FakeTask:
    """Stands for a remote function; records the keys of cells and whether they lead."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool]] = []

    def options(self, name: str) -> FakeTask:
        return self

    def remote(
        self, setup: Any, cell: Any, scenario: Any, shared: Any, leads: bool, actor: Any
    ) -> tuple[str, str]:
        self.calls.append((cell.key, leads))
        return f"result of {cell.key}", f"stage of {cell.key}"


def executor_of(groups: dict[str, Any], workers: int) -> tuple[RayExecutor, FakeTask]:
    """An executor with waiting cells of one scenario, in groups that share a first stage."""
    executor, task = RayExecutor(Resources(workers=workers)), FakeTask()
    scenario = SimpleNamespace(name="one")
    cells = [
        SimpleNamespace(key=key, scenario=scenario, seed=0, protocol=Protocol()) for key in groups
    ]
    parts: dict[str, Any] = {
        "_waiting": OrderedDict((cell.key, cell) for cell in cells),
        "_groups": groups,
        "_left": Counter([("rows", "one", None)] * len(groups) + list(groups.values())),
        "_listener": Listener(),
        "_preparer": SimpleNamespace(prepare=lambda spec, seed: "rows"),
        "_ray": SimpleNamespace(put=lambda value: value),
        "_run": task,
        "_setup": None,
        "_progress": None,
        "_servers": SimpleNamespace(alive=lambda: True),
        "_out": "results/mine",
    }
    for name, part in parts.items():
        setattr(executor, name, part)
    return executor, task


def test_cells_of_a_group_wait_for_the_one_that_leads() -> None:
    groups = {"a": ("one", 0), "b": ("one", 0), "c": None, "d": ("one", 1), "e": ("one", 1)}
    executor, task = executor_of(groups, workers=3)
    assert not list(executor._submit())
    assert task.calls == [("a", True), ("c", False), ("d", True)]
    executor._tasks.clear()
    assert not list(executor._submit())
    assert task.calls[3:] == [("b", False), ("e", False)]
    assert not executor._stages
    assert not executor._scenarios


def test_nothing_is_stored_or_fetched_after_the_death_of_ray() -> None:
    """Ray's library would end this process there, with exit code 1 and no message."""
    executor, _ = executor_of({"a": None}, workers=1)
    moments: list[str] = []

    def prepare(spec: Any, seed: int) -> str:
        executor._servers = SimpleNamespace(alive=lambda: False)  # type: ignore[assignment]
        moments.append("died")
        return "rows"

    executor._preparer = SimpleNamespace(prepare=prepare)  # type: ignore[assignment]
    executor._ray = SimpleNamespace(put=moments.append, get=moments.append)
    died = "Ray died on this machine.*Finished cells are kept in results/mine; repeat the same"
    with pytest.raises(ClusterError, match=died):
        list(executor._submit())
    executor._tasks["result"] = SimpleNamespace(key="a"), False  # type: ignore[assignment]
    with pytest.raises(ClusterError, match=died):
        executor._collect("result")
    assert moments == ["died"]

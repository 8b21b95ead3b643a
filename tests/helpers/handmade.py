"""Hand-written cells for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from clbench.core.files import plain
from clbench.results.cell import CellResult
from clbench.results.scores import scores_of
from clbench.training.protocol import Protocol


@dataclass(frozen=True)
class Scenario:
    name: str = "sst2-mrpc"
    shift: str = "dataset"
    settings: dict[str, Any] = field(default_factory=lambda: {"tasks": ["glue/sst2", "glue/mrpc"]})
    note: str = ""

    @property
    def task_names(self) -> tuple[str, ...]:
        return tuple(self.settings["tasks"])


@dataclass(frozen=True)
class Baseline:
    name: str = "vanilla"
    settings: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedCell:
    """A stand-in for `clbench.suite.plan.Cell`, with the parts that results and the CLI read.

    `changes` go into the recipe, by section.
    """

    key: str = "sst2-mrpc--vanilla--seed0"
    fingerprint: str = "f0"
    scenario: Scenario = Scenario()
    baseline: Baseline = Baseline()
    protocol: Protocol = field(default_factory=Protocol)
    seed: int = 0
    reference_of: int | None = None
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def recipe(self) -> dict[str, Any]:
        return recipe(**self.changes)


def recipe(**changes: Any) -> dict[str, Any]:
    """The recipe of a vanilla cell on sst2-mrpc, with changes by section."""
    base: dict[str, Any] = {
        "version": 1,
        "scenario": {"name": "sst2-mrpc", "shift": "dataset", "tasks": ["glue/sst2", "glue/mrpc"]},
        "shift": None,
        "files": {},
        "tasks": {"glue/sst2": {"digest": "a"}, "glue/mrpc": {"digest": "b"}},
        "model": {"files": {"model.safetensors": "c"}},
        "protocol": Protocol().model_dump(mode="json", exclude={"model", "revision"}),
        "method": {"name": "vanilla", "settings": {}, "source": None},
        "seed": 0,
        "reference_of": None,
    }
    for section, values in changes.items():
        before = base.get(section)
        base[section] = {**before, **values} if isinstance(before, dict) else values
    return base


def stage(task: str = "glue/sst2", **changes: Any) -> dict[str, Any]:
    """A stage of four steps without curves."""
    numbers = {"rows": 10, "steps": 4, "epochs": 1.0, "examples": 40, "tokens": 100}
    return {"task": task, **numbers, "train_seconds": 1.0, **changes}


def pair(
    method: str = "vanilla",
    seed: int = 0,
    R: list[list[float | None]] | None = None,
    **changes: Any,
) -> CellResult:
    """A finished cell of two tasks; R is [[0.9, 0.5], [0.8, 0.7]] by default."""
    R = R or [[0.9, 0.5], [0.8, 0.7]]
    before, p_o, p_s = R[0][0], R[1][0], R[1][1]
    assert before is not None
    assert p_o is not None
    assert p_s is not None
    values: dict[str, Any] = {
        "key": f"sst2-mrpc--{method}--seed{seed}",
        "fingerprint": "f0",
        "scenario": "sst2-mrpc",
        "shift": "dataset",
        "baseline": method,
        "method": method,
        "model": "tiny",
        "seed": seed,
        "status": "ok",
        "tasks": ["glue/sst2", "glue/mrpc"],
        "R": R,
        "scores": {
            "p_o": p_o,
            "p_s": p_s,
            "p": p_o + p_s,
            "p_o_before": before,
            "forgetting": before - p_o,
            "bwt": p_o - before,
            "average": (p_o + p_s) / 2,
        },
        "stages": [stage("glue/sst2"), stage("glue/mrpc")],
        "recipe": recipe(),
        "train_seconds": 2.0,
        "peak_memory_mb": 100.0,
    }
    values |= changes
    # So many rows that the step of a score is next to nothing.
    parts = [{"validation": 10**6} for _ in values["tasks"]]
    values.setdefault("scenario_report", {"parts": parts})
    values.setdefault("metrics", [[None] * len(row) for row in values["R"]])
    if "stages" in changes and "train_seconds" not in changes:
        values["train_seconds"] = sum(dict(stage)["train_seconds"] for stage in values["stages"])
    names = ("scenario", "baseline", "seed")
    if "key" not in changes:
        values["key"] = "{}--{}--seed{}".format(*(values[name] for name in names))
    return CellResult(**plain(values))


def three(method: str = "vanilla", seed: int = 0, **changes: Any) -> CellResult:
    """A finished cell of three tasks: p_o .8, p_s .7, forgetting .1, BWT -.1, average .75."""
    R = [[0.9, None, None], [0.85, 0.85, None], [0.8, 0.75, 0.7]]
    scores = {name: value for name, value in scores_of(R).items() if value is not None}
    tasks = ["a", "b", "c"]
    more = {"tasks": tasks, "R": R, "scores": scores, "stages": [stage(task) for task in tasks]}
    return pair(method, seed, **{**more, **changes})


def failed(
    method: str = "vanilla", seed: int = 0, reason: str = "loss is nan", **changes: Any
) -> CellResult:
    """A cell that failed."""
    base = pair(method, seed).model_dump()
    failure = {
        "status": "failed",
        "reason": reason,
        "R": [],
        "scores": {},
        "stages": [],
        "metrics": [],
    }
    return CellResult.model_validate({**base, **failure, **changes})


def reference(task: int, score: float, seed: int = 0) -> CellResult:
    """The single-task reference of a task."""
    return CellResult.model_validate(
        {
            **pair("vanilla", seed).model_dump(),
            "key": f"sst2-mrpc--reference{task}--seed{seed}",
            "baseline": f"reference{task}",
            "reference_of": task,
            "tasks": ["glue/mrpc"],
            "R": [[score]],
            "metrics": [[None]],
            "scores": {"reference": score},
            "stages": [stage("glue/mrpc")],
            "train_seconds": 1.0,
        }
    )

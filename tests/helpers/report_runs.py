"""Hand-written runs for tests of reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clbench.results.cell import CellResult
from clbench.results.scores import scores_of
from clbench.results.store import Store

EVIL = '<b onmouseover="alert(1)">&"\'</b>'


def cell(scenario: str, method: str, seed: int, p_o: float, **changes: Any) -> CellResult:
    fields: dict[str, Any] = {
        "key": f"{scenario}--{method}--seed{seed}",
        "fingerprint": "0", "scenario": scenario, "shift": "dataset", "baseline": method,
        "method": method, "model": "tiny", "seed": seed, "status": "ok",
        "tasks": ["a", "b"], "R": [[0.9, None], [p_o, 0.8]],
        "scores": {"p_o": p_o, "p_s": 0.8, "p": p_o + 0.8, "p_o_before": 0.9,
                   "forgetting": 0.9 - p_o},
        "stages": [
            {"task": task, "rows": 10, "steps": 4, "epochs": 1.0, "examples": 40, "tokens": 100,
             "train_seconds": 1.0, "curves": {"scores": {"a": [[0, 0.9], [4, p_o]]}}}
            for task in ("a", "b")
        ],
        "train_seconds": 2.0, "peak_memory_mb": 100.0, "started": "2026-01-01T00:00:00",
    }  # fmt: skip
    fields |= changes
    if "R" in changes and "scores" not in changes:
        fields["scores"] = scores_of(fields["R"])
        fields["stages"] = [{**fields["stages"][0], "task": task} for task in fields["tasks"]]
    fields["train_seconds"] = sum(stage["train_seconds"] for stage in fields["stages"])
    if fields["status"] == "failed":
        fields |= {"R": [], "scores": {}, "stages": []}
    fields.setdefault("metrics", [[None] * len(row) for row in fields["R"]])
    return CellResult(**fields)


def make_run(folder: Path, name: str = "mine", better: float = 0.05, **changes: Any) -> Path:
    """A run of two scenarios, two methods and four seeds, one cell of which failed."""
    store = Store(folder)
    with store.lock():
        store.write_suite(
            {"name": name, "methods": ["vanilla", "ewc"], "seeds": [0, 1, 2, 3],
             "description": changes.pop("description", ""), "protocol": {"model": "tiny"},
             "commands": [["clbench", "run", name]]}
        )  # fmt: skip
        for scenario in ("one", "two"):
            for seed in range(4):
                base = 0.6 + 0.05 * seed
                store.write_cell(cell(scenario, "vanilla", seed, base, **changes))
                failed = scenario == "two" and seed == 3
                ewc = base + better + 0.002 * seed
                more = {"status": "failed", "reason": EVIL} if failed else {}
                store.write_cell(cell(scenario, "ewc", seed, ewc, **{**changes, **more}))
    return folder


REPORT = {"parts": [{"validation": 500}, {"validation": 200}]}


def cells(scenario: str = "pair", **methods: list[tuple[float, float]]) -> list[CellResult]:
    """Cells with p_o and p_s by seed, from seed 0 on."""
    return [
        cell(scenario, name, seed, p_o, R=[[0.9, None], [p_o, p_s]], scenario_report=REPORT)
        for name, values in methods.items()
        for seed, (p_o, p_s) in enumerate(values)
    ]


STEADY = {
    "vanilla": [(0.60, 0.8), (0.70, 0.9), (0.65, 0.7)],
    "ewc": [(0.80, 0.7), (0.901, 0.8), (0.85, 0.6)],  # .2 better, .1 worse
    "mas": [(0.70, 0.8), (0.68, 0.9), (0.68, 0.7)],
}

"""An executor that trains nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

from clbench.results.cell import CellResult
from helpers.handmade import pair


class FakeExecutor:
    """Finishes every cell at once, or fails it if its key is in `fails`."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.fails: set[str] = set()
        self.raises: BaseException | None = None
        self.between: Callable[[], object] = lambda: None
        self.p_o: Callable[[Any], float] = lambda cell: 0.8

    def device(self, plan: Any) -> None:
        pass

    def ready(self, plan: Any) -> Any:
        return nullcontext()

    def results(self, plan: Any, pending: Any, builder: Any, listener: Any) -> Iterator[CellResult]:
        for number, cell in enumerate(pending):
            if number == 1:
                self.between()
            if self.raises is not None and number == 1:
                raise self.raises
            listener.cell_started(cell)
            listener.progress(cell, 1, 2, 3, 10)
            self.ran.append(cell.key)
            yield result_of(cell, fails=cell.key in self.fails, p_o=self.p_o(cell))


def result_of(cell: Any, *, fails: bool = False, p_o: float = 0.8) -> CellResult:
    """A finished or failed cell that took 12 seconds."""
    alone = cell.reference_of is not None
    stage = {
        "task": "one",
        "rows": 40,
        "steps": 9,
        "epochs": 3,
        "examples": 120,
        "tokens": 600,
        "train_seconds": 5.0,
        "eval_seconds": 1.0,
    }
    changes: dict[str, Any] = {
        "key": cell.key,
        "fingerprint": cell.fingerprint,
        "recipe": cell.recipe,
        "settings": {"protocol": cell.protocol.model_dump(mode="json")},
        "scenario": cell.scenario.name,
        "baseline": cell.baseline.name,
        "family": cell.baseline.family,
        "reference_of": cell.reference_of,
        "stages": [stage] if alone else [stage, stage],
        "train_seconds": 5.0 if alone else 10.0,
        "status": "failed" if fails else "ok",
        "reason": "loss is nan" if fails else None,
    }
    if alone:
        changes |= {"R": [[None, 0.75]], "metrics": [[None, None]], "scores": {"reference": 0.75}}
    if fails:
        changes |= {"R": [], "scores": {}, "stages": []}
    result = pair(cell.baseline.name, cell.seed, [[0.9, 0.5], [p_o, 0.7]]).model_dump()
    return CellResult.model_validate({**result, **changes})

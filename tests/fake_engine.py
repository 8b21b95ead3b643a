"""An engine that trains nothing."""

from __future__ import annotations

from collections.abc import Callable

from handmade import pair

from clbench.results.cell import CellResult
from clbench.results.store import Store


class FakeEngine:
    """Stands for the engine: every cell is done at once, or fails if its name is in `fails`."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.fails: set[str] = set()
        self.raises: BaseException | None = None
        self.between: Callable[[], object] = lambda: None

    def run_plan(self, plan, listener, executor) -> None:  # type: ignore[no-untyped-def]
        store = Store(plan.out)
        done = store.finished(plan.cells)
        pending = [cell for cell in plan.cells if cell.key not in done]
        with store.lock():
            store.write_suite(plan.resolved())
            listener.started(len(plan.cells), len(pending))
            for number, cell in enumerate(pending):
                if number == 1:
                    self.between()
                if self.raises is not None and number == 1:
                    raise self.raises
                listener.cell_started(cell)
                listener.progress(cell, 1, 2, 3, 10)
                bad = cell.key in self.fails
                base = pair(cell.baseline.name, cell.seed).model_dump()
                result = CellResult.model_validate(
                    {
                        **base,
                        "key": cell.key,
                        "fingerprint": cell.fingerprint,
                        "recipe": cell.recipe,
                        "scenario": cell.scenario.name,
                        "reference_of": cell.reference_of,
                        "R": [[None, 0.75]] if cell.reference_of is not None else base["R"],
                        "stages": [
                            {
                                "task": "one",
                                "rows": 40,
                                "steps": 9,
                                "epochs": 3,
                                "examples": 120,
                                "tokens": 600,
                                "train_seconds": 5.0,
                                "eval_seconds": 1.0,
                            }
                            for _ in range(1 if cell.reference_of is not None else 2)
                        ],
                        "status": "failed" if bad else "ok",
                        "reason": "loss is nan" if bad else None,
                    }
                )
                store.write_cell(result)
                self.ran.append(cell.key)
                listener.cell_finished(result)

"""The state of a run's folder: which cells of a plan are finished, and which are pending."""

from collections.abc import Iterable
from dataclasses import dataclass

from clbench.core.errors import RunFolderError, count
from clbench.results.cell import CellResult
from clbench.results.resume import conflicts
from clbench.results.store import Store, table_order
from clbench.suite.plan import Cell, Plan, validate


@dataclass(frozen=True)
class RunState:
    """The cells of a run's folder, compared with a plan.

    Attributes
    ----------
    plan, replace
        The plan, and whether cells of other settings may be replaced.
    present
        Finished and failed cells in the folder, without those in `replaced`.
    replaced
        Keys of finished cells of other settings, which the run moves aside.
    pending
        The cells to run, in the plan's order; failed ones run again.
    notes
        A line for each file that is not a cell.
    files
        Modification time (ns) and size of each cell file, and of the archive, just before they
        were read.
    """

    plan: Plan
    replace: bool
    present: tuple[CellResult, ...]
    replaced: tuple[str, ...]
    pending: tuple[Cell, ...]
    notes: tuple[str, ...]
    files: dict[str, tuple[int, int]]

    def is_current(self) -> bool:
        """Whether the cell files are unchanged since they were read."""
        return self.files == Store(self.plan.out).stamps()

    def put_aside(self, store: Store) -> tuple[str, ...]:
        """Move broken and replaced files aside; return notes for the user. Needs the lock."""
        notes = self.notes
        if notes:
            pending = {cell.key for cell in self.pending}
            notes = tuple(store.read(set_aside=pending).broken_lines(pending))
        if self.replaced:
            cells = count(len(store.replace(self.plan.cells)), "cell")
            notes += (f"{cells} of other settings moved to cells/replaced/.",)
        return notes

    def with_new(self, results: Iterable[CellResult]) -> list[CellResult]:
        """Return all cells of the folder, `results` included, in the order of tables."""
        cells = {cell.key: cell for cell in (*self.present, *results)}
        scenarios = [scenario.name for scenario in self.plan.scenarios]
        methods = [baseline.name for baseline in self.plan.baselines]
        return sorted(cells.values(), key=table_order(scenarios, methods))

    def scores_are_current(self) -> bool:
        """Whether ``scores.csv`` is at least as new as every cell file."""
        path = Store(self.plan.out).scores_path
        newest = max((time for time, _ in self.files.values()), default=0)
        return path.exists() and path.stat().st_mtime_ns >= newest


def read_run_state(plan: Plan, *, replace: bool = False, can_replace: bool = True) -> RunState:
    """Return the state of a plan's folder; writes nothing.

    `can_replace` says whether the command has an option ``--replace``.

    Raises
    ------
    ClbenchError
        If the folder holds another suite's run, or cells of other settings without `replace`; for
        settings that are wrong, what is wrong with them.
    """
    store = Store(plan.out)
    store.check(plan.suite.name, plan.looks)
    files = store.stamps()
    folder = store.read()
    replaced = set(conflicts(plan.cells, folder.cells)) if replace else set()
    present = [cell for cell in folder.cells if cell.key not in replaced]
    try:
        finished = store.finished(plan.cells, results=present, can_replace=can_replace)
    except RunFolderError:
        validate(plan, plan.cells)  # settings that are wrong need no other folder
        raise
    return RunState(
        plan=plan,
        replace=replace,
        present=tuple(present),
        replaced=tuple(sorted(replaced)),
        pending=tuple(cell for cell in plan.cells if cell.key not in finished),
        notes=tuple(folder.broken_lines({cell.key for cell in plan.cells})),
        files=files,
    )

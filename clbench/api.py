"""Running a suite from Python; the command line does the same through these functions."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clbench.evaluation.resources import Resources
from clbench.results.cell import CellResult
from clbench.results.scores import scores_frame, to_csv
from clbench.results.store import Store

if TYPE_CHECKING:
    import pandas as pd

    from clbench.evaluation.listener import Listener
    from clbench.evaluation.run_plan import Executor
    from clbench.suite.baselines import Baseline
    from clbench.suite.plan import Cell, Plan


class _Silent:
    """Listens to nothing."""

    def started(self, total_cells: int, pending: int) -> None:
        pass

    def cell_started(self, cell: Cell) -> None:
        pass

    def progress(self, cell: Cell, stage: int, stages: int, step: int, steps: int) -> None:
        pass

    def point(self, cell: Cell, stage: int, step: int, values: Mapping[str, float]) -> None:
        pass

    def cell_finished(self, result: CellResult) -> None:
        pass

    def note(self, text: str) -> None:
        pass


@dataclass(frozen=True)
class Run:
    """The cells of a run, finished or failed.

    Attributes
    ----------
    path
        The run's folder.
    cells
        Results in the order of scenarios, methods and seeds, references included.
    """

    path: Path
    cells: tuple[CellResult, ...]

    @property
    def frame(self) -> pd.DataFrame:
        """One row a cell, with the columns of ``scores.csv``."""
        return scores_frame(self.cells)

    @property
    def summary(self) -> pd.DataFrame:
        """Mean and sample standard deviation over seeds, a row for each scenario × method."""
        from clbench.results.scores import summary

        return summary(self.frame)

    @property
    def failed(self) -> tuple[CellResult, ...]:
        """The cells that failed; each has its `reason`."""
        return tuple(cell for cell in self.cells if cell.status == "failed")


def load_run(path: str | Path) -> Run:
    """A run that was done before, from its folder; warns of files that hold no cell.

    Raises
    ------
    RunFolderError
        If the folder holds no run, or a file of a newer version.
    """
    store = Store(Path(path))
    store.require()
    found = store.read()
    for line in found.broken_lines(()):
        warnings.warn(line, stacklevel=2)
    return Run(store.out, tuple(found.cells))


def run(
    suite: str | Path = "quick",
    *,
    out: str | Path | None = None,
    model: str | None = None,
    data: str | Path | None = None,
    methods: Sequence[str | Baseline] | None = None,
    scenarios: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    limit: int | None = None,
    epochs: int | None = None,
    device: str = "auto",
    precision: str | None = None,
    corpus: str | Path | None = None,
    plugins: Sequence[str | Path] = (),
    references: bool = False,
    replace: bool = False,
    workers: int | None = None,
    address: str | None = None,
    threads: int | None = None,
    gpus: float | None = None,
    listener: Listener | None = None,
) -> Run:
    """Run a suite, or go on with it; cells that are finished are not run again.

    Parameters
    ----------
    suite
        Name of a packaged suite, or path of a suite file.
    out
        The run's folder; ``results/<suite>`` by default.
    model, limit, epochs, precision
        Override the suite's protocol.
    data
        Folder with ``glue/`` in the layout of the hub repository; without it the hub is used.
    methods, scenarios, seeds
        Override the suite's: baselines by name or path, shell patterns of scenario names,
        seeds.
    device
        ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
    corpus
        Running text for methods that look at the language-model loss: a file with one text
        a line, ``wiki40b/en`` or ``built-in``.
    plugins
        Python files that register methods, shifts, tasks or models.
    references
        Also train on each scenario's last task alone, for intransigence.
    replace
        Run cells again that were finished with other settings; their files are kept under
        ``cells/replaced/``.
    workers, address, threads, gpus
        Cells at a time, the Ray cluster that runs them, and the processor threads and GPUs of
        each; see `clbench.evaluation.resources.Place`. By default one cell after another is run
        in this process. On processors the last digits of scores depend on the threads of a
        cell, and on nothing else of these.
    listener
        Is told how the run goes on; nothing is printed by default.

    Returns
    -------
    Run
        The cells asked for; one that failed is in it, and does not raise.

    Raises
    ------
    ClbenchError
        Whatever the user can mend: unknown names, wrong settings, missing data, a folder
        with cells of other settings or in use.
    """
    place = Resources(workers, address, threads, gpus)
    plan = make(
        suite,
        out=out,
        model=model,
        data=data,
        methods=methods,
        scenarios=scenarios,
        seeds=seeds,
        limit=limit,
        epochs=epochs,
        device=device,
        precision=precision,
        corpus=corpus,
        plugins=plugins,
        references=references,
    )
    return execute(plan, replace=replace, place=place, listener=listener)


def make(suite: str | Path, **options: Any) -> Plan:
    """The plan of `run` for the same arguments; trains and writes nothing."""
    from clbench.suite.plan import make_plan
    from clbench.suite.read import read_suite

    for name in ("methods", "scenarios", "plugins"):
        if isinstance(options.get(name), str | Path):
            options[name] = [options[name]]
    if isinstance(options.get("seeds"), int):
        options["seeds"] = [options["seeds"]]
    return make_plan(read_suite(suite), **options)


def execute(
    plan: Plan,
    *,
    replace: bool = False,
    place: Resources = Resources(),  # noqa: B008 - it cannot be changed
    listener: Listener | None = None,
) -> Run:
    """Run what of a plan is not finished, and write ``scores.csv``."""
    told: Listener = listener or _Silent()
    store = Store(plan.out)
    notes, pending = prepare(plan, store, replace=replace)
    for text in notes:
        told.note(text)
    if pending:
        from clbench.suite.plan import validate

        validate(plan, pending)
        # Only now: the engine takes seconds to import, and a finished run needs none of it.
        from clbench.evaluation.run_plan import run_plan

        try:
            run_plan(plan, told, _executor(place))
        finally:
            # Also when it was stopped: the table is to hold every cell that is on disk.
            _write_scores(store)
    else:
        told.started(len(plan.cells), 0)
        _write_scores(store)
    cells = store.read().cells
    return Run(plan.out, chosen(cells, (cell.key for cell in plan.cells)))


def _executor(place: Resources) -> Executor:
    if place.alone:
        from clbench.evaluation.run_plan import InProcessExecutor

        return InProcessExecutor(place.threads)
    from clbench.evaluation.ray_executor import RayExecutor

    return RayExecutor(place)


def _write_scores(store: Store) -> None:
    cells = store.read().cells
    if cells:
        store.write_scores(to_csv(scores_frame(cells)))


def prepare(plan: Plan, store: Store, *, replace: bool) -> tuple[list[str], list[Cell]]:
    """Put broken and replaced files aside, and say what is left to run.

    Returns
    -------
    tuple
        Lines for the user, and the cells that are not finished.
    """
    store.check(plan.suite.name)
    wanted = {cell.key for cell in plan.cells}
    present = store.read()
    notes = present.broken_lines(wanted)
    if any(file.path.stem in wanted for file in present.broken) or (replace and present.cells):
        with store.lock():
            present = store.read(set_aside=wanted)
            notes = present.broken_lines(wanted)
            if replace and (moved := store.replace(plan.cells)):
                word = "cell" if len(moved) == 1 else "cells"
                notes = [*notes, f"{len(moved)} {word} of other settings: now in cells/replaced/."]
                present = store.read()
    done = store.finished(plan.cells, present=present.cells)
    return notes, [cell for cell in plan.cells if cell.key not in done]


def chosen(cells: Iterable[CellResult], keys: Iterable[str]) -> tuple[CellResult, ...]:
    """The cells of those keys, in the given order of cells."""
    wanted = set(keys)
    return tuple(cell for cell in cells if cell.key in wanted)

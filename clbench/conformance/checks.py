"""All checks of a method, in order, each as one row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from clbench.conformance import cost, settings, training
from clbench.conformance.checkpoints import ARCHITECTURES, checkpoint
from clbench.conformance.journey import Journey, travel
from clbench.conformance.row import FailedCheckError, Row
from clbench.conformance.subject import Subject, subject_of
from clbench.conformance.world import make_world, own_cache
from clbench.evaluation.runner import explain
from clbench.methods.base import Method
from clbench.suite.baselines import Baseline
from clbench.suite.plugins import load_plugins

CHECKS = (
    "registers",
    "settings",
    "trains",
    "repeats",
    "resumes",
    "acts",
    "rows",
    "frees",
    "architectures",
    "cost",
)
"""Names of the checks, in the order of their rows."""
_AFTER_TRAINING = ("repeats", "resumes", "acts", "rows", "frees", "architectures", "cost")
Told = Callable[[str], None]


def check(
    method: str | Baseline | type[Method],
    *,
    settings: Mapping[str, Any] | None = None,
    plugins: Iterable[str | Path] = (),
    model: str = "tiny",
    told: Told | None = None,
) -> list[Row]:
    """Check a method on tiny tasks; takes seconds.

    Parameters
    ----------
    method
        A baseline, its file, a registered method, ``module:Class``, or a class.
    settings
        Replace the baseline's, key by key; a method that takes thousands of rows to prepare
        may be given a few.
    plugins
        Python files to import first.
    model
        Built-in model, folder, or name on the hub to check on; the architectures are checked
        on random models besides.
    told
        Called with the name of each check before it is made.

    Returns
    -------
    list of Row
        One a check, in the order of `CHECKS`.

    Raises
    ------
    ClbenchError
        If there is no such method or plug-in, or its baseline file is wrong.
    """
    load_plugins(plugins)
    subject = subject_of(method, settings)
    with own_cache() as folder:
        return _Checker(subject, model, folder, told or _silent).rows()


class _Checker:
    """Makes the rows one after another; what one run shows serves several."""

    def __init__(self, subject: Subject, model: str, folder: Path, told: Told) -> None:
        self._subject = subject
        self._model = model
        self._folder = folder
        self._told = told
        self._rows: list[Row] = []

    def rows(self) -> list[Row]:
        """All rows."""
        subject = self._subject
        self._row("registers", lambda: settings.registers(subject))
        if not self._row("settings", lambda: settings.settings(subject)):
            self._skip(("trains", *_AFTER_TRAINING), "its settings are not right")
        elif not self._row("trains", self._train):
            self._skip(_AFTER_TRAINING, "it does not train")
        else:
            self._trained_rows()
        return self._rows

    def _trained_rows(self) -> None:
        first, subject, world = self._first, self._subject, self._world
        vanilla, plain = _vanilla(self._model)
        counted: list[Journey] = []

        def again() -> str:
            counted.append(travel(world, subject, count_bytes=True))
            return training.repeats(first, counted[0])

        self._row("repeats", again)
        self._row("resumes", lambda: training.resumes(world, subject, first))
        self._row("acts", lambda: training.acts(first, vanilla))
        self._row("rows", lambda: training.rows(world, subject, first))
        if not counted:
            self._skip(("frees",), "it did not run twice")
        else:
            self._row("frees", lambda: cost.frees(first, counted[0], vanilla))
        self._row("architectures", self._architectures)
        if not counted:
            self._skip(("cost",), "it did not run twice")
            return
        self._told("cost")
        numbers = cost.memory(counted[0], plain) | self._time()
        self._rows.append(Row("cost", "pass", cost.told(numbers), numbers=numbers))

    def _time(self) -> dict[str, float]:
        """The last stage timed side by side with vanilla's."""
        world, first = self._world, self._first
        vanilla = travel(world, subject_of("vanilla"))
        mine = travel(world, self._subject, resume=first.saved[-1] if first.saved else None)
        return cost.time(first, mine, vanilla)

    def _train(self) -> str:
        self._world = make_world(self._model, self._folder)
        self._first = travel(self._world, self._subject, look=True)
        return f"through {len(self._first.weights)} stages"

    def _architectures(self) -> str:
        faults = []
        for kind in ARCHITECTURES:
            world = make_world(checkpoint(kind), self._folder / kind, rows=8)
            try:
                travel(world, self._subject)
            except Exception as fault:
                faults.append(f"{kind}: {explain(fault)}")
        if faults:
            raise FailedCheckError(
                "; ".join(faults),
                "Go by stage.model.layer_groups(), stage.shared_names() and named_parameters() "
                "instead of names that one architecture has.",
            )
        return ", ".join(ARCHITECTURES)

    def _row(self, name: str, make: Callable[[], str]) -> bool:
        """Make one check; True if it passed."""
        self._told(name)
        try:
            row = Row(name, "pass", make())
        except FailedCheckError as fault:
            row = Row(name, "fail", fault.reason, fault.hint)
        except Exception as fault:
            hint = "The place in brackets is the line that raised."
            row = Row(name, "fail", explain(fault), hint)
        self._rows.append(row)
        return row.status == "pass"

    def _skip(self, names: Iterable[str], why: str) -> None:
        self._rows += [Row(name, "skip", f"not checked: {why}") for name in names]


@cache
def _vanilla(model: str) -> tuple[Journey, Journey]:
    """Vanilla's way, and again with bytes counted."""
    with own_cache() as folder:
        world = make_world(model, folder)
        subject = subject_of("vanilla")
        return travel(world, subject), travel(world, subject, count_bytes=True)


def _silent(name: str) -> None:
    pass

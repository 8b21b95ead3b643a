"""All checks of a method, in order, each as one row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from clbench.conformance import cost, settings, training
from clbench.conformance.candidate import Candidate, candidate_of
from clbench.conformance.check_run import CheckRun, travel
from clbench.conformance.checkpoints import ARCHITECTURES, checkpoint
from clbench.conformance.result import FailedCheckError, Row
from clbench.conformance.toy_scenario import make_toy_scenario, own_cache
from clbench.errors import ClbenchError, SettingsError
from clbench.evaluation.run_cell import explain
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
_UNSUITED = (
    "The method refuses these tasks of a few steps. Settings that suit them can be given by "
    "--set KEY=VALUE."
)
_AFTER_TRAINING = ("repeats", "resumes", "acts", "rows", "frees", "architectures", "cost")
Notify = Callable[[str], None]


def check(
    method: str | Baseline | type[Method],
    *,
    settings: Mapping[str, Any] | None = None,
    plugins: Iterable[str | Path] = (),
    model: str = "tiny",
    architectures: Sequence[str] = ARCHITECTURES,
    told: Notify | None = None,
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
    architectures
        Those to try besides; all by default.
    told
        Called with the name of each check before it is made.

    Returns
    -------
    list of Row
        One a check, in the order of `CHECKS`.

    Raises
    ------
    ClbenchError
        If there is no such method, plug-in or model, or the baseline file or `settings` are
        wrong.
    """
    load_plugins(plugins)
    subject = candidate_of(method, settings)
    with own_cache() as folder:
        return _Checker(subject, model, folder, architectures, told or _silent).rows()


class _Checker:
    """Makes the rows one after another; what one run shows serves several."""

    def __init__(
        self,
        subject: Candidate,
        model: str,
        folder: Path,
        kinds: Sequence[str],
        told: Notify,
    ) -> None:
        self._subject = subject
        self._model = model
        self._folder = folder
        self._kinds = kinds
        self._told = told
        self._rows: list[Row] = []

    def rows(self) -> list[Row]:
        """All rows."""
        subject = self._subject
        self._world = make_toy_scenario(self._model, self._folder)
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
        counted = self._first

        def again() -> str:
            nonlocal counted
            counted = travel(world, subject, count_bytes=True)
            return training.repeats(first, counted)

        if self._row("repeats", again):
            self._row("resumes", lambda: training.resumes(world, subject, first))
        else:
            self._skip(("resumes",), "two runs differ already")
        self._row("acts", lambda: training.acts(self._subject, first, vanilla))
        if self._passed("repeats"):
            self._row("rows", lambda: training.rows(world, subject, first))
        else:
            self._skip(("rows",), "two runs differ already")
        self._row("frees", lambda: cost.frees(first, counted, vanilla))
        self._row("architectures", self._architectures)
        self._numbers("cost", lambda: cost.memory(counted, plain) | self._time())

    def _passed(self, name: str) -> bool:
        return any(row.check == name and row.status == "pass" for row in self._rows)

    def _train(self) -> str:
        self._first = travel(self._world, self._subject, look=True)
        return f"through {len(self._first.weights)} stages"

    def _time(self) -> dict[str, float]:
        """The last stage timed side by side with vanilla's."""
        world, first = self._world, self._first
        vanilla = travel(world, candidate_of("vanilla"))
        last = first.saved[-1] if self._passed("resumes") else None
        return cost.time(first, travel(world, self._subject, resume=last), vanilla)

    def _architectures(self) -> str:
        faults = []
        for kind in self._kinds:
            world = make_toy_scenario(checkpoint(kind), self._folder / kind, rows=8)
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
        return ", ".join(self._kinds)

    def _row(self, name: str, make: Callable[[], str]) -> bool:
        """Make one check; True if it passed."""
        self._told(name)
        try:
            row = Row(name, "pass", make())
        except FailedCheckError as fault:
            row = Row(name, "fail", fault.reason, fault.hint)
        except Exception as fault:
            row = Row(name, "fail", explain(fault), _hint(fault))
        self._rows.append(row)
        return row.status == "pass"

    def _numbers(self, name: str, make: Callable[[], Mapping[str, float]]) -> None:
        """Make a check that measures."""
        numbers: dict[str, float] = {}

        def measure() -> str:
            numbers.update(make())
            return cost.told(numbers)

        if self._row(name, measure):
            self._rows[-1] = replace(self._rows[-1], numbers=numbers)

    def _skip(self, names: Iterable[str], why: str) -> None:
        self._rows += [Row(name, "skip", f"not checked: {why}") for name in names]


@cache
def _vanilla(model: str) -> tuple[CheckRun, CheckRun]:
    """Vanilla's way, and again with bytes counted."""
    with own_cache() as folder:
        world = make_toy_scenario(model, folder)
        subject = candidate_of("vanilla")
        return travel(world, subject), travel(world, subject, count_bytes=True)


def _hint(fault: Exception) -> str:
    if isinstance(fault, SettingsError):
        return _UNSUITED
    if isinstance(fault, ClbenchError):
        return "Mend what the line says; `clbench run` would stop there, too."
    return "The place in brackets is the line that raised."


def _silent(name: str) -> None:
    pass

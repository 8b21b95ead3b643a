"""`clbench list`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

Row = tuple[str, str]


KINDS = ("suites", "scenarios", "methods", "tasks", "models", "shifts")


def listing(
    kind: Annotated[str, typer.Argument(metavar="|".join(KINDS), help="What to list.")],
    suite: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Whose scenarios, or own tasks.  [default: every packaged one]",
        ),
    ] = None,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Python file with methods, tasks; repeatable."),
    ] = None,
) -> int:
    """List suites, scenarios, methods, tasks, models or shifts."""
    from rich.table import Table

    from clbench.cli.console import out, show_table
    from clbench.cli.options import choice
    from clbench.suite.plugins import load_plugins

    makers: tuple[Callable[[], Iterable[Row]], ...] = (
        _suites,
        lambda: _scenarios(suite),
        _methods,
        lambda: _tasks(suite),
        _models,
        _shifts,
    )
    make = dict(zip(KINDS, makers, strict=True))[choice("list", kind, KINDS)]
    load_plugins(plugin or ())
    rows = make()
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, description in rows:
        table.add_row(name, description)
    show_table(out(), table)
    return 0


def _suites() -> Iterable[Row]:
    from clbench.suite.packaged import suites
    from clbench.suite.read import read_suite

    for name in suites():
        file = read_suite(name).file
        yield name, file.description or f"{len(file.scenario)} scenarios"


def _scenarios(suite: str | None) -> Iterable[Row]:
    from clbench.suite.packaged import suites
    from clbench.suite.read import read_suite

    if suite is not None:
        yield from _scenarios_of(suite)
        return
    for name in suites():
        yield name, read_suite(name).file.description
        yield from ((f"  {scenario}", text) for scenario, text in _scenarios_of(name))


def _scenarios_of(suite: str) -> Iterable[Row]:
    from clbench.suite.read import read_suite

    for scenario in read_suite(suite).file.scenario:
        tasks = " → ".join(scenario.task_names)
        note = f"  ({scenario.note})" if scenario.note else ""
        yield scenario.name, f"{scenario.shift}: {tasks}{note}"


def _methods() -> Iterable[Row]:
    from clbench.methods.base import METHODS
    from clbench.suite.baselines import read_baseline
    from clbench.suite.packaged import baselines

    files = baselines()
    for name in sorted({*files, *METHODS.names()}):
        if name in files:
            yield name, read_baseline(name).description
        else:
            told = _first_line(METHODS.get(name))
            yield name, f"{told} No baseline file." if told else METHODS.where(name)


def _tasks(suite: str | None) -> Iterable[Row]:
    from clbench.suite.read import read_suite
    from clbench.tasks.registry import TASKS

    for name in TASKS.names():
        told = getattr(TASKS.get(name), "description", "")
        yield name, told or TASKS.where(name).partition(":")[0]
    if suite is None:
        return
    read = read_suite(suite)
    yield from ((name, f"a table of {read.path}") for name in sorted(read.file.task))


def _models() -> Iterable[Row]:
    from clbench.models.locate import MODELS

    yield from ((name, MODELS.get(name).description) for name in MODELS.names())
    yield "NAME or FOLDER", "any AutoModel with safetensors, from the hub or from a local folder"


def _shifts() -> Iterable[Row]:
    from clbench.shifts.registry import SHIFTS

    for name in SHIFTS.names():
        yield name, _first_line(SHIFTS.get(name))


def _first_line(described: object) -> str:
    return (described.__doc__ or "").strip().partition("\n")[0]

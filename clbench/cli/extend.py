"""`clbench list` and `check`: what there is to build on, and whether a new method works."""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

from clbench.cli.arguments import Only, argument, choice, command
from clbench.cli.console import err, say, show_rows
from clbench.core.errors import (
    ArgumentError,
    ClbenchError,
    SettingsError,
    count,
    display_path,
    format_value,
    printable,
)
from clbench.core.options import Option
from clbench.methods.base import METHODS, Method
from clbench.models.locate import MODELS
from clbench.results.score_tables import MARKS
from clbench.shifts.base import SHIFTS
from clbench.suite.baselines import Baseline, Range, read_baseline
from clbench.suite.options import RunOptions
from clbench.suite.plugins import load_plugins
from clbench.suite.read import packaged_files, parse_toml, read_suite
from clbench.suite.sweeps import axes
from clbench.tasks.metrics import METRICS, TEXT_METRICS
from clbench.tasks.registry import TASKS

Rows = Iterator[tuple[str, ...]]
LISTED = {**MARKS, "holds_head": ("^", "itself holds a head that tasks share, or computes it")}
"""Flags of a method to list, each with its sign and the footnote."""
MOST_ANSWERS = 6
"""Most answers of a task to list."""


def _suites(suite: str | None) -> Rows:
    for name in packaged_files("scenarios"):
        file = read_suite(name).file
        yield name, file.description or f"{len(file.scenario)} scenarios"


def _scenarios(suite: str | None) -> Rows:
    for name in packaged_files("scenarios") if suite is None else (suite,):
        file = read_suite(name).file
        if suite is None:
            yield name, file.description
        indent = "  " if suite is None else ""
        for scenario in file.scenario:
            tasks = " → ".join(scenario.task_names)
            note = f"  ({scenario.note})" if scenario.note else ""
            yield f"{indent}{scenario.name}", f"{scenario.shift}: {tasks}{note}"


def _methods(suite: str | None) -> Rows:
    files = packaged_files("baselines")
    for name in sorted({*files, *METHODS}):
        baseline = read_baseline(name)
        kind = METHODS.get(baseline.method)
        try:
            method: Method | type[Method] = kind(**baseline.settings)
        except ClbenchError:  # it needs settings or a package
            method = kind
        signs = [sign for flag, (sign, _) in LISTED.items() if getattr(method, flag) is True]
        title = " ".join([name, *signs])
        if name in files:
            yield title, baseline.description
        else:
            yield title, f"{_first_line(kind) or METHODS.where(name)} Default settings."
    yield from LISTED.values()


def _tasks(suite: str | None) -> Rows:
    for name in TASKS:
        loader: Any = TASKS.get(name)
        spec = getattr(loader, "spec", loader)
        description = getattr(spec, "description", "") or TASKS.where(name).partition(":")[0]
        classes, rows = getattr(loader, "classes", 0), getattr(spec, "rows", None)
        yield (
            name,
            "number" if classes == 1 else f"{classes or ''}",
            f"{rows[0]:,} / {rows[1]:,}" if rows else "",
            getattr(spec, "licence", ""),
            f"{description}{_words(loader)}",
        )
    if suite is not None:
        source = read_suite(suite)
        path = display_path(source.path)
        yield from ((name, "", "", "", f"defined in {path}") for name in sorted(source.file.task))


def _words(loader: Any) -> str:
    """Return a task's prompt and answers for language models, behind a semicolon."""
    if not hasattr(loader, "template"):
        return ""
    template = loader.template()
    answers = list(template.answers.values())
    words = " | ".join(answers) if 0 < len(answers) <= MOST_ANSWERS else "the class"
    if getattr(getattr(loader, "spec", None), "target", None):
        words = "any text"
    prompt = template.prompt.replace("\n", "↵")
    return f'; prompt "{prompt}", answers: {words}'


def _models(suite: str | None) -> Rows:
    yield from ((name, MODELS.get(name).description) for name in MODELS)
    yield "NAME or FOLDER", "any AutoModel with safetensors, from the hub or a local folder"


def _metrics(suite: str | None) -> Rows:
    for name in METRICS:
        metric = METRICS.get(name)
        kind = "regression" if metric.regression else "classification"
        yield name, f"{kind}: {_first_line(metric)}"
    yield from ((name, f"texts: {_first_line(TEXT_METRICS[name])}") for name in TEXT_METRICS)


def _first_line(entry: object) -> str:
    return (entry.__doc__ or "").strip().partition("\n")[0]


KINDS = {
    "suites": _suites,
    "scenarios": _scenarios,
    "methods": _methods,
    "tasks": _tasks,
    "models": _models,
    "shifts": lambda suite: ((name, _first_line(SHIFTS.get(name))) for name in SHIFTS),
    "metrics": _metrics,
}


def _settings(baseline: Baseline) -> Rows:
    """Yield each setting of a baseline with its value, sweep and source."""
    method, swept = baseline.build(), axes(baseline)
    for key in method.settings_model().model_fields:
        value, axis = getattr(method, key), swept.get(key, ())
        if isinstance(axis, Range):
            tried = f"{axis.low:g} to {axis.high:g}"
        else:
            tried = ", ".join(map(format_value, axis))
        default = "" if key in baseline.settings else "default"
        shown = "none" if value is None else format_value(value)
        yield key, shown, tried, baseline.sources.get(key, default)


@command
def listing(
    options: Annotated[RunOptions, Only("plugins")],
    kind: Annotated[str, argument("|".join(KINDS), "What to list.", lambda: KINDS)],
    method: Annotated[
        str | None, argument("METHOD", "With methods: list the settings of this one.")
    ] = None,
    suite: Annotated[
        str | None,
        Option(
            "List the scenarios or tasks of this suite.",
            "NAME|FILE",
            default="all packaged suites",
        ),
    ] = None,
) -> int:
    """List suites, scenarios, methods, tasks and other names."""
    choice("list", kind, list(KINDS))
    if suite is not None and kind not in ("scenarios", "tasks"):
        raise ArgumentError("list: --suite goes with scenarios or tasks. Leave it out.")
    load_plugins(options.plugins)
    if method is not None:
        if kind != "methods":
            raise ArgumentError(f"list: {method!r} goes with methods: clbench list methods METHOD.")
        baseline = read_baseline(method)
        say(f"{method}: {printable(baseline.description)}".rstrip(": "))
        settings = [tuple(map(printable, row)) for row in _settings(baseline)]
        show_rows(settings, ("setting", "value", "to tune", "source"))
        return 0
    rows = ((name, *map(printable, texts)) for name, *texts in KINDS[kind](suite))
    show_rows(rows, ("task", "classes", "rows", "licence", "") if kind == "tasks" else ())
    return 0


WORDS = {"pass": "ok", "fail": "FAILED", "skip": "-"}


@command
def check(
    options: Annotated[RunOptions, Only("plugins model", model="tiny")],
    method: Annotated[
        str,
        argument("METHOD", "Baseline, registered method, baseline file or module:Class."),
    ],
    set_: Annotated[list[str] | None, Option("Override a setting.", "KEY=VALUE")] = None,
) -> int:
    """Check that a method keeps its promises, on tiny tasks.

    Tests seeds, resuming, access to rows, memory and model architectures, in a minute or two. Exit
    code 0 if all checks pass, 1 if one fails, 2 if the command or its input is wrong.
    """
    settings = dict(_setting(text) for text in set_ or ())
    load_plugins(options.plugins)
    baseline = read_baseline(method)  # report a wrong name before importing torch
    from clbench.conformance import check as run_checks

    console = err()
    with console.status(console.render_str(f"checking {method}")) as status:

        def started(name: str) -> None:
            status.update(console.render_str(f"checking {method}: {name}"))

        model = options.model or "tiny"
        rows = run_checks(baseline, settings=settings, model=model, started=started)
    lines = []
    for row in rows:
        lines.append((row.check, WORDS[row.status], row.reason))
        if row.hint:
            lines.append(("", "", f"What to do: {row.hint}"))
    show_rows(lines, unbroken=2)
    counts = Counter(row.status for row in rows)
    failed = f", {counts['fail']} failed" if counts["fail"] else ""
    skipped = f", {counts['skip']} skipped" if counts["skip"] else ""
    say(f"{count(counts['pass'], 'check')} passed{failed}{skipped}.")
    return 1 if any(row.status == "fail" for row in rows) else 0


def _setting(text: str) -> tuple[str, Any]:
    """Return key and value of ``KEY=VALUE``, the value parsed as TOML if possible, else text."""
    key, _, value = (part.strip() for part in text.partition("="))
    if not key or not value:
        raise SettingsError(f"--set {text!r}: write KEY=VALUE, such as memory=20.")
    try:
        return key, parse_toml(f"value = {value}")["value"]
    except ValueError:
        return key, value

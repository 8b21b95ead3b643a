"""The cells of the runs of a report, and notes on where the runs differ."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from clbench.core.errors import RunFolderError, join_names
from clbench.methods.base import METHODS
from clbench.report.content import MOST_DETAILS, MOST_SCENARIOS
from clbench.results.cell import CellResult, summarizer
from clbench.results.reading import Cells
from clbench.results.resume import defaults_of, first_difference, scenario_sections
from clbench.results.store import Store
from clbench.training.protocol import PATHS, Protocol

Meanings = dict[tuple[str, str], Any]
"""Sections of recipes by what they are of: kind (``method``, ``scenario``, ``run``) and name."""
RUN = ("run", "")
"""Key of the sections that all cells of a run share: `RUN_SECTIONS`."""
RUN_SECTIONS = ("version", "model")
APART = {"method": "settings or code", "scenario": "tasks or settings"}
"""What may tell two methods or scenarios of one name apart, by kind."""


def read_runs(stores: Sequence[Store]) -> tuple[list[CellResult], list[str], bool]:
    """Return the cells of all runs, notes on them, and whether a cell is damaged or missing.

    Seeds of a method are pooled only if they could stand in one run folder. Else the name of the
    later run is added: to a scenario with other rows or settings; to a method with other settings
    or code, or with a seed that an earlier run has too; and to all methods of a run whose protocol,
    weights or recipe version differ from the first run's.
    Cells keep their curves only if the report shows them.

    Raises
    ------
    RunFolderError
        If a folder is not a run or has no cell.
    """
    cells: list[CellResult] = []
    notes: list[str] = []
    is_damaged = False
    keys: set[str] = set()
    earlier: Meanings = {}
    labels = run_labels(stores)
    summarize = summarizer(_curve_filter())
    for store, label in zip(stores, labels, strict=True):
        run, meanings = _read_run(store, summarize)
        notes += run.broken_lines(())
        is_damaged = is_damaged or bool(run.broken or run.missing)
        pairs = {key: (earlier.get(key, value), value) for key, value in meanings.items()}
        texts = {key: _difference(*pair) for key, pair in pairs.items() if pair[0] != pair[1]}
        changed = {key: text for key, text in texts.items() if text}
        is_other_run = changed.pop(RUN, None)
        if is_other_run:
            apart = f"so its methods are shown apart from those of {labels[0]}"
            notes.append(f"{label} {is_other_run}, {apart}.")
        notes += [
            f"{name} in {label} has other {APART[kind]} than in earlier runs: "
            f"{text.removeprefix('was run with ')}."
            for (kind, name), text in changed.items()
        ]
        other_scenarios, other_methods = (
            {name for kind, name in changed if kind == what} for what in ("scenario", "method")
        )
        if is_other_run or _protocol_differences([stores[0], store], ["first", "this"]):
            other_methods |= {cell.baseline for cell in run.cells}
        other_methods = _with_families(other_methods, run.cells)
        own = [cell for cell in run.cells if cell.scenario not in other_scenarios]
        clashing = _with_families({c.baseline for c in own if c.key in keys}, own)
        keys |= {cell.key for cell in run.cells}
        for cell in run.cells:
            is_other = cell.scenario in other_scenarios
            changes = {"scenario": f"{cell.scenario} ({label})"} if is_other else {}
            if is_other_run:  # its single-task references are those of its own methods only
                changes["model"] = f"{cell.model} ({label})"
            if cell.baseline in other_methods or (cell.baseline in clashing and not is_other):
                changes["baseline"] = f"{cell.baseline} ({label})"
                if cell.family:
                    changes["family"] = f"{cell.family} ({label})"
            cells.append(cell.model_copy(update=changes) if changes else cell)
        earlier = meanings | earlier
    return cells, [*notes, *_suite_notes(stores, labels), *_tuning_notes(cells)], is_damaged


def _with_families(names: set[str], cells: Sequence[CellResult]) -> set[str]:
    """Return baselines with all points of the sweeps to which one of them belongs."""
    families = {cell.family for cell in cells if cell.family and cell.baseline in names}
    return names | {cell.baseline for cell in cells if cell.family in families}


def _suite_notes(stores: Sequence[Store], labels: Sequence[str]) -> Iterator[str]:
    """Yield notes on where the suites of runs differ, cannot be read or are missing."""
    if differences := _protocol_differences(stores, labels):
        yield (
            f"The protocols differ ({'; '.join(differences)}), so differences between these runs "
            "are not due to their methods alone."
        )
    for store in stores:
        if not store.read_suite():
            problem = "cannot be read" if store.suite_path.exists() else "is missing"
            unknown = "its question, looks and protocol are unknown"
            yield f"{store.suite_path} {problem}, so {unknown}."
    plans = [(s.questions()[-1], s.looks()) for s in stores if s.read_suite()]
    for what, *each in zip(("questions", "looks"), *plans, strict=True):
        if any(plan != each[0] for plan in each):
            yield f"The {what} of these runs differ; the verdicts are for those of {labels[0]}."


def _tuning_notes(cells: Sequence[CellResult]) -> Iterator[str]:
    """Yield a note on each method that was tuned on the rows or on a seed of its cells."""
    on_rows = dict.fromkeys(c.baseline for c in cells if c.search.get("on_reported_rows"))
    for name in on_rows:
        yield f"{name}: its settings were tuned on the reported rows, so its scores are too good."
    tuned_on: dict[str, set[int]] = {}
    for cell in cells:
        if cell.seed in cell.search.get("seeds", ()):
            tuned_on.setdefault(cell.baseline, set()).add(cell.seed)
    for name, seeds in tuned_on.items():
        shown = join_names(map(str, sorted(seeds)))
        yield (
            f"{name}: its settings were tuned on seeds that are shown here ({shown}), so its "
            "scores on them are too good by chance."
        )


def _read_run(
    store: Store, summarize: Callable[[CellResult], CellResult]
) -> tuple[Cells, Meanings]:
    meanings: Meanings = {}

    def record(cell: CellResult) -> CellResult:
        recipe = cell.recipe
        if cell.is_scored:
            code = {key: recipe.get("method", {}).get(key) for key in ("source", "version")}
            method = {"name": cell.method, **code, "settings": cell.settings.get("method")}
            meaning = {"method": method, "corpus": recipe.get("corpus")}
            meanings.setdefault(("method", cell.baseline), meaning)
        if cell.status == "ok":  # a failed one may be of an earlier version, or of other rows
            others = (*RUN_SECTIONS, "protocol")
            names = (key for key in scenario_sections(recipe) if key not in others)
            meaning = {key: recipe.get(key) for key in names}
            meanings.setdefault(("scenario", cell.scenario), meaning)
            if recipe:
                meanings.setdefault(RUN, {key: recipe.get(key) for key in RUN_SECTIONS})
        return summarize(cell)

    store.require()
    run = store.read(transform=record)
    if not run.cells:
        broken = "".join(f" {line}" for line in list(run.broken_lines(()))[:1])
        raise RunFolderError(f"{store.out} has no finished cell yet. Run it first.{broken}")
    return run, meanings


def _difference(before: Any, now: Any) -> str | None:
    """Return how two meanings differ; a setting of a method that one of them lacks is its default.

    An earlier version of clbench may have had no such setting. The corpus counts for a method that
    may read it.
    """
    name, both = now.get("method", {}).get("name"), [before, now]
    sections = [key for key in now if key in before]
    settings: list[Any] = [each.get("method", {}).get("settings") or {} for each in both]
    if name in METHODS:
        method = METHODS.get(name)
        if not method.reads_corpus:
            sections.remove("corpus")
        added = defaults_of(method.settings_model())
        both = [
            {**each, "method": {**each["method"], "settings": {**added, **own}}}
            for each, own in zip(both, settings, strict=True)
        ]
    return first_difference(*both, sections=sections)


def _curve_filter() -> Callable[[CellResult], bool]:
    """Return a function that tells whether the page shows a cell's curves anywhere."""
    count = 0
    scenarios: set[str] = set()

    def is_shown(cell: CellResult) -> bool:
        nonlocal count
        count += 1
        if cell.status == "ok" and len(scenarios) < MOST_SCENARIOS:
            scenarios.add(cell.scenario)
        return count <= MOST_DETAILS or cell.status == "failed" or cell.scenario in scenarios

    return is_shown


def run_labels(stores: Sequence[Store]) -> list[str]:
    """Return the names of the folders, with as many parents as are needed to tell them apart."""
    parts = [store.out.resolve().parts for store in stores]
    for count in range(1, max(map(len, parts)) + 1):
        labels = ["/".join(each[-count:]) for each in parts]
        if len(set(labels)) == len(labels):
            break
    return labels


def _protocol_differences(stores: Sequence[Store], labels: Sequence[str]) -> list[str]:
    """Return the settings of the protocol that differ between the runs in which it is known."""
    all_protocols = {
        label: store.read_suite().get("protocol", {})
        for label, store in zip(labels, stores, strict=True)
    }
    # A run of an earlier version may lack a setting, which then had its present default.
    added = defaults_of(Protocol)
    protocols = {label: {**added, **own} for label, own in all_protocols.items() if own}
    differences = []
    keys = dict.fromkeys(key for protocol in protocols.values() for key in protocol)
    for key in (key for key in keys if key not in PATHS):  # the recipes are compared
        values = {label: protocol.get(key) for label, protocol in protocols.items()}
        if any(value != next(iter(values.values())) for value in values.values()):
            each = ", ".join(f"{value} in {label}" for label, value in values.items())
            differences.append(f"{key}: {each}")
    return differences

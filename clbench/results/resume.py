"""What a run's folder was run with: its suite, and the recipes of its cells, against a new run."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clbench.core.files import plain
from clbench.core.user_code import user_code
from clbench.results.cell import CellResult
from clbench.suite.baselines import Baseline
from clbench.suite.plan import Cell
from clbench.suite.schema import Question
from clbench.training.protocol import BY_TASK

SCENARIO_SECTIONS = (
    *("version", "scenario", "shift", "files", "tasks", "metrics", "model", "protocol"),
    *("templates", "capability_tasks"),
)
"""Sections of a recipe that all cells of one scenario share; see `scenario_sections`."""
RUN_SECTIONS = ("version", "model", "protocol", "capability_tasks")
"""Sections that all cells of a run share, except for `BY_TASK`; see `_measured`."""

DIGESTS = {
    "version": "a clbench version that trains differently",
    "shift": "a different implementation of the shift",
    "model": "a different model or different weights",
    "tasks": "different rows of {key}",
    "metrics": "a different implementation of the metric {key}",
    "templates": "other prompts or answers of {key}",
    "capability_tasks": "other rows, prompts or answers of {key}",
    "corpus": "another corpus",
    "files": "different content in its {key} file",
    "source": "a different implementation of the method",
}
"""Descriptions of differing digests, which themselves tell a reader nothing."""

_MISSING = object()


def defaults_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the default of each setting as plain JSON values; older results may lack settings."""
    fields = model.model_fields.items()
    values = {name: field.get_default(call_default_factory=True) for name, field in fields}
    defaults: dict[str, Any] = plain(values)
    return defaults


def scenario_sections(recipe: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the sections that a recipe shares with those of all cells of its scenario."""
    # The shift of a plug-in, which has a digest, may read the corpus, too.
    reads = recipe.get("shift") or _value(recipe, "scenario", "shift") == "pretraining"
    return (*SCENARIO_SECTIONS, *(("corpus",) if reads else _measured(recipe)))


def _measured(recipe: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the section with the texts that a language model is measured on, if it is."""
    return ("corpus",) if _value(recipe, "protocol", "capability_rows") else ()


def _value(recipe: Mapping[str, Any], section: str, key: str) -> Any:
    values = recipe.get(section)
    return values.get(key) if isinstance(values, dict) else None


def _reads_corpus(baseline: Baseline) -> bool:
    with user_code(f"method {baseline.method!r}"):
        return baseline.build().reads_corpus


def conflicts(cells: Sequence[Cell], results: Iterable[CellResult]) -> dict[str, str]:
    """Return what differs, by key, for finished cells that cannot share a table with `cells`.

    A cell of the same key conflicts if its fingerprint differs, a cell of another key if its
    rows, prompts, model or protocol differ, or the settings of its baseline, or a corpus that is
    read. `results` are the cells in the folder.
    """
    by_key = {cell.key: cell for cell in cells}
    by_baseline = {cell.baseline.name: cell for cell in reversed(cells)}
    by_scenario = {cell.scenario.name: cell for cell in reversed(cells)}
    differences = {}
    for old in results:
        if old.status != "ok":
            continue
        difference = None
        if (cell := by_key.get(old.key)) is not None:
            if cell.fingerprint != old.fingerprint:
                difference = first_difference(old.recipe, cell.recipe) if old.recipe else None
                difference = difference or "was run with other settings"
        elif old.recipe and (cell := by_scenario.get(old.scenario)) is not None:
            sections = scenario_sections(cell.recipe)
            difference = first_difference(old.recipe, cell.recipe, sections=sections)
        elif old.recipe and cells:
            new, sections = cells[0].recipe, (*RUN_SECTIONS, *_measured(cells[0].recipe))
            passes_once = any(_value(each, "scenario", "online") for each in (old.recipe, new))
            own = (*BY_TASK, *(("epochs", "steps") if passes_once else ()))
            difference = first_difference(old.recipe, new, sections=sections, ignore=own)
        if not difference and old.recipe and (cell := by_baseline.get(old.baseline)) is not None:
            difference = first_difference(old.recipe, cell.recipe, sections=("method",))
            corpus = first_difference(old.recipe, cell.recipe, sections=("corpus",))
            if not difference and corpus and _reads_corpus(cell.baseline):
                difference = corpus
        if difference:
            differences[old.key] = difference
    return differences


def first_difference(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    *,
    sections: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
) -> str | None:
    """Return the first difference of two recipes, as ``"was run with epochs = 3, now 1"``, or None.

    `sections` are compared, by default all of `new`, except for the keys in `ignore`.
    """
    for section in new if sections is None else sections:
        before, now = plain(old.get(section)), plain(new.get(section))
        if before == now:
            continue
        if not isinstance(before, dict) or not isinstance(now, dict) or section == "model":
            return f"was run with {_describe(section, section, before, now)}"
        for key, value, new_value in _differences(before, now):
            if key not in ignore:
                return f"was run with {_describe(section, key, value, new_value)}"
    return None


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield each key whose values differ, with both values; settings of a method one by one."""
    for key in {**now, **before}:
        old, new = before.get(key, _MISSING), now.get(key, _MISSING)
        if key == "settings" and isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new)
        elif old != new:
            yield key, old, new


def _describe(section: str, key: str, old: Any, new: Any) -> str:
    if text := DIGESTS.get(
        key if section == "method" and key in ("source", "version") else section
    ):
        return text.format(key=key)
    lists = [sorted(map(str, value)) for value in (old, new) if isinstance(value, list)]
    if len(lists) == 2 and lists[0] == lists[1]:
        return f"another order of {key}"
    texts = ["not set" if value is _MISSING else repr(value) for value in (old, new)]
    short = [text if len(text) <= 60 else f"{text[:57]}..." for text in texts]
    return f"{key} = {short[0]}, now {short[1]}"


class _Scenario(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str = ""


class _Suite(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str = ""
    description: str = ""
    model_name: str = ""
    commands: list[list[str]] = []
    questions: list[Question] = []
    looks: list[Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)]] = []
    methods: list[str] = []
    seeds: list[int] = []
    protocol: dict[str, Any] = {}
    scenario: list[_Scenario] = []
    baseline: dict[str, Any] = {}
    task: dict[str, Any] = {}
    plugins: dict[str, Any] = {}
    grown: bool = False
    more_seeds: bool = False


def parse_suite(content: Any) -> dict[str, Any]:
    """Return the suite in the content of the file; empty if it has another form."""
    try:
        return _Suite.model_validate(content["suite"]).model_dump(exclude_unset=True)
    except (ValidationError, LookupError, TypeError):
        return {}


def merge_suites(before: Mapping[str, Any], resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a suite with what earlier runs in its folder had besides.

    Commands, methods, seeds, scenarios, questions and looks are kept; the last question is the
    current one. Methods and scenarios have the order of the larger run. ``grown`` says that some of
    them were added to a run with looks.
    """
    merged: dict[str, Any] = {}
    for name in ("commands", "looks"):
        merged[name] = _union(before.get(name, []), resolved.get(name, []))
    merged["methods"] = _in_order(resolved.get("methods", []), before.get("methods", []))
    scenarios, earlier = (
        {table.get("name", ""): table for table in suite.get("scenario", [])}
        for suite in (resolved, before)
    )
    names = _in_order([*scenarios], [*earlier])
    merged["scenario"] = [{**earlier, **scenarios}[name] for name in names]
    merged["seeds"] = sorted(_union(before.get("seeds", []), resolved.get("seeds", [])))
    for name in ("baseline", "task", "plugins"):
        merged[name] = {**before.get(name, {}), **resolved.get(name, {})}
    is_new = {*resolved.get("methods", [])} - {*before.get("methods", [])} or {*scenarios} - {
        *earlier
    }
    more = {*resolved.get("seeds", [])} - {*before.get("seeds", [])}
    merged["more_seeds"] = has_more_seeds(before) or bool(before.get("seeds") and more)
    merged["grown"] = before.get("grown", False) or bool(before.get("looks") and is_new)
    questions, latest = before.get("questions", []), resolved.get("questions", [])[-1:]
    merged["questions"] = questions + (latest if questions[-1:] != latest else [])
    kept = {name: value for name, value in merged.items() if value or name == "more_seeds"}
    return {**resolved, **kept}


def has_more_seeds(suite: Mapping[str, Any]) -> bool:
    """Whether seeds were added to a run after it began.

    An earlier version did not record that: there, whether its commands have different ``--seeds``.
    """
    seeds = {
        command[command.index("--seeds") + 1] if "--seeds" in command[:-1] else ""
        for command in suite.get("commands", [])
    }
    return bool(suite.get("more_seeds", len(seeds) > 1))


def _union(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Return the entries of both lists, equal ones once."""
    return list({json.dumps(entry): entry for entry in (*first, *second)}.values())


def _in_order(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Return the union of two lists in the order of the longer one."""
    return _union(*sorted((first, second), key=len, reverse=True))

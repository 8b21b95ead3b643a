"""The content of ``suite.json``: the suite of a run's folder, over all runs in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clbench.suite.question import Question


class _Scenario(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str = ""


class _Suite(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str = ""
    description: str = ""
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


class _SuiteFile(BaseModel):
    suite: _Suite


def parse_suite(content: Any) -> dict[str, Any]:
    """Return the suite in the content of the file; empty if it has another form."""
    try:
        return _SuiteFile.model_validate(content).suite.model_dump(exclude_unset=True)
    except ValidationError:
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
    merged["grown"] = before.get("grown", False) or bool(before.get("looks") and is_new)
    questions, latest = before.get("questions", []), resolved.get("questions", [])[-1:]
    merged["questions"] = questions + (latest if questions[-1:] != latest else [])
    return {**resolved, **{name: value for name, value in merged.items() if value}}


def _union(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Return the entries of both lists, equal ones once."""
    return list({json.dumps(entry): entry for entry in (*first, *second)}.values())


def _in_order(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Return the union of two lists in the order of the longer one."""
    return _union(*sorted((first, second), key=len, reverse=True))

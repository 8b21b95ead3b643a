"""Write the JSON Schemas of cells and suites from the models that read them.

``python -m tools.schemas`` writes ``clbench/schemas/cell.json`` and ``suite.json``; descriptions
come from the docstrings. ``audit.json`` has no model, so its schema is written by hand.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from clbench.results.cell import CellResult
from clbench.suite.schema import Question, ScenarioSpec, SuiteFile, VariantTable
from clbench.tasks.spec import FileTaskSpec, HubTaskSpec, SyntheticTaskSpec, TableSpec
from clbench.training.protocol import Protocol, StageRecord

FOLDER = Path(__file__).parents[1] / "clbench" / "schemas"
MODELS = (
    *(CellResult, StageRecord, SuiteFile, Question, ScenarioSpec, VariantTable, Protocol),
    *(FileTaskSpec, HubTaskSpec, SyntheticTaskSpec),
)
WIDTH = 100

Schema = dict[str, Any]


def attributes(model: type[BaseModel]) -> dict[str, str]:
    """Return the descriptions of a model's fields in the docstrings of its classes."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        _, _, text = (inspect.cleandoc(base.__dict__.get("__doc__") or "")).partition(
            "Attributes\n----------\n"
        )
        for names, described in re.findall(
            r"^(\w[\w, ]*)\n((?:    .*\n?|\n)+)", text, re.MULTILINE
        ):
            for name in names.split(", "):
                found[name] = " ".join(described.replace("``", "`").split())
    return found


def tidy(value: Any) -> Any:
    """Return a part of a schema without titles and empty defaults."""
    if isinstance(value, list):
        return [tidy(each) for each in value]
    if not isinstance(value, dict):
        return value
    empty = {"default"} if value.get("default", 0) in (None, "", [], {}) else set()
    named = {"title"} if isinstance(value.get("title"), str) else set()
    return {key: tidy(each) for key, each in value.items() if key not in empty | named}


def schema_of(model: type[BaseModel], what: str) -> Schema:
    """Return the schema of the files that a model reads."""
    schema: Schema = tidy(model.model_json_schema())
    named = {each.__name__: each for each in MODELS}
    own = {name: part for name, part in schema.get("$defs", {}).items() if name in named}
    for name, part in {**own, model.__name__: schema}.items():
        texts = attributes(named[name])
        part["description"] = (named[name].__doc__ or "").partition("\n")[0]
        for key, each in part["properties"].items():
            if key in texts:
                each["description"] = texts[key]
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:clbench:{what}",
        "title": what,
    }
    return {**head, **schema}


def suite() -> Schema:
    """Return the schema of a suite file, in which shifts' settings stand beside its own keys."""
    schema = schema_of(SuiteFile, "suite")
    schema["required"].remove("name")
    scenario = schema["$defs"]["ScenarioSpec"]
    del scenario["properties"]["settings"]
    scenario["additionalProperties"] = True
    scenario["properties"]["shift"]["description"] = (
        "Name of a registered shift; every other key of the table is one of its settings."
    )
    schema["properties"]["task"]["additionalProperties"] = {
        "if": {"required": ["synthetic"]},
        "then": {"$ref": "#/$defs/SyntheticTaskSpec"},
        "else": {
            "if": {"required": ["hub"]},
            "then": {"$ref": "#/$defs/HubTaskSpec"},
            "else": {"$ref": "#/$defs/FileTaskSpec"},
        },
    }
    schema["properties"]["task"]["description"] += " Paths are relative to the suite file."
    plain = {"type": ["string", "number", "boolean"]}
    for model in (FileTaskSpec, HubTaskSpec):
        part = schema["$defs"][model.__name__]
        fields = part["properties"]
        fields["text"] = {"anyOf": [{"type": "string", "minLength": 1}, fields["text"]]}
        fields["text"]["description"] = attributes(TableSpec)["text"]
        del fields["text"]["anyOf"][1]["description"]
        for name in ("labels", "without"):
            fields[name]["anyOf"][0]["items"] = plain  # read as text
        if "label" in part["required"]:
            part["required"].remove("label")
            part["anyOf"] = [{"required": ["label"]}, {"required": ["target"]}]
    return schema


def cell() -> Schema:
    """Return the schema of the file of a cell."""
    return schema_of(CellResult, "cell")


def text(value: Any, depth: int = 0) -> str:
    """Return JSON in which what fits into a line stands in one."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + 2 * depth < WIDTH or not isinstance(value, dict | list):
        return line
    pairs: Iterator[str]
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)}: {text(each, depth + 1)}" for key, each in value.items())
    else:
        pairs = (text(each, depth + 1) for each in value)
    indent, (start, end) = "\n" + "  " * depth, "{}" if isinstance(value, dict) else "[]"
    return f"{start}{indent}  {f',{indent}  '.join(pairs)}{indent}{end}"


if __name__ == "__main__":
    for name, schema in (("cell", cell()), ("suite", suite())):
        (FOLDER / f"{name}.json").write_text(text(schema) + "\n", encoding="utf-8")

"""`clbench schema`: the formats of audits, cells, submissions and suites as JSON Schemas.

All but the first come from the models that read them, and from their docstrings.
"""

import inspect
import json
import re
from importlib.resources import files
from typing import Annotated, Any

from pydantic.json_schema import GenerateJsonSchema

from clbench.cli.arguments import argument, choice, command

Schema = dict[str, Any]
KINDS = ("audit", "cell", "submission", "suite")


@command
def schema(
    kind: Annotated[str, argument("|".join(KINDS), "What to describe.", lambda: KINDS)],
) -> int:
    """Print the JSON Schema of audits, of a run's cells, of submissions or of suite files."""
    print(json.dumps(schema_of(choice("schema", kind, KINDS)), indent=2, ensure_ascii=False))
    return 0


def schema_of(kind: str) -> Schema:
    """Return the schema of audit.json, of the file of a cell, of a manifest, or of suite files."""
    if kind == "audit":
        content: Schema = json.loads(
            (files("clbench") / "schemas" / "audit.json").read_text("utf-8")
        )
        return content
    from clbench.board.manifest import Manifest
    from clbench.results.cell import CellResult
    from clbench.suite.schema import SuiteFile

    models = {"cell": CellResult, "submission": Manifest, "suite": SuiteFile}
    model: Any = models[kind]
    schema = model.model_json_schema(schema_generator=_Documented) | {"title": kind}
    head = {"$schema": _Documented.schema_dialect, "$id": f"urn:clbench:{kind}"}
    return head | (_suite(schema) if kind == "suite" else schema)


def _suite(schema: Schema) -> Schema:
    """Return the schema of a suite file, in which shifts' settings stand beside its own keys."""
    from clbench.tasks.spec import FileTaskSpec, HubTaskSpec, TableSpec

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
        fields["text"]["description"] = _attributes(TableSpec)["text"]
        del fields["text"]["anyOf"][1]["description"]
        for name in ("labels", "without"):
            fields[name]["anyOf"][0]["items"] = plain  # read as text
        if "label" in part["required"]:
            part["required"].remove("label")
            part["anyOf"] = [{"required": ["label"]}, {"required": ["target"]}]
    return schema


class _Documented(GenerateJsonSchema):
    """Describes models and their fields by the docstrings."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: Any) -> Schema:
        found = super().model_schema(schema)
        found["description"] = (schema["cls"].__doc__ or "").partition("\n")[0]
        for name, text in _attributes(schema["cls"]).items():
            if name in found["properties"]:
                found["properties"][name]["description"] = text
        return found


def _attributes(model: type) -> dict[str, str]:
    """Return the descriptions of a model's fields in the docstrings of its classes."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        _, _, text = inspect.cleandoc(base.__dict__.get("__doc__") or "").partition(
            "Attributes\n----------\n"
        )
        for names, lines in re.findall(r"^(\w[\w, ]*)\n((?:    .*\n?|\n)+)", text, re.MULTILINE):
            described = " ".join(lines.replace("``", "`").split())
            found |= dict.fromkeys(names.split(", "), described)
    return found

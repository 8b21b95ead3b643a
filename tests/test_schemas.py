"""The JSON Schemas in the package describe what is kept, and what the readers read."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from helpers.audits import make_audit

from clbench.audit.logs.audit import audit_logs
from clbench.audit.page import content_of
from clbench.cli.app import main
from clbench.cli.schema import schema_of
from clbench.results.archive import ARCHIVE, cell_files, read_archive

ROOT = Path(__file__).parents[1]
SUITES = sorted((ROOT / "scenarios").glob("*.toml"))
STUDIES = sorted({path.parent for path in ROOT.glob(f"results/*/*/{ARCHIVE}")})
AUDITS = [*ROOT.glob("results/**/audit.json"), *ROOT.glob("docs/**/audit.json")]


def validator(kind: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema_of(kind))


def errors(kind: str, content: Any) -> list[str]:
    return [f"{e.json_path}: {e.message}" for e in validator(kind).iter_errors(content)]


def cells(folder: Path) -> Iterator[Any]:
    yield from (json.loads(path.read_bytes()) for path in cell_files(folder))
    yield from (json.loads(content) for content in read_archive(folder).values())


@pytest.mark.parametrize("kind", ["audit", "cell", "submission", "suite"])
def test_the_program_prints_valid_schemas(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", kind]) == 0
    printed = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(printed)
    assert printed == schema_of(kind)
    assert main(["schema", "cells"]) == 2


def test_schemas_have_the_descriptions_of_docstrings() -> None:
    cell, suite = schema_of("cell"), schema_of("suite")
    assert cell["description"] == "One scenario × baseline × seed, finished or failed."
    assert cell["properties"]["fingerprint"]["description"].startswith("Digest of everything")
    assert suite["$defs"]["FileTaskSpec"]["properties"]["text"]["description"]
    assert suite["$defs"]["Protocol"]["properties"]["epochs"]["description"]


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_suites_fit_their_schema(path: Path) -> None:
    suite = tomllib.loads(path.read_text("utf-8"))
    assert not errors("suite", suite)
    assert errors("suite", suite | {"methds": ["vanilla"]})
    assert errors("suite", suite | {"protocol": {"epochs": "three"}})


def test_own_tasks_fit_the_schema_of_suites() -> None:
    suite = {"methods": ["vanilla"], "scenario": [{"shift": "dataset", "tasks": ["a", "b"]}]}
    columns: dict[str, Any] = {"text": "subject", "label": "priority"}
    tables = {
        "a": {**columns, "train": "a.csv", "validation_fraction": 0.1, "labels": [0, "1"]},
        "b": {"hub": "acme/b", "text": ["one", "two"], "target": "answer"},
        "c": {"synthetic": "sentiment", "train": 50},
    }
    assert not errors("suite", suite | {"task": tables})
    (problem,) = errors(
        "suite", suite | {"task": {"a": {**columns, "trian": "a.csv", "train": "a"}}}
    )
    assert "trian" in problem


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_kept_cells_fit_their_schema(folder: Path) -> None:
    for number, cell in enumerate(cells(folder)):
        assert not errors("cell", cell)
        if number == 1:
            break


@pytest.mark.slow
@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_all_kept_cells_fit_their_schema(folder: Path) -> None:
    check = validator("cell")
    for cell in cells(folder):
        assert check.is_valid(cell)
    assert not check.is_valid(cell | {"R": "none"})


@pytest.mark.parametrize("with_texts", [False, True])
def test_audits_fit_their_schema(with_texts: bool) -> None:
    content = json.loads(json.dumps(content_of(make_audit("sst2", "other"), with_texts)))
    assert not errors("audit", content)
    del content["models"][0]["items"]
    assert "'items' is a required property" in " ".join(errors("audit", content))
    content = json.loads(json.dumps(content_of(make_audit("sst2", "other"), with_texts)))
    assert errors("audit", content | {"schema_version": 1})
    content["models"][0]["behaviour"]["glue/cola"]["verdict"] = "perhaps"
    assert errors("audit", content)


def test_audits_of_logs_fit_the_schema_too(tmp_path: Path) -> None:
    for name in ("base", "tuned"):
        lines = (f"gsm8k,{item},{item % 3 != len(name) % 3:d}\n" for item in range(60))
        (tmp_path / name).with_suffix(".csv").write_text("task,item,correct\n" + "".join(lines))
    found = audit_logs(str(tmp_path / "base.csv"), [str(tmp_path / "tuned.csv")])
    content = json.loads(json.dumps(content_of(found)))
    assert (content["base"], content["models"][0]["model"]) == ("base.csv", "tuned.csv")
    assert not errors("audit", content)


@pytest.mark.parametrize("path", AUDITS, ids=lambda path: path.parent.name)
def test_kept_audits_fit_their_schema(path: Path) -> None:
    assert not errors("audit", json.loads(path.read_text("utf-8")))

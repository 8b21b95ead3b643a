"""Exports of an audit: what they hold, and that their formats are those of others."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from helpers.audits import TEXT, comparison, make_audit, write

from clbench.audit.comparison import compare
from clbench.audit.export import EXPORTS, write_export
from clbench.audit.page import headline, write_audit
from clbench.audit.result import ModelAudit
from clbench.audit.scores import ItemScores
from clbench.cli.app import main
from clbench.core.errors import RunFolderError
from clbench.core.files import folders

SCHEMAS = Path(__file__).parents[3] / "shared" / "schemas"
FORMATS = ("eval-results", "every-eval-ever", "github", "model-card")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("plain"), "sst2")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("full"), "acme/sst2", with_texts=True)


def evidence(audit: Path, out: Path) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Export to Every Eval Ever, and return each record with its items, the base model's first."""
    files = write_export(audit, "every-eval-ever", out)
    found = []
    for path in (path for path in files if path.suffix == ".json"):
        record = json.loads(path.read_text("utf-8"))
        detailed = record["detailed_evaluation_results"]
        samples = (out / detailed["file_path"]).read_bytes()
        assert hashlib.sha256(samples).hexdigest() == detailed["checksum"]
        items = [json.loads(line) for line in samples.splitlines()]
        assert len(items) == detailed["total_rows"]
        found.append((record, items))
    return found


def test_formats_are_registered() -> None:
    assert (*EXPORTS,) == FORMATS


def test_base_and_tuned_are_records_with_equal_hashes(full: Path, tmp_path: Path) -> None:
    (base, items), (tuned, others) = evidence(full, tmp_path)
    assert [base["model_info"]["id"], tuned["model_info"]["id"]] == ["local/minilm", "acme/sst2"]
    assert [each["sample_hash"] for each in items] == [each["sample_hash"] for each in others]
    item = items[3]
    given = {"raw": f"{TEXT} 3", "reference": ["yes"]}
    assert item["input"] == given
    canonical = json.dumps(given, sort_keys=True, separators=(",", ":")).encode()
    assert item["sample_hash"] == hashlib.sha256(canonical).hexdigest()
    results = {each["evaluation_result_id"]: each for each in tuned["evaluation_results"]}
    for each in base["evaluation_results"]:
        number = each["evaluation_result_id"]
        for rows, record in ((items, each), (others, results[number])):
            values = [
                row["evaluation"]["score"] for row in rows if row["evaluation_result_id"] == number
            ]
            score = record["score_details"]["score"]
            assert sum(values) / len(values) == pytest.approx(score)


def test_the_paired_difference_is_a_further_result(full: Path, tmp_path: Path) -> None:
    (base, _), (tuned, _) = evidence(full, tmp_path)
    assert not [r for r in base["evaluation_results"] if "change" in r["evaluation_name"]]
    changes = {
        each["evaluation_result_id"]: each
        for each in tuned["evaluation_results"]
        if each["evaluation_result_id"].endswith("/change")
    }
    assert len(changes) == 4
    own = changes["glue/cola/behaviour/accuracy/change"]
    (expected,) = (e.change for e in comparison().tasks if e.task == "glue/cola")
    interval = own["score_details"]["uncertainty"]["confidence_interval"]
    assert own["score_details"]["score"] == -7 / 40
    assert (interval["lower"], interval["upper"]) == (expected.low, expected.high)
    assert own["score_details"]["details"]["flips_lost"] == "8"
    assert own["metric_config"]["additional_details"]["base_model"] == base["model_info"]["id"]
    assert own["source_data"]["hf_repo"] == "nyu-mll/glue"
    loss = changes["language/language/loss/change"]
    assert loss["score_details"]["score"] == pytest.approx(-1.025)


def test_the_base_model_has_the_items_of_all_tuned_models(tmp_path: Path) -> None:
    keys, right = tuple(map(str, range(100))), np.repeat([1.0, 0.0], [60, 40])

    def part(first: int) -> ItemScores:
        return ItemScores("mine", "knowledge", right[first:], keys[first:], texts=keys[first:])

    models = [
        ModelAudit(name, compare([part(0)], [part(first)], 0.02))
        for name, first in (("a", 0), ("b", 50))
    ]
    for order in (models, models[::-1]):
        found = replace(make_audit("a"), models=tuple(order))
        write_audit(found, tmp_path, (), with_texts=True)
        (base, items), *_ = evidence(tmp_path, tmp_path / "out")
        assert base["evaluation_results"][0]["score_details"]["score"] == 0.6
        scores = {row["input"]["raw"]: row["evaluation"]["score"] for row in items}
        assert scores == dict(zip(keys, right, strict=True))


@pytest.mark.parametrize("sign", [1, -1], ids=["now", "in files of earlier versions"])
def test_calibration_is_an_error_of_which_lower_is_better(sign: int, tmp_path: Path) -> None:
    errors = {"base": [0.2, 0.5, 0.9, 0.4], "tuned": [0.6, 0.5, 1.2, 0.5]}
    base, tuned = (
        ItemScores("ranked answers", "calibration", -np.array(each), (*"abcd",), "Brier score")
        for each in errors.values()
    )
    models = (ModelAudit("sst2", compare([base], [tuned], 0.02)),)
    write_audit(replace(make_audit("sst2"), models=models), tmp_path, ())
    content = json.loads((tmp_path / "audit.json").read_text("utf-8"))
    (items,) = content["models"][0]["items"]
    assert {role: items[role] for role in errors} == errors
    items |= {role: [sign * each for each in values] for role, values in errors.items()}
    (tmp_path / "audit.json").write_text(json.dumps(content), "utf-8")
    for (record, rows), (role, values) in zip(
        evidence(tmp_path, tmp_path / "out"), errors.items(), strict=True
    ):
        assert [row["evaluation"]["score"] for row in rows] == values
        mean, *changes = record["evaluation_results"]
        assert mean["metric_config"]["lower_is_better"]
        assert mean["score_details"]["score"] == pytest.approx(sum(values) / 4)
        assert len(changes) == (role == "tuned")
    assert changes[0]["score_details"]["score"] == pytest.approx(-0.2)
    text = "base minus tuned, on the same items; below 0 is worse"
    assert changes[0]["metric_config"]["evaluation_description"] == text
    (summary,) = write_export(tmp_path, "github", tmp_path / "summary")
    assert "for losses and calibration, base minus tuned." in summary.read_text("utf-8")


def test_withheld_texts_leave_digests(plain: Path, tmp_path: Path) -> None:
    (_, items), (_, others) = evidence(plain, tmp_path)
    assert items[0]["input"] == {
        "raw": f"withheld, digest {items[0]['sample_id']}",
        "reference": [],
    }
    assert [each["sample_hash"] for each in items] == [each["sample_hash"] for each in others]
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert TEXT[:8].encode() not in written


@pytest.mark.skipif(not SCHEMAS.is_dir(), reason="no copy of the schemas of Every Eval Ever")
@pytest.mark.parametrize("kind", ["plain", "full"])
def test_records_fit_the_schemas_of_every_eval_ever(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    aggregate, instance = (
        jsonschema.Draft7Validator(json.loads((SCHEMAS / name).read_text("utf-8")))
        for name in ("eval.schema.json", "instance_level_eval.schema.json")
    )
    for record, items in evidence(request.getfixturevalue(kind), tmp_path):
        aggregate.validate(record)
        for item in items:
            instance.validate(item)


def test_records_pass_the_validator_of_every_eval_ever(full: Path, tmp_path: Path) -> None:
    core = pytest.importorskip(
        "every_eval_ever.validator.validation_core", reason="needs every-eval-ever (Python 3.12)"
    )
    files = write_export(full, "every-eval-ever", tmp_path)
    names = {path.relative_to(tmp_path).as_posix() for path in files}
    for name in names:
        report = core.validate_file(
            tmp_path / name,
            repo_path=name,
            available_files=names,
            read_repo_file=lambda path: (tmp_path / path).read_text("utf-8"),
            run_semantic_checks=True,
        )
        assert not report.errors + report.warnings


def test_results_for_the_hub_are_answers_to_its_datasets(full: Path, tmp_path: Path) -> None:
    (path,) = write_export(full, "eval-results", tmp_path)
    assert path.relative_to(tmp_path).parts[:2] == ("acme-sst2", ".eval_results")
    ((entry),) = yaml.safe_load(path.read_text("utf-8"))
    assert entry["dataset"] == {"id": "nyu-mll/glue", "task_id": "cola", "revision": "bcd"}
    assert entry["value"] == 23 / 40
    assert "base model minilm: 0.7500, change -0.175" in entry["notes"]
    assert "3 of the 40 rows are from its training set" in entry["notes"]
    hub = pytest.importorskip("huggingface_hub")
    if hasattr(hub, "parse_eval_result_entries"):
        (parsed,) = hub.parse_eval_result_entries([entry])
        assert parsed.dataset_id == "nyu-mll/glue"
        assert hub.eval_result_entries_to_yaml([parsed]) == [entry]


def test_the_card_has_a_section_with_its_figure(tmp_path: Path) -> None:
    write_audit(make_audit("sst2", "sst2 (2)"), tmp_path, ("png",))
    files = write_export(tmp_path, "model-card", tmp_path / "card")
    assert [path.relative_to(tmp_path / "card").as_posix() for path in files] == [
        *("sst2/forgetting.md", "sst2/forgetting.png"),
        *("sst2-2/forgetting.md", "sst2-2/forgetting.png"),
    ]
    section = files[0].read_text("utf-8")
    assert section.startswith("## Forgetting\n")
    assert "](forgetting.png)" in section
    assert files[1].read_bytes() == (tmp_path / "figures" / "changes.png").read_bytes()
    own, *_ = make_audit("sst2").models[0].comparison.measures
    assert f"| glue/cola, behaviour | 0.750 | 0.575 | {own.change} | 8 | 1 | 40 |" in section
    assert r"It has \*one\* note." in section


def test_the_first_line_for_github_is_the_verdict(plain: Path, tmp_path: Path) -> None:
    def lines() -> list[str]:
        (file,) = write_export(tmp_path, "github", tmp_path / "out")
        return file.read_text("utf-8").splitlines()

    content = json.loads((plain / "audit.json").read_text("utf-8"))
    (tmp_path / "audit.json").write_text(json.dumps(content), "utf-8")
    line = headline(make_audit("sst2").models[0], "minilm")
    assert lines()[0] == f"**{line}**"
    (model,) = content["models"]
    fail = {"verdict": "fail", "headline": "fail: sst2: 0.175 too low | much"}
    content["models"] = [
        {**model, "gate": {"verdict": "pass", "headline": "pass: other"}},
        {**model, "gate": fail},
    ]
    (tmp_path / "audit.json").write_text(json.dumps(content), "utf-8")
    first, _, second, _, third, *_ = lines()
    assert first == r"**fail: sst2: 0.175 too low \| much**"
    assert (second, third) == ("**pass: other**", line)


def test_files_of_the_user_are_kept(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "summary.md").write_text("my own")
    with pytest.raises(RunFolderError, match="is another file"):
        write_export(plain, "github", tmp_path)
    assert (tmp_path / "summary.md").read_text() == "my own"
    for _ in range(2):  # its own files are written again
        write_export(plain, "github", tmp_path / "new")


def test_a_figure_of_the_user_is_kept(tmp_path: Path) -> None:
    write_audit(make_audit("sst2"), tmp_path, ("png",))
    own = tmp_path / "card" / "sst2" / "forgetting.png"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"mine")
    with pytest.raises(RunFolderError, match=r"forgetting\.png is another file"):
        write_export(tmp_path, "model-card", tmp_path / "card")
    assert [*own.parent.iterdir()] == [own]
    assert own.read_bytes() == b"mine"
    own.unlink()
    for _ in range(2):  # its own files are written again
        write_export(tmp_path, "model-card", tmp_path / "card")
    assert own.read_bytes() == (tmp_path / "figures" / "changes.png").read_bytes()


def test_the_program_names_the_formats(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(plain), "--to", "model_card"]) == 2
    assert "Did you mean 'model-card'?" in capsys.readouterr().err
    assert main(["export", str(plain), "--to", "github", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "summary.md").is_file()


def test_folders_of_models_differ() -> None:
    names = ("a b", "a/b", "..", "café")
    assert [*folders(names).values()] == ["a-b", "a-b-2", "model", "café"]

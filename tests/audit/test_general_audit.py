"""Audits on general tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.general_rows import write_hub
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from clbench.audit.audit import audit, prepare
from clbench.audit.items import BUILT_IN
from clbench.audit.page import draw_layers, write_audit
from clbench.audit.planning import plan
from clbench.audit.scores import PARTS
from clbench.audit.settings import AuditSettings
from clbench.core.errors import ClbenchError, ModelError
from clbench.models.locate import TINY_GPT
from clbench.results.statistics import spend

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hub(tmp_path_factory.mktemp("hub"), times=25)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("damaged")
    network = AutoModelForCausalLM.from_pretrained(TINY_GPT)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in network.parameters():
            value.add_(0.5 * value.std() * torch.randn(value.shape, generator=generator))
    network.save_pretrained(folder)
    return str(folder)


def test_an_audit_on_general_tasks(damaged: str, hub: Path, tmp_path: Path) -> None:
    options: Any = {"tasks": ["general"], "data": hub, "questions": 20, "texts": 40}
    found = audit("tiny-gpt", [damaged], **options, localise=False)
    (one,) = found.models
    parts = {each.part for each in one.comparison.changes}
    assert parts == {*PARTS} - {"behaviour", "features"}
    assert one.comparison.language is not None
    assert one.comparison.language.change.word == "forgot"
    brier = next(each for each in one.comparison.changes if each.part == "calibration")
    assert 0.0 <= brier.base <= 2.0
    assert (brier.change.difference < 0) == (brier.tuned > brier.base)
    page = write_audit(found, tmp_path).read_text()
    for text in ("calibration error", "Brier score", "written answers"):
        assert text in page
    stored = json.loads((tmp_path / "audit.json").read_text())["models"][0]
    assert stored["reading"]["boolq"]["n"] == 20
    assert stored["exploratory"]
    assert len(one.notes) == 1
    assert "no tokenizer" in one.notes[0]


def test_an_audit_in_several_wordings(damaged: str, hub: Path, tmp_path: Path) -> None:
    options: Any = {"tasks": ["copa"], "data": hub, "questions": 25, "texts": 40, "rephrase": 2}
    found = audit("tiny-gpt", [damaged], **options)
    copa = next(each for each in found.models[0].comparison.changes if each.task == "copa")
    assert {*copa.paired.base} <= {0.0, 0.5, 1.0}
    assert "copa, in 2 wordings" in found.notes[0]
    assert "copa, in 2 wordings" in write_audit(found, tmp_path).read_text()


def test_the_same_model_keeps_all(hub: Path) -> None:
    options: Any = {"tasks": ["reading"], "data": hub, "questions": 20, "texts": 40}
    (one,) = audit("tiny-gpt", ["tiny-gpt"], **options).models
    assert one.comparison.identical
    assert {each.change.word for each in one.comparison.changes} == {"kept"}


def test_a_tuned_model_without_a_language_model_head_is_named_without_its_folder(
    hub: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "tuned"
    AutoModelForSequenceClassification.from_pretrained(TINY_GPT).save_pretrained(folder)
    options: Any = {"tasks": ["copa"], "data": hub, "questions": 20, "texts": 30}
    found = audit("tiny-gpt", [str(folder)], **options)
    assert "No general tasks: tuned has no language-model head." in found.models[0].notes
    assert str(tmp_path) not in json.dumps(found.to_json())


def test_general_tasks_need_a_decoder(hub: Path) -> None:
    with pytest.raises(ModelError, match="copa need a decoder"):
        audit("tiny", ["tiny"], tasks=["copa"], data=hub, texts=40)


def test_built_in_rows_are_called_so(tmp_path: Path) -> None:
    found = audit("tiny", ["tiny"], rows=60, texts=40)
    assert found.notes == (BUILT_IN,)


def test_wordings_beyond_those_of_the_tables_are_refused(hub: Path) -> None:
    for rephrase, allowed in ((0, "1 or more"), (4, "1 to 3")):
        with pytest.raises(ClbenchError, match=f"must be {allowed}"):
            audit("tiny-gpt", ["tiny-gpt"], tasks=["copa"], data=hub, rephrase=rephrase)


def test_more_questions_are_looked_at_until_settled(damaged: str, hub: Path) -> None:
    notes: list[str] = []
    options: Any = {"tasks": ["boolq"], "data": hub, "texts": 30, "questions": 20}
    found = audit("tiny-gpt", [damaged], **options, until_settled=True, note=notes.append)
    looks = [500, 1000, 1250]  # there are 50 questions
    assert found.settings["looks"] == looks
    line = plan({"boolq": 50}, 3, alpha=spend(looks)[-1])
    more = "Not all comparisons are settled: looking at more items of each task."
    assert notes[:2] == [line, more]
    boolq = found.models[0].comparison.tasks[0]
    assert found.settings["questions"] == len(boolq.paired) > 20


@pytest.mark.parametrize(
    ("texts", "looks"),
    [(30, [500, 1000, 2000]), (800, [500, 1000, 1250]), (2000, [500])],  # there are 2000
)
def test_language_alone_is_looked_at_until_settled(texts: int, looks: list[int]) -> None:
    settings = AuditSettings(tasks=["language"], texts=texts, until_settled=True)
    assert prepare("tiny-gpt", ["tiny-gpt"], settings, CPU).looks == looks


def test_language_alone_has_a_page(damaged: str, tmp_path: Path) -> None:
    found = audit("tiny-gpt", [damaged], tasks=["language"], texts=30, localise=True)
    (model,) = found.models
    assert [each.part for each in model.comparison.changes] == ["language"]
    assert {each.features for each in model.put_back} == {None}
    assert any(each.language for each in model.put_back)
    assert len(draw_layers(found).axes) == 2  # no accuracy was measured
    page = write_audit(found, tmp_path / "out").read_text()
    assert '<td class="n">–</td>' in page


def test_wordings_without_general_tasks_are_refused() -> None:
    with pytest.raises(ClbenchError, match="rephrase is for general tasks"):
        audit("tiny", ["tiny"], tasks=["synthetic/sentiment"], rephrase=2)

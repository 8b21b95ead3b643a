"""What an audit is given: models, tasks and folders that it takes or refuses."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.audits import QUICK, items_of
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from clbench.audit import items
from clbench.audit.audit import audit
from clbench.audit.items import Items, class_order
from clbench.audit.mend import mend
from clbench.audit.models import load_base, same_names
from clbench.audit.page import write_audit
from clbench.audit.settings import AuditSettings
from clbench.cli.app import main
from clbench.core.errors import ClbenchError, DataError
from clbench.tasks.task import Rows

Copy = Callable[..., str]


def test_folders_are_checked_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("my page")
    words = ["audit", "tiny", "nowhere", "--out"]
    assert main([*words, str(tmp_path)]) == 2
    (tmp_path / "file").write_text("x")
    assert main([*words, str(tmp_path / "file")]) == 2


@pytest.mark.parametrize("verb", ["audit", "mend"])
def test_a_refused_command_leaves_no_folder(tmp_path: Path, verb: str) -> None:
    assert main([verb, "nowhere", "nothing", "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 64}, "width"),
        ({"num_hidden_layers": 3}, "number of layers"),
        ({"model_type": "roberta"}, "architecture"),
        ({"vocab_size": 4242}, r"its number of tokens \(vocab_size = 4242\)"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
    ],
)
def test_models_of_another_kind_are_refused(
    copy: Copy, change: dict[str, Any], message: str
) -> None:
    folder = Path(copy())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ClbenchError, match=message) as caught:
        audit("tiny", [str(folder)], **QUICK)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"max_position_embeddings": 64},
        {"intermediate_size": 32},
        {"type_vocab_size": 1},
        {"num_attention_heads": 1},
    ],
)
@pytest.mark.parametrize("verb", [audit, mend])
def test_models_of_other_sizes_are_refused_before_the_work(
    copy: Copy, change: dict[str, Any], verb: Callable[..., Any]
) -> None:
    folder = Path(copy())
    config = AutoConfig.from_pretrained(folder, **change)
    AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
    done: list[str] = []
    options: Any = {"rows": 60, "tell": done.append}
    options |= {"tasks": ["synthetic/sentiment"]} if verb is audit else {}
    tuned: Any = [str(folder)] if verb is audit else str(folder)
    keep: Any = (
        {}
        if verb is audit
        else {"keep": ["synthetic/sentiment"], "learn": "synthetic/acceptability"}
    )
    with pytest.raises(ClbenchError, match="Give the base model that it was tuned from") as caught:
        verb("tiny", tuned, **options, **keep)
    assert "\n" not in str(caught.value)
    assert done == ["loading models"]


def test_a_closed_stdout_is_no_fault_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        closed = (tmp_path / "out").open("w")
        closed.close()
        patch.setattr(sys, "stdout", closed)
        found = audit("tiny", ["tiny"], tasks=["synthetic/sentiment"], rows=60, texts=40)
        assert write_audit(found, tmp_path / "audit").exists()


def test_weights_that_are_not_finite_are_refused(copy: Copy) -> None:
    def spoil(model: Any) -> None:
        model.base_model.encoder.layer[0].output.dense.bias[0] = float("nan")

    with pytest.raises(ClbenchError, match="infinite numbers or NaN"):
        audit("tiny", [copy(spoil)], **QUICK)
    with pytest.raises(ClbenchError, match="infinite numbers or NaN"):
        audit("tiny", [copy(spoil, classes=("a", "b"))], **QUICK)


@pytest.mark.parametrize("verb", ["audit", "mend"])
def test_outputs_that_are_not_finite_are_refused(copy: Copy, verb: str) -> None:
    def swell(model: Any) -> None:  # the weights stay finite, products of them do not
        for value in model.base_model.parameters():
            value.mul_(1e30)

    tasks: Any = {"keep": ["synthetic/sentiment"], "learn": "synthetic/acceptability"}
    runs: dict[str, Callable[[str], object]] = {
        "audit": lambda folder: audit("tiny", [folder], **QUICK),
        "mend": lambda folder: mend("tiny", folder, **tasks, rows=60, alpha=0.5),
    }
    folder = copy(swell)
    with pytest.raises(ClbenchError, match=f"{folder}.*outputs are not finite numbers"):
        runs[verb](folder)


@pytest.mark.slow
def test_equal_weights_that_compute_something_else_are_not_the_same(copy: Copy) -> None:
    folder = Path(copy())
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for change, is_same in (({"hidden_dropout_prob": 0.3}, True), ({"hidden_act": "relu"}, False)):
        path.write_text(json.dumps({**config, **change}))
        (model,) = audit("tiny", [str(folder)], **QUICK).models
        assert model.comparison.identical == is_same
        (features,) = model.comparison.tasks
        assert (features.change.low == features.change.high) == is_same


def test_other_tokenizers_are_refused(copy: Copy) -> None:
    folder = Path(copy())
    tokens = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokens["model"]["vocab"]
    vocabulary["the"], vocabulary["of"] = vocabulary["of"], vocabulary["the"]
    (folder / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(ClbenchError, match="its tokenizer is not that of 'tiny'"):
        audit("tiny", [str(folder)], **QUICK)


ACUTE, COMBINING = "caf\u00e9", "cafe\u0301"


@pytest.mark.parametrize(
    ("names", "others", "order"),
    [
        (("a", "b"), ("b", "a"), [1, 0]),
        (("Negative", "Positive"), ("positive", "negative"), [1, 0]),
        (("a", "A"), ("A", "a"), [1, 0]),
        (("a", "A"), ("a", "a"), None),
        (("a", "A"), ("b", "B"), None),
        ((ACUTE, "tea"), ("Tea", COMBINING), [1, 0]),
        (("a", "b"), ("a", "b", "c"), None),
    ],
)
def test_names_of_classes_match_in_any_form_that_is_not_ambiguous(
    names: tuple[str, ...], others: tuple[str, ...], order: list[int] | None
) -> None:
    assert same_names(names, others) == order


@pytest.mark.parametrize(
    ("base", "tuned"),
    [
        (("a", "b"), ("b", "a")),
        (("negative", "positive"), ("Positive", "Negative")),
        ((ACUTE, "tea"), ("tea", COMBINING)),
    ],
)
def test_another_order_of_classes_is_refused(
    copy: Copy, base: tuple[str, ...], tuned: tuple[str, ...]
) -> None:
    with pytest.raises(ClbenchError, match="in another order"):
        audit(copy(classes=base), [copy(classes=tuned)], **QUICK)


def test_the_output_for_a_class_is_that_of_its_name(copy: Copy) -> None:
    for names in (("Positive", "negative"), ("NEGATIVE", "POSITIVE")):
        order = class_order(load_base(copy(classes=names)), items_of())
        assert order == [["negative", "positive"].index(name.lower()) for name in names]


def test_names_of_classes_are_numbers_or_text(copy: Copy) -> None:
    folder = Path(copy(classes=("a", "b")))
    config = json.loads((folder / "config.json").read_text())

    def name(*names: object) -> str:
        table = dict(enumerate(names))
        (folder / "config.json").write_text(json.dumps({**config, "id2label": table}))
        return str(folder)

    try:
        AutoConfig.from_pretrained(name(0, 1))
    except StrictDataclassError as error:
        pytest.skip(f"this version of transformers refuses numbers itself: {error}")
    assert load_base(name(0, 1)).classes == ("0", "1")
    for names in (("a", None), ("a", " ")):
        with pytest.raises(ClbenchError, match=r"does not name class 1\. Name the classes 0 to 1"):
            audit(name(*names), [str(folder)], **QUICK)


def test_a_folder_without_tokenizer_takes_the_base_models(copy: Copy) -> None:
    folder = Path(copy())
    for name in ("tokenizer.json", "vocab.txt", "tokenizer_config.json"):
        (folder / name).unlink(missing_ok=True)
    (model,) = audit("tiny", [str(folder)], **QUICK).models
    assert "has no tokenizer: the base model's is used" in model.notes[0]
    assert model.comparison.word == "kept"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": ["synthetic/nothing"]}, "Unknown task"),
        ({"tasks": ["synthetic/sentiment"] * 2}, "more than once"),
        ({"rows": 20}, "must be 50 or more"),
        ({"texts": 20}, "must be 30 or more"),
        ({"detect": 1.5}, "detect=1.5"),
        ({"rows": 50.5}, "must be 50 or more"),
        ({"margin": 0.0}, "margin=0"),
        ({"margin": 1e-300}, "margin=1e-300: must be from 1e-06 to below 1, such as 0.02."),
        ({"relearn_rate": 2}, "relearn_rate=2: must be from 1e-06 to below 1, such as 1e-05."),
        ({"detect": 1e-300}, "detect=1e-300"),
        ({"data": "/nowhere"}, "data /nowhere: there is no such folder"),
    ],
)
def test_bad_input_is_refused(copy: Copy, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ClbenchError, match=message):
        audit("tiny", [copy()], **{**QUICK, **options})


def test_the_folder_of_data_is_read_as_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "rows").mkdir()
    assert AuditSettings(data="~/rows").folder == (tmp_path / "rows").resolve()
    monkeypatch.setattr(items, "load_task", lambda *_, **__: pytest.fail("it asks the hub"))
    with pytest.raises(DataError, match="data ~/other: there is no such folder"):
        items.default_tasks("tiny", "~/other")


def test_a_model_is_named_once(copy: Copy, tmp_path: Path) -> None:
    folder, other = copy(), tmp_path / "other"
    shutil.copytree(folder, other)
    for again in (f"{folder}/", str(other)):
        with pytest.raises(ClbenchError, match=f"{again}' is given twice, first as '{folder}'"):
            audit("tiny", [folder, again], **QUICK)


def test_tokenizers_may_have_been_saved_after_other_calls(copy: Copy) -> None:
    folder = Path(copy())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer(["a text", "another longer text"], padding=True, truncation=True, max_length=8)
    tokenizer.save_pretrained(folder)
    assert '"truncation":null' not in (folder / "tokenizer.json").read_text().replace(" ", "")
    assert audit("tiny", [str(folder)], **QUICK).models[0].comparison.word == "kept"


def test_tasks_without_classes_are_refused() -> None:
    task = items_of().task
    texts = list(task.train.first)
    numbers = Rows.of(texts, None, np.linspace(0, 1, len(texts)), regression=True)
    with pytest.raises(ClbenchError, match="has no classes"):
        Items.of(replace(task, labels=(), train=numbers, validation=numbers), 100, 0)
    same = Rows.of(texts, None, [0] * len(texts))
    with pytest.raises(ClbenchError, match="all 100 rows have the same class"):
        Items.of(replace(task, train=same, validation=same), 100, 0)


def test_a_corpus_may_be_too_short(copy: Copy, tmp_path: Path) -> None:
    corpus = tmp_path / "short.txt"
    corpus.write_text("\n".join(f"this is line number {i} of a text" for i in range(60)))
    with pytest.raises(ClbenchError, match="too few for an audit"):
        audit("tiny", [copy()], corpus=str(corpus), **QUICK)


@pytest.mark.parametrize(
    "suite",
    [
        "",
        'methods = ["vanilla"]\nscenario = [{ shift = "sentence-length", task = "mood" }]\n',
    ],
)
def test_own_tasks_of_a_file_are_probed(suite: str, copy: Copy, tmp_path: Path) -> None:
    days = [(f"a {'good' if i % 2 else 'bad'} day number {i}", i % 2) for i in range(120)]
    rows = [{"text": text, "mood": ("down", "up")[is_up]} for text, is_up in days]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.json").write_text(json.dumps(rows, indent=1))  # one array
    (tmp_path / "own.toml").write_text(
        f'{suite}[task.mood]\ntrain = "train.json"\nvalidation = "dev.json"\n'
        'text = "text"\nlabel = "mood"\n'
    )
    found = audit("tiny", [copy()], tasks=[str(tmp_path / "own.toml")], rows=150)
    (task,) = found.models[0].comparison.tasks
    assert (task.task, task.flips.n, task.base) == ("mood", 150, 1.0)
    assert found.notes == (
        "mood: 30 of the 150 rows are from its training set; a model tuned on them looks better "
        "than it is.",
    )

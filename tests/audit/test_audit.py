"""Audits of models whose damage is known."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.audits import QUICK, add_noise, items_of, shuffle_layer
from transformers import AutoModelForMaskedLM, AutoTokenizer

from clbench.audit.audit import Audit, audit, identify
from clbench.audit.changes import Change
from clbench.audit.comparison import MeasureChange
from clbench.audit.items import Items, probe
from clbench.audit.models import load_base
from clbench.audit.page import check_folder, default_folder, headline, write_audit
from clbench.audit.planning import rows_needed
from clbench.audit.scores import ItemScores, Paired
from clbench.audit.settings import AuditSettings
from clbench.audit.weights import cka, drift
from clbench.cli.app import main
from clbench.cli.audit import failures, parse_condition, parse_requirement
from clbench.core.errors import ClbenchError, SettingsError
from clbench.core.files import locked
from clbench.models.locate import TINY
from clbench.results.statistics import spend

Copy = Callable[..., str]


@pytest.fixture(scope="module")
def damaged_folder(copy: Copy) -> str:
    return copy(shuffle_layer)


@pytest.fixture(scope="module")
def damaged(damaged_folder: str) -> Audit:
    tasks = ["synthetic/sentiment", "synthetic/acceptability"]
    return audit("tiny", [damaged_folder], tasks=tasks, rows=300, texts=100, localise=True)


def test_a_model_audited_against_itself_has_kept_everything(copy: Copy, tmp_path: Path) -> None:
    found = audit("tiny", [copy()], **QUICK)
    (model,) = found.models
    assert model.comparison.word == "kept"
    assert headline(model, "tiny") == f"{model.name} has the same weights as tiny"
    page = write_audit(found, tmp_path).read_text()
    assert headline(model, "tiny") in page
    assert not re.search(r"[-−]0\.0+\b", page + (tmp_path / "audit.json").read_text())
    assert all((t.flips.lost, t.flips.gained) == (0, 0) for t in model.comparison.tasks)
    assert model.comparison.language.change.difference == 0.0
    assert [layer.weights for layer in model.layers] == [0.0] * len(model.layers)
    assert [layer.similarity for layer in model.layers] == pytest.approx([1.0] * len(model.layers))


def test_planted_damage_is_found_and_located(damaged: Audit) -> None:
    (model,) = damaged.models
    assert model.comparison.word == "forgot"
    assert model.comparison.language.change.word == "forgot"
    layers = {layer.name: layer for layer in model.layers}
    assert [name for name, layer in layers.items() if layer.weights > 0] == ["layer.1"]
    assert layers["layer.0"].similarity == pytest.approx(1.0)
    assert layers["layer.1"].similarity < 0.9
    back = {each.name: each for each in model.put_back}
    assert max(back, key=lambda name: back[name].features) == "layer.1"
    # This layer put back, the model is the base model again.
    language = model.comparison.language
    assert back["layer.1"].language == pytest.approx(language.tuned - language.base)
    lost = [task.base - task.tuned for task in model.comparison.tasks]
    assert back["layer.1"].features == pytest.approx(np.mean(lost))
    assert back["layer.0"].features == back["layer.0"].language == 0.0


def test_the_change_of_weights_is_that_by_hand(damaged: Audit, damaged_folder: str) -> None:
    before = AutoModelForMaskedLM.from_pretrained(TINY).base_model.encoder.layer[1]
    after = AutoModelForMaskedLM.from_pretrained(damaged_folder).base_model.encoder.layer[1]
    one, two = (torch.cat([p.flatten() for p in m.parameters()]) for m in (before, after))
    layer = next(layer for layer in damaged.models[0].layers if layer.name == "layer.1")
    assert layer.weights == pytest.approx(((two - one).norm() / one.norm()).item(), rel=1e-5)


@pytest.mark.slow
def test_a_shifted_bias_of_the_head_loses_the_items_of_the_other_class(copy: Copy) -> None:
    def shift(model: Any) -> None:
        model.classifier.bias += torch.tensor([-50.0, 50.0])

    classes = ("negative", "positive")
    base, tuned = copy(classes=classes), copy(shift, classes=classes)
    (model,) = audit(base, [tuned], **QUICK).models
    features, behaviour = model.comparison.tasks
    assert (features.part, behaviour.part) == ("features", "behaviour")
    assert (features.flips.lost, features.flips.gained) == (0, 0)
    labels = items_of().rows.labels
    tokenizer = AutoTokenizer.from_pretrained(base)
    from transformers import AutoModelForSequenceClassification

    network = AutoModelForSequenceClassification.from_pretrained(base).eval()
    with torch.no_grad():
        batch = tokenizer(list(items_of().rows.first), padding=True, return_tensors="pt")
        said = network(**batch).logits.argmax(1).numpy()
    assert behaviour.flips.lost == int(((said == labels) & (labels == 0)).sum())
    assert behaviour.flips.gained == int(((said != labels) & (labels == 1)).sum())
    assert all(item.tuned == "positive" for item in behaviour.items)
    assert [layer.weights for layer in model.layers] == [0.0] * len(model.layers)


def test_every_row_is_predicted_by_a_probe_that_has_not_seen_it() -> None:
    base, items = load_base("tiny"), items_of()
    assert sorted(np.bincount(items.folds)) == [40] * 5
    predicted = probe(base, items, torch.device("cpu"))
    labels = items.rows.labels.copy()
    labels[items.folds == 0] = 1 - labels[items.folds == 0]  # seen by the other folds' probes only
    swapped = Items(
        items.task,
        type(items.rows)(items.rows.first, None, labels, items.rows.index),
        items.folds,
        items.chance,
    )
    again = probe(base, swapped, torch.device("cpu"))
    np.testing.assert_array_equal(again[items.folds == 0], predicted[items.folds == 0])
    assert (again != predicted).any()


def test_cka_is_its_definition() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 5))
    y = np.tanh(x @ rng.normal(size=(5, 7))) + 3
    centre = np.eye(40) - 1 / 40
    k, m = (centre @ (z @ z.T) @ centre for z in (x, y))
    expected = np.sum(k * m) / np.sqrt(np.sum(k * k) * np.sum(m * m))
    assert cka(x, y) == pytest.approx(expected, abs=1e-12)
    rotation = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    assert cka(x, 3 * x @ rotation + 1) == pytest.approx(1.0)


class OnCpu(torch.Tensor):
    """What was copied to the CPU, and what is computed of it."""


def test_weights_become_float64_on_the_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    double = torch.Tensor.double

    def refuse(tensor: torch.Tensor) -> torch.Tensor:
        assert isinstance(tensor, OnCpu), "MPS has no float64"
        return double(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: tensor.as_subclass(OnCpu))
    monkeypatch.setattr(torch.Tensor, "double", refuse)
    base = load_base("tiny")
    layers = drift(base, base, ["the film was good", "it was long"], torch.device("cpu"))
    assert {layer.weights for layer in layers} == {0.0}


@pytest.mark.slow
def test_the_page_shows_names_and_texts_as_text(
    damaged_folder: str, tmp_path: Path, copy: Copy
) -> None:
    folder = tmp_path / "<b>model & co"
    Path(copy(shuffle_layer)).rename(folder)
    (folder / "added_tokens.json").write_text("{}")
    found = audit("tiny", [str(folder), damaged_folder], **QUICK)
    page = write_audit(found, tmp_path / "out", ("png",)).read_text()
    assert "&lt;b&gt;model &amp; co" in page
    assert "<b>model" not in page
    stored = json.loads((tmp_path / "out" / "audit.json").read_text())
    task = stored["models"][0]["features"]["synthetic/sentiment"]
    assert {"flips_lost", "flips_gained", "n", "p"} <= task.keys()
    assert (tmp_path / "out" / "figures" / "layers.png").exists()
    # Both copies have the same damage, and another name in a file that decides nothing here.
    assert stored["between"][0]["verdict"] == "kept"
    assert stored["between"][0]["identical"]
    assert page.count('<span class="kept">equivalent</span>') == 2


def test_conditions_fail_where_a_loss_is_shown(damaged: Audit) -> None:
    change = damaged.models[0].comparison.language.change
    assert [*failures(damaged, "language", change.difference - 0.1)] == []
    (line,) = failures(damaged, "language", change.difference + 0.1)
    assert "language" in line
    assert parse_condition("features:-0.02") == ("features", -0.02)
    for text in ("features", "features:0.1", "speed:-1", "features:x"):
        with pytest.raises(SettingsError, match="--fail-if"):
            parse_condition(text)


@pytest.mark.slow
def test_the_program_fails_if_asked_to(
    copy: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["audit", "tiny", copy(shuffle_layer), "--tasks", "synthetic/sentiment"]
    words += ["--rows", "100", "--texts", "60", "--out", str(tmp_path / "audit")]
    assert main([*words, "--fail-if", "language:-0.1", "--require", "features:kept"]) == 1
    shown = capsys.readouterr()
    assert re.search(r"forgot +language +-", shown.out)
    assert "--fail-if language:-0.1: " in shown.err
    assert re.search(r"--require features:kept: .* fails on synthetic/sentiment, feat", shown.err)
    # A log has a line for each step of the work.
    step = r"^tiny: features of synthetic/sentiment( \(after \d+ s\))?$"
    assert re.search(step, shown.err, re.MULTILINE)
    # What the rows can show is said before they are scored.
    first = re.search(
        "^100 items of synthetic/sentiment show a loss of .*$", shown.err, re.MULTILINE
    )
    assert first
    assert first.start() < shown.err.index("tiny: features of")


@pytest.mark.slow
def test_rows_are_chosen_by_the_loss_that_they_show(copy: Copy) -> None:
    notes: list[str] = []
    options = {"tasks": ["synthetic/sentiment"], "texts": 60, "note": notes.append}
    found = audit("tiny", [copy()], detect=0.15, **options)
    assert found.settings["rows"] == rows_needed(0.15, 2) != 500
    assert len(found.models[0].comparison.tasks[0].paired) == found.settings["rows"]
    assert "the task has no more" not in notes[0]
    assert found.identity != audit("tiny", [copy()], **options, rows=60).identity


@pytest.mark.slow
def test_an_audit_looks_until_it_is_settled(copy: Copy, tmp_path: Path) -> None:
    options: Any = {**QUICK, "rows": 60, "until_settled": True}
    settled = audit("tiny", [copy()], **options)
    assert settled.settings["looks"] == [60, 120, 240]
    assert settled.settings["rows"] == 60
    noisy = audit("tiny", [copy(add_noise)], **options)
    (model,) = noisy.models
    assert model.comparison.is_settled or noisy.settings["rows"] == 240
    assert noisy.settings["rows"] > 60
    assert noisy.settings["texts"] == noisy.settings["rows"]  # as many, from 60 on
    spent = dict(zip([60, 120, 240], spend([60, 120, 240]), strict=True))
    assert noisy.settings["alpha"] == model.comparison.alpha == spent[noisy.settings["rows"]]
    page = write_audit(noisy, tmp_path).read_text()
    assert "Looks were planned at 1, 2, 4 times as many items." in page


@pytest.mark.slow
def test_a_gate_decides_the_exit_code_and_the_first_line(
    copy: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["audit", "tiny", copy(shuffle_layer), "--tasks", "synthetic/sentiment"]
    words += ["--rows", "100", "--texts", "60", "--out", str(tmp_path / "audit"), "--gate"]
    decided = {
        "[language]\nnot_worse_by = 50\n": (0, "pass: "),
        "[language]\nnot_worse_by = 0.05\n": (1, "fail: "),
        "[features]\nnot_worse_by = 0.001\n": (3, "not enough evidence: "),
        "[knowledge]\nbetter_by = 0.1\n": (3, "not enough evidence: "),
    }
    for number, (text, (code, begin)) in enumerate(decided.items()):
        (gate := tmp_path / f"{number}.toml").write_text(text)
        assert main([*words, str(gate)]) == code
        first = capsys.readouterr().out.splitlines()[0]
        assert first.startswith(begin)
        page = (tmp_path / "audit" / "index.html").read_text()
        assert page.index(escape(first)) < page.index("Base model:")
        stored = json.loads((tmp_path / "audit" / "audit.json").read_text())
        assert stored["models"][0]["gate"]["headline"] == first
    gate.write_text('["synthetic/sentimant"]\nbetter_by = 0.1\n')
    assert main([*words, str(gate)]) == 2
    assert "Did you mean 'synthetic/sentiment'" in capsys.readouterr().err


def test_an_audit_of_other_contents_is_another(tmp_path: Path) -> None:
    suite = (
        '[task.mood]\ntrain = "mood.csv"\nvalidation = "mood.csv"\ntext = "text"\nlabel = "label"\n'
    )
    files = {"mood.csv": "text,label\nA day,up\nA night,down\n", "mood.toml": suite}
    files["corpus.txt"] = "One line of five words.\n"
    paths = [tmp_path / name for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.write_text(text)
    plain = AuditSettings(tasks=[str(tmp_path / "mood.toml")], corpus=str(tmp_path / "corpus.txt"))
    identities = [
        identify("tiny", ["tiny"], each) for each in (plain, replace(plain, localise=True))
    ]
    assert identify("tiny", ["tiny"], plain) == identities[0]
    more = ("Noon,up\n", 'prompt = "{text} Mood:"\n', "Another line of five words.\n")
    for path, text in zip(paths, more, strict=True):
        path.write_text(path.read_text() + text)
        identities.append(identify("tiny", ["tiny"], plain))
    assert len({*identities}) == 5


def test_requirements_are_of_a_part_or_of_all() -> None:
    assert parse_requirement("kept") == ("", None)
    assert parse_requirement(" features : kept") == ("features", None)
    for text in ("", "gained", ":kept", "speed:kept", "features:", "a:features:kept"):
        with pytest.raises(SettingsError, match="--require"):
            parse_requirement(text)


def test_what_is_unclear_is_not_kept(damaged: Audit) -> None:
    (model,) = damaged.models
    loss = model.comparison.language.change
    unclear = replace(loss, high=0.1, verdict="no difference shown")
    better = replace(unclear, verdict="better")
    comparison = replace(
        model.comparison,
        changes=tuple(
            replace(each, change=unclear if each.is_loss else better)
            for each in model.comparison.changes
        ),
    )
    found = replace(damaged, models=(replace(model, comparison=comparison),))
    assert [*failures(found, "language", -1e-9)] == []  # unclear is no loss
    (line,) = failures(found, "", None)
    assert "--require kept: " in line
    assert "fails on language, unclear: " in line
    assert [*failures(found, "features", None)] == []
    # The headline answers for the features, which say more of the use than the language does.
    assert headline(found.models[0], "tiny").endswith(
        ": no loss in features is shown, and a gain is; language: unclear"
    )


@pytest.mark.slow
def test_a_gate_without_anything_to_check_does_not_pass(
    copy: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["audit", "tiny", copy(), "--tasks", "synthetic/sentiment", "--rows", "100"]
    words += ["--texts", "40", "--out", str(tmp_path / "audit")]
    assert main([*words, "--fail-if", "behaviour:-0.1"]) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch("error: behaviour of .* was not measured, so no gate can check it.", last)
    assert main([*words, "--require", "features:kept,behaviour:kept"]) == 3
    assert main([*words, "--require", "kept"]) == 0


@pytest.mark.slow
def test_every_audit_has_its_own_folder(
    copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = copy(), copy(shuffle_layer)
    options = ["--tasks", "synthetic/sentiment", "--rows", "60", "--texts", "40"]
    for tuned in (one, one, two):
        assert main(["audit", "tiny", tuned, *options]) == 0
    pages = [re.search("Page: (.*) \\(", line) for line in capsys.readouterr().out.splitlines()]
    folders = [Path(match[1]).parent for match in pages if match]
    assert folders[0] == folders[1] != folders[2]
    assert len({*folders}) == len([*(tmp_path / "audit").iterdir()]) == 2
    # Not even an explicit folder is taken from another audit, nor at the same time.
    before = (folders[0] / "audit.json").read_bytes()
    assert main(["audit", "tiny", two, *options, "--out", str(folders[0])]) == 2
    error = capsys.readouterr().err
    assert f"already has the audit of {Path(one).name} against tiny with other settings" in error
    assert (folders[0] / "audit.json").read_bytes() == before
    with locked(folders[0], marker=folders[0] / "audit.json"):
        assert main(["audit", "tiny", one, *options]) == 2
    assert "in use by another clbench process" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["index.html", "audit.json", "figures/changes.png"])
def test_files_that_no_audit_wrote_are_kept(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("[]")
    with pytest.raises(ClbenchError, match=f"already has a file {file}"):
        check_folder(tmp_path, "abc")


def test_folders_are_named_after_the_models() -> None:
    folder = default_folder("org/base model", ["../runs/a:b", "/x/c/"], "0123456789abcdef")
    assert folder == Path("audit/base-model-a-b-c-01234567")


def test_a_share_of_little_above_chance_is_not_taken() -> None:
    change = Change(-0.02, -0.04, 0.0, 0.95, 0.05, 0.05, "no difference shown")
    keys = tuple(map(str, range(100)))

    def lost_share(base: float, tuned: float) -> tuple[float, float, float] | None:
        before, after = ((np.arange(100) < 100 * share).astype(float) for share in (base, tuned))
        own = ItemScores("t", "features", before, keys, chance=0.5)
        return MeasureChange(own, Paired(keys, before, after), change).lost_share

    assert lost_share(0.54, 0.52) is None
    assert lost_share(0.7, 0.68) == pytest.approx((0.1, 0.0, 0.2))

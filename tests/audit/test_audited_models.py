"""Models under audit: their heads, formats and code."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.audits import QUICK, add_noise, items_of, shuffle_layer

from clbench.audit.audit import audit, prepare, with_tasks
from clbench.audit.models import digest_of, load_base, load_tuned
from clbench.audit.settings import AuditSettings
from clbench.audit.weights import drift, same_if_rounded
from clbench.core.errors import ClbenchError
from clbench.models.locate import TINY, TINY_GPT

Copy = Callable[..., str]


def test_losses_are_those_of_single_texts(copy: Copy) -> None:
    from clbench.audit.language import LanguageLoss
    from clbench.fisher.losses import masked_lm

    base = load_base("tiny")
    loss = LanguageLoss(base, "built-in", 40, 0, torch.device("cpu"))
    tuned = load_tuned(copy(shuffle_layer), base)
    found, row = loss(tuned), 0
    for batch in loss._batches:
        for i in range(len(batch["input_ids"])):
            length = int(batch["attention_mask"][i].sum())
            alone = {name: value[i : i + 1, :length] for name, value in batch.items()}
            with torch.no_grad():
                outputs = masked_lm(tuned.model, alone)
            assert found[row] == pytest.approx(float(outputs.mean_loss()), abs=1e-5)
            row += 1
    assert row == len(found) == 40


def test_a_model_with_a_head_needs_no_checkpoint() -> None:
    from clbench.audit.language import LanguageLoss

    base = load_base("tiny")
    one, other = (
        LanguageLoss(each, "built-in", 40, 0, torch.device("cpu"))(each)
        for each in (base, replace(base, name="of/no-checkpoint"))
    )
    assert (one == other).all()


@pytest.mark.slow
def test_a_head_that_is_missing_is_taken_from_the_base_model(copy: Copy) -> None:
    plain = audit("tiny", [copy(shuffle_layer)], **QUICK).models[0].comparison.language
    headless = copy(shuffle_layer, classes=("a", "b"))  # the same backbone under another head
    found = audit("tiny", [headless], **QUICK).models[0].comparison.language
    assert found.tuned == pytest.approx(plain.tuned, abs=1e-5)


def test_a_digest_holds_every_weight_and_numbers_without_dimensions() -> None:
    model = torch.nn.Linear(2, 1)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.ones_(model.bias)
    whole = hashlib.blake2b(digest_size=16)
    for name, values in (("weight", [0.0, 0.0]), ("bias", [1.0])):
        whole.update(name.encode() + np.array(values, np.float32).tobytes())
    assert digest_of(model) == whole.hexdigest()
    model.register_buffer("scale", torch.tensor(2.0))
    whole.update(b"scale" + np.float32(2.0).tobytes())
    assert digest_of(model) == whole.hexdigest()


def test_decoders_answer_by_likelihood() -> None:
    from clbench.audit.items import answer
    from clbench.models.likelihood import likelihood

    base, items = load_base("tiny-gpt"), items_of(count=60)
    assert base.answers
    template = items.task.template
    assert template is not None
    prompts = [template.render([text]) for text in items.rows.first]
    answers = [" " + template.answer(label) for label in items.task.labels]
    scores = likelihood(base.model, base.tokenizer, prompts, answers)
    np.testing.assert_array_equal(answer(base, items, torch.device("cpu")), scores.argmax(1))


def test_a_chat_template_that_fails_is_named_with_its_model(tmp_path: Path) -> None:
    from clbench.audit.items import answer

    folder = tmp_path / "chatty"
    shutil.copytree(TINY_GPT, folder)
    (folder / "chat_template.jinja").write_text("{{ 1 / 0 }}")
    with pytest.raises(ClbenchError) as caught:
        answer(load_base(str(folder)), items_of(count=60), torch.device("cpu"))
    text = str(caught.value)
    assert text.startswith(f"model '{folder}', on synthetic/sentiment: the chat template in ")
    assert "chat_template.jinja fails: ZeroDivisionError: division by zero. Correct it, or" in text
    assert "[protocol]" not in text


def test_code_of_a_known_architecture_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    shutil.copytree(TINY, folder)
    config = json.loads((folder / "config.json").read_text())
    own = {"auto_map": {"AutoModel": "modeling_own.Own"}}
    (folder / "config.json").write_text(json.dumps({**config, **own}))
    note = "own: its own code (auto_map in config.json) is not run; read as Bert"
    assert any(text.startswith(note) for text in load_base(str(folder)).notes)


@pytest.mark.slow
def test_heads_of_different_kinds_are_not_compared(copy: Copy, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    AutoModelForSequenceClassification.from_pretrained(TINY_GPT).save_pretrained(tmp_path)
    (model,) = audit("tiny-gpt", [str(tmp_path)], **QUICK).models
    assert [task.part for task in model.comparison.tasks] == ["features"]
    assert any("the other a language-model head" in note for note in model.notes)
    one, two = copy(classes=("a", "b")), copy(classes=("a", "b"))
    notes = audit(one, [two], **QUICK).models[0].notes
    assert "no task has the classes of both heads (a, b and a, b)" in notes[0]
    assert "synthetic/sentiment: negative, positive" in notes[0]


def test_heads_without_names_are_those_of_named_tasks_only(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, tuned = (copy(classes=("LABEL_0", "LABEL_1")) for _ in range(2))
    monkeypatch.setattr("clbench.audit.items.default_tasks", lambda *_: ("synthetic/sentiment",))
    for tasks, tests in ((["synthetic/sentiment"], 3), ([], 2)):  # language, features, behaviour
        settings = with_tasks(AuditSettings(tasks=tasks, rows=60), base)
        assert prepare(base, [tuned], settings, torch.device("cpu")).tests == tests


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_a_base_model_saved_again_in_another_format_is_told(copy: Copy, kind: torch.dtype) -> None:
    def save_again(model: Any) -> None:
        add_noise(model)  # the weights of the built-in model are exact in float16
        model.to(kind)

    base, tuned = copy(add_noise), copy(save_again)
    name = str(kind).removeprefix("torch.")
    one, two = load_base(base), load_base(tuned)
    assert same_if_rounded(one, two) == same_if_rounded(two, one) == name
    assert same_if_rounded(one, one) is same_if_rounded(one, load_base("tiny")) is None
    (model,) = audit(base, [tuned], **QUICK).models
    assert f"All weights are the base model's once both are rounded to {name}." in model.notes


def test_a_head_that_lacks_weights_is_told(copy: Copy, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = Path(copy())
    stored = load_file(folder / "model.safetensors")
    stored.pop("cls.predictions.transform.dense.weight")
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    (model,) = audit("tiny", [str(folder)], **QUICK).models
    assert "its head lacks cls.predictions.transform.dense.weight" in model.notes[0]


def test_a_model_with_another_chat_template_is_not_identical(tmp_path: Path) -> None:
    tuned = shutil.copytree(TINY_GPT, tmp_path / "tuned")
    (tuned / "chat_template.jinja").write_text("user: {{ messages[0].content }} answer:")
    (model,) = audit("tiny-gpt", [str(tuned)], **{**QUICK, "rows": 50, "texts": 30}).models
    features, behaviour = model.comparison.tasks
    assert not model.comparison.identical
    assert features.change.low == features.change.high == 0.0  # read without it
    assert behaviour.flips is not None
    assert behaviour.flips.lost + behaviour.flips.gained > 0
    assert behaviour.change.low < behaviour.change.difference < behaviour.change.high
    note, weights = model.notes
    assert "as the chat templates of tiny-gpt and tuned do" in note
    assert weights == "All weights are the base model's."


def test_a_model_that_cuts_texts_at_the_other_end_is_not_identical(tmp_path: Path) -> None:
    tuned = shutil.copytree(TINY, tmp_path / "tuned")
    config = json.loads((tuned / "tokenizer_config.json").read_text())
    (tuned / "tokenizer_config.json").write_text(json.dumps({**config, "truncation_side": "left"}))
    (model,) = audit("tiny", [str(tuned)], **{**QUICK, "rows": 50, "texts": 30}).models
    assert not model.comparison.identical
    (features,) = model.comparison.tasks
    assert features.change.low < 0.0 < features.change.high
    assert any("cut at different ends for tiny and tuned" in note for note in model.notes)
    base, texts = load_base("tiny"), [" ".join(map(str, range(500))) + " was good"]
    layers = drift(base, load_tuned(str(tuned), base), texts, torch.device("cpu"))
    assert {round(layer.similarity, 6) for layer in layers} == {1.0}  # at the same tokens

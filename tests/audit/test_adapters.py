"""Adapters are merged into their base before they are audited."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.audits import items_of
from helpers.checkpoints import as_download, without_padding
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from clbench.audit.audit import audit
from clbench.audit.items import predict
from clbench.audit.models import identity, load_base, load_tuned
from clbench.cli.app import main
from clbench.core.errors import ModelError
from clbench.models.locate import TINY, TINY_GPT
from clbench.models.prompts import PromptEncoder

peft = pytest.importorskip("peft")


def save_adapter(folder: Path, model: Any, **options: Any) -> str:
    """Save a LoRA of rank 2 on the queries, with weights that change the model."""
    config = peft.LoraConfig(r=2, lora_alpha=4, **options)
    torch.manual_seed(0)
    adapted = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            if "lora_B" in name:
                value.normal_(std=1.0)
    adapted.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = AutoModelForMaskedLM.from_pretrained(TINY)
    folder = tmp_path_factory.mktemp("adapter")
    return save_adapter(folder, model, target_modules=["query"])


def test_merging_adds_the_product_of_the_adapter(adapter: str) -> None:
    from safetensors.torch import load_file

    base = load_base("tiny")
    merged = load_tuned(adapter, base)
    stored = load_file(Path(adapter) / "adapter_model.safetensors")
    name = "base_model.model.bert.encoder.layer.0.attention.self.query.{}.weight"
    product = stored[name.format("lora_B")] @ stored[name.format("lora_A")] * 4 / 2
    before, after = (
        model.backbone.encoder.layer[0].attention.self.query.weight for model in (base, merged)
    )
    torch.testing.assert_close(after, before + product)
    assert merged.head == "language"


def test_an_adapter_is_audited_beside_its_base(adapter: str) -> None:
    (model,) = audit("tiny", [adapter], tasks=["synthetic/sentiment"], rows=100).models
    moved = [layer.name for layer in model.layers if layer.weights > 0]
    assert moved == [layer.name for layer in model.layers if layer.name.startswith("layer.")]
    assert model.comparison.language.change.word == "forgot"
    assert model.notes == ()


def test_an_adapter_keeps_its_own_chat_template(tmp_path: Path) -> None:
    model, base = AutoModelForCausalLM.from_pretrained(TINY_GPT), load_base("tiny-gpt")
    options = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj"]}
    folder = Path(save_adapter(tmp_path / "adapter", model, **options))
    marks = [identity(str(folder))]
    assert load_tuned(str(folder), base).tokenizer is base.tokenizer
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        text = "user: {{ messages[0].content }} in " + name
        (folder / name).write_text(json.dumps({"chat_template": text}) if "json" in name else text)
        tuned = load_tuned(str(folder), base)
        assert tuned.tokenizer.chat_template == text
        assert (
            PromptEncoder(tuned.tokenizer, 64)._template == f"the chat template in {folder / name}"
        )
        marks.append(identity(str(folder)))
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/tool_use.jinja").write_text("with tools")
    named = {"default": text, "tool_use": "with tools"}
    assert load_tuned(str(folder), base).tokenizer.chat_template == named
    several = replace(base, tokenizer=load_tuned(str(folder), base).tokenizer)
    assert load_tuned(str(folder), several).tokenizer is several.tokenizer
    marks.append(identity(str(folder)))
    shutil.rmtree(folder / "additional_chat_templates")
    assert len({*map(str, marks)}) == 4
    assert base.tokenizer.chat_template is None
    out = tmp_path / "out"
    words = ["--keep", "synthetic/sentiment", "--learn", "synthetic/acceptability", "--rows", "60"]
    words += ["--alpha", "0.5", "--force", "--out", str(out)]
    assert main(["mend", "tiny-gpt", str(folder), *words]) == 0
    assert (out / "chat_template.jinja").read_text() == text
    (folder / "tokenizer_config.json").write_text("{")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match=r"tokenizer_config\.json cannot be read"):
        load_tuned(str(folder), base)
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    assert identity(str(folder)) == marks[0]  # what changes no prompt is not counted
    for wrong in ([1], {"chat_template": [1]}, {"chat_template": 1}):
        (folder / "tokenizer_config.json").write_text(json.dumps(wrong))
        with pytest.raises(ModelError, match="chat_template is not a text"):
            load_tuned(str(folder), base)


def test_an_adapter_with_a_head_classifies(tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(TINY, num_labels=3)
    options = {"task_type": "SEQ_CLS", "target_modules": ["query"]}
    folder = save_adapter(tmp_path / "adapter", model, **options)
    merged = load_tuned(folder, load_base("tiny"))
    assert merged.head == "classes"
    assert len(merged.classes) == 3
    stored = merged.model.classifier.weight
    torch.testing.assert_close(stored, model.classifier.modules_to_save.default.weight)


def test_adapters_of_decoders_answer(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TINY_GPT)
    options = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj"]}
    merged = load_tuned(save_adapter(tmp_path, model, **options), load_base("tiny-gpt"))
    assert merged.answers


def test_a_decoder_that_classifies_needs_no_padding_token_of_its_own(tmp_path: Path) -> None:
    base = load_base(without_padding(tmp_path / "base"))
    torch.manual_seed(0)  # of the head
    model = AutoModelForSequenceClassification.from_pretrained(base.name, num_labels=2)
    options = {"task_type": "SEQ_CLS", "target_modules": ["q_proj"]}
    merged = load_tuned(save_adapter(tmp_path / "adapter", model, **options), base)
    items, before = items_of(count=60), merged.computation
    with torch.inference_mode():
        alone = [
            int(merged.model(**merged.tokenizer(text, return_tensors="pt")).logits.argmax())
            for text in items.rows.first
        ]
    assert 0 < sum(alone) < 60
    assert predict(merged, items, "behaviour", torch.device("cpu")).tolist() == alone
    assert merged.computation == before


def test_adapters_of_another_base_are_refused(adapter: str, copy: Any, tmp_path: Path) -> None:
    def change(model: Any) -> None:
        model.base_model.embeddings.word_embeddings.weight[5] += 1

    with pytest.raises(ModelError, match="the adapter was trained on"):
        load_tuned(adapter, load_base(copy(change)))
    gone = tmp_path / "gone"
    gone.mkdir()
    for file in Path(adapter).iterdir():
        (gone / file.name).write_bytes(file.read_bytes())
    config = json.loads((gone / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "/nowhere/model"
    (gone / "adapter_config.json").write_text(json.dumps(config))
    (note,) = load_tuned(str(gone), load_base("tiny")).notes
    assert note.startswith("gone was trained on 'model', which was not found: not checked against")
    with pytest.raises(ModelError, match="does not fit"):
        load_tuned(str(gone), load_base("tiny-gpt"))
    (gone / "adapter_model.safetensors").rename(gone / "adapter_model.bin")
    with pytest.raises(ModelError, match="can run code when loaded"):
        load_tuned(str(gone), load_base("tiny"))


def test_adapters_that_match_nothing_are_refused(adapter: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for file in Path(adapter).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "adapter_model.safetensors"
    stored = load_file(weights)
    save_file({name.replace("layer.", "layers."): v for name, v in stored.items()}, weights)
    with pytest.raises(ModelError, match="weights match nothing"):
        load_tuned(str(tmp_path), load_base("tiny"))
    weights.write_bytes(b"abc")
    with pytest.raises(ModelError, match="is damaged"):
        load_tuned(str(tmp_path), load_base("tiny"))
    (tmp_path / "adapter_config.json").write_text("[]")
    weights.write_bytes((Path(adapter) / weights.name).read_bytes())
    with pytest.raises(ModelError, match="is not the configuration of an adapter"):
        load_tuned(str(tmp_path), load_base("tiny"))


def test_what_is_not_known_of_an_adapter_is_refused_or_told(
    adapter: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    folder = Path(shutil.copytree(adapter, tmp_path / "adapter"))
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "base_model_name_or_path": 5}))
    with pytest.raises(ModelError, match=r"adapter_config\.json.*base_model_name_or_path is 5"):
        load_tuned(str(folder), load_base("tiny"))
    path.write_text(json.dumps({**config, "spectral_norm": True}))
    (note,) = load_tuned(str(folder), load_base("tiny")).notes
    assert "spectral_norm" in note
    assert not recwarn.list


def test_an_expression_without_end_is_stopped(
    adapter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clbench.audit.models.SECONDS", 3.0)
    folder = Path(shutil.copytree(adapter, tmp_path / "adapter"))
    path = folder / "adapter_config.json"
    endless = {"target_modules": r"(([a-z_0-9]+\.?)+)+!"}
    path.write_text(json.dumps({**json.loads(path.read_text()), **endless}))
    with pytest.raises(ModelError, match=r"adapter_config\.json does not fit .*more than 3 second"):
        load_tuned(str(folder), load_base("tiny"))


def test_an_adapter_may_come_with_the_configuration_of_its_base(
    adapter: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(adapter, tmp_path / "adapter"))
    shutil.copy(TINY / "config.json", folder)
    one, other = (load_tuned(str(each), load_base("tiny")) for each in (adapter, folder))
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name])


def test_adapters_of_prompts_cannot_be_merged(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TINY_GPT)
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    peft.get_peft_model(model, config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="cannot be merged"):
        load_tuned(str(tmp_path), load_base("tiny-gpt"))


def test_an_adapter_is_no_base(adapter: str) -> None:
    with pytest.raises(ModelError, match="is an adapter"):
        load_base(adapter)


def test_an_adapter_of_the_hub_is_merged(
    adapter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = as_download(Path(adapter), tmp_path, monkeypatch)
    base = load_base("tiny")
    one, other = load_tuned("someone/model", base), load_tuned(adapter, base)
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name])
    (snapshot / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match="has no adapter_model"):
        load_tuned("someone/model", base)
    with pytest.raises(ModelError, match="cannot be reached"):
        load_tuned("someone/other", base)

"""Checkpoints that must be refused, each with one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import make_checkpoint
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    T5Config,
    T5Model,
    ViTConfig,
    ViTModel,
)

from clbench.errors import ModelError
from clbench.models import safety
from clbench.models.load import build_classifier, load_backbone, load_config, load_tokenizer


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("bert", tmp_path_factory.mktemp("original") / "bert")


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model"))


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refusal(call: Callable[[str], object], folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        call(str(folder))
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"model {str(folder)!r}: ")
    return text


@pytest.mark.parametrize(
    "name",
    ["pytorch_model.bin", "model.pt", "model.pth", "tf_model.h5", "flax_model.msgpack", "a.ckpt"],
)
def test_weights_that_need_unpickling(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    marker = folder / "opened"
    (folder / name).write_bytes(b"cposix\nsystem\n(S'touch " + bytes(marker) + b"'\ntR.")
    text = refusal(load_backbone, folder)
    assert name in text
    assert "refused" in text
    assert not marker.exists()


def test_safetensors_are_taken_even_beside_a_pickle(folder: Path) -> None:
    torch.save({"x": torch.zeros(1)}, folder / "pytorch_model.bin")
    assert load_backbone(str(folder)).config.model_type == "bert"


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "no weights" in refusal(load_backbone, folder)
    assert load_backbone(str(folder), random_seed=1) is not None, "random weights need none"


def test_shards_are_read(folder: Path) -> None:
    whole = load_backbone(str(folder)).state_dict()
    model = load_backbone(str(folder))
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="10KB")
    assert not (folder / "model.safetensors").exists()
    assert (folder / "model.safetensors.index.json").exists()
    for name, value in load_backbone(str(folder)).state_dict().items():
        assert torch.equal(value, whole[name])
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    assert shard.name in refusal(load_backbone, folder)


@pytest.mark.parametrize("part", ["../x.safetensors", "pytorch_model-1.bin"])
def test_an_index_that_points_elsewhere(folder: Path, part: str) -> None:
    (folder / "model.safetensors").rename(folder.parent / "x.safetensors")
    index = {"weight_map": {"embeddings.word_embeddings.weight": part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert part in refusal(load_backbone, folder)


def test_the_configuration_cannot_name_other_weights(folder: Path) -> None:
    edit(folder, transformers_weights="adapter_model.bin")
    torch.save({}, folder / "adapter_model.bin")
    assert "adapter_model.bin" in refusal(load_backbone, folder)


def test_weights_cut_short(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    assert "cannot be loaded" in refusal(load_backbone, folder)


def test_weights_under_another_prefix_are_not_replaced_by_random_ones(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    renamed = {f"network.{name}": value for name, value in weights.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    text = refusal(load_backbone, folder)
    assert "BertModel" in text
    assert "embeddings.LayerNorm.bias" in text


def test_one_lost_tensor_is_an_error(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    lost = next(name for name in weights if "layer.1.output.dense.bias" in name)
    del weights[lost]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "lack 1 of the tensors" in refusal(load_backbone, folder)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "gpt2", "deberta-v2"])
def test_layers_that_the_configuration_does_not_count(kind: str, tmp_path: Path) -> None:
    folder = make_checkpoint(kind, tmp_path / kind)
    edit(folder, **{"n_layers" if kind == "distilbert" else "num_hidden_layers": 2})
    if kind == "gpt2":
        edit(folder, n_layer=2)
    assert "this config.json has no place for, such as" in refusal(load_backbone, folder)


def test_heads_poolers_and_old_buffers_are_left_out(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.position_ids"] = torch.arange(40)[None]
    weights["pooler.dense.weight"] = torch.zeros(32, 32)
    weights["cls.predictions.bias"] = torch.zeros(60)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    load_backbone(str(folder))
    weights["encoder.layer.0.attention.self.distance_embedding.weight"] = torch.zeros(79, 16)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "'encoder.layer.0.attention.self.distance_embedding.weight'" in refusal(
        load_backbone, folder
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, and must be 1 or more"),
        ({"hidden_act": "gelo"}, "hidden_act is 'gelo', which transformers does not know. Did"),
    ],
)
def test_values_that_no_model_can_have(folder: Path, changes: dict[str, Any], message: str) -> None:
    edit(folder, **changes)
    assert message in refusal(load_backbone, folder)


def test_settings_that_change_no_number_are_set_aside(folder: Path) -> None:
    inputs = {"input_ids": torch.tensor([[2, 5, 6, 7, 3]])}
    whole = load_backbone(str(folder))(**inputs).last_hidden_state
    edit(folder, return_dict=False, chunk_size_feed_forward=3)
    assert torch.equal(load_backbone(str(folder))(**inputs).last_hidden_state, whole)


def test_weights_of_another_width(folder: Path) -> None:
    edit(folder, intermediate_size=64)
    assert refusal(load_backbone, folder) == (
        f"model {str(folder)!r}: the weights in {folder} have "
        "'encoder.layer.0.intermediate.dense.bias' in shape (48,), its config.json asks for (64,) "
        "(8 more tensors likewise). They do not belong together: fetch or save the model again."
    )


def test_weights_that_are_no_numbers(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.1.attention.self.query.weight"][0, :2] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert refusal(load_backbone, folder) == (
        f"model {str(folder)!r}: 2 of 1024 numbers of "
        f"'encoder.layer.1.attention.self.query.weight' in {folder} are infinite or not a number. "
        "Take a checkpoint from before its training diverged."
    )


@pytest.mark.parametrize("kind", [BertForMaskedLM, BertForSequenceClassification])
def test_checkpoints_with_a_head_give_their_backbone(tmp_path: Path, kind: Any) -> None:
    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
    )
    model = kind(config)
    model.save_pretrained(tmp_path)
    weights = load_backbone(str(tmp_path)).state_dict()
    for name, value in model.bert.state_dict().items():
        if "pooler" not in name:
            assert torch.equal(weights[name], value)


def test_half_precision_weights_become_float32(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    half = {name: value.half() for name, value in weights.items()}
    save_file(half, folder / "model.safetensors", metadata={"format": "pt"})
    edit(folder, dtype="float16")
    for random_seed in (None, 1):
        backbone = load_backbone(str(folder), random_seed=random_seed)
        assert {p.dtype for p in backbone.parameters()} == {torch.float32}


def test_code_in_the_checkpoint(folder: Path) -> None:
    (folder / "modeling_own.py").write_text("raise SystemExit('ran')")
    for changes in (
        {"model_type": "own", "auto_map": {"AutoModel": "modeling_own.Own"}},
        {"auto_map": {"AutoModel": "modeling_own.Own"}, "architectures": ["OwnBertModel"]},
        {"auto_map": {"AutoModel": "modeling_own.Own"}, "architectures": None},
    ):
        edit(folder, **changes)
        for load in (load_backbone, load_tokenizer):
            assert "never run" in refusal(load, folder)


def test_code_that_transformers_has_itself_is_not_needed(folder: Path) -> None:
    (folder / "modeling_own.py").write_text("raise SystemExit('ran')")
    edit(folder, auto_map={"AutoModel": "modeling_own.Own"}, architectures=["BertModel"])
    assert type(load_backbone(str(folder))).__name__ == "BertModel"


def test_a_tokenizer_with_code_of_its_own(folder: Path) -> None:
    (folder / "own.py").write_text("raise SystemExit('ran')")
    path = folder / "tokenizer_config.json"
    own = {"auto_map": {"AutoTokenizer": ["own.Own", None]}, "tokenizer_class": "Own"}
    path.write_text(json.dumps({**json.loads(path.read_text()), **own}))
    tokenizer = load_tokenizer(str(folder))  # transformers has one of its own for the model
    assert type(tokenizer).__module__.startswith("transformers.")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "brt"}, "no architecture 'brt'"),
        ({"model_type": None}, "no key model_type"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
        ({"hidden_size": "wide"}, "config.json is wrong"),
        ({"hidden_size": 33}, "cannot be"),
    ],
)
def test_configurations_that_cannot_be_used(
    folder: Path, changes: dict[str, Any], said: str
) -> None:
    edit(folder, **changes)
    assert said in refusal(load_backbone, folder)


@pytest.mark.parametrize(("content", "said"), [("{", "cannot be read"), ("[]", "no JSON object")])
def test_a_broken_configuration(folder: Path, content: str, said: str) -> None:
    (folder / "config.json").write_text(content)
    for load in (load_backbone, load_tokenizer, load_config):
        assert said in refusal(load, folder)


def test_no_configuration(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "no config.json" in refusal(load_backbone, folder)
    (folder / "adapter_config.json").write_text("{}")
    assert "adapter" in refusal(load_backbone, folder)


def test_no_tokenizer(folder: Path) -> None:
    """Transformers would make up one that knows no word."""
    for path in [*folder.glob("tokenizer*"), *folder.glob("vocab*")]:
        path.unlink()
    assert "no tokenizer" in refusal(load_tokenizer, folder)


def test_a_broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer" in refusal(load_tokenizer, folder)


def test_the_packages_that_sentencepiece_needs_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in [*folder.glob("tokenizer*"), *folder.glob("vocab*")]:
        path.unlink()
    (folder / "spm.model").write_bytes(b"")
    monkeypatch.setattr(safety, "find_spec", lambda module: None)
    text = refusal(load_tokenizer, folder)
    assert "pip install sentencepiece protobuf" in text
    assert "spm.model" in text


def test_the_tokenizer_of_another_model(folder: Path) -> None:
    edit(folder, vocab_size=10)
    text = refusal(load_tokenizer, folder)
    assert "token number 20" in text
    assert "stop at 9" in text


def test_encoder_decoders_are_refused(tmp_path: Path) -> None:
    config = T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    T5Model(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError) as caught:
        build_classifier(str(tmp_path), heads={}, head_seed=lambda name: 0)
    assert str(caught.value) == (
        f"model {str(tmp_path)!r}: models of type 't5' have both an encoder and a decoder. Use an "
        "encoder, or a decoder alone."
    )


def test_models_of_other_things_than_text_are_refused(tmp_path: Path) -> None:
    config = ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=8,
        patch_size=4,
    )
    ViTModel(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="text model"):
        build_classifier(str(tmp_path), heads={}, head_seed=lambda name: 0)

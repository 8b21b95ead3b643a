"""Unsafe, incomplete and unsupported checkpoints are refused in one line."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.loading import edit, error_of
from safetensors.torch import load_file

from clbench.models import folder as model_folder
from clbench.models.checkpoint import load_backbone, load_config, load_tokenizer, random_model
from clbench.models.folder import check_folder
from clbench.models.locate import adapter_folder


@pytest.fixture
def folder(checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint(), tmp_path / "model"))


def remove_tokenizer(folder: Path) -> None:
    for path in [*folder.glob("tokenizer*"), *folder.glob("vocab*")]:
        path.unlink()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "tf_model.h5", "a.ckpt"])
def test_weights_as_pickles_are_refused_unopened(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    marker = folder / "opened"
    (folder / name).write_bytes(b"cposix\nsystem\n(S'touch " + bytes(marker) + b"'\ntR.")
    text = error_of(load_backbone, folder)
    assert "has no weights as model.safetensors. Other formats are refused" in text
    assert not marker.exists()


def test_safetensors_are_read_if_there_is_a_pickle_too(folder: Path) -> None:
    torch.save({"x": torch.zeros(1)}, folder / "pytorch_model.bin")
    assert load_backbone(str(folder)).config.model_type == "bert"


def test_missing_weights_are_an_error_unless_weights_are_random(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "has no weights" in error_of(load_backbone, folder)
    assert random_model(load_config(str(folder)), 1) is not None


def test_shards_are_read_and_a_missing_one_is_named(folder: Path) -> None:
    whole = load_file(folder / "model.safetensors")
    model = load_backbone(str(folder))
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="10KB")
    assert (folder / "model.safetensors.index.json").exists()
    for name, value in load_backbone(str(folder)).state_dict().items():
        assert torch.equal(value, whole[name])
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    assert shard.name in error_of(load_backbone, folder)


@pytest.mark.parametrize("part", ["../x.safetensors", "pytorch_model-1.bin"])
def test_an_index_cannot_name_other_folders_or_pickles(folder: Path, part: str) -> None:
    (folder / "model.safetensors").rename(folder.parent / "x.safetensors")
    index = {"weight_map": {"embeddings.word_embeddings.weight": part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert part in error_of(load_backbone, folder)


@pytest.mark.parametrize("name", ["adapter_model.bin", "model.safetensors.index.json"])
def test_the_configuration_cannot_name_other_weights(name: str, folder: Path) -> None:
    edit(folder, transformers_weights=name)
    torch.save({}, folder / "adapter_model.bin")
    index = {"metadata": {}, "weight_map": {"pooler.dense.bias": "adapter_model.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert f"names the weights {name!r}" in error_of(load_backbone, folder)


def test_an_adapter_beside_a_whole_model_is_refused(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    for load in (load_backbone, load_tokenizer, load_config):
        text = error_of(load, folder)
        assert "holds an adapter (adapter_config.json) beside config.json" in text
    assert adapter_folder(str(folder)) is None


def test_other_configurations_and_distributed_shards_are_refused(folder: Path) -> None:
    shard = folder / "shard-00000-model-00001-of-00001.safetensors"
    shutil.copy(folder / "model.safetensors", shard)
    assert "holds shards of a distributed checkpoint" in error_of(load_backbone, folder)
    shard.unlink()
    shutil.copy(folder / "config.json", folder / "config.4.0.0.json")
    edit(folder, configuration_files=["config.4.0.0.json"])
    assert "names other configurations" in error_of(load_config, folder)


@pytest.mark.parametrize("part", [0.5, 0.999])
def test_truncated_weights_are_noticed_without_reading_them(folder: Path, part: float) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: int(part * len(data))])

    def check(name: str) -> object:
        return check_folder(Path(name), name)

    assert "model.safetensors is incomplete; fetch the model again" in error_of(check, folder)


def test_code_in_the_checkpoint_is_never_run(folder: Path) -> None:
    (folder / "modeling_own.py").write_text("raise SystemExit('ran')")
    own = {"auto_map": {"AutoModel": "modeling_own.Own"}}
    for changes in (
        {**own, "model_type": "own"},
        {**own, "model_type": "bert", "architectures": ["OwnBertModel"]},
        {**own, "model_type": "bert", "architectures": None},
    ):
        edit(folder, **changes)
        for load in (load_backbone, load_tokenizer):
            assert "never run" in error_of(load, folder)
    edit(folder, **own, model_type="bert", architectures=["BertModel"])
    assert type(load_backbone(str(folder))).__name__ == "BertModel"


def test_code_of_a_tokenizer_is_never_run(folder: Path) -> None:
    (folder / "own.py").write_text("raise SystemExit('ran')")
    path = folder / "tokenizer_config.json"
    own = {"auto_map": {"AutoTokenizer": ["own.Own", None]}, "tokenizer_class": "Own"}
    path.write_text(json.dumps({**json.loads(path.read_text()), **own}))
    assert type(load_tokenizer(str(folder))).__module__.startswith("transformers.")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "brt"}, "does not recognize this architecture"),
        ({"model_type": None}, "has model type `None` but Transformers does not recognize"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
        ({"hidden_size": "wide"}, "config.json cannot be used: Validation error for field 'hidden"),
        ({"hidden_size": 33}, "not a multiple of the number of attention heads"),
        ({"hidden_act": "gelo"}, "cannot be loaded: KeyError 'gelo'"),
        ({"num_hidden_layers": 0}, "has no place for 48 of its weights"),
    ],
)
def test_unusable_configurations_are_refused(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    edit(folder, **changes)
    assert message in error_of(load_backbone, folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "cannot be read"), ("[]", "cannot be read: 'list' object has no")],
)
def test_a_broken_configuration_is_an_error(folder: Path, content: str, message: str) -> None:
    (folder / "config.json").write_text(content)
    for load in (load_backbone, load_tokenizer, load_config):
        assert message in error_of(load, folder)


def test_a_folder_without_configuration_is_an_error(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert error_of(load_backbone, folder).endswith("has no config.json.")
    (folder / "adapter_config.json").write_text("{}")
    assert "adapter" in error_of(load_backbone, folder)


def test_a_missing_tokenizer_is_an_error(folder: Path) -> None:
    remove_tokenizer(folder)
    assert "has no tokenizer" in error_of(load_tokenizer, folder)


def test_a_broken_tokenizer_is_an_error(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    assert "its tokenizer in" in error_of(load_tokenizer, folder)


def test_the_packages_for_sentencepiece_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_tokenizer(folder)
    (folder / "spm.model").write_bytes(b"")
    monkeypatch.setattr(model_folder, "find_spec", lambda module: None)
    text = error_of(load_tokenizer, folder)
    assert "pip install sentencepiece protobuf" in text
    assert "spm.model" in text


def test_a_pipe_in_the_folder_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "added_tokens.json")
    assert "added_tokens.json is a pipe or device" in error_of(load_backbone, folder)


@pytest.mark.parametrize("value", [3, True, "BertModel", [1]])
def test_architectures_of_another_type_are_refused(folder: Path, value: object) -> None:
    edit(folder, auto_map={"AutoModel": "m.M"}, architectures=value)
    assert re.search("never run|config.json cannot be read", error_of(load_backbone, folder))


def test_endless_layers_are_refused_before_they_are_built(folder: Path) -> None:
    edit(folder, num_hidden_layers=10**9)
    assert "more than 1000 layers" in error_of(load_backbone, folder)

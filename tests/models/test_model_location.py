from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants
import huggingface_hub.errors
import pytest
from checkpoints import make_checkpoint

from clbench.cache import cache_dir
from clbench.errors import ModelError, PluginError
from clbench.models import hub as hub_module
from clbench.models import registry
from clbench.models.load import load_backbone, load_tokenizer
from clbench.models.locate import local_folder, model_identity, resolve
from clbench.models.registry import MODELS, ModelEntry

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("bert", tmp_path_factory.mktemp("location") / "bert")


@pytest.fixture
def hub(tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache as a download leaves it, with one model, and no network."""
    repository = tmp_path / "models--someone--model"
    snapshot = repository / "snapshots" / COMMIT
    shutil.copytree(original, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return snapshot


def message(name: str, revision: str | None = None) -> str:
    with pytest.raises(ModelError) as caught:
        local_folder(name, revision)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_built_in_model_needs_no_network() -> None:
    assert "tiny" in MODELS.names()
    assert (local_folder("tiny") / "model.safetensors").is_file()
    assert load_backbone("tiny").config.model_type == "bert"
    assert load_tokenizer("tiny")("A good film.")["input_ids"]


def test_the_built_in_model_is_the_same_every_time() -> None:
    first = model_identity("tiny")
    shutil.rmtree(cache_dir("models"), ignore_errors=True)
    assert model_identity("tiny") == first


def test_the_model_in_the_package_goes_before_its_stand_in(
    tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "__file__", str(tmp_path / "registry.py"))
    shutil.copytree(original, tmp_path / "tiny")
    assert local_folder("tiny") == tmp_path / "tiny"


def test_own_entries_can_be_added(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODELS, "_entries", dict(MODELS._entries))
    MODELS.add("mine", ModelEntry("my model", lambda: original))
    assert resolve("mine").folder == original
    with pytest.raises(PluginError, match="ModelEntry"):
        MODELS.add("bad", original)  # type: ignore[arg-type]


def test_a_folder(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(str(original)).folder == original
    monkeypatch.chdir(original.parent)
    assert local_folder("bert") == Path("bert")


def test_a_hub_name_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("bert-base-uncased", "google/electra-small-discriminator"):
        location = resolve(name, "v1")
        assert (location.name, location.folder, location.revision) == (name, None, "v1")


@pytest.mark.parametrize("name", ["/no/such/folder", "./x", "../x", "a/b/c", "~/nowhere", "x/"])
def test_a_folder_that_is_not_there(name: str) -> None:
    text = message(name)
    assert repr(name) in text
    assert "no such folder" in text


def test_a_file_in_place_of_its_folder(original: Path) -> None:
    assert "is a file" in message(str(original / "model.safetensors"))


@pytest.mark.parametrize("name", ["", "a b", "-x", "bert:base"])
def test_names_that_nothing_can_have(name: str) -> None:
    assert "Available: tiny" in message(name)


def test_a_revision_of_a_folder(original: Path) -> None:
    for name in ("tiny", str(original)):
        assert "revision" in message(name, "v1")


def test_no_network(hub: Path) -> None:
    text = message("tinny")
    assert "cannot be reached" in text
    assert "Did you mean 'tiny'?" in text
    assert "cannot be reached" in message("someone/model", "v2")
    with pytest.raises(ModelError, match="cannot be reached"):
        model_identity("someone/other")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("GatedRepoError", "hf auth login"),
        ("RepositoryNotFoundError", "nor a public model of the hub"),
        ("RevisionNotFoundError", "no such revision"),
        ("RemoteEntryNotFoundError", "has no config.json"),
        ("HfHubHTTPError", "cannot be fetched: 503 busy"),
    ],
)
def test_answers_of_the_hub(
    fault: str, said: str, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(*given: object, **named: object) -> str:
        response = SimpleNamespace(headers={}, request=None)
        raise getattr(huggingface_hub.errors, fault)("503 busy\nmore", response=response)

    monkeypatch.setattr(hub_module, "_reach", lambda: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", answer)
    assert said in message("someone/other")


def test_a_cached_hub_model_needs_no_network(hub: Path) -> None:
    assert local_folder("someone/model") == hub
    assert load_backbone("someone/model").config.model_type == "bert"
    assert load_tokenizer("someone/model").pad_token_id == 0
    assert model_identity("someone/model") == {"hub": "someone/model", "commit": COMMIT}
    assert model_identity("someone/model", COMMIT) == model_identity("someone/model")


def test_a_whole_cached_model_is_not_asked_for_again(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "_reach", lambda: pytest.fail("asked the hub"))
    assert local_folder("someone/model") == hub


def test_the_rest_of_a_model_is_fetched(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = (hub / "model.safetensors").read_bytes()
    (hub / "model.safetensors").unlink()
    asked: list[str] = []

    def download(name: str, *, revision: str, **given: object) -> str:
        if "allow_patterns" in given:
            asked.append(revision)
            (hub / "model.safetensors").write_bytes(weights)
        return str(hub)

    monkeypatch.setattr(hub_module, "_reach", lambda: None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load_backbone("someone/model") is not None
    assert asked == [COMMIT]


def test_no_network_is_noticed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    assert "cannot be reached" in message("someone/other")
    assert time.monotonic() - start < 5


def test_a_hub_model_without_safe_weights(hub: Path) -> None:
    (hub / "model.safetensors").rename(hub / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin.*refused"):
        load_backbone("someone/model")


def test_a_copy_is_the_same_model_and_a_change_is_not(original: Path, tmp_path: Path) -> None:
    identity = model_identity(str(original))
    assert set(identity["files"]) >= {"config.json", "tokenizer.json", "model.safetensors"}
    copy = Path(shutil.copytree(original, tmp_path / "copy"))
    assert model_identity(str(copy)) == identity
    (copy / "README.md").write_text("words")
    assert model_identity(str(copy)) == identity
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        data = (copy / name).read_bytes()
        (copy / name).write_bytes(data[:-1] + b" " + data[-1:])
        changed = model_identity(str(copy))["files"]
        assert [f for f in changed if changed[f] != identity["files"][f]] == [name]
        (copy / name).write_bytes(data)
    assert model_identity(str(copy)) == identity


def test_digests_are_remembered(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = model_identity(str(original))
    monkeypatch.setattr("hashlib.file_digest", lambda *a: pytest.fail("read again"))
    assert model_identity(str(original)) == identity


def test_a_folder_without_a_model_has_no_identity(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        model_identity(str(tmp_path))


def test_neither_torch_nor_transformers_is_imported(original: Path) -> None:
    code = (
        "import sys; from clbench.models.locate import model_identity; "
        f"model_identity('tiny'); model_identity({str(original)!r}); "
        "print(sorted({'torch', 'transformers', 'datasets', 'sklearn'} & set(sys.modules)))"
    )
    local_folder("tiny")
    done = subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ), capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == "[]"

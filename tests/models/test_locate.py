from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants
import huggingface_hub.errors
import pytest
import transformers
from helpers.checkpoints import COMMIT, as_download

from clbench.core.errors import ModelError, PluginError
from clbench.models import locate
from clbench.models.checkpoint import load_backbone, load_tokenizer
from clbench.models.locate import (
    MODELS,
    ModelEntry,
    local_folder,
    model_identity,
    resolve,
)

OTHER_FILES = (
    *(
        "generation_config.json",
        "training_args.json",
        "trainer_state.json",
        "sentence_bert_config.json",
    ),
    *("modules.json", "config_sentence_transformers.json", "preprocessor_config.json", "README.md"),
    *("chat_template.json", "quantize_config.json", "params.json", "pytorch_model.bin"),
)
"""Files that checkpoints come with and that are not read."""


@pytest.fixture
def original(checkpoint: Callable[..., Path]) -> Path:
    return checkpoint()


@pytest.fixture
def hub(tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with one downloaded model, and no network."""
    return as_download(original, tmp_path, monkeypatch)


def message(name: str, revision: str | None = None) -> str:
    with pytest.raises(ModelError) as caught:
        local_folder(name, revision)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_built_in_model_needs_no_network() -> None:
    assert "tiny" in MODELS.names()
    assert (local_folder("tiny") / "model.safetensors").is_file()


def test_entries_can_be_added(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODELS, "_entries", dict(MODELS._entries))
    MODELS.add("mine", ModelEntry("my model", lambda: original))
    assert resolve("mine") == original
    with pytest.raises(PluginError, match="ModelEntry"):
        MODELS.add("bad", original)  # type: ignore[arg-type]


def test_a_folder_is_used_in_place(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(str(original)) == original
    monkeypatch.chdir(original.parent)
    assert local_folder("bert") == Path("bert")


def test_a_model_is_shown_by_its_name_wherever_it_lies(tmp_path: Path) -> None:
    assert [locate.display_name(name) for name in ("tiny", "org/bert")] == ["tiny", "org/bert"]
    folder = tmp_path / "my-bert"
    folder.mkdir()
    (tmp_path / "MODEL").symlink_to(folder)
    assert locate.display_name(str(tmp_path / "MODEL")) == "my-bert"
    for card, name in (
        ("---\nlanguage: en\n---\n\n# all-MiniLM-L6-v2\nIt maps\n# Usage\n", "all-MiniLM-L6-v2"),
        ("---\nmodel-index:\n- name: tuned-bert\n---\n# Model card\n", "tuned-bert"),
        ("# Model Card for Model ID\n\n# Usage\n", "my-bert"),
    ):
        (folder / "README.md").write_text(card, encoding="utf-8")
        assert locate.display_name(str(folder)) == name
    cached = tmp_path / "models--org--bert-2" / "snapshots" / COMMIT
    cached.mkdir(parents=True)
    assert locate.display_name(str(cached)) == "org/bert-2"


def test_other_names_belong_to_hub_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("bert-base-uncased", "google/electra-small-discriminator"):
        assert resolve(name, "v1") is None


@pytest.mark.parametrize("name", ["/no/such/folder", "../x", "a/b/c", "~/nowhere", "", "a b", "-x"])
def test_names_of_neither_folders_nor_hub_models_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    text = message(name)
    assert repr(name) in text
    assert "not a built-in model, an existing folder or a valid name of a hub model" in text
    assert "Available: tiny" in text


def test_a_file_instead_of_its_folder_is_refused(original: Path) -> None:
    assert "an existing folder" in message(str(original / "model.safetensors"))


def test_folders_have_no_revision(original: Path) -> None:
    for name in ("tiny", str(original)):
        assert "only hub models have a revision" in message(name, "v1")


def test_without_network_the_error_suggests_near_names(hub: Path) -> None:
    text = message("tinny")
    assert "cannot be reached" in text
    assert "Did you mean 'tiny'" in text
    assert "cannot be reached" in message("someone/model", "v2")
    with pytest.raises(ModelError, match="cannot be reached"):
        model_identity("someone/other")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("GatedRepoError", "hf auth login"),
        ("RepositoryNotFoundError", "or a public model of the hub"),
        ("RevisionNotFoundError", "no such revision"),
        ("RemoteEntryNotFoundError", "has no config.json"),
        ("HfHubHTTPError", "could not be downloaded: 503 busy"),
    ],
)
def test_errors_of_the_hub_say_what_to_do(
    kind: str, reason: str, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(*args: object, **named: object) -> str:
        response = SimpleNamespace(headers={}, request=None)
        raise getattr(huggingface_hub.errors, kind)("503 busy\nmore", response=response)

    monkeypatch.setattr(locate, "_require_hub", lambda: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", answer)
    assert reason in message("someone/other")


def test_a_cached_hub_model_needs_no_network(hub: Path) -> None:
    assert local_folder("someone/model") == hub
    assert load_backbone("someone/model").config.model_type == "bert"
    assert load_tokenizer("someone/model").pad_token_id == 0
    assert model_identity("someone/model") == {"hub": "someone/model", "commit": COMMIT}
    assert model_identity("someone/model", COMMIT) == model_identity("someone/model")


def test_a_complete_cached_model_is_not_requested_again(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locate, "_require_hub", lambda: pytest.fail("downloads the hub"))
    assert local_folder("someone/model") == hub


def test_the_missing_rest_of_a_model_is_downloaded(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = (hub / "model.safetensors").read_bytes()
    (hub / "model.safetensors").unlink()
    downloads: list[str] = []

    def download(name: str, *, revision: str, **options: object) -> str:
        if "allow_patterns" in options:
            downloads.append(revision)
            (hub / "model.safetensors").write_bytes(weights)
        return str(hub)

    monkeypatch.setattr(locate, "_require_hub", lambda: None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load_backbone("someone/model") is not None
    assert downloads == [COMMIT]


def test_no_network_is_noticed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    assert "cannot be reached" in message("someone/other")
    assert time.monotonic() - start < 5


def test_a_hub_model_with_only_pickled_weights_is_refused(hub: Path) -> None:
    (hub / "model.safetensors").rename(hub / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no weights as model\.safetensors.*refused"):
        load_backbone("someone/model")


def test_the_identity_depends_on_contents_and_not_on_the_path(
    original: Path, tmp_path: Path
) -> None:
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


def test_digests_are_cached(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = model_identity(str(original))
    monkeypatch.setattr("hashlib.file_digest", lambda *a: pytest.fail("read again"))
    assert model_identity(str(original)) == identity


@pytest.mark.parametrize("in_place", [True, False])
def test_other_weights_of_equal_size_and_time_have_another_identity(
    in_place: bool, original: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(original, tmp_path / "copy"))
    path = copy / "model.safetensors"
    identity, state = model_identity(str(copy)), path.stat()
    content = bytearray(path.read_bytes())
    content[-5000] ^= 1
    if not in_place:
        path.unlink()
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert model_identity(str(copy)) != identity


@pytest.mark.parametrize(
    "name", ["additional_chat_templates/tool.jinja", "weights-1.safetensors", "bpe.codes"]
)
def test_whatever_transformers_reads_is_in_the_identity(
    name: str, original: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(original, tmp_path / "copy"))
    (copy / name).parent.mkdir(exist_ok=True)
    (copy / name).write_text("one")
    assert name in model_identity(str(copy))["files"]


def test_the_files_of_every_tokenizer_are_in_the_identity() -> None:
    names: set[str] = set()
    for path in Path(transformers.__file__).parent.glob("models/*/tokenization_*.py"):
        for table in re.findall(
            r"(?s)vocab_files_names\b[^=\n]*= \{(.*?)\}", path.read_text(), re.I
        ):
            names |= {*re.findall(r':\s*"([^"]+)"', table)}
    assert len(names) > 15
    assert not {n for n in names if not any(fnmatch(n, p) for p in locate.IDENTITY_FILES)}


@pytest.mark.slow
def test_all_files_that_are_opened_are_in_the_identity(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(original, tmp_path / "copy"))
    (copy / "additional_chat_templates").mkdir()
    for name in (*OTHER_FILES, "additional_chat_templates/a.jinja"):
        (copy / name).write_text("{}")
    code = f"""
import sys
opened = set()
sys.addaudithook(lambda event, args: opened.add(str(args[0])) if event == "open" else None)
from clbench.models.checkpoint import load_backbone, load_tokenizer
load_backbone({str(copy)!r}), load_tokenizer({str(copy)!r})
print(*(path for path in opened if path.startswith({str(copy)!r})))
"""
    process = subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ), capture_output=True, check=True
    )
    opened = {Path(path).relative_to(copy).as_posix() for path in process.stdout.decode().split()}
    assert {"config.json", "additional_chat_templates/a.jinja"} <= opened
    assert opened <= model_identity(str(copy))["files"].keys()


def test_a_folder_without_a_model_has_no_identity(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        model_identity(str(tmp_path))


def test_an_identity_imports_neither_torch_nor_transformers(original: Path) -> None:
    code = (
        "import sys; from clbench.models.locate import model_identity; "
        f"model_identity('tiny'); model_identity({str(original)!r}); "
        "print(sorted({'torch', 'transformers', 'datasets', 'sklearn'} & set(sys.modules)))"
    )
    local_folder("tiny")
    process = subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ), capture_output=True, check=True
    )
    assert process.stdout.decode().strip() == "[]"

"""Locate a model (built in, in a folder or on the hub), and identify it.

What is read decides the result and is in the identity; what is missing or unknown is refused,
unless it is a hub model's pooling in modules.json, which only the hub can tell: what config.json
says, or the default, is used, with a note.
Not read are whole heads of another kind than the one in use, subfolders but for pooling and chat
templates, and other files: pickles, settings of training and of generation.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clbench.core.errors import ModelError, did_you_mean
from clbench.core.files import cache_dir, digest, read_file, user_path, write_if_possible
from clbench.core.registry import Registry
from clbench.models.folder import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    INDEX,
    WEIGHTS,
    check_folder,
    config_path,
)

IDENTITY_FILES = (
    *("config.json", "*.safetensors", "model.safetensors.index.json"),
    *("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("*.model", "*.spm", "*.codes", "*.tokenizer", "vocab-*.json", "*_vocab.json", "dict.txt"),
    *("tekken.json", "byte_maps.json", "emoji.json", "normalizer.json", "word_*.json"),
    *("*.jinja", "additional_chat_templates/*.jinja"),
)
"""The files that transformers reads: configuration, weights, tokenizers and chat templates."""
HUB_FILES = ["*.json", "model*.safetensors", "*.txt", "*.model", "*.jinja", "*.spm", "*.codes"]
"""The files to download, from the top folder only; none of them is a pickle."""


@dataclass(frozen=True)
class ModelEntry:
    """A model with a short name."""

    description: str
    """One line for lists."""
    locate: Callable[[], Path]
    """Returns the folder with ``config.json``, tokenizer and ``model.safetensors``."""


def _check_entry(name: str, entry: object) -> str | None:
    if isinstance(entry, ModelEntry):
        return None
    return "not a clbench.models.locate.ModelEntry. Wrap the model in one."


MODELS: Registry[ModelEntry] = Registry("model", check=_check_entry, group="clbench.models")
TINY = Path(__file__).parent / "tiny"
TINY_GPT = Path(__file__).parent / "tiny_gpt"
MODELS.add("tiny", ModelEntry("small BERT that comes with clbench; works offline", lambda: TINY))
MODELS.add("tiny-gpt", ModelEntry("small decoder that comes with clbench", lambda: TINY_GPT))


def resolve(name: str, revision: str | None = None) -> Path | None:
    """Return the folder of a built-in or local model, without a revision; None for a hub model."""
    if name in MODELS:
        folder = MODELS.get(name).locate()
    else:
        folder = user_path(name, "model")
        if not name or not folder.is_dir():
            return None
    if revision is not None:
        raise ModelError(
            f"model {name!r}: only hub models have a revision ({revision!r}). Remove the key "
            "revision, or give the model's name on the hub."
        )
    return folder


def title_of(name: str) -> str:
    """Return the name of a model to publish: of a folder, the last part of its path alone."""
    is_hub = re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) and not Path(name).exists()
    return name if name in MODELS or is_hub else user_path(name, "model").absolute().name


def titles_of(names: Sequence[str]) -> list[str]:
    """Return `title_of` each name; equal ones are numbered."""
    titles = [title_of(name) for name in names]
    before = [titles[:i].count(title) for i, title in enumerate(titles)]
    return [f"{t} ({n + 1})" if n else t for t, n in zip(titles, before, strict=True)]


def display_name(name: str, revision: str | None = None) -> str:
    """Return the name of a model for readers, also of one that is given as a folder.

    A folder in the hub's cache has the model's name on the hub; any other the name that its model
    card declares (``model-index``, or a heading of one word), else that of the folder.
    """
    folder = resolve(name, revision)
    if name in MODELS or folder is None:
        return name
    folder = folder.resolve()
    if match := re.fullmatch(r"models--(.+)", folder.parent.parent.name):
        return match[1].replace("--", "/")
    with suppress(OSError):
        card = (folder / "README.md").read_text(encoding="utf-8", errors="replace")
        match = re.search(r"^(?:model-index:\n- name:|#) +(.+)$", card, re.MULTILINE)
        if match and " " not in match[1].strip():
            return match[1].strip()
    return folder.name


def local_folder(name: str, revision: str | None = None) -> Path:
    """Return the folder of a model on this machine, downloading a hub model if necessary.

    A hub name is bound to a commit when it is first downloaded, and keeps that commit so that
    runs stay comparable. Give another `revision` (a branch, tag or commit), or delete the cached
    model, for a newer one.

    Raises
    ------
    ModelError
        If there is no such model, the hub cannot be reached, or a revision is given for a
        model that is not on the hub.
    """
    folder = resolve(name, revision)
    if folder is not None:
        return folder
    from huggingface_hub import errors, snapshot_download

    folder = _hub_folder(name, revision)
    try:
        check_folder(folder, name)
    except ModelError:
        # Without the hub, loading the model raises an error that names the missing file.
        with _hub_errors(name, revision), suppress(errors.OfflineModeIsEnabled):
            _require_hub()
            snapshot_download(
                name, revision=folder.name, allow_patterns=HUB_FILES, ignore_patterns="*/*"
            )
    return folder


def adapter_folder(name: str) -> Path | None:
    """Return the folder of a PEFT adapter, downloading one of the hub if necessary, else None.

    A folder with weights, or a hub model with ``config.json``, is a whole model, of which there may
    be an adapter, too. None also for what is not found: `local_folder` says why.
    """
    folder, whole = resolve(name), [WEIGHTS, INDEX]
    if folder is None:
        whole = ["config.json"]
        from huggingface_hub import errors, hf_hub_download, try_to_load_from_cache

        with suppress(errors.HFValidationError, OSError):
            known = try_to_load_from_cache(name, ADAPTER)
            if not isinstance(known, str):
                if isinstance(try_to_load_from_cache(name, "config.json"), str):
                    return None
                _require_hub()
                with suppress(errors.EntryNotFoundError):
                    hf_hub_download(name, "config.json")
                    return None
                known = hf_hub_download(name, ADAPTER)
            folder = Path(known).parent
            if not (folder / ADAPTER_WEIGHTS).is_file():
                with suppress(OSError):  # loading it raises an error that names the missing file
                    _require_hub()
                    hf_hub_download(name, ADAPTER_WEIGHTS, revision=folder.name)
    if folder is None or any((folder / file).is_file() for file in whole):
        return None
    return folder if (folder / ADAPTER).is_file() else None


def model_identity(name: str, revision: str | None = None) -> dict[str, Any]:
    """Return what identifies the model in fingerprints of runs and caches.

    For a hub model these are ``hub`` and ``commit``; for a built-in model or a folder, ``files``:
    the digest of each file that decides the scores. The folder's path does not matter.
    """
    folder = resolve(name, revision)
    if folder is None:
        return {"hub": name, "commit": _hub_folder(name, revision).name}
    config_path(folder, name)
    files = {path for pattern in IDENTITY_FILES for path in folder.glob(pattern)}
    digests = ((path, _digest(path)) for path in sorted(files) if path.is_file())
    return {"files": {path.relative_to(folder).as_posix(): digest for path, digest in digests}}


def _digest(path: Path) -> str:
    """Return the content digest of `path`, cached by what the system tells of it.

    Unlike the time of modification, that of the last change (``ctime``) cannot be set.
    """
    real = path.resolve()
    state = real.stat()
    facts = real, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
    cached = cache_dir("digests") / digest(repr(facts))
    with suppress(OSError, ValueError):
        text = read_file(cached).decode("ascii")
        if len(text) == 32:
            return text
    content = digest(real)
    write_if_possible(cached, content)
    return content


def _hub_folder(name: str, revision: str | None) -> Path:
    """Return the folder of a hub model's commit: the cached one, else the hub's newest."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    with _hub_errors(name, revision):
        path = try_to_load_from_cache(name, "config.json", revision=revision)
        if not isinstance(path, str):
            _require_hub()
            path = hf_hub_download(name, "config.json", revision=revision)
    return Path(path).parent


def model_file(name: str, revision: str | None, file: str) -> Path | None:
    """Return a file of a model; None if it has none, or it `is_unknown`."""
    return _find(name, revision, file)[0]


def is_unknown(name: str, revision: str | None, file: str) -> bool:
    """Whether neither the hub's cache nor the hub tells if a model has a file."""
    return _find(name, revision, file)[1]


def _find(name: str, revision: str | None, file: str) -> tuple[Path | None, bool]:
    """Return a file of a model, if there is one, and whether that is unknown."""
    folder = resolve(name, revision)
    if folder is not None:
        return folder / file if (folder / file).is_file() else None, False
    from huggingface_hub import errors, hf_hub_download, try_to_load_from_cache

    commit = _hub_folder(name, revision).name
    if (known := try_to_load_from_cache(name, file, revision=commit)) is not None:
        # The hub's answer that there is no such file stays in the cache.
        return Path(known) if isinstance(known, str) else None, False
    try:
        _require_hub()
        return Path(hf_hub_download(name, file, revision=commit)), False
    except errors.LocalEntryNotFoundError:  # no answer; a subclass of the next
        return None, True
    except errors.EntryNotFoundError:
        return None, False
    except OSError:
        return None, True


def _require_hub() -> None:
    """Raise `OfflineModeIsEnabled` if the hub does not answer; its own calls retry for a while."""
    from huggingface_hub import constants, errors, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=10)
    except Exception as error:  # of whichever http library huggingface_hub uses
        raise errors.OfflineModeIsEnabled(str(error)) from error


@contextmanager
def _hub_errors(name: str, revision: str | None) -> Iterator[None]:
    """Turn errors of the hub into a `ModelError` of one line."""
    from huggingface_hub import errors

    near = did_you_mean(name, MODELS)
    offline = (
        "not a built-in model or a local folder. It is not in the hub's cache on this machine, "
        f"and the hub cannot be reached. Connect once to download it, or give a folder.{near}"
    )
    reasons: dict[type[Exception], str] = {  # a subclass comes before its base
        errors.HFValidationError: "not a built-in model, an existing folder or a valid name of a "
        f"hub model.{near}",
        errors.GatedRepoError: "its owner requires an agreement. Accept it on the model's page on "
        "the hub and log in with `hf auth login`.",
        errors.RevisionNotFoundError: "the hub has no such revision. Use a branch, tag or commit "
        "of this model.",
        errors.RepositoryNotFoundError: "not a built-in model, a local folder or a public model of "
        f"the hub.{near}",
        errors.LocalEntryNotFoundError: offline,
        errors.OfflineModeIsEnabled: offline,
        errors.EntryNotFoundError: "has no config.json, so it is not a transformers model.",
    }
    try:
        yield
    except (errors.HFValidationError, OSError) as error:
        text = next((text for kind, text in reasons.items() if isinstance(error, kind)), None)
        text = text or f"could not be downloaded: {[*str(error).splitlines(), '?'][0]}"
        at = f" (revision {revision!r})" if revision else ""
        raise ModelError(f"model {name!r}{at}: {text}") from error

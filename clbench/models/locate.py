"""Where a model lives: in the package, in a folder, or on the hub; and what exactly it is.

Imports neither torch nor transformers, so that a finished run can be told from an
unfinished one at once.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clbench.cache import cache_dir, write_if_possible
from clbench.errors import ModelError, did_you_mean
from clbench.messages import describe_missing
from clbench.models.registry import MODELS

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
IDENTITY_FILES = (
    "config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "model*.safetensors",
    "model.safetensors.index.json",
)
"""What decides the scores: configuration, tokenizer and weights."""


@dataclass(frozen=True)
class ModelLocation:
    """A model's place.

    Attributes
    ----------
    name
        What the user wrote.
    folder
        The folder on this machine; None for a model of the hub.
    revision
        Branch, tag or commit of a hub model.
    """

    name: str
    folder: Path | None
    revision: str | None = None


def resolve(name: str, revision: str | None = None) -> ModelLocation:
    """Tell a built-in model, a local folder and a hub name apart; reads no network.

    Raises
    ------
    ModelError
        If a path does not exist or is a file, if the name is none that a hub model can
        have, or if a revision is given for a model that is not on the hub.
    """
    if name in MODELS:
        return _local(name, MODELS.get(name).locate(), revision)
    path = Path(name).expanduser()
    if name and path.is_dir():
        return _local(name, path, revision)
    if path.is_file():
        raise ModelError(f"model {name!r}: is a file. Give the folder that it lies in.")
    if _looks_like_path(name):
        raise ModelError(
            f"model {name!r}: {describe_missing(path, 'folder')}. Give an existing folder, the "
            f"name of a hub model, or a built-in one: {', '.join(MODELS)}."
        )
    if not HUB_NAME.fullmatch(name):
        raise ModelError(
            f"model {name!r}: neither a folder nor a name that a hub model can have."
            f"{did_you_mean(name, MODELS)}"
        )
    return ModelLocation(name, None, revision)


def local_folder(name: str, revision: str | None = None) -> Path:
    """The folder of a model on this machine, fetched from the hub if need be.

    Raises
    ------
    ModelError
        As `resolve`; or if the hub has no such model or cannot be reached.
    """
    location = resolve(name, revision)
    if location.folder is not None:
        return location.folder
    from clbench.models.hub import fetch

    return fetch(location.name, location.revision)


def model_identity(name: str, revision: str | None = None) -> dict[str, Any]:
    """What the model exactly is, for fingerprints of runs and caches.

    Parameters
    ----------
    name, revision
        As in `resolve`.

    Returns
    -------
    dict
        ``files``: digest of each file that decides the scores, for a built-in model or a
        folder; ``hub`` and ``commit`` for a hub model. The place of a folder is no part
        of it: a copy is the same model.

    Raises
    ------
    ModelError
        As `resolve`; for a hub model that was never fetched, if the hub cannot be asked.
    """
    location = resolve(name, revision)
    if location.folder is None:
        from clbench.models.hub import commit_of

        return {"hub": name, "commit": commit_of(name, revision)}
    files = {path for pattern in IDENTITY_FILES for path in location.folder.glob(pattern)}
    if not (location.folder / "config.json").is_file():
        raise ModelError(f"model {name!r}: there is no config.json in {location.folder}.")
    return {"files": {path.name: _digest(path) for path in sorted(files) if path.is_file()}}


def _local(name: str, folder: Path, revision: str | None) -> ModelLocation:
    if revision is not None:
        raise ModelError(
            f"model {name!r}: a revision ({revision!r}) belongs to hub models only. "
            "Remove the key revision, or give the hub's name of the model."
        )
    return ModelLocation(name, folder)


def _looks_like_path(name: str) -> bool:
    return (
        name.startswith((".", "~", "/"))
        or name.endswith("/")
        or "\\" in name
        or name.count("/") > 1
        or Path(name).is_absolute()
    )


def _digest(path: Path) -> str:
    """Content digest of `path`, remembered by path, size and time of change."""
    real = path.resolve()
    state = real.stat()
    key = f"{real}\0{state.st_size}\0{state.st_mtime_ns}".encode()
    known = cache_dir("digests") / hashlib.blake2b(key, digest_size=16).hexdigest()
    with suppress(OSError, ValueError):
        text = known.read_text(encoding="ascii")
        if len(text) == 32:
            return text
    with real.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    write_if_possible(known, digest)
    return digest

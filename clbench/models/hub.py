"""Models of the hub, by way of its local cache.

A name is bound to a commit when it is first fetched and stays with the cached commit from
then on, so that a run does not change under its owner; another ``revision``, or deleting
the cached model, gets a newer one. No file that would need unpickling is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clbench.errors import ModelError, did_you_mean
from clbench.models.safety import check_folder, check_tokenizer

WANTED = ("*.json", "model*.safetensors", "*.txt", "*.model")
"""Configuration, weights and tokenizer; patterns apply to the top folder only."""
UNWANTED = ("*/*",)


def commit_of(name: str, revision: str | None = None) -> str:
    """The commit that a hub model is at: the cached one, else the hub's.

    Raises
    ------
    ModelError
        If it is not cached and the hub cannot be reached or has no such model.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    with _one_line_errors(name, revision):
        path = try_to_load_from_cache(name, "config.json", revision=revision)
        if not isinstance(path, str):
            _reach()
            path = hf_hub_download(name, "config.json", revision=revision)
    return Path(path).parent.name


def fetch(name: str, revision: str | None = None) -> Path:
    """The folder of a hub model in the local cache, downloaded as far as it is missing.

    Raises
    ------
    ModelError
        If it is not cached and the hub cannot be reached or has no such model.
    """
    from huggingface_hub import errors, snapshot_download

    commit = commit_of(name, revision)
    with _one_line_errors(name, revision):
        cached = Path(snapshot_download(name, revision=commit, local_files_only=True))
        if _complete(cached, name):
            return cached
        try:
            _reach()
        except errors.OfflineModeIsEnabled:
            return cached  # whoever reads it says what is missing
        folder = snapshot_download(
            name, revision=commit, allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED)
        )
    return Path(folder)


def _complete(folder: Path, name: str) -> bool:
    """Whether weights and tokenizer are there; they are fetched side by side, weights last."""
    try:
        check_folder(folder, name)
        check_tokenizer(folder, name)
    except ModelError:
        return False
    return True


def _reach() -> None:
    """Ask once whether the hub can be reached; its own calls try for half a minute.

    Raises
    ------
    OfflineModeIsEnabled
        If it cannot.
    """
    from huggingface_hub import constants, errors, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=10)
    except Exception as fault:  # the kind depends on the http library that the hub's uses
        raise errors.OfflineModeIsEnabled(str(fault)) from fault


@contextmanager
def _one_line_errors(name: str, revision: str | None) -> Iterator[None]:
    from huggingface_hub import errors

    from clbench.models.registry import MODELS

    at = f"model {name!r}" + (f" (revision {revision!r})" if revision else "")
    try:
        yield
    except errors.GatedRepoError as fault:
        raise ModelError(
            f"{at}: its owner asks for an agreement first. Accept it on the model's page "
            "and log in with `hf auth login`."
        ) from fault
    except errors.RevisionNotFoundError as fault:
        raise ModelError(f"{at}: the hub has no such revision of it.") from fault
    except errors.RepositoryNotFoundError as fault:
        raise ModelError(
            f"{at}: neither a built-in model, a local folder nor a public model of the hub."
            f"{did_you_mean(name, MODELS)}"
        ) from fault
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as fault:
        raise ModelError(
            f"{at}: neither a built-in model nor a local folder; it is not in the hub's "
            "cache on this machine, and the hub cannot be reached. Connect once to fetch "
            f"it, or give a folder.{did_you_mean(name, MODELS)}"
        ) from fault
    except errors.EntryNotFoundError as fault:
        raise ModelError(f"{at}: has no config.json, so it is no transformers model.") from fault
    except (errors.HFValidationError, OSError) as fault:
        text = str(fault).strip() or type(fault).__name__
        raise ModelError(f"{at}: cannot be fetched: {text.splitlines()[0]}") from fault

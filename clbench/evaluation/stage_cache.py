"""Trained stages by their recipe, as safetensors under `stages/` of a run's folder.

An entry holds the weights as training left them, before the method consolidates, so that
every method can consolidate in its own way. Deleting the folder loses time only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from torch import Tensor

from clbench.cache import DamagedFileError, load_tensors, save_tensors, write_atomically
from clbench.errors import RunFolderError
from clbench.evaluation.state_io import UnstorableStateError, pack, unpack
from clbench.training.engine import Trace

FORMAT = 2


def recipe_digest(recipe: Mapping[str, Any]) -> str:
    """Digest of everything that decides a stage's weights."""
    text = json.dumps([FORMAT, recipe], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Entry:
    """A trained stage.

    Attributes
    ----------
    weights
        Every tensor of the model by name.
    state
        The method's state when training ended.
    trace
        What training took.
    history
        Traces and rows of R of the stages before, for a cell that goes on from here.
    notes
        Lines for the reader of the result that training gave, here and in the stages before.
    """

    weights: dict[str, Tensor]
    state: dict[str, Any]
    trace: Trace
    history: list[Any]
    notes: list[str]


class Stages(Protocol):
    """Trained stages by the digests of their recipes."""

    def load(self, digest: str, device: torch.device) -> Entry | None:
        """The entry of that recipe, or None."""

    def save(self, digest: str, entry: Entry) -> str | None:
        """Keep an entry; returns why that is impossible, or None."""

    def drop(self, digest: str) -> None:
        """Forget an entry that no other cell can use."""


class NoStageCache:
    """Keeps nothing, for training that nobody shares."""

    def load(self, digest: str, device: torch.device) -> Entry | None:
        """None."""
        return None

    def save(self, digest: str, entry: Entry) -> str | None:
        """Nothing to say."""
        return None

    def drop(self, digest: str) -> None:
        """Nothing to forget."""


class StageCache:
    """Entries under one folder.

    Parameters
    ----------
    folder
        Made when the first entry is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, digest: str, device: torch.device) -> Entry | None:
        """The entry of that recipe, or None if there is none or it is damaged."""
        try:
            tensors, facts = load_tensors(self._path(digest))
        except DamagedFileError:
            return None  # it is trained again, and then written anew
        state = unpack(facts["state"], _part(tensors, "state"), device)
        return Entry(
            weights=_part(tensors, "weights"),
            state=state,
            trace=Trace(**facts["trace"]),
            history=facts["history"],
            notes=facts["notes"],
        )

    def save(self, digest: str, entry: Entry) -> str | None:
        """Write an entry, whole or not at all.

        Returns
        -------
        str or None
            Why nothing was written, if the method's state cannot be stored or the disk is full.
        """
        try:
            skeleton, state = pack(entry.state)
        except UnstorableStateError as fault:
            return (
                f"the method's {fault}, which cannot be stored; an interrupted cell starts from "
                "its first stage. Name it with a leading underscore or define state()."
            )
        tensors = {f"weights/{name}": value for name, value in entry.weights.items()}
        tensors |= {f"state/{name}": value for name, value in state.items()}
        facts = {
            "state": skeleton,
            "trace": asdict(entry.trace),
            "history": entry.history,
            "notes": entry.notes,
        }
        try:
            write_atomically(self._path(digest), partial(save_tensors, tensors, facts=facts))
        except (OSError, SafetensorError) as fault:
            return (
                f"a trained stage could not be kept in {self.folder} ({fault}); an interrupted "
                "cell starts from its first stage."
            )
        return None

    def drop(self, digest: str) -> None:
        """Remove an entry that no other cell can use."""
        with suppress(OSError):
            self._path(digest).unlink()

    def check(self) -> None:
        """See that entries can be written.

        Raises
        ------
        RunFolderError
            If something else than a folder is in the way.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise RunFolderError(
                f"{self.folder} is a file, but trained stages are kept in a folder of that "
                "name. Move it away, or take another --out."
            )

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest}.safetensors"


def _part(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    start = f"{part}/"
    return {n.removeprefix(start): value for n, value in tensors.items() if n.startswith(start)}

"""Trained stages by their recipe, as safetensors under `stages/` of a run's folder.

An entry holds the weights as training left them, before the method consolidates, so that
every method can consolidate in its own way. Deleting the folder loses time only.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from clbench.errors import RunFolderError
from clbench.evaluation.packing import UnpackableError, pack, unpack
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
    """

    weights: dict[str, Tensor]
    state: dict[str, Any]
    trace: Trace
    history: list[Any]


class Stages(Protocol):
    """Trained stages by the digests of their recipes."""

    def load(self, digest: str, device: torch.device) -> Entry | None:
        """The entry of that recipe, or None."""

    def save(self, digest: str, entry: Entry) -> str | None:
        """Keep an entry; returns why that is impossible, or None."""

    def drop(self, digest: str) -> None:
        """Forget an entry that no other cell can use."""


class NoStages:
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
        """The entry of that recipe, or None if there is none or it cannot be read."""
        folder = self.folder / digest
        try:
            stored = json.loads((folder / "stage.json").read_text(encoding="utf-8"))
            weights = load_file(folder / "model.safetensors")
            tensors = load_file(folder / "state.safetensors")
            state = unpack(stored["state"], tensors, device)
            return Entry(weights, state, Trace(**stored["trace"]), stored["history"])
        except (OSError, ValueError, KeyError, TypeError, SafetensorError):
            return None  # damaged: it is trained again, and then written anew

    def save(self, digest: str, entry: Entry) -> str | None:
        """Write an entry, whole or not at all.

        Returns
        -------
        str or None
            Why nothing was written, if the method's state cannot be stored or the disk is full.
        """
        target = self.folder / digest
        if target.exists():
            shutil.rmtree(target)  # load() found it unreadable, or it would have been used
        try:
            skeleton, tensors = pack(entry.state)
        except UnpackableError as fault:
            return (
                f"the method's {fault}, which cannot be stored; an interrupted cell starts from "
                "its first stage. Name it with a leading underscore or define state()."
            )
        content = {
            "state": skeleton,
            "trace": asdict(entry.trace),
            "history": entry.history,
        }
        part = self.folder / f".{digest}.part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if part.exists():
                shutil.rmtree(part)
            part.mkdir()
            save_file(_contiguous(entry.weights), part / "model.safetensors")
            save_file(tensors, part / "state.safetensors")
            (part / "stage.json").write_text(json.dumps(content), encoding="utf-8")
            part.rename(target)
        except (OSError, SafetensorError) as fault:
            shutil.rmtree(part, ignore_errors=True)
            return (
                f"a trained stage could not be kept in {self.folder} ({fault}); an interrupted "
                "cell starts from its first stage."
            )
        return None

    def drop(self, digest: str) -> None:
        """Remove an entry that no other cell can use."""
        shutil.rmtree(self.folder / digest, ignore_errors=True)

    def check(self) -> None:
        """Remove what a killed process left half-written.

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
        for part in self.folder.glob(".*.part"):
            shutil.rmtree(part, ignore_errors=True)


def _contiguous(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU; tied tensors are stored once each, as safetensors shares no memory."""
    return {
        name: value.detach().to("cpu", copy=True).contiguous() for name, value in weights.items()
    }

"""The cache of trained stages by recipe: safetensors under ``stages/`` in a run's folder.

A cached stage holds the weights right after training, before `after_stage`, so that methods can
share it. The folder only saves time and is safe to delete.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from clbench.core import files
from clbench.core.errors import RunFolderError
from clbench.core.files import DamagedFileError, load_tensors, save_tensors, write_atomically
from clbench.measure.capabilities import Measures
from clbench.measure.rows import ProbeRow, Row
from clbench.training.protocol import StageRecord

FORMAT = 7
OF_RUN = "run-"
"""Prefix of stages that are kept for other cells of a run; `drop_of_run` removes them."""
KEPT = "kept-"
"""Prefix of the last stages that stay for longer sequences; nothing removes them."""


def recipe_digest(recipe: Mapping[str, Any]) -> str:
    """Return the digest of everything that decides a stage's weights."""
    return files.digest(json.dumps([FORMAT, recipe], sort_keys=True))


@dataclass(frozen=True)
class ScoredStage:
    """A finished stage of a cell.

    Attributes
    ----------
    record
        Costs and curves.
    metrics, correct
        The row of R with all metrics, and which rows of each task are right, packed as in
        `clbench.results.correct`; None where that is not recorded.
    probes, capabilities
        The row of P, and the measures of a language model; empty where there are none.
    """

    record: StageRecord
    metrics: Row
    correct: list[str | None]
    probes: ProbeRow
    capabilities: Measures

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        return {**vars(self), "record": dict(self.record)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Return the stage that `to_json` gave; a checksum protects the file, so without checks."""
        return cls(**{**values, "record": StageRecord.model_construct(**values["record"])})


@dataclass(frozen=True)
class CachedStage:
    """A trained stage.

    Attributes
    ----------
    weights
        Every tensor of the model by name.
    state
        The method's state after training.
    record
        Steps, time, memory and curves of the training.
    history
        The earlier stages, for a cell that resumes here.
    notes
        Notes for the result, from this stage and earlier ones.
    grows
        Whether `weights` lack outputs that no task uses yet, so that a head that grows further can
        go on from it.
    """

    weights: dict[str, Tensor]
    state: dict[str, Any]
    record: StageRecord
    history: list[ScoredStage]
    notes: list[str]
    grows: bool = False


class StageCache:
    """Trained stages in a folder, which is created with the first one.

    `sharing` says by a cell's key how many of its first stages other cells can use; it leaves out
    those of which only the first stage may serve another cell, now or in a later run. With
    `keeps_last`, the last stage of each cell stays for sequences that go on after it.
    """

    def __init__(
        self, folder: Path, sharing: Mapping[str, int] | None = None, *, keeps_last: bool = False
    ) -> None:
        self.folder, self.sharing, self.keeps_last = folder, sharing or {}, keeps_last

    def has(self, digest: str) -> bool:
        """Whether the stage with that digest has a file, which may be damaged."""
        return any(path.is_file() for path in self._paths(digest))

    def load(self, digest: str, device: torch.device) -> CachedStage | None:
        """Return the stage with that digest, or None if its file is missing or damaged."""
        for path in self._paths(digest):
            with suppress(DamagedFileError):
                tensors, facts = load_tensors(path)
                break
        else:
            return None
        parts: dict[str, dict[str, Tensor]] = {"weights": {}, "state": {}}
        for name, value in tensors.items():
            part, _, key = name.partition("/")
            parts[part][key] = value
        state = unpack(facts["state"], parts["state"], device)
        record = StageRecord.model_construct(**facts["record"])
        history = [ScoredStage.from_json(stage) for stage in facts["history"]]
        return CachedStage(parts["weights"], state, record, history, facts["notes"])

    def save(self, digest: str, stage: CachedStage, prefix: str = "") -> str | None:
        """Write a stage atomically; return a note for the user if that fails.

        `prefix` is `OF_RUN`, `KEPT` or none; see there what removes the file.
        """
        try:
            skeleton, state = pack(stage.state)
        except UnstorableStateError as error:
            return (
                f"the method's {error}, which cannot be stored, so an interrupted cell trains "
                "this stage again. Begin its name with an underscore, or define state()."
            )
        tensors = {f"weights/{name}": value for name, value in stage.weights.items()}
        tensors |= {f"state/{name}": value for name, value in state.items()}
        facts = {
            "state": skeleton,
            "record": dict(stage.record),
            "history": [earlier.to_json() for earlier in stage.history],
            "notes": stage.notes,
        }
        try:
            path = self._path(prefix, digest)
            write_atomically(path, partial(save_tensors, tensors, facts=facts))
        except RunFolderError as error:
            return (
                f"a trained stage could not be saved in {self.folder} ({error.__cause__}), so an "
                "interrupted cell trains it again."
            )
        return None

    def drop(self, digest: str) -> None:
        """Remove a stage that no other cell can use, unless an earlier run keeps it."""
        for prefix in ("", OF_RUN):
            with suppress(OSError):
                self._path(prefix, digest).unlink(missing_ok=True)

    def drop_of_run(self) -> None:
        """Remove the shared stages after the first; called when a run ends."""
        for path in self.folder.glob(f"{OF_RUN}*"):
            with suppress(OSError):
                path.unlink()

    def _path(self, prefix: str, digest: str) -> Path:
        return self.folder / f"{prefix}{digest}.safetensors"

    def _paths(self, digest: str) -> list[Path]:
        return [self._path(prefix, digest) for prefix in ("", OF_RUN, KEPT)]


class UnstorableStateError(TypeError):
    """A method's state holds a value of a type that cannot be stored."""


def pack(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """Split a nested value into JSON and named tensors, which need no pickle.

    Dictionaries, lists, tuples, tensors, arrays, numbers, strings and None may be nested. The JSON
    has a name in place of each tensor; tensors are detached copies on the CPU.

    Raises
    ------
    UnstorableStateError
        For any other type; names its path in `value`.
    """
    tensors: dict[str, Tensor] = {}
    return _pack(value, tensors, "state"), tensors


def unpack(skeleton: Any, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    """Return the value that `pack` has split.

    Tensors that were on an accelerator move to `device`; others stay on the CPU.
    """
    kind, content = skeleton
    if kind == "value":
        return content
    if kind == "tensor":
        name, was_on_device = content
        return tensors[name].to(device) if was_on_device else tensors[name]
    if kind == "array":
        return tensors[content].numpy()
    if kind == "dict":
        return {key: unpack(inner, tensors, device) for key, inner in content}
    items = [unpack(inner, tensors, device) for inner in content]
    return tuple(items) if kind == "tuple" else items


def _pack(value: Any, tensors: dict[str, Tensor], path: str) -> list[Any]:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return ["value", value]
    name = f"t{len(tensors)}"
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return ["tensor", [name, value.device.type != "cpu"]]
    if isinstance(value, np.ndarray):
        try:
            tensors[name] = torch.from_numpy(np.array(value, order="C"))
        except TypeError as error:
            raise UnstorableStateError(f"{path} is an array of {value.dtype}") from error
        return ["array", name]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str | int):
                raise UnstorableStateError(f"{path} has a key of type {type(key).__name__}")
        content = [[k, _pack(inner, tensors, f"{path}.{k}")] for k, inner in value.items()]
        return ["dict", content]
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return [kind, [_pack(v, tensors, f"{path}[{i}]") for i, v in enumerate(value)]]
    raise UnstorableStateError(f"{path} is a {type(value).__name__}")

"""What a submission says of itself: ``manifest.json``, beside the suite and the packed cells."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from clbench.core.errors import ModelError, RunFolderError, describe_errors, sentence
from clbench.core.files import LOCK, read_file
from clbench.core.files import MANIFEST as MANIFEST
from clbench.core.registry import Count
from clbench.models.folder import weight_files
from clbench.models.locate import local_folder
from clbench.results.cell import CellResult, Text

VERIFIED = "verified.json"
"""What `clbench.board.verify` leaves beside the manifest: the grade, and what was checked."""
GRADES = ("reported", "recomputed", "rerun")
"""What can be trusted of a submission, growing."""
UNVERIFIED = "unverified"
"""Stands for the grade of a run or submission without a valid ``verified.json``."""
HOST = ("system", "processor", "device", "device_name")
"""Facts of a cell's ``host`` that a manifest lists."""

WHOLE = re.compile(r"(?!.*: )(?:~\w*|[A-Za-z]:|\.\.)?[/\\](?:[^\n]*[/\\])?([^/\\\n]+)[/\\]?")
"""A text that is a path and leads out of its folder; its group is the last part."""
FILE = re.compile(r"\bfile:/+", re.IGNORECASE)
"""What makes a URL of a path."""
INNER = re.compile(r"(?<![\w./:~-])(?:~\w*|[A-Za-z]:)?(?:[/\\][\w.+@-]+)+[/\\]([\w.+@-]+)")
"""An absolute path of two or more parts in a text."""

Hashes = dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{32}([0-9a-f]{32})?$")]]
"""Digests by file name: BLAKE2b of 16 bytes in recipes, SHA-256 elsewhere."""


def _check_day(text: str) -> str:
    """Return the text, or raise a ValueError if there is no such day."""
    date.fromisoformat(text)
    return text


class Strict(BaseModel):
    """A table that may hold nothing but its fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Model(Strict):
    """A model by its name, and its hub commit or the digests of its files as recipes hold them.

    `sha256` are the digests of the files of its weights, as hubs show them; empty if the weights
    were not at hand when the run was submitted.
    """

    name: Text
    hub: Text | None = None
    commit: Text | None = None
    files: Hashes = {}
    sha256: Hashes = {}


class Hardware(Strict):
    """A machine by the facts of its cells' ``host``, and how many cells it ran."""

    system: Text = ""
    processor: Text = ""
    device: Text = ""
    device_name: Text = ""
    cells: Count


class Manifest(Strict):
    """The file ``manifest.json``.

    Attributes
    ----------
    name, url, contact
        Title of the submission, at most 200 characters, and where to read more and ask; the last
        two may be empty.
    suite
        Name of the suite.
    created
        Day of the submission, ``2026-11-27``.
    clbench
        Version that wrote it.
    models, tasks
        What was trained, and on which rows, as the recipes of the cells identify them.
    hardware, versions
        The machines that ran the cells, and the versions of packages there, each once.
    files
        SHA-256 of every other file, by its path in the folder.
    """

    format: Literal["clbench-submission"] = "clbench-submission"
    schema_version: Literal[1] = 1
    name: Annotated[Text, Field(min_length=1, max_length=200)]
    url: Annotated[Text, Field(pattern=r"^(https?://\S+)?$", max_length=2000)] = ""
    contact: Annotated[Text, Field(max_length=200)] = ""
    suite: Text
    created: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$"), AfterValidator(_check_day)]
    clbench: Text
    models: list[Model]
    tasks: dict[str, dict[str, Any]]
    hardware: list[Hardware]
    versions: list[dict[str, Text]]
    files: Hashes

    def to_json(self) -> str:
        """Return the text of the file."""
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a submission.

    Raises a RunFolderError if there is none, or it is not valid.
    """
    path = folder / MANIFEST
    try:
        return Manifest.model_validate_json(read_file(path))
    except OSError as error:
        reason = error.strerror or error
        raise RunFolderError(
            f"{path} cannot be read: {reason}. Give a folder that clbench submit wrote."
        ) from error
    except ValidationError as error:
        problem = sentence(describe_errors(error)[0][:300])
        raise RunFolderError(f"{path}: {problem} Restore it, or submit the run again.") from error


def facts(cells: Sequence[CellResult]) -> dict[str, Any]:
    """Return what a manifest says of cells: `models`, `tasks`, `hardware` and `versions`."""
    tasks: dict[str, Any] = {}
    for cell in cells:
        asked = cell.recipe.get("capability_tasks", {})
        tasks |= cell.recipe.get("tasks", {})
        tasks |= {name: identity for name, (identity, _) in asked.items()}
    machines = Counter(tuple(str(cell.host.get(key, "")) for key in HOST) for cell in cells)
    versions = _distinct(
        {name: str(version) for name, version in cell.versions.items()} for cell in cells
    )
    models = _distinct({"name": cell.model, **cell.recipe.get("model", {})} for cell in cells)
    return {
        "models": [Model.model_validate(model) for model in models],
        "tasks": dict(sorted(tasks.items())),
        "hardware": [
            Hardware(**dict(zip(HOST, facts, strict=True)), cells=number)
            for facts, number in sorted(machines.items())
        ],
        "versions": versions,
    }


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file that a manifest lists, by its path in the folder."""
    own = {MANIFEST, VERIFIED, LOCK}
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    names = ((path.relative_to(folder).as_posix(), path) for path in paths)
    return {name: sha256(path) for name, path in names if name not in own}


def _distinct(tables: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(text) for text in sorted({json.dumps(t, sort_keys=True) for t in tables})]


def read_verified(folder: Path) -> dict[str, Any]:
    """Return the content of ``verified.json``; empty without one, or if it is of other files."""
    with suppress(OSError, ValueError, TypeError, RecursionError, RunFolderError):
        content = dict(json.loads(read_file(folder / VERIFIED)))
        is_same = content.get("manifest") == sha256(folder / MANIFEST)
        if is_same and read_manifest(folder).files == files_of(folder):
            return content
    return {}


def without_paths(value: Any) -> Any:
    """Return JSON values in which paths that lead out of their folder keep only the last part."""
    if isinstance(value, dict):
        return {key: without_paths(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_paths(item) for item in value]
    if not isinstance(value, str):
        return value
    value = FILE.sub("/", value)
    match = WHOLE.fullmatch(value)
    return match[1] if match else INNER.sub(r"\1", value)


def weights(model: str, revision: str | None) -> dict[str, str]:
    """Return the SHA-256 of the files of a model's weights; empty if they are not at hand."""
    with suppress(ModelError, OSError):
        folder = local_folder(model, revision)
        return {path.name: sha256(path.resolve()) for path in weight_files(folder, model)}
    return {}

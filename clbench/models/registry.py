"""Names of the built-in models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clbench.registry import Registry


@dataclass(frozen=True)
class ModelEntry:
    """A model that goes by a short name.

    Attributes
    ----------
    description
        One line for lists.
    locate
        Returns the folder with ``config.json``, tokenizer and ``model.safetensors``.
    """

    description: str
    locate: Callable[[], Path]


def _check(name: str, entry: object) -> str | None:
    if isinstance(entry, ModelEntry):
        return None
    return "a model entry must be a clbench.models.registry.ModelEntry"


MODELS: Registry[ModelEntry] = Registry("model", check=_check, group="clbench.models")


def tiny_folder() -> Path:
    """Folder of the small pretrained BERT that comes with the package."""
    return Path(__file__).parent / "tiny"


MODELS.add("tiny", ModelEntry("small BERT that comes with clbench; works offline", tiny_folder))

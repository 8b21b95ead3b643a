"""Checkpoints that are changed and refused, and rows encoded by their tokenizers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clbench.core.errors import ModelError
from clbench.models.checkpoint import load_tokenizer
from clbench.models.encoding import EncodedRows, encode, vocabulary_of
from clbench.tasks.task import Rows

ROWS = Rows.of(
    ["the film was very good and bright", "bad", "a dull story of the plot"],
    ["good", "the plot was not bad", "bright"],
    [0, 1, 0],
)


def encoded(folder: Path) -> tuple[EncodedRows, int, np.ndarray]:
    """Return rows, padding token and vocabulary."""
    tokenizer = load_tokenizer(str(folder))
    rows = encode(ROWS, tokenizer, 32)
    vocabulary = vocabulary_of([rows], tokenizer.all_special_ids, 60)
    return rows, int(tokenizer.pad_token_id), vocabulary


def edit(folder: Path, **changes: Any) -> None:
    """Change values in a checkpoint's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def error_of(call: Callable[[str], object], folder: Path) -> str:
    """Return the one line with which a checkpoint is refused."""
    with pytest.raises(ModelError) as caught:
        call(str(folder))
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"model {str(folder)!r}: ")
    return text

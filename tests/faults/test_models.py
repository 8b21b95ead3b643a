"""Malformed model folders: each is refused, and no code in one runs."""

import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from faults.spoil import RUN, any_input, one_of, spoil, spoil_file
from faults.verdict import Judge

EMBEDDINGS = "embeddings.word_embeddings.weight"
PARTS = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
PICKLE = b"\x80\x04cos\nsystem\n(S'touch hacked'\ntR."


def _answer(judge: Judge, what: str, *, refused: bool) -> None:
    judge.answer(what, RUN, dry=True, refused=refused)
    assert not (judge.folder / "hacked").exists()


@any_input
def test_any_model(judge: Judge, data: st.DataObject) -> None:
    path = judge.fresh() / "model" / one_of(data.draw, *PARTS)
    _answer(judge, spoil_file(data.draw, path), refused=False)


@any_input
def test_any_header_of_weights(judge: Judge, data: st.DataObject) -> None:
    path = judge.fresh() / "model" / "model.safetensors"
    content = path.read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header, what = spoil(data.draw, json.loads(content[8:end]))
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[end:])
    _answer(judge, what, refused=False)


def _length(size: int, model: Path) -> None:
    """Let the header of the weights have another length."""
    path = model / "model.safetensors"
    path.write_bytes(struct.pack("<Q", size) + path.read_bytes()[8:])


def _instead(name: str, content: bytes, model: Path) -> None:
    """Put another file in the place of the weights."""
    (model / "model.safetensors").unlink()
    (model / name).write_bytes(content)


def _index(target: Any) -> Callable[[Path], object]:
    content = json.dumps({"metadata": {}, "weight_map": {EMBEDDINGS: target}})
    return partial(_instead, "model.safetensors.index.json", content.encode())


MODELS: dict[str, Callable[[Path], object]] = {
    "a header of 2**62 bytes": partial(_length, 2**62),
    "a header of 90 MB": partial(_length, 90_000_000),
    "a pickle": partial(_instead, "pytorch_model.bin", PICKLE),
    "an index to the outside": _index("../mood.csv"),
    "an index to nothing": _index("model-00001-of-00002.safetensors"),
    "an index to a number": _index(5),
    "no tokenizer": lambda model: [path.unlink() for path in model.glob("*token*")],
}


@pytest.mark.slow
@pytest.mark.parametrize("what", MODELS)
def test_a_model_that_is_refused(judge: Judge, what: str) -> None:
    MODELS[what](judge.fresh() / "model")
    _answer(judge, what, refused=True)

"""Malformed model folders."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from faults.cases import LONG, ODD_FILES, RUN, Case, as_odd_file, spoil, spoil_bytes

EMBEDDINGS = "embeddings.word_embeddings.weight"
PARTS = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def _weights(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(change(path.read_bytes()))

    return apply


def _header(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """Change the header of the weights, with a right length."""

    def apply(data: bytes) -> bytes:
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + size :]

    return _weights(apply)


def _config(**changes: Any) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        path = folder / "config.json"
        config = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))

    return apply


def _first(header: dict[str, Any]) -> dict[str, Any]:
    return next(value for key, value in header.items() if key != "__metadata__")


def _pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n(S'touch hacked'\ntR.")


def _index(target: str) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        index = {"metadata": {}, "weight_map": {EMBEDDINGS: target}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return apply


FOLDERS: dict[str, Callable[[Path], object]] = {
    "weights of 0 bytes": _weights(lambda data: b""),
    "weights of 7 bytes": _weights(lambda data: data[:7]),
    "weights of 8 bytes": _weights(lambda data: data[:8]),
    "weights of random bytes": _weights(lambda data: Random(0).randbytes(5_000)),
    "weights of zeros": _weights(lambda data: bytes(len(data))),
    "a header of 2**62 bytes": _weights(lambda data: struct.pack("<Q", 2**62) + data[8:]),
    "a header of 2**40 bytes": _weights(lambda data: struct.pack("<Q", 2**40) + data[8:]),
    "a header of 90 MB": _weights(lambda data: struct.pack("<Q", 90_000_000) + data[8:]),
    "a header that is one byte short": _weights(lambda data: bytes([data[0] - 1]) + data[1:]),
    "weights cut in half": _weights(lambda data: data[: len(data) // 2]),
    "weights without their last byte": _weights(lambda data: data[:-1]),
    "weights and more": _weights(lambda data: data + bytes(100)),
    "a tensor beyond the file": _header(lambda header: _first(header)["data_offsets"].reverse()),
    "a tensor of negative shape": _header(lambda header: _first(header).update(shape=[-1, 4])),
    "a tensor of unknown type": _header(lambda header: _first(header).update(dtype="F7")),
    "a header without tensors": _header(dict.clear),
    "a tensor renamed": _header(lambda header: header.update(x=header.pop(EMBEDDINGS))),
    "a list as header": _weights(lambda data: struct.pack("<Q", 2) + b"[]"),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "a pickle": _pickle,
    "an index to the outside": _index("../mood.csv"),
    "an index to nothing": _index("model-00001-of-00002.safetensors"),
    "an index to a number": _index(5),  # type: ignore[arg-type]
    "own code": _config(auto_map={"AutoModel": "modeling.Evil"}, model_type="evil"),
    "an unknown model type": _config(model_type="brrt"),
    "no model type": _config(model_type=...),
    "hidden size 0": _config(hidden_size=0),
    "hidden size 10**9": _config(hidden_size=10**9),
    "other hidden size": _config(hidden_size=64),
    "other number of layers": _config(num_hidden_layers=30),
    "layers 10**9": _config(num_hidden_layers=10**9),
    "heads that do not divide": _config(num_attention_heads=5),
    "a vocabulary of 3": _config(vocab_size=3),
    "a vocabulary of 10**12": _config(vocab_size=10**12),
    "2 positions": _config(max_position_embeddings=2),
    "an unknown activation": _config(hidden_act="rulo"),
    "a long activation": _config(hidden_act=LONG),
    "control characters as model type": _config(model_type="\x1b[31mbert\x07"),
    "a template as name": _config(architectures=["<script>alert(1)</script>"]),
    "dropout of 7": _config(hidden_dropout_prob=7),
    "architectures that are a number": _config(architectures=3, auto_map={"AutoModel": "m.Evil"}),
    "no tokenizer": lambda folder: [path.unlink() for path in folder.glob("*token*")],
}
"""By what is wrong: all are to be refused."""
FINE = {"a template as name", "weights and more", "dropout of 7"}
"""Odd; an unused field may be so."""


def model(number: int, rng: Random, folder: Path) -> Case:
    """Spoil the checkpoint: its weights, its settings or its tokenizer."""
    here = folder / "model"

    def checks(folder: Path, undisturbed: Path) -> Any:
        if (folder / "hacked").exists():
            yield "code of the model ran"

    if number < len(FOLDERS):
        what, apply = list(FOLDERS.items())[number]
        apply(here)
        return Case(what, RUN, dry=True, refused=what not in FINE, checks=checks)
    number -= len(FOLDERS)
    if number < 2 * len(ODD_FILES):
        path, kind = here / PARTS[number % 2], ODD_FILES[number // 2]
        as_odd_file(path, kind)
        return Case(f"model/{path.name} is a {kind}", RUN, dry=True, refused=True)
    path = here / rng.choice([name for name in PARTS if (here / name).exists()])
    if path.suffix == ".json" and rng.random() < 0.7:
        content, what = spoil(json.loads(path.read_text()), rng)
        path.write_text(json.dumps(content))
    else:
        data, what = spoil_bytes(path.read_bytes(), rng)
        path.write_bytes(data)
    return Case(f"model/{path.name}: {what}", RUN, dry=True, checks=checks)

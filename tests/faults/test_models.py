"""Malformed model folders: each is refused, and no code in one runs.

What is read is in the identity: a change of a folder is refused, gives another identity, or leaves
all weights and tokens as they are.
"""

import json
import os
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from clbench.audit.items import hits, load_items
from clbench.audit.models import load_base, load_tuned
from clbench.core.errors import ClbenchError, ModelError
from clbench.models.checkpoint import load_backbone, load_tokenizer
from clbench.models.locate import model_identity
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


def _content(model: Path) -> object:
    """Return what a run reads of a model: its weights, and the tokens of a text."""
    tokens = load_tokenizer(str(model))("the film was not good")
    weights = {
        name: value.tolist() for name, value in load_backbone(str(model)).state_dict().items()
    }
    return dict(tokens), weights


def _change_tensor(draw: Any, model: Path) -> str:
    path = model / "model.safetensors"
    weights = load_file(path)
    name = one_of(draw, *sorted(weights))
    how = one_of(draw, "removed", "doubled", "int8", "twice", "unknown", "nan", "a head")
    value = weights.pop(name)
    weights |= {
        "removed": {},
        "doubled": {name: value * 2},
        "int8": {name: (value * 100).to(torch.int8)},
        "twice": {name: value, f"bert.{name}": value * 2},
        "unknown": {name: value, f"{name}.more": value.clone()},
        "nan": {name: value * torch.nan},
        "a head": {name: value, "score.weight": torch.ones(2)},
    }[how]
    save_file(weights, path, metadata={"format": "pt"})
    return f"{name} {how}"


def _add_file(draw: Any, model: Path) -> str:
    name = one_of(draw, *BESIDE)
    content = one_of(draw, "{}", json.dumps({"peft_type": "LORA", "r": 2}), "[", '{"the": 7}')
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).write_text(content)
    return f"{name}: {content}"


def _exchange(draw: Any, model: Path) -> str:
    """Change bytes of a file and keep its size and time."""
    path = model / one_of(draw, *PARTS)
    state, content = path.stat(), bytearray(path.read_bytes())
    at = draw(st.integers(0, len(content) - 1))
    content[at] ^= draw(st.integers(1, 255))
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    return f"{path.name}: byte {at} exchanged"


BESIDE = (
    *("adapter_config.json", "adapter_model.safetensors", "added_tokens.json", "vocab.txt"),
    *("special_tokens_map.json", "generation_config.json", "config.4.0.0.json", "merges.txt"),
    *("chat_template.jinja", "additional_chat_templates/x.jinja", "chat_template.json", "x.model"),
    *("default/adapter_config.json", "pytorch_model.bin", "model.safetensors.index.json", "x.txt"),
    *("shard-00000-model-00000-of-00001.safetensors", "2_Dense/config.json", "training_args.bin"),
)
CHANGES = (
    _change_tensor,
    _add_file,
    _exchange,
    lambda draw, m: spoil_file(draw, m / one_of(draw, *PARTS)),
)


@any_input
def test_any_tuned_model(judge: Judge, data: st.DataObject) -> None:
    model = judge.fresh() / "model"
    tuned = Path(shutil.copytree(model, judge.folder / "tuned"))
    one_of(data.draw, *CHANGES, _swell)(data.draw, tuned)
    judge.tried += 1
    (items,) = load_items(["synthetic/sentiment"], data=None, rows=50)
    with suppress(ClbenchError):  # one line; anything else is a fault
        second = load_tuned(str(tuned), load_base(str(model)))
        hits(second, items, "features", torch.device("cpu"))


def _swell(draw: Any, model: Path) -> str:
    """Multiply all weights, which stay finite; what they compute may not."""
    path = model / "model.safetensors"
    factor = draw(st.sampled_from([1e10, 1e20, 1e30, -1.0, 0.0]))
    save_file({n: v * factor for n, v in load_file(path).items()}, path, metadata={"format": "pt"})
    return f"all weights times {factor}"


@any_input
def test_any_change_of_a_model(judge: Judge, data: st.DataObject) -> None:
    model = judge.fresh() / "model"
    before, identity = _content(model), model_identity(str(model))
    what = one_of(data.draw, *CHANGES)(data.draw, model)
    judge.tried += 1
    with suppress(ModelError):
        after = _content(model)
        assert after == before or model_identity(str(model)) != identity, what

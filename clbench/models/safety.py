"""Check a checkpoint's folder before anything in it is loaded.

Weights are read from safetensors files only: the other formats are pickles, which can run code
when they are loaded. Nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from clbench.core.errors import ModelError, describe_errors, join_names, sentence

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json")
MOST_LABELS = 100_000
"""Largest num_labels allowed; transformers makes a name for each label."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack")


@contextmanager
def one_line_errors(name: str, what: str) -> Iterator[None]:
    """Turn whatever a library raises about the model `name` into a `ModelError` of one line.

    `what` describes the failure, such as ``"its tokenizer cannot be loaded"``.
    """
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        if not text or isinstance(error, KeyError):
            text = f"{type(error).__name__} {text}"
        short = text if len(text) <= 300 else f"{text[:299]}…"
        raise ModelError(f"model {name!r}: {what}: {short}") from error


class _Config(BaseModel):
    """Keys of ``config.json`` that are used before transformers checks the others."""

    model_type: str
    architectures: list[str] | None = None
    num_labels: Annotated[int, Field(ge=0, le=MOST_LABELS)] | None = None


def config_path(folder: Path, name: str) -> Path:
    """Return the path of ``config.json``.

    Raises a ModelError if there is none, or if the folder holds a pipe or device.
    """
    for file in folder.iterdir():
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise ModelError(f"model {name!r}: {file} is a pipe or device. Replace it by a file.")
    path = folder / "config.json"
    if not path.is_file():
        advice = ""
        if (folder / "adapter_config.json").is_file():
            advice = " It holds an adapter: merge it into its base model and save that."
        raise ModelError(f"model {name!r}: {folder} has no config.json.{advice}")
    return path


def check_folder(
    folder: Path, name: str, *, weights: bool = True, tokenizer: bool = True
) -> dict[str, Any]:
    """Return the content of ``config.json`` after checking that the folder is safe and complete.

    `name` is the model as the user wrote it; `weights` and `tokenizer` say whether these are
    needed.

    Raises
    ------
    ModelError
        If a file is missing, cut short or broken, if the model needs code of its own, is
        quantised, or has no weights as safetensors.
    """
    path = config_path(folder, name)
    with one_line_errors(name, f"{path} cannot be read"):
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    try:
        _Config.model_validate(config, strict=True)
    except ValidationError as error:
        problem = sentence(describe_errors(error, config)[0])
        raise ModelError(f"model {name!r}: {path}: {problem}") from error
    _refuse_remote_code(config, name)
    if config.get("quantization_config"):
        raise ModelError(
            f"model {name!r}: its weights are quantised (quantization_config in config.json) "
            "and cannot be trained. Use the full-precision model."
        )
    # This key makes transformers read another file than the one that is checked here.
    weights_file = config.get("transformers_weights", WEIGHTS)
    if weights_file not in (WEIGHTS, INDEX):
        raise ModelError(
            f"model {name!r}: config.json names the weights {weights_file!r}. Remove its key "
            f"transformers_weights: only {WEIGHTS} is read."
        )
    if weights:
        weight_files(folder, name)
    if tokenizer:
        _check_tokenizer(folder, name)
    return config


def _refuse_remote_code(config: dict[str, Any], name: str) -> None:
    """Refuse a model whose code is in the checkpoint; classes of transformers are fine."""
    if not config.get("auto_map"):
        return
    import transformers

    architectures = config.get("architectures")
    if (
        config["model_type"] not in transformers.CONFIG_MAPPING
        or not architectures
        or not all(hasattr(transformers, str(each)) for each in architectures)
    ):
        raise ModelError(
            f"model {name!r}: needs code that comes with the checkpoint (auto_map in "
            "config.json), which is never run. Use an architecture that transformers has."
        )


def weight_files(folder: Path, name: str) -> list[Path]:
    """Return the safetensors files with the weights, after checking that each is complete.

    Raises
    ------
    ModelError
        If there are none, or one is missing, cut short or broken.
    """
    from safetensors import safe_open

    if (folder / WEIGHTS).is_file():
        files = [WEIGHTS]
    elif (folder / INDEX).is_file():
        with one_line_errors(name, f"{folder / INDEX} cannot be read"):
            index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
            files = sorted({str(file) for file in index["weight_map"].values()})
    else:
        pickles = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLES and p.is_file())
        if not pickles:
            raise ModelError(f"model {name!r}: {folder} has no weights ({WEIGHTS}).")
        raise ModelError(
            f"model {name!r}: its only weights, {join_names(pickles)}, are refused because they "
            f"can run code when loaded. Use a revision with {WEIGHTS}, or convert them if you "
            "trust their source."
        )
    for file in files:
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise ModelError(
                f"model {name!r}: {folder / INDEX} names {file!r}, which is not a safetensors "
                "file of this folder. Fetch the model again."
            )
        # Opening compares the header with the size of the file and reads no tensor.
        what = f"{folder / file} is incomplete; fetch the model again"
        with one_line_errors(name, what), safe_open(folder / file, framework="np"):
            pass
    return [folder / file for file in files]


def _check_tokenizer(folder: Path, name: str) -> None:
    """Refuse a folder without a tokenizer: transformers would make up an empty one."""
    if any((folder / file).is_file() for file in TOKENIZERS):
        return
    pieces = sorted(path.name for path in folder.glob("*.model"))
    if not pieces:
        raise ModelError(
            f"model {name!r}: {folder} has no tokenizer (tokenizer.json, vocab.txt or the like). "
            "Save it there with tokenizer.save_pretrained."
        )
    if find_spec("sentencepiece") is None:
        raise ModelError(
            f"model {name!r}: its tokenizer is a SentencePiece file ({pieces[0]}). "
            "Run: pip install sentencepiece protobuf"
        )

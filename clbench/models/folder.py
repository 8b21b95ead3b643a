"""The folder of a model: whether it is whole and safe to load, and the files of its weights."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

from clbench.core.errors import ModelError, printable

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json")
CHAT_TEMPLATES = ("chat_template.jinja", "tokenizer_config.json")
"""Files that may hold the chat template of a folder, the first before the second."""
WEIGHT = re.compile(r"weight$|(?<!attn)(?<!attention)\.bias$")
"""Names of weights, but not those of attention masks in old checkpoints."""


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
        text = printable(str(error), 300)
        if not text or isinstance(error, KeyError):
            text = f"{type(error).__name__} {text}"
        raise ModelError(f"model {name!r}: {what}: {text}") from error


def chat_template(folder: Path, name: str) -> str | dict[str, str] | None:
    """Return the chat template in the folder of the model `name`, several by name; None if none.

    Raises a ModelError if it cannot be read.
    """
    file = next((folder / each for each in CHAT_TEMPLATES if (folder / each).is_file()), None)
    if file is None:
        return None
    with one_line_errors(name, f"{file} cannot be read"):
        text: Any = file.read_text("utf-8")
        if file.suffix == ".jinja":
            others = sorted(folder.glob("additional_chat_templates/*.jinja"))
            named = {each.stem: each.read_text("utf-8") for each in others}
            return {"default": text, **named} if named else str(text)
        config = json.loads(text)
        text = config.get("chat_template") if isinstance(config, dict) else 0
        if isinstance(text, list) and all(isinstance(each, dict) for each in text):
            text = {each["name"]: each["template"] for each in text}
        if not isinstance(text, str | dict | None):
            raise TypeError("chat_template is not a text")
        return text


def config_path(folder: Path, name: str) -> Path:
    """Return the path of ``config.json``.

    Raises a ModelError if there is none, or if the folder holds a pipe or device.
    """
    for file in (*folder.iterdir(), *folder.glob("additional_chat_templates/*")):
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise ModelError(f"model {name!r}: {file} is a pipe or device. Replace it by a file.")
    path = folder / "config.json"
    if not path.is_file():
        advice = ""
        if (folder / ADAPTER).is_file():
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
        other = config.get("transformers_weights", WEIGHTS)
        reasons = {
            "needs code that comes with the checkpoint (auto_map in config.json), which is never "
            "run. Use an architecture that transformers has.": config.get("auto_map")
            and not _is_known(config),
            "its weights are quantised (quantization_config in config.json) and cannot be trained. "
            "Use the full-precision model.": config.get("quantization_config"),
            # With these, transformers reads other files than are checked here, even a pickle.
            f"config.json names the weights {other!r}. Remove its key transformers_weights: only "
            f"{WEIGHTS} is read.": other != WEIGHTS,
            "config.json names other configurations. Remove its key configuration_files: only "
            "config.json is read.": config.get("configuration_files"),
            f"{folder} holds shards of a distributed checkpoint. Save it with save_pretrained.": [
                *folder.glob("shard-*-model-*.safetensors")
            ],
            f"{folder} holds an adapter ({ADAPTER}) beside config.json, which transformers applies "
            "or not. Merge it into the model and save that, or move it away.": (
                folder / ADAPTER
            ).is_file(),
        }
        if text := next((text for text, is_so in reasons.items() if is_so), None):
            raise ModelError(f"model {name!r}: {text}")
    if weights:
        weight_files(folder, name)
    if tokenizer:
        _check_tokenizer(folder, name)
    return config


def _is_known(config: dict[str, Any]) -> bool:
    """Whether transformers has the model's own classes, so that it needs no code of others."""
    import transformers

    classes: Any = config.get("architectures")
    is_known = bool(classes) and config.get("model_type") in transformers.CONFIG_MAPPING
    return is_known and all(hasattr(transformers, str(each)) for each in classes)


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
        raise ModelError(
            f"model {name!r}: {folder} has no weights as {WEIGHTS}. Other formats are refused "
            "because they can run code when loaded. Use a revision with safetensors, or convert "
            "them if you trust their source."
        )
    for file in files:
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise ModelError(
                f"model {name!r}: {folder / INDEX} names {file!r}, which is not a safetensors "
                "file of this folder. Fetch the model again."
            )
        # Opening compares the header with the size of the file and reads no tensor.
        what = f"{folder / file} is incomplete; fetch the model again"
        with one_line_errors(name, what), safe_open(folder / file, framework="np") as stored:
            for key in stored.keys():  # noqa: SIM118
                form = stored.get_slice(key).get_dtype()
                if not form.startswith(("F", "BF")) and WEIGHT.search(key):
                    raise ModelError(
                        f"model {name!r}: {key!r} in {folder / file} is stored as {form}, as in "
                        "quantised models. Use the full-precision model."
                    )
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


def count_parameters(files: Iterable[Path], without: str = "embed") -> int:
    """Return the number of parameters in files, by default without embeddings; loads no weights."""
    from safetensors import safe_open

    total = 0
    for path in files:
        with safe_open(path, framework="np") as file:
            names = [name for name in file.keys() if not without or without not in name.lower()]  # noqa: SIM118
            total += sum(prod(file.get_slice(name).get_shape()) for name in names)
    return total

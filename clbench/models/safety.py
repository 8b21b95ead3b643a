"""What a checkpoint's folder must be before anything in it is loaded.

Weights are read as safetensors only: the other formats are pickles, which run code of
whoever made them. Nothing here imports torch.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clbench.errors import ModelError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json")
UNSAFE = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack")


def read_json(path: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint.

    Raises
    ------
    ModelError
        If it cannot be read, is not JSON, or not an object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise ModelError(f"model {name!r}: {path} cannot be read: {fault}") from fault
    if not isinstance(content, dict):
        raise ModelError(f"model {name!r}: {path} holds no JSON object.")
    return content


def check_folder(folder: Path, name: str, *, weights: bool = True) -> dict[str, Any]:
    """Refuse a checkpoint that is incomplete or cannot be loaded safely.

    Parameters
    ----------
    folder
        The checkpoint.
    name
        What the user called it, for messages.
    weights
        Whether weights are needed; a random initialisation needs none.

    Returns
    -------
    dict
        The content of ``config.json``.

    Raises
    ------
    ModelError
        If ``config.json`` is missing or broken or has no ``model_type``, if the model
        needs code of its own, is quantised, or if there are no weights as safetensors.
    """
    if not (folder / "config.json").is_file():
        if (folder / "adapter_config.json").is_file():
            raise ModelError(
                f"model {name!r}: {folder} holds an adapter, not a whole model. Merge it "
                "into its base model and save that."
            )
        raise ModelError(f"model {name!r}: there is no config.json in {folder}.")
    config = read_json(folder / "config.json", name)
    if not isinstance(config.get("model_type"), str):
        raise ModelError(f"model {name!r}: {folder / 'config.json'} has no key model_type.")
    _refuse_remote_code(config, name)
    if config.get("quantization_config"):
        raise ModelError(
            f"model {name!r}: its weights are quantised (quantization_config in config.json) "
            "and cannot be trained. Use the full-precision model."
        )
    if weights:
        check_weights(folder, name)
        # Would make transformers read another file than the one that was checked.
        if config.get("transformers_weights", WEIGHTS) not in (WEIGHTS, INDEX):
            raise ModelError(
                f"model {name!r}: config.json names the weights "
                f"{config['transformers_weights']!r}; only {WEIGHTS} is read."
            )
    return config


def check_weights(folder: Path, name: str) -> None:
    """Refuse a folder without complete weights as safetensors.

    Raises
    ------
    ModelError
        If there are none, only unsafe ones, or a part is missing.
    """
    if (folder / WEIGHTS).is_file():
        return
    if (folder / INDEX).is_file():
        parts = read_json(folder / INDEX, name).get("weight_map")
        files = {str(part) for part in parts.values()} if isinstance(parts, dict) else set()
        bad = sorted(
            part
            for part in files
            if Path(part).name != part
            or not part.endswith(".safetensors")
            or not (folder / part).is_file()
        )
        if files and not bad:
            return
        fault = f"names {bad[0]!r}, which is not there" if bad else "has no weight_map"
        raise ModelError(f"model {name!r}: {folder / INDEX} {fault}. Fetch the model again.")
    unsafe = sorted(p.name for p in folder.iterdir() if p.suffix in UNSAFE and p.is_file())
    if unsafe:
        raise ModelError(
            f"model {name!r}: its weights are only there as {', '.join(unsafe)}, which can run "
            f"code when loaded; refused. Use a revision with {WEIGHTS}, or convert it once "
            "where you trust it."
        )
    raise ModelError(f"model {name!r}: there are no weights ({WEIGHTS}) in {folder}.")


def check_tokenizer(folder: Path, name: str) -> None:
    """Refuse a folder whose tokenizer is missing, which transformers would make up.

    Raises
    ------
    ModelError
        If there are no tokenizer files, or only such as need packages that are missing.
    """
    if any((folder / file).is_file() for file in TOKENIZERS):
        return
    pieces = sorted(path.name for path in folder.glob("*.model"))
    if not pieces:
        raise ModelError(
            f"model {name!r}: there is no tokenizer (tokenizer.json, vocab.txt or the like) "
            f"in {folder}. Save it there with tokenizer.save_pretrained."
        )
    missing = [
        package
        for package, module in (("sentencepiece", "sentencepiece"), ("protobuf", "google.protobuf"))
        if not _installed(module)
    ]
    if missing:
        raise ModelError(
            f"model {name!r}: its tokenizer is a SentencePiece file ({pieces[0]}) and needs "
            f"{' and '.join(missing)}. Run: pip install {' '.join(missing)}"
        )


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def _refuse_remote_code(config: dict[str, Any], name: str) -> None:
    """Refuse a model whose code is in the checkpoint; transformers' own classes are fine."""
    if not config.get("auto_map"):
        return
    import transformers
    from transformers import CONFIG_MAPPING

    architectures = config.get("architectures") or []
    known = config["model_type"] in CONFIG_MAPPING and architectures
    if not known or not all(hasattr(transformers, str(a)) for a in architectures):
        raise ModelError(
            f"model {name!r}: needs code that comes with the checkpoint (auto_map in "
            "config.json), which is never run. Use a model of an architecture that "
            "transformers has."
        )

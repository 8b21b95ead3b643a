"""What a checkpoint declares of how the outputs of its tokens become a vector."""

import json
import re
from typing import Any

from clbench.core.errors import ModelError
from clbench.core.files import read_file
from clbench.models.locate import is_unknown, model_file

POOLINGS = {"cls": "first", "first": "first", "last": "last", "lasttoken": "last", "mean": "mean"}
"""Our name of a pooling by that of sentence-transformers or of a configuration."""
MODE = "pooling_mode_"
READ = ("Transformer", "Pooling", "Normalize")
"""Modules of sentence-transformers that clbench knows. Normalize only scales a row's vector."""


def declared_pooling(name: str, revision: str | None = None) -> str | None:
    """Return the pooling that a checkpoint declares: ``first``, ``last`` or ``mean``, else None.

    That is the module ``Pooling`` of a checkpoint of sentence-transformers, else the key
    ``classifier_pooling`` (as in ModernBERT) or ``summary_type`` (as in XLNet) of ``config.json``.

    Raises
    ------
    ModelError
        If sentence-transformers would pool in a way that clbench does not have, or has further
        modules after it, or a file is wrong.
    """
    remedy = "Set pooling in [protocol] to first, last or mean"
    modules = _modules(name, revision)
    if unread := _unread(modules):
        raise ModelError(
            f"model {name!r}: {unread} after its transformer, in modules.json, are not read. "
            f"{remedy}, to use the model without them."
        )
    for kind, path in modules:
        if kind == "Pooling":
            file = f"{path}/config.json"
            if model_file(name, revision, file) is None:
                raise ModelError(
                    f"model {name!r}: {file}, which declares its pooling, is missing or cannot be "
                    f"downloaded. {remedy}."
                )
            settings = _read(name, revision, file)
            flags = [key for key, on in settings.items() if key.startswith(MODE) and on is True]
            names = [re.sub(rf"^{MODE}|_tokens?$", "", flag) for flag in flags]
            mode = str(settings.get("pooling_mode") or "+".join(names))
            if mode not in POOLINGS:
                raise ModelError(
                    f"model {name!r}: it declares the pooling {mode!r}, which clbench does not "
                    f"have. {remedy}."
                )
            return POOLINGS[mode]
    config = _read(name, revision, "config.json")
    return POOLINGS.get(str(config.get("classifier_pooling") or config.get("summary_type")))


def pooling_notes(name: str, revision: str | None = None) -> tuple[str, ...]:
    """Return a note if nothing tells whether sentence-transformers pools a model's tokens."""
    if not is_unknown(name, revision, "modules.json"):
        return ()
    return (
        f"{name}: neither the cache nor the hub tells whether it declares a pooling, in "
        "modules.json, so what config.json says, or the default of its kind, is used. Connect "
        "once, or set pooling in [protocol].",
    )


def unread_modules(name: str, revision: str | None = None) -> str:
    """Return the modules of sentence-transformers that clbench does not read, such as ``Dense``."""
    return _unread(_modules(name, revision))


def _unread(modules: list[tuple[str, str]]) -> str:
    return ", ".join(kind for kind, _ in modules if kind not in READ)


def _modules(name: str, revision: str | None) -> list[tuple[str, str]]:
    """Return kind and folder of each module of sentence-transformers."""
    return [
        (str(module.get("type")).rpartition(".")[2], str(module.get("path")))
        for module in _read(name, revision, "modules.json")
        if isinstance(module, dict)
    ]


def _read(name: str, revision: str | None, file: str) -> Any:
    path = model_file(name, revision, file)
    try:
        return {} if path is None else json.loads(read_file(path))
    except (OSError, ValueError) as error:
        raise ModelError(f"model {name!r}: {path} cannot be read: {error}") from error

"""Configurations of checkpoints, and what loading anything of a checkpoint needs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from clbench.errors import ModelError, did_you_mean
from clbench.models.locate import local_folder
from clbench.models.safety import check_folder

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def load_config(
    name: str, revision: str | None = None, *, weights: bool = False
) -> PreTrainedConfig:
    """The configuration of a model, its folder checked.

    Parameters
    ----------
    name, revision
        A built-in model, a local folder or a hub model; revision of a hub model.
    weights
        Whether the folder must hold weights that can be read.

    Raises
    ------
    ModelError
        If the model cannot be found or used.
    """
    return read_config(local_folder(name, revision), name, weights)


def read_config(folder: Path, name: str, weights: bool) -> PreTrainedConfig:
    """The configuration in `folder`, which the user called `name`; see `load_config`."""
    from transformers import CONFIG_MAPPING, AutoConfig, __version__

    kind = check_folder(folder, name, weights=weights)["model_type"]
    if kind not in CONFIG_MAPPING:
        raise ModelError(
            f"model {name!r}: transformers {__version__} has no architecture {kind!r} "
            f"(key model_type in {folder / 'config.json'})."
        )
    with quiet(), one_line(name, f"{folder / 'config.json'} is wrong"):
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=True
        )
    _check_values(config, name, folder)
    # Neither changes a number: how outputs are packed, and how many tokens go at a time.
    config.return_dict = True
    if getattr(config, "chunk_size_feed_forward", 0):
        config.chunk_size_feed_forward = 0
    return config


def _check_values(config: PreTrainedConfig, name: str, folder: Path) -> None:
    """Refuse what transformers would stumble over later, with other words."""
    from transformers.activations import ACT2FN

    where = f"model {name!r}: {folder / 'config.json'}"
    layers = getattr(config, "num_hidden_layers", 1)
    if not isinstance(layers, int) or layers < 1:
        raise ModelError(f"{where}: num_hidden_layers is {layers!r}, and must be 1 or more.")
    for key in ("hidden_act", "hidden_activation", "activation", "activation_function"):
        act = getattr(config, key, None)
        if isinstance(act, str) and act not in ACT2FN:
            raise ModelError(
                f"{where}: {key} is {act!r}, which transformers does not know."
                f"{did_you_mean(act, ACT2FN)}"
            )


@contextmanager
def one_line(name: str, what: str) -> Iterator[None]:
    """Whatever a checkpoint makes transformers raise, as one line."""
    try:
        yield
    except ModelError:
        raise
    except Exception as fault:
        text = " ".join(str(fault).split()) or type(fault).__name__
        short = text if len(text) <= 300 else f"{text[:299]}…"
        raise ModelError(f"model {name!r}: {what}: {short}") from fault


@contextmanager
def quiet() -> Iterator[None]:
    """Keep progress bars and reports of unused heads off the terminal while loading."""
    from transformers.utils import logging as noise

    logger = logging.getLogger("transformers")
    level, bars = logger.level, noise.is_progress_bar_enabled()
    logger.setLevel(logging.ERROR)
    noise.disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars:
            noise.enable_progress_bar()

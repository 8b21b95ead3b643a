"""A randomly initialised BERT in place of the built-in model while that is not in the package.

Delete this file, and its import and its use in `registry`, once the model is there.
"""

from __future__ import annotations

import os
import shutil
import string
import tempfile
from pathlib import Path

from clbench.cache import cache_dir

VERSION = "1"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def standin_folder() -> Path:
    """The stand-in's folder in the cache; built on first use, the same bytes everywhere."""
    folder = cache_dir("models") / f"standin-{VERSION}"
    if not (folder / "model.safetensors").is_file():
        temporary = Path(tempfile.mkdtemp(prefix=".standin-", dir=folder.parent))
        try:
            _build(temporary)
            os.replace(temporary, folder)  # noqa: PTH105 - a folder
        except OSError:
            if not (folder / "model.safetensors").is_file():  # else another process was first
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _build(folder: Path) -> None:
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    from clbench.models.config import quiet

    characters = sorted(set(string.ascii_lowercase + string.digits + string.punctuation))
    tokens = [*SPECIAL, *characters, *(f"##{c}" for c in characters)]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    BertTokenizerFast(vocab=vocabulary, model_max_length=256).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(tokens),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=256,
    )
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertModel(config, add_pooling_layer=False).save_pretrained(folder)

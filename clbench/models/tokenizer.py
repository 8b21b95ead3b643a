"""Tokenizers from a name, made fit for classification."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clbench.errors import ModelError
from clbench.models.config import one_line, quiet, read_config
from clbench.models.families import reads_segments
from clbench.models.locate import local_folder
from clbench.models.safety import check_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(name: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, padding on the right.

    It returns ``token_type_ids`` if and only if the model has segments to tell apart; not
    every tokenizer class agrees with its model about that (ALBERT's returns none).
    Without a padding token (GPT-2) it pads with its end-of-text token, which the attention
    mask hides. Where it adds no special token at all (GPT-2), a text begins with the
    beginning-of-text token, as the texts of pretraining did, and an end-of-text token
    stands between the texts of a pair; so no row is empty either.

    Parameters
    ----------
    name
        A built-in model, a local folder or a hub model.
    revision
        Of a hub model.

    Raises
    ------
    ModelError
        If the model cannot be found, has no tokenizer or one of another model, or needs a
        package or code that is not there.
    """
    from transformers import AutoTokenizer

    folder = local_folder(name, revision)
    config = read_config(folder, name, weights=False)
    check_tokenizer(folder, name)
    with quiet(), one_line(name, f"its tokenizer in {folder} cannot be loaded"):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=True
        )
    tokenizer.padding_side = "right"
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise ModelError(
                f"model {name!r}: its tokenizer has neither a padding nor an end token. Set "
                f"pad_token in {folder / 'tokenizer_config.json'}."
            )
        tokenizer.pad_token = tokenizer.eos_token
    known = getattr(config, "vocab_size", None)
    largest = max(tokenizer.vocab_size - 1, *tokenizer.all_special_ids)
    if known is not None and largest >= known:
        raise ModelError(
            f"model {name!r}: its tokenizer has token number {largest}, its weights stop at "
            f"{known - 1} (vocab_size in config.json). They do not belong together."
        )
    segments = ["token_type_ids"] if reads_segments(config) else []
    tokenizer.model_input_names = ["input_ids", *segments, "attention_mask"]
    _mark_texts(tokenizer)
    return tokenizer


def _mark_texts(tokenizer: PreTrainedTokenizerBase) -> None:
    """Give a tokenizer that adds no special tokens a start and a separator."""
    from tokenizers.processors import TemplateProcessing

    backend = getattr(tokenizer, "backend_tokenizer", None)
    end = tokenizer.eos_token
    if backend is None or end is None or tokenizer.num_special_tokens_to_add(pair=True):
        return
    start = tokenizer.bos_token or end
    backend.post_processor = TemplateProcessing(
        single=[start, "$A"],
        pair=[start, "$A", end, "$B"],
        special_tokens=[(token, backend.token_to_id(token)) for token in {start, end}],
    )

"""Load the configuration, tokenizer and weights of a checkpoint, with or without its head."""

from __future__ import annotations

import inspect
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import transformers

from clbench.core.errors import ModelError
from clbench.core.shapes import only_shapes, without_numbers
from clbench.models.families import family_of, family_of_whole, reads_segments
from clbench.models.folder import check_folder, one_line_errors
from clbench.models.groups import MOST_LAYERS
from clbench.models.locate import local_folder

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

UNKNOWN_WORDS = "zqxj \N{SNOWMAN}"
"""Words in few vocabularies; a tokenizer without a token for unknown words fails on them."""


@contextmanager
def quiet() -> Iterator[None]:
    """Keep progress bars and reports of unused weights off the terminal while loading."""
    bars_logging = transformers.utils.logging
    logger = logging.getLogger("transformers")
    level, bars = logger.level, bars_logging.is_progress_bar_enabled()
    logger.setLevel(logging.ERROR)
    bars_logging.disable_progress_bar()
    try:
        with redirect_stdout(io.StringIO()):  # transformers reads it even if it is closed
            yield
    finally:
        logger.setLevel(level)
        if bars:
            bars_logging.enable_progress_bar()


def load_config(name: str, revision: str | None = None) -> PreTrainedConfig:
    """Return the configuration of a model; parameters as in `local_folder`.

    Raises
    ------
    ModelError
        If the model cannot be found or used.
    """
    return open_checkpoint(name, revision, weights=False)[1]


def code_notes(config: PreTrainedConfig, name: str) -> tuple[str, ...]:
    """Return a note if a checkpoint brings code, in place of which transformers' own is used."""
    if not getattr(config, "auto_map", None):
        return ()
    kind = (config.architectures or [config.model_type])[0]
    return (f"{name}: its own code (auto_map in config.json) is not run; read as {kind}.",)


def open_checkpoint(
    name: str, revision: str | None = None, *, weights: bool = True, tokenizer: bool = False
) -> tuple[Path, PreTrainedConfig]:
    """Return a model's folder, which `check_folder` checks first, and its configuration."""
    folder = local_folder(name, revision)
    check_folder(folder, name, weights=weights, tokenizer=tokenizer)
    with quiet(), one_line_errors(name, f"{folder / 'config.json'} cannot be used"):
        config: PreTrainedConfig = transformers.AutoConfig.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=True
        )
    if getattr(config, "num_hidden_layers", 0) > MOST_LAYERS:
        raise ModelError(f"model {name!r}: config.json has more than {MOST_LAYERS} layers.")
    # Neither changes a result: the type of the outputs, and the tokens processed at a time.
    config.return_dict = True
    if getattr(config, "chunk_size_feed_forward", 0):
        config.chunk_size_feed_forward = 0
    return folder, config


def load_tokenizer(
    name: str, revision: str | None = None, *, plain: bool = False
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model, padding on the right; parameters as in `local_folder`.

    It returns ``token_type_ids`` only if the model has segments, whatever its class says
    (ALBERT's returns none). Without a padding token (GPT-2) it pads with its end-of-text
    token, which the attention mask hides. If it adds no special token (GPT-2), a text starts
    with the beginning-of-text token, as in pretraining, and an end-of-text token separates
    the texts of a pair; so no row is empty. With `plain`, none is added.

    Raises
    ------
    ModelError
        If the model cannot be found, or its tokenizer is missing, belongs to another model or
        needs a package or code that is missing.
    """
    folder, config = open_checkpoint(name, revision, weights=False, tokenizer=True)
    with quiet(), one_line_errors(name, f"its tokenizer in {folder} cannot be loaded"):
        tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(
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
    size = getattr(config, "vocab_size", None)
    largest = max(tokenizer.get_vocab().values())
    if size is not None and largest >= size:
        raise ModelError(
            f"model {name!r}: its tokenizer has token number {largest}, but its weights stop at "
            f"{size - 1} (vocab_size in config.json). Use the tokenizer that belongs to the model."
        )
    segments = ["token_type_ids"] if reads_segments(config) else []
    tokenizer.model_input_names = ["input_ids", *segments, "attention_mask"]
    if not plain:
        _add_start_and_separator(tokenizer)
    with one_line_errors(name, f"its tokenizer in {folder} cannot read every text"):
        tokenizer(UNKNOWN_WORDS)
    return tokenizer


def _add_start_and_separator(tokenizer: PreTrainedTokenizerBase) -> None:
    """Add a start token and a separator if the tokenizer itself adds no special tokens."""
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


def load_backbone(name: str, revision: str | None = None) -> PreTrainedModel:
    """Return the model without any head, in float32 and evaluation mode, on the CPU.

    Parameters are as in `local_folder`.

    Raises
    ------
    ModelError
        If the model cannot be found or is not a text model with layers, or its weights are not
        safetensors, do not fit ``config.json``, or are not finite.
    """
    folder, config = open_checkpoint(name, revision)
    with one_line_errors(name, "cannot be used"):
        kind = _backbone_class(config)
    model, _ = read_weights(kind, config, folder, name)
    return checked(model, folder, name)


def checked(model: PreTrainedModel, folder: Path, name: str) -> PreTrainedModel:
    """Return the model; raise a ModelError if it has no layers, or a weight that is not finite.

    `folder` is where it was read from.
    """
    try:
        writes = getattr(model.config, "is_encoder_decoder", False) and model.can_generate()
        family_of_whole(model) if writes else family_of(model.base_model)
    except ModelError as error:
        raise ModelError(f"model {name!r}: {error}") from error
    for key, value in model.state_dict().items():
        # The sum takes no memory; the elements are looked at only if it is not finite.
        if value.is_floating_point() and not (
            torch.isfinite(value.sum()) or torch.isfinite(value).all()
        ):
            raise ModelError(
                f"model {name!r}: {key!r} in {folder} holds infinite numbers or NaN. Use a "
                "checkpoint from before its training diverged."
            )
    return model


def read_weights(
    kind: type[PreTrainedModel], config: PreTrainedConfig, folder: Path, name: str
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return a model of class `kind` in float32 and evaluation mode, and transformers' report.

    Heads of other kinds are left out, but not of a language model that has its own.

    Raises
    ------
    ModelError
        If weights have other shapes than in `config`, the backbone lacks some, or the model has no
        place for some.
    """
    if only_shapes():
        return random_model(config, 0, kind), {"missing_keys": set()}
    with quiet(), one_line_errors(name, f"its weights in {folder} cannot be loaded"):
        model, report = kind.from_pretrained(
            str(folder),
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # the error below names the weight
            **_without_pooler(kind),
        )
    for key, stored, expected in sorted(report["mismatched_keys"]):
        raise ModelError(
            f"model {name!r}: {key!r} in {folder} has the shape {tuple(stored)}, but config.json "
            f"asks for {tuple(expected)}. Fetch or save the model again."
        )
    if not kind.__name__.endswith("ForSequenceClassification"):  # nothing else reads the pooler
        lacking = report["missing_keys"]
        report["missing_keys"] = {key for key in lacking if "pooler" not in key.split(".")}
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    if missing := sorted(key for key in report["missing_keys"] if key.startswith(prefix)):
        raise ModelError(
            f"model {name!r}: its weights lack {len(missing)} of the tensors of "
            f"{kind.__name__}, such as {missing[0]!r}. Fetch or save the model again."
        )
    prefix = f"{model.base_model_prefix}."
    speaks = kind.__name__.endswith(("CausalLM", "LMHeadModel", "ConditionalGeneration"))
    strict = speaks and not report["missing_keys"]
    parts = {part for whole in (model, model.base_model) for part, _ in whole.named_children()}
    unknown = [
        key
        for key in sorted(report["unexpected_keys"])
        if (strict or key.removeprefix(prefix).partition(".")[0] in parts)
        and not {"pooler", "seq_relationship"} & {*key.split(".")}
        and not key.endswith(".attn.masked_bias")  # a buffer of old checkpoints of GPT-2
    ]
    if unknown:
        raise ModelError(
            f"model {name!r}: {kind.__name__} with this config.json has no place for "
            f"{len(unknown)} of its weights, such as {unknown[0]!r}. Fetch or save the model "
            "again, or use a checkpoint that this version of transformers fully supports."
        )
    return model.eval(), report


def random_model(
    config: PreTrainedConfig, seed: int, kind: type[PreTrainedModel] | None = None
) -> PreTrainedModel:
    """Return a model with random weights, by default a backbone; torch's state does not change."""
    chosen = kind or _backbone_class(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = without_numbers(lambda: chosen(config, **_without_pooler(chosen)))
    return model.float().eval()


def _backbone_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    if type(config) not in transformers.MODEL_MAPPING:
        raise ValueError(f"transformers has no model without a head for {config.model_type!r}")
    kind = transformers.MODEL_MAPPING[type(config)]
    chosen: type[PreTrainedModel] = kind[0] if isinstance(kind, (tuple, list)) else kind
    return chosen


def _without_pooler(kind: type[PreTrainedModel]) -> dict[str, Any]:
    """Return the arguments that leave the pooler out, if the architecture has one."""
    has_option = "add_pooling_layer" in inspect.signature(kind.__init__).parameters
    return {"add_pooling_layer": False} if has_option else {}


@dataclass(frozen=True)
class LanguageModel:
    """A model with a language-model head."""

    model: PreTrainedModel
    """In float32 and evaluation mode, on the CPU."""
    loss: Literal["mlm", "clm"]
    """``mlm`` for encoders, ``clm`` for causal decoders."""
    missing: tuple[str, ...]
    """Weights of the head that the checkpoint lacks; they are initialised at random."""

    def backbone_names(self) -> dict[str, str]:
        """Return the backbone's weight names in this model, mapped to those in the backbone."""
        prefix = f"{self.model.base_model_prefix}."
        return {
            name: name.removeprefix(prefix)
            for name, _ in self.model.named_parameters()
            if name.startswith(prefix)
        }


def load_language_model(
    name: str, revision: str | None = None, *, head_seed: int = 0
) -> LanguageModel:
    """Return a pretrained model with the head that it was pretrained with.

    Parameters
    ----------
    name, revision
        As in `clbench.models.locate.local_folder`.
    head_seed
        Seed of the head's weights that the checkpoint lacks.

    Raises
    ------
    ModelError
        As `clbench.models.checkpoint.load_backbone`, or if transformers has no language-model
        head for the architecture.
    """
    folder, config = open_checkpoint(name, revision)
    kind, loss = language_class(config, name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(head_seed)
        model, report = read_weights(kind, config, folder, name)
    return LanguageModel(model, loss, tuple(sorted(report["missing_keys"])))


def language_class(
    config: PreTrainedConfig, name: str
) -> tuple[type[PreTrainedModel], Literal["mlm", "clm"]]:
    """Return the class with the head that a model was pretrained with, and that head's loss.

    Raises a ModelError if transformers has none for the architecture.
    """
    if _is_encoder(config):
        return transformers.MODEL_FOR_MASKED_LM_MAPPING[type(config)], "mlm"
    if type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        return transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], "clm"
    raise ModelError(
        f"model {name!r}: transformers has no language-model head for {config.model_type!r}, "
        "which ewc-mlm, generic-replay and the shift pretraining need. Use another model."
    )


def _is_encoder(config: PreTrainedConfig) -> bool:
    is_masked = type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING
    return is_masked and not getattr(config, "is_decoder", False)


def load_generator(name: str, revision: str | None = None) -> PreTrainedModel:
    """Return a pretrained decoder or encoder-decoder with its language-model head.

    Raises
    ------
    ModelError
        As `clbench.models.checkpoint.load_backbone`, or if the model is an encoder, or the
        checkpoint lacks the head.
    """
    folder, config = open_checkpoint(name, revision)
    encodes, kind = bool(getattr(config, "is_encoder_decoder", False)), type(config)
    heads = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if encodes:
        heads = transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
    if kind not in heads or (_is_encoder(config) and not encodes):
        raise ModelError(
            f"model {name!r}: {config.model_type!r} has no language-model head that writes text. "
            "Use a decoder, or head = 'classification'."
        )
    model, report = read_weights(heads[kind], config, folder, name)
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"model {name!r}: its checkpoint has no language-model head ({missing[0]!r} is "
            "missing). Use one with a head, or head = 'classification'."
        )
    return model

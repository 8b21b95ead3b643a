"""What a language model reads besides the rows of a scenario, and how it reads rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clbench.core.errors import DataError, ModelError
from clbench.core.seeds import numpy_stream
from clbench.measure.capabilities import CapabilityData, check_not_trained
from clbench.models.checkpoint import load_config
from clbench.models.families import attention_window
from clbench.models.prompts import PromptEncoder
from clbench.shifts.base import ShiftContext
from clbench.shifts.scenario import Scenario
from clbench.tasks.task import stratified
from clbench.training.batches import TaskData
from clbench.training.protocol import Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


def prompt_encoder(
    protocol: Protocol, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> PromptEncoder | None:
    """Return the encoder of prompts and answers for a protocol; None without a language model.

    Raises
    ------
    ModelError
        If the tokenizer has no end token, or no usable chat template that is asked for, or rows
        cannot be packed.
    """
    if not protocol.is_language_model:
        return None
    config = load_config(protocol.model, protocol.revision)
    encodes = bool(getattr(config, "is_encoder_decoder", False))
    if protocol.packing:
        _check_packing(protocol.model, config, max_length)
    chat = bool(tokenizer.chat_template) if protocol.chat is None else protocol.chat
    try:
        return PromptEncoder(tokenizer, max_length, protocol.answer_length, chat, encodes)
    except ModelError as error:
        raise ModelError(f"model {protocol.model!r}: {error}") from error


def _check_packing(model: str, config: PreTrainedConfig, max_length: int) -> None:
    """Raise a ModelError if packed rows would be read differently."""
    window = attention_window(config)
    if getattr(config, "is_encoder_decoder", False):
        problem = "packing is for decoders"
    elif window is not None and window < max_length:
        problem = (
            f"packing needs rows within its attention window of {window} tokens, and max_length = "
            f"{max_length}"
        )
    else:
        return
    raise ModelError(f"model {model!r}: {problem}. Set packing = false in [protocol].")


def capability_data(
    context: ShiftContext, protocol: Protocol, prompts: PromptEncoder, scenario: Scenario
) -> CapabilityData | None:
    """Return what a language model is measured on in a scenario; None if nothing is asked for.

    Raises
    ------
    DataError, ModelError
        If a task is trained or has no classes, the corpus is too short, or the model is an
        encoder-decoder.
    """
    count = protocol.capability_rows
    if count is None:
        return None
    if prompts.encoder_decoder:
        raise ModelError(
            f"model {protocol.model!r}: capability_rows needs a decoder, but this is "
            "an encoder-decoder. Remove capability_rows from [protocol]."
        )
    check_not_trained(protocol.capability_tasks, scenario.tasks)
    tasks = []
    for name in protocol.capability_tasks:
        task = context.task(name)
        if not task.labels:
            raise DataError(f"capability_tasks: {name!r} has no classes to choose from.")
        rng = numpy_stream("capability rows", name, context.seed)
        rows = task.scored.take(stratified(task.scored.labels, count, rng))
        encoded = prompts.encode(task, rows, to_train=False).lock()
        pad = int(prompts.tokenizer.pad_token_id or 0)
        tasks.append(TaskData(0, name, name, False, encoded, pad))
    texts = context.held_out_texts(count)
    return CapabilityData.of(texts, tasks, prompts.tokenizer, context.seed)

"""What a callback finds of the training that it is in."""

import copy
import inspect
from typing import Any

from transformers import TrainerCallback

from clbench.audit.models import AuditedModel, HeadKind
from clbench.core.errors import ModelError


def audited(model: Any, tokenizer: Any) -> AuditedModel:
    """Return the model that a Trainer trains, as one under audit."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    if tokenizer is None or not hasattr(tokenizer, "pad_token_id"):
        raise ModelError(
            "ForgettingCallback: the Trainer has no tokenizer. Give it as processing_class."
        )
    if tokenizer.pad_token_id is None or tokenizer.padding_side != "right":
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.padding_side = "right"  # as in audits: no text starts at a later position
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
    head: HeadKind | None = None
    if type(inner).__name__.endswith("ForSequenceClassification"):
        head = "classes"
    elif inner.get_output_embeddings() is not None:
        head = "language"
    return AuditedModel(str(inner.config._name_or_path), inner, tokenizer, head)


def callbacks_of_trainer() -> Any:
    """Return the Trainer's list of callbacks, whose loggers are to get the scores.

    Callbacks are not given it; it is the object whose method called that of the callback.
    """
    frame = inspect.currentframe()
    while frame is not None:
        handler = frame.f_locals.get("self")
        if isinstance(handler, TrainerCallback) and hasattr(handler, "callbacks"):
            return handler
        frame = frame.f_back
    raise ModelError("ForgettingCallback: not called by a Trainer. Give it to one as a callback.")

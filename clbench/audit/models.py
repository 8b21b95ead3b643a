"""Load the models of an audit: a base, and models that were tuned from it, adapters included."""

import copy
import hashlib
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize

import torch
from safetensors import safe_open
from torch import nn
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING as CLASSIFIERS
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from clbench.core.errors import ModelError, printable
from clbench.core.files import digest
from clbench.core.limits import bounded
from clbench.models import checkpoint, locate
from clbench.models.families import Family, family_of, family_of_whole
from clbench.models.folder import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    TOKENIZERS,
    chat_template,
    one_line_errors,
)
from clbench.models.pooling import unread_modules
from clbench.tasks.spec import label_name

HeadKind = Literal["classes", "language"]
UNUSED = re.compile("^_|^architectures$|cache|dropout|dtype|initializer|label|problem_type|version")
"""Keys of config.json that change nothing that a trained model computes."""
SECONDS = 10.0
"""Time for finding the weights that an adapter adapts."""


@dataclass(frozen=True)
class AuditedModel:
    """A model under audit, in float32 and evaluation mode, on the CPU until it is moved.

    Attributes
    ----------
    name
        As the user wrote it.
    model
        The whole model, with its head if the checkpoint has one.
    tokenizer
        The model's, or the base model's if its folder has none; with an adapter's chat template.
    head
        What kind of head `model` has; None if it has none.
    notes
        Lines for the user.
    tokenizer_folder
        Where the tokenizer is loaded from, the base model's for an adapter; by default its own.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    head: HeadKind | None
    notes: tuple[str, ...] = ()
    tokenizer_folder: str = ""

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether an encoder reads, and a decoder writes."""
        return bool(getattr(self.model.config, "is_encoder_decoder", False))

    @property
    def title(self) -> str:
        """The name to publish, without folders."""
        return locate.title_of(self.name)

    @property
    def backbone(self) -> PreTrainedModel:
        """The part of the model without its head; an encoder-decoder as a whole."""
        return self.model if self.is_encoder_decoder else self.model.base_model

    @property
    def encoder(self) -> PreTrainedModel:
        """The part whose hidden states are features: the backbone, or its encoder."""
        return self.model.get_encoder() if self.is_encoder_decoder else self.backbone

    @property
    def family(self) -> Family:
        """The family of the backbone."""
        return (family_of_whole if self.is_encoder_decoder else family_of)(self.backbone)

    @property
    def computation(self) -> str:
        """What the model computes with its weights, as far as its configuration says."""
        values = self.model.config.to_dict().items()
        return json.dumps({k: v for k, v in values if not UNUSED.search(k)}, default=str)

    @property
    def answers(self) -> bool:
        """Whether the model can answer prompts: with a decoder and a language-model head."""
        return self.head == "language" and (
            self.is_encoder_decoder or self.family.pooling == "last"
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of a classification head; empty without one.

        Raises a ModelError if ``id2label`` leaves a class without a name.
        """
        names = self.model.config.id2label if self.head == "classes" else {}
        named = [label_name(names.get(number)) for number in range(len(names))]
        if None in named:
            raise ModelError(
                f"model {self.name!r}: id2label in config.json does not name class "
                f"{named.index(None)}. Name the classes 0 to {len(named) - 1}."
            )
        return tuple(named)


def load_base(name: str) -> AuditedModel:
    """Return the base model of an audit.

    Raises a ModelError if it is an adapter, or cannot be loaded safely as a text model in floats.
    """
    if locate.adapter_folder(name) is not None:
        raise ModelError(
            f"model {name!r} is an adapter. Give its base model first, and the adapter after it."
        )
    return _load(name, checkpoint.load_tokenizer(name))


def load_tuned(name: str, base: AuditedModel) -> AuditedModel:
    """Return a model that was tuned from `base`: a whole model, or an adapter merged into it.

    Raises a ModelError as `load_base`; and if the architecture, a size, the tokenizer or the order
    of classes is not the base model's, or an adapter belongs to another base.
    """
    if (adapter := locate.adapter_folder(name)) is not None:
        return _merge(name, adapter, base)
    folder, config = checkpoint.open_checkpoint(name)
    _check_kind(name, config, base)
    notes: tuple[str, ...]
    title = locate.title_of(name)
    tokenizer, notes = base.tokenizer, (f"{title} has no tokenizer: the base model's is used.",)
    if any((folder / file).is_file() for file in TOKENIZERS) or [*folder.glob("*.model")]:
        tokenizer, notes = checkpoint.load_tokenizer(name), ()
    if _rules(tokenizer) != _rules(base.tokenizer):
        raise ModelError(
            f"model {name!r}: its tokenizer is not that of {base.name!r}, so the same text gives "
            "other tokens. Give the base model that it was tuned from."
        )
    tuned = _load(name, tokenizer, notes)
    _check_shapes(tuned, base)
    order = same_names(base.classes, tuned.classes)
    if order is not None and order != sorted(order):
        raise ModelError(
            f"model {name!r}: its classes are those of {base.name!r} in another order "
            f"({', '.join(tuned.classes)}; base: {', '.join(base.classes)}). Reorder the rows of "
            "its classification head together with id2label and label2id, and save it again."
        )
    return tuned


def identity(name: str) -> dict[str, Any]:
    """Return what identifies a model, as `clbench.models.locate.model_identity`, or an adapter."""
    if (folder := locate.adapter_folder(name)) is None:
        return locate.model_identity(name)
    files = [folder / file for file in (ADAPTER, ADAPTER_WEIGHTS)]
    marks = {file.name: digest(file) for file in files if file.is_file()}
    if (template := chat_template(folder, name)) is not None:
        marks["chat_template"] = digest(json.dumps(template, sort_keys=True))
    return marks


def same_names(names: Sequence[str], others: Sequence[str]) -> list[int] | None:
    """Return the position of each name of a class in `others`; None if these are other names.

    Names are equal if they are so in Unicode's form NFC. If some are not, case is ignored, unless
    two names would then be one.
    """
    for fold in (str, str.casefold):
        one, two = ([normalize("NFC", fold(name)) for name in each] for each in (names, others))
        if len({*one}) == len(one) and sorted(one) == sorted(two):
            return [two.index(name) for name in one]
    return None


def are_placeholders(names: Sequence[str]) -> bool:
    """Whether the names of classes are those that transformers makes up: ``LABEL_0`` and so on."""
    return [*map(str.casefold, names)] == [f"label_{number}" for number in range(len(names))]


def digest_of(model: nn.Module) -> str:
    """Return a digest of a model's weights; of a backbone without pooler, which only heads read."""
    hasher, has_head = hashlib.blake2b(digest_size=16), getattr(model, "base_model", 0) is not model
    for name, value in model.state_dict().items():
        if has_head or "pooler" not in name.split("."):
            hasher.update(name.encode())
            flat = value.detach().cpu().reshape(-1)  # of no dimension, it has no view as bytes
            hasher.update(flat.contiguous().view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def _load(
    name: str, tokenizer: PreTrainedTokenizerBase, notes: tuple[str, ...] = ()
) -> AuditedModel:
    """Return a whole model with the head that its checkpoint has."""
    folder, config = checkpoint.open_checkpoint(name)
    kind = str((config.architectures or [""])[0])
    title = locate.title_of(name)
    notes = (*notes, *checkpoint.code_notes(config, title))
    head: HeadKind | None = None
    lacking: list[str] = []
    if getattr(config, "is_encoder_decoder", False):
        if kind.endswith("Classification"):
            raise ModelError(
                f"model {name!r} is a {kind}: encoder-decoders are audited with their "
                "language-model head only. Save it as the model that writes."
            )
        model, head = checkpoint.load_generator(name), "language"
    elif kind.endswith("ForSequenceClassification") and type(config) in CLASSIFIERS:
        model, report = checkpoint.read_weights(CLASSIFIERS[type(config)], config, folder, name)
        head, lacking = "classes", sorted(report["missing_keys"])
    elif kind.endswith(("ForMaskedLM", "ForCausalLM", "LMHeadModel", "ForPreTraining")):
        language = checkpoint.load_language_model(name)
        model, head, lacking = language.model, "language", [*language.missing]
    if head is not None and not lacking:
        return AuditedModel(name, checkpoint.checked(model, folder, name), tokenizer, head, notes)
    if unread := unread_modules(name):
        notes = (*notes, f"{title}: {unread} in modules.json are not read.")
    if lacking:
        notes = (*notes, f"{title}: its head lacks {lacking[0]} and is not used.")
    return AuditedModel(name, checkpoint.load_backbone(name), tokenizer, None, notes)


def _rules(tokenizer: PreTrainedTokenizerBase) -> object:
    """Return what decides a text's tokens, without the padding and truncation of some last call."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return tokenizer.get_vocab()
    rules = json.loads(backend.to_str())
    return {key: rules[key] for key in rules.keys() - {"padding", "truncation"}}


def _check_kind(name: str, config: PreTrainedConfig, base: AuditedModel) -> None:
    """Refuse models of another architecture, size or vocabulary than the base model."""
    advice = "Give the base model that it was tuned from"
    for key, what in (
        ("model_type", "architecture"),
        ("hidden_size", "width"),
        ("num_hidden_layers", "number of layers"),
        ("num_attention_heads", "number of attention heads"),
        ("vocab_size", "number of tokens"),
    ):
        one, other = getattr(config, key, None), getattr(base.model.config, key, None)
        if one != other:
            if key == "vocab_size":
                advice += "; if you added tokens, remove them by resize_token_embeddings"
            raise ModelError(
                f"model {name!r}: its {what} ({key} = {one}) is not that of {base.name!r} "
                f"({other}). {advice}."
            )


def _check_shapes(tuned: AuditedModel, base: AuditedModel) -> None:
    """Refuse a backbone with a size that the configurations do not share, such as positions."""
    own, theirs = (
        {name: " × ".join(map(str, v.shape)) for name, v in model.backbone.named_parameters()}
        for model in (tuned, base)
    )
    for name in [*own, *theirs]:
        one, other = own.get(name, "missing"), theirs.get(name, "missing")
        if one != other and "pooler" not in name.split("."):
            raise ModelError(
                f"model {tuned.name!r}: its weight {name} is {one}, that of {base.name!r} {other}. "
                "Give the base model that it was tuned from."
            )


def _merge(name: str, folder: Path, base: AuditedModel) -> AuditedModel:
    """Return a copy of the base model with the adapter `name` in `folder` merged into it."""
    try:
        from peft import PeftConfig, PeftModel, get_peft_model_state_dict
    except ImportError as error:
        raise ModelError(
            f"model {name!r} is an adapter, which needs peft: pip install 'clbench[lora]'."
        ) from error
    weights = folder / ADAPTER_WEIGHTS
    if not weights.is_file():
        raise ModelError(
            f"model {name!r}: {folder} has no {ADAPTER_WEIGHTS}; other formats are "
            "refused because they can run code when loaded. Save the adapter with "
            "safe_serialization=True."
        )
    with one_line_errors(name, f"{weights} is damaged"), safe_open(weights, "np") as file:
        shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
    with (
        one_line_errors(name, f"{folder / ADAPTER} is not the configuration of an adapter"),
        warnings.catch_warnings(record=True) as unknown,
    ):
        warnings.simplefilter("always")
        config = PeftConfig.from_pretrained(str(folder))
        own = config.base_model_name_or_path
        if not isinstance(own, str | None):
            raise TypeError(f"base_model_name_or_path is {own!r}")
    if config.is_prompt_learning:
        raise ModelError(
            f"model {name!r}: adapters of the type {config.peft_type.value} add tokens to every "
            "text and cannot be merged. Use an adapter of weights, such as LoRA."
        )
    notes = _check_own_base(name, own, base)
    notes += tuple(f"{locate.title_of(name)}: {printable(str(each.message))}" for each in unknown)
    with checkpoint.quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, head = _bare_copy(config, base, shapes)

        def match() -> None:
            with suppress(Exception), torch.device("meta"):  # it is applied below
                PeftModel(type(model)(model.config), config)

        with one_line_errors(name, f"{folder / ADAPTER} does not fit {base.name!r}"):
            bounded(match, SECONDS)  # its regular expressions may never end
        with one_line_errors(name, f"the adapter does not fit {base.name!r}"):
            adapted = PeftModel.from_pretrained(model, str(folder), config=config)
            expected = get_peft_model_state_dict(adapted).keys()
            if other := sorted(expected ^ shapes.keys()):
                raise ValueError(f"{len(other)} weights match nothing, such as {other[0]}")
            merged = adapted.merge_and_unload()
    return AuditedModel(
        name,
        checkpoint.checked(merged, folder, name).eval(),
        _with_own_template(name, folder, base.tokenizer),
        head,
        notes,
        base.tokenizer.name_or_path,
    )


def _with_own_template(
    name: str, folder: Path, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedTokenizerBase:
    """Return the base model's tokenizer, or a copy with the chat template of an adapter's folder.

    Raises a ModelError if the template cannot be read.
    """
    text = chat_template(folder, name)
    if text is None or text == tokenizer.chat_template:
        return tokenizer
    own = copy.deepcopy(tokenizer)
    own.chat_template, own.name_or_path = text, str(folder)
    return own


def _check_own_base(name: str, own: str | None, base: AuditedModel) -> tuple[str, ...]:
    """Refuse an adapter that was trained on another model, `own`, than `base`."""
    if not own or own == base.name:
        return ()
    try:
        same = locate.model_identity(own) == locate.model_identity(base.name)
    except (ModelError, OSError):
        return (
            f"{locate.title_of(name)} was trained on {locate.title_of(own)!r}, which was not "
            f"found: not checked against {base.title!r}.",
        )
    if not same:
        raise ModelError(
            f"model {name!r}: the adapter was trained on {own!r}, which is not {base.name!r}. Give "
            f"{own!r} as BASE."
        )
    return ()


def _bare_copy(
    config: Any, base: AuditedModel, shapes: Mapping[str, Sequence[int]]
) -> tuple[PreTrainedModel, HeadKind | None]:
    """Return a copy of the base model to put the adapter on, with the head that it needs."""
    if config.task_type != "SEQ_CLS":
        again = _load(base.name, base.tokenizer)
        return again.model, again.head
    heads = ("classifier.weight", "score.weight", "classifier.out_proj.weight")
    outputs = [shape[0] for key, shape in shapes.items() if key.endswith(heads)]
    folder, whole = checkpoint.open_checkpoint(base.name)
    if outputs:
        whole.num_labels = outputs[-1]
    with torch.random.fork_rng(devices=[]):
        model, _ = checkpoint.read_weights(CLASSIFIERS[type(whole)], whole, folder, base.name)
    return model, "classes" if outputs else None

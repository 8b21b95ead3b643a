"""What a model keeps of its pretraining: its language-model head on held-out texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from clbench.errors import ModelError, NonFiniteLossError
from clbench.fisher.cache import cached
from clbench.fisher.head import fit_head
from clbench.fisher.losses import IGNORED, Outputs, named_loss, on_device, size_of
from clbench.fisher.mlm import text_batches
from clbench.models.checkpoint import load_tokenizer
from clbench.models.families import usable_length
from clbench.models.language import LanguageModel, load_language_model
from clbench.models.locate import model_identity
from clbench.seeds import stream_seed, torch_stream
from clbench.shifts.base import PretrainingTexts
from clbench.tasks.corpus import corpus_identity, corpus_name, read_corpus
from clbench.training.device import Precision, resolve_precision
from clbench.training.protocol import Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Batches = Sequence[dict[str, Tensor]]
HEAD_TEXTS = 2000
"""Texts that a missing head is fitted on, at most."""
FEW_TOKENS = 400
"""Tokens below which an accuracy has a standard error above .025, and is noted."""
LITTLE = 2.0
"""Accuracy, in shares of the most frequent token, below which there is little to forget."""


class PretrainingScore:
    """A pretrained language-model head that can be put on any state of its backbone.

    Parameters
    ----------
    language
        The pretrained model; its own backbone is let go.
    batches, part
        Masked texts, and a part of them for the points of curves.
    told
        What is scored, for the reader of a result.
    places
        Number of predicted tokens.
    commonest
        Share of them that are the most frequent one.
    """

    def __init__(
        self,
        language: LanguageModel,
        batches: Batches,
        part: Batches,
        told: str,
        places: int,
        commonest: float,
    ) -> None:
        self._said = told
        self._places = places
        self._commonest = commonest
        self._loss = named_loss(language.loss)
        self._batches = batches
        self._part = part
        model = language.model
        self._model: PreTrainedModel = model
        self._projection: nn.Linear = model.get_output_embeddings()
        self._tied = self._projection.weight is model.get_input_embeddings().weight
        self._let_go()

    def of(
        self,
        backbone: nn.Module,
        *,
        part: bool = False,
        precision: Precision,
        device: torch.device,
    ) -> dict[str, float]:
        """Score a backbone as it is now, without dropout and without gradients.

        Parameters
        ----------
        backbone
            Of the pretrained model's architecture, with its whole vocabulary, on `device`.
        part
            Score the texts for curves only.
        precision, device
            Of the forward pass.

        Returns
        -------
        dict
            ``accuracy``, the share of predicted tokens that are right, and ``cross_entropy``,
            in nats a token; both over all predicted tokens of all texts.

        Raises
        ------
        NonFiniteLossError
            If the weights have diverged.
        """
        right = loss = count = 0.0
        backbone.eval()
        with torch.inference_mode(), precision.autocast(), self._around(backbone, device) as model:
            for batch in self._part if part else self._batches:
                hits, losses, places = _counts(self._loss(model, on_device(batch, device)))
                right, loss, count = right + hits, loss + losses, count + places
        if not loss < float("inf"):
            raise NonFiniteLossError(
                "the loss on held-out texts is no longer a finite number: training diverged. "
                "Lower the learning rate, set clip_norm, or use --precision float32."
            )
        return {"accuracy": right / count, "cross_entropy": loss / count}

    @property
    def counted(self) -> str:
        """How much is scored, for the log of a run."""
        few = (
            f", fewer than {FEW_TOKENS}: give a longer corpus" if self._places < FEW_TOKENS else ""
        )
        return f"{self._said}{few}"

    def told(self, pretrained: dict[str, float]) -> str:
        """What is scored, and whether the pretrained model's scores leave anything to forget."""
        always = f"always the most frequent one: {self._commonest:.3f}"
        if self._places < FEW_TOKENS:
            return f"{self._said} ({always}), which is too few; give a longer corpus."
        if pretrained["accuracy"] >= LITTLE * self._commonest:
            return f"{self._said} ({always})."
        return (
            f"{self._said} ({always}). The pretrained model's {pretrained['accuracy']:.3f} is so "
            "near to that that it has little to forget; take a checkpoint that was pretrained as "
            "a language model."
        )

    @contextmanager
    def _around(self, backbone: nn.Module, device: torch.device) -> Iterator[nn.Module]:
        """The language model whose backbone this is, for a while."""
        model = self._model.to(device)
        setattr(model, model.base_model_prefix, backbone)
        if self._tied:
            table = model.get_input_embeddings().weight
            self._projection.weight = nn.Parameter(table.detach(), requires_grad=False)
        try:
            yield model.eval()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Keep no backbone and no table of it."""
        setattr(self._model, self._model.base_model_prefix, nn.Identity())
        if self._tied:
            self._projection.weight = nn.Parameter(torch.empty(0), requires_grad=False)


def pretraining_score(
    texts: PretrainingTexts, protocol: Protocol, device: torch.device
) -> PretrainingScore:
    """The score of the protocol's model on held-out texts.

    A checkpoint without a language-model head gets one, fitted on the rest of the protocol's
    corpus with the encoder frozen, and kept on disk.

    Raises
    ------
    ModelError, DataError
        If the model has no language-model head, its tokenizer no mask, or the corpus no text.
    """
    name, revision = protocol.model, protocol.revision
    seed = protocol.data_seed
    language = load_language_model(name, revision, head_seed=stream_seed("language-head", seed))
    tokenizer = load_tokenizer(name, revision)
    masked = language.loss == "mlm"
    if masked and tokenizer.mask_token_id is None:
        raise ModelError(f"model {name!r}: its tokenizer has no mask token.")
    usable = usable_length(language.model.config)
    longest = min(texts.text_length, usable or texts.text_length)

    def batches(some: Sequence[str], stream: str) -> Batches:
        return list(
            text_batches(
                some,
                tokenizer,
                max_length=longest,
                generator=torch_stream(stream, seed),
                masking="mask" if masked else None,
            )
        )

    whole = batches(texts.texts, "held-out-masks")
    part = _thinned(whole, protocol.curve_rows)
    fitted = ""
    if language.missing:
        fitted = _fit(language, texts, protocol, device, batches)
    labels = torch.cat([_labels(batch) for batch in whole])
    told = _told(language, len(labels), sum(map(size_of, whole)), longest, protocol.corpus)
    commonest = int(labels.bincount().max()) / len(labels)
    return PretrainingScore(language, whole, part, told + fitted, len(labels), commonest)


def _fit(
    language: LanguageModel,
    texts: PretrainingTexts,
    protocol: Protocol,
    device: torch.device,
    batches: Callable[[Sequence[str], str], Batches],
) -> str:
    """Give the model a head, from disk if it was fitted before; what to tell of it."""
    seed = protocol.data_seed
    precision = resolve_precision(protocol.precision, device)
    backbone = set(language.backbone_names())
    own = {n: p for n, p in language.model.named_parameters() if n not in backbone}
    key = {
        "model": model_identity(protocol.model, protocol.revision),
        "corpus": corpus_identity(protocol.corpus),
        "settings": {**asdict(texts), "texts": HEAD_TEXTS, "seed": seed},
        "numerics": [device.type, precision.name, torch.get_num_threads()],
        "versions": [torch.__version__, transformers.__version__],
    }

    def compute() -> tuple[dict[str, Tensor], dict[str, Any]]:
        model = language.model.to(device)
        known = batches(read_corpus(protocol.corpus, HEAD_TEXTS, seed), "head-masks")
        order = torch.randperm(len(known), generator=torch_stream("head-order", seed)).tolist()
        losses = fit_head(
            model,
            list(backbone),
            [known[i] for i in order],
            named_loss(language.loss),
            steps=texts.head_steps,
            precision=precision,
        )
        return dict(own), {"losses": losses}

    found, facts = cached(key, compute, kind="heads")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(found[name])
    first, last = facts["losses"]
    return (
        f", by a head fitted in {texts.head_steps} steps with the encoder frozen, as the "
        f"checkpoint has none (loss {first:.2f} to {last:.2f})"
    )


def _thinned(batches: Batches, count: int) -> Batches:
    """About `count` texts with the same masks, evenly over the lengths that batches go by."""
    total = sum(size_of(batch) for batch in batches)
    if total <= count:
        return batches
    chosen = np.linspace(0, total - 1, count).round().astype(int)
    found, start = [], 0
    for batch in batches:
        rows = chosen[(chosen >= start) & (chosen < start + size_of(batch))] - start
        start += size_of(batch)
        if len(rows):
            found.append({key: value[rows] for key, value in batch.items()})
    return found


def _told(language: LanguageModel, places: int, texts: int, longest: int, corpus: str) -> str:
    what = "masked-LM" if language.loss == "mlm" else "next-token"
    return (
        f"pretraining: {what} accuracy over {places} tokens of {texts} held-out texts of "
        f"{corpus_name(corpus)}, cut at {longest} tokens"
    )


def _labels(batch: dict[str, Tensor]) -> Tensor:
    """The tokens that are predicted, in one row."""
    labels = batch.get("labels")
    if labels is not None:
        return labels[labels != IGNORED]
    return batch["input_ids"][:, 1:][batch["attention_mask"][:, 1:].bool()]


def _counts(outputs: Outputs) -> tuple[float, float, float]:
    """Right answers, summed losses and places of a batch."""
    assert outputs.counted is not None
    right = (outputs.logits.argmax(-1) == outputs.labels) * outputs.counted
    places = outputs.counted.sum()
    return float(right.sum()), float(outputs.together() * places), float(places)

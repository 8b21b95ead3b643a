"""Score what a model retains of its pretraining: its language-model head on held-out texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from clbench.core.errors import ModelError, NonFiniteLossError
from clbench.core.seeds import stream_seed, torch_stream
from clbench.fisher.language_modelling import text_batches
from clbench.fisher.losses import named_loss, on_device, size_of
from clbench.fisher.pretrained import fit_missing_head
from clbench.models.checkpoint import LanguageModel, load_language_model, load_tokenizer
from clbench.models.encoding import IGNORED
from clbench.models.families import usable_length
from clbench.tasks.corpus import corpus_identity, corpus_name, read_corpus
from clbench.training.device import Precision, resolve_precision
from clbench.training.protocol import Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Batches = Sequence[dict[str, Tensor]]
HEAD_TEXTS = 2000
"""Maximum texts for fitting a missing head."""
FEW_TOKENS = 400
"""Tokens below which the standard error of an accuracy can exceed 0.025."""
LITTLE = 2.0
"""Below this multiple of the most frequent token's share, accuracy leaves little to forget."""


class PretrainingScorer:
    """Scores a backbone with its pretrained language-model head.

    Parameters
    ----------
    language
        The pretrained model; its own backbone is freed.
    batches, part
        Masked texts, and a part of them for the points of curves.
    source
        Description of the texts, for notes in results.
    """

    def __init__(
        self, language: LanguageModel, batches: Batches, part: Batches, source: str
    ) -> None:
        self._loss = named_loss(language.loss)
        self._batches, self._part = batches, part
        labels = torch.cat([_labels(batch) for batch in batches])
        self._tokens = len(labels)
        self._baseline = int(labels.bincount().max()) / len(labels)
        self._text = (
            f"pretraining: {'masked-LM' if language.loss == 'mlm' else 'next-token'} accuracy over "
            f"{self._tokens} tokens of {source} (always the most frequent token: "
            f"{self._baseline:.3f})"
        )
        self.part_tokens = sum(int(batch["attention_mask"].sum()) for batch in part)
        self._model: PreTrainedModel = language.model
        self._projection: nn.Linear = self._model.get_output_embeddings()
        self._tied = self._projection.weight is self._model.get_input_embeddings().weight
        self._free_backbone()

    def score(
        self,
        backbone: nn.Module,
        *,
        part: bool = False,
        precision: Precision,
        device: torch.device,
    ) -> dict[str, float]:
        """Score a backbone in evaluation mode; see `ColumnScorer`.

        Returns
        -------
        dict
            ``accuracy``, the share of correct predictions, and ``cross_entropy`` in nats per
            token, both over all predicted tokens.

        Raises
        ------
        NonFiniteLossError
            If the weights have diverged.
        """
        correct = loss = count = 0.0
        backbone.eval()
        with torch.inference_mode(), precision.autocast(), self._around(backbone, device) as model:
            for batch in self._part if part else self._batches:
                outputs = self._loss(model, on_device(batch, device))
                assert outputs.mask is not None
                tokens = outputs.mask.sum()
                hits = (outputs.logits.argmax(-1) == outputs.labels) * outputs.mask
                correct, count = correct + float(hits.sum()), count + float(tokens)
                loss += float(outputs.mean_loss() * tokens)
        if not loss < float("inf"):
            raise NonFiniteLossError(
                "the loss on held-out texts is no longer a finite number: training diverged. "
                "Lower lr, set clip_norm, or use --precision float32."
            )
        return {"accuracy": correct / count, "cross_entropy": loss / count}

    def describe(self, initial: dict[str, float] | None = None) -> str:
        """Return a line about the texts, and whether `initial` scores leave much to forget."""
        if self._tokens < FEW_TOKENS:
            return f"{self._text}; these are fewer than {FEW_TOKENS} tokens: use a longer corpus."
        if initial is None or initial["accuracy"] >= LITTLE * self._baseline:
            return f"{self._text}."
        return (
            f"{self._text}. The pretrained model's {initial['accuracy']:.3f} is close to that, so "
            "it has little to forget. Use a checkpoint that was pretrained as a language model."
        )

    @contextmanager
    def _around(self, backbone: nn.Module, device: torch.device) -> Iterator[nn.Module]:
        """Yield the language model with this backbone inside, or itself if it has a head."""
        if type(backbone) is type(self._model):
            yield backbone.eval()
            return
        model = self._model.to(device)
        setattr(model, model.base_model_prefix, backbone)
        if self._tied:
            table = model.get_input_embeddings().weight
            self._projection.weight = nn.Parameter(table.detach(), requires_grad=False)
        try:
            yield model.eval()
        finally:
            self._free_backbone()

    def _free_backbone(self) -> None:
        setattr(self._model, self._model.base_model_prefix, nn.Identity())
        if self._tied:
            self._projection.weight = nn.Parameter(torch.empty(0), requires_grad=False)


def make_scorer(
    protocol: Protocol,
    device: torch.device,
    *,
    texts: Sequence[str],
    text_length: int,
    head_steps: int,
) -> PretrainingScorer:
    """Return the scorer of the protocol's model on held-out texts.

    A checkpoint without a language-model head gets one that is fitted on the rest of the corpus,
    with the encoder frozen, and cached on disk. The other parameters are settings of
    `clbench.shifts.dataset.Pretraining`.

    Raises
    ------
    ModelError, DataError
        If the model has no language-model head, its tokenizer no mask, or the corpus no text.
    """
    name, revision, seed = protocol.model, protocol.revision, protocol.data_seed
    language = load_language_model(name, revision, head_seed=stream_seed("language-head", seed))
    tokenizer = load_tokenizer(name, revision)
    masked = language.loss == "mlm"
    if masked and tokenizer.mask_token_id is None:
        raise ModelError(f"model {name!r}: its tokenizer has no mask token. Use another model.")
    length = min(text_length, usable_length(language.model.config) or text_length)

    def batches(texts: Sequence[str], stream: str) -> Batches:
        return list(
            text_batches(
                texts,
                tokenizer,
                max_length=length,
                generator=torch_stream(stream, seed),
                masking="mask" if masked else None,
            )
        )

    whole = batches(texts, "held-out-masks")
    source = (
        f"{sum(map(size_of, whole))} held-out texts of {corpus_name(protocol.corpus)}, cut at "
        f"{length} tokens"
    )
    if language.missing:
        settings = {"texts": HEAD_TEXTS, "text_length": text_length, "head_steps": head_steps}
        first, last = _fit(language, settings, protocol, device, batches)
        source += (
            f", by a head fitted in {head_steps} steps with the encoder frozen, as the checkpoint "
            f"has none (loss {first:.2f} to {last:.2f})"
        )
    return PretrainingScorer(language, whole, _thinned(whole, protocol.curve_rows), source)


def _fit(
    language: LanguageModel,
    settings: dict[str, int],
    protocol: Protocol,
    device: torch.device,
    batches: Callable[[Sequence[str], str], Batches],
) -> tuple[float, float]:
    """Fit the missing head or load it from the cache; return its first and last loss."""
    seed = protocol.data_seed

    def shuffled() -> Batches:
        texts = batches(read_corpus(protocol.corpus, HEAD_TEXTS, seed), "head-masks")
        order = torch.randperm(len(texts), generator=torch_stream("head-order", seed)).tolist()
        return [texts[i] for i in order]

    return fit_missing_head(
        language,
        protocol.model,
        protocol.revision,
        {"corpus": corpus_identity(protocol.corpus), "settings": {**settings, "seed": seed}},
        shuffled,
        steps=settings["head_steps"],
        device=device,
        precision=resolve_precision(protocol.precision, device),
    )


def _thinned(batches: Batches, count: int) -> Batches:
    """Return about `count` of the masked texts, spread evenly over the batches."""
    total = sum(map(size_of, batches))
    if total <= count:
        return batches
    positions = np.linspace(0, total - 1, count).round().astype(int)
    part, start = [], 0
    for batch in batches:
        rows = positions[(positions >= start) & (positions < start + size_of(batch))] - start
        start += size_of(batch)
        if len(rows):
            part.append({key: value[rows] for key, value in batch.items()})
    return part


def _labels(batch: dict[str, Tensor]) -> Tensor:
    """Return the tokens to predict; shape (n,)."""
    labels = batch.get("labels")
    if labels is not None:
        return labels[labels != IGNORED]
    return batch["input_ids"][:, 1:][batch["attention_mask"][:, 1:].bool()]

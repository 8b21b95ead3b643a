"""The language loss of each held-out text, by the language-model head of a base model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from clbench.audit.items import length_of
from clbench.audit.models import AuditedModel
from clbench.core.errors import DataError, ModelError
from clbench.core.seeds import stream_seed, torch_stream
from clbench.fisher.language_modelling import text_batches
from clbench.fisher.losses import named_loss, on_device
from clbench.fisher.pretrained import fit_missing_head
from clbench.models.checkpoint import LanguageModel, load_language_model
from clbench.tasks.corpus import corpus_identity, corpus_name, read_corpus
from clbench.training.device import resolve_precision

FEWEST_TEXTS = 30
HEAD_TEXTS, HEAD_STEPS = 1000, 150
"""Texts and steps for fitting a head that the base checkpoint lacks."""
BATCH = 16

Floats = npt.NDArray[np.float64]


class LanguageLoss:
    """Computes the loss of held-out texts: of the masked tokens, or of every next token.

    A model without a language-model head of its own gets that of the base model. If the base
    model's checkpoint has none either, a head is fitted to it on the rest of the corpus, and serves
    all models: their own heads could not be compared with it.

    Parameters
    ----------
    base
        The base model of the audit.
    corpus
        As `clbench.tasks.corpus.resolve_corpus` returns it.
    count, seed
        Most texts, and the seed of their sample and masks.
    device
        Where to compute.

    Raises
    ------
    DataError, ModelError
        If fewer than 30 texts are held out, or transformers has no such head.
    """

    def __init__(
        self, base: AuditedModel, corpus: str, count: int, seed: int, device: torch.device
    ) -> None:
        texts = read_corpus(corpus, count, seed, held_out=True)
        if len(texts) < FEWEST_TEXTS:
            raise DataError(
                f"corpus {corpus_name(corpus)}: {len(texts)} held-out texts (about a tenth of its "
                f"lines) are too few for an audit. Give {10 * FEWEST_TEXTS} lines or more."
            )
        self._language: LanguageModel | None = None
        self._base, self._device, self._seed = base, device, seed
        masked = not base.is_decoder
        if base.head != "language":  # else it is loaded only for tuned models without a head
            masked = self._load().loss == "mlm"
        self._loss, tokenizer = named_loss("mlm" if masked else "clm"), base.tokenizer
        if masked and tokenizer.mask_token_id is None:
            raise ModelError(f"model {base.name!r}: its tokenizer has no mask token.")
        length = length_of(base)

        def batches(texts: Sequence[str], stream: str) -> list[dict[str, Tensor]]:
            return list(
                text_batches(
                    texts,
                    tokenizer,
                    max_length=length,
                    generator=torch_stream(stream, seed),
                    masking="mask" if masked else None,
                    batch_size=BATCH,
                )
            )

        self._batches = batches(texts, "audit-masks")
        self.texts = sum(len(batch["input_ids"]) for batch in self._batches)
        kind = "masked-token" if masked else "next-token"
        self.description = f"{kind} loss on {self.texts} held-out texts of {corpus_name(corpus)}"
        if self._language is not None and self._language.missing:
            self._fit(self._language, base.name, corpus, batches)
            self.description += ", by a head fitted to the base model, whose checkpoint has none"

    def _load(self) -> LanguageModel:
        """Return the base model with its language-model head, for models without one."""
        if self._language is None:
            head_seed = stream_seed("language-head", self._seed)
            self._language = load_language_model(self._base.name, head_seed=head_seed)
        return self._language

    def _fit(self, language: LanguageModel, name: str, corpus: str, batches: Any) -> None:
        settings = {"texts": HEAD_TEXTS, "steps": HEAD_STEPS, "seed": self._seed}
        fit_missing_head(
            language,
            name,
            None,
            {"audit": settings, "corpus": corpus_identity(corpus)},
            lambda: batches(read_corpus(corpus, HEAD_TEXTS, self._seed), "head-masks"),
            steps=HEAD_STEPS,
            device=self._device,
            precision=resolve_precision("auto", self._device),
        )

    def __call__(self, audited: AuditedModel) -> Floats:
        """Return the mean loss of each text's tokens in nats, shape (texts,)."""
        with torch.inference_mode(), self._model_of(audited) as model:
            losses = [
                self._loss(model, on_device(batch, self._device)).losses().cpu()
                for batch in self._batches
            ]
        return torch.cat(losses).double().numpy()

    @contextmanager
    def _model_of(self, audited: AuditedModel) -> Iterator[nn.Module]:
        """Yield a model with a language-model head: its own, or the base model's around it."""
        if audited.head == self._base.head == "language":
            yield audited.model.to(self._device).eval()
            return
        model: Any = self._load().model
        prefix, projection = model.base_model_prefix, model.get_output_embeddings()
        own, table = getattr(model, prefix), projection.weight
        tied = table is model.get_input_embeddings().weight
        setattr(model, prefix, audited.backbone)
        if tied:
            projection.weight = audited.backbone.get_input_embeddings().weight
        try:
            yield model.to(self._device).eval()
        finally:
            setattr(model, prefix, own)
            projection.weight = table

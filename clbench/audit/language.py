"""The loss of held-out texts, by which audits measure language."""

from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from clbench.audit.items import MAX_LENGTH, finite
from clbench.audit.models import AuditedModel
from clbench.audit.scores import Floats, ItemScores, keys_of
from clbench.audit.settings import FEWEST_TEXTS
from clbench.core.errors import DataError
from clbench.core.seeds import torch_stream
from clbench.core.shapes import few
from clbench.fisher import language, losses
from clbench.models.encoding import IGNORED
from clbench.tasks.corpus import corpus_identity, corpus_name, read_corpus
from clbench.training.batches import Batch
from clbench.training.device import resolve_precision

HEAD_TEXTS, HEAD_STEPS = 1000, 150
"""Texts and steps for fitting a head that the base checkpoint lacks."""
BATCH = 16


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
        self._base, self._device = base, device
        kind: Literal["mlm", "clm"] | None = None
        if base.head == "language":  # it may be a model of the user's own
            kind = "clm" if base.answers else "mlm"
        self._task = task = language.LanguageTask(
            base.name,
            seed=seed,
            length=MAX_LENGTH,
            masking="mask",
            config=base.model.config,
            tokenizer=base.tokenizer,
            kind=kind,
        )
        self._batches = list(task.batches(texts, torch_stream("audit-masks", seed), BATCH))
        tokens = "masked-token" if task.kind == "mlm" else "next-token"
        if base.is_encoder_decoder:
            tokens, task.loss = "second-half", second_halves
            self._batches = [*map(halved, self._batches)]
        self.texts = sum(map(losses.size_of, self._batches))
        self._inputs = tuple(texts) if len(texts) == self.texts else ()
        self.keys = keys_of(self._inputs or map(str, range(self.texts)))
        self.description = f"{tokens} loss on {self.texts} held-out texts of {corpus_name(corpus)}"
        self.title = "language"
        if base.head == "language":  # a copy of it is loaded only for tuned models without a head
            return
        settings = {"texts": HEAD_TEXTS, "steps": HEAD_STEPS, "seed": seed}
        head_loss = task.fit_head(
            lambda: task.batches(
                read_corpus(corpus, HEAD_TEXTS, seed), torch_stream("head-masks", seed), BATCH
            ),
            {"audit": settings, "corpus": corpus_identity(corpus)},
            steps=HEAD_STEPS,
            device=device,
            precision=resolve_precision("auto", device),
        )
        if head_loss is not None:
            self.title = "language, by a fitted head"
            self.description += ", by a fitted head: the base checkpoint has none"

    def scores(self, audited: AuditedModel) -> ItemScores:
        """Return minus the loss of each text."""
        return ItemScores(
            self.title,
            "language",
            -self(audited),
            self.keys,
            metric="loss",
            description=self.description,
            texts=self._inputs,
            unit="texts",
        )

    def __call__(self, audited: AuditedModel) -> Floats:
        """Return the mean loss of each text's tokens in nats, shape (texts,)."""
        own = audited.head == self._base.head == "language"
        part = audited.model if own else audited.backbone
        with torch.inference_mode(), self._task.around(part, self._device) as model:
            values = [
                self._task.loss(model, losses.on_device(batch, self._device)).losses().cpu()
                for batch in few(self._batches)
            ]
        return finite(torch.cat(values).double().numpy(), audited)


def second_halves(model: nn.Module, batch: losses.AnyBatch) -> losses.Outputs:
    """Return an encoder-decoder's outputs at every token of its labels."""
    assert not isinstance(batch, Batch)  # `halved` makes it
    mask = batch["labels"] != IGNORED
    logits = model(**batch).logits.float()
    return losses.Outputs(logits, batch["labels"].masked_fill(~mask, 0), mask.to(logits.dtype))


def halved(batch: Mapping[str, Tensor]) -> losses.TextBatch:
    """Return texts for `second_halves`: the first half of each to read, the second to write."""
    tables = batch["input_ids"], batch["attention_mask"].bool()
    rows = [ids[real].tensor_split(2) for ids, real in zip(*tables, strict=True)]
    padded = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    return {
        "input_ids": padded([first for first, _ in rows]),
        "attention_mask": padded([torch.ones_like(first) for first, _ in rows]),
        "labels": padded([second for _, second in rows], padding_value=IGNORED),
    }

"""Generic replay: mix a little pretraining-like text into every stage."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from math import ceil
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Generator, Tensor, nn

from clbench.core.seeds import torch_stream
from clbench.fisher.language import LanguageTask, fitted_note, shuffled
from clbench.fisher.losses import Masking, masked_lm, next_tokens
from clbench.methods.base import Method
from clbench.models.classifier import TaskModel
from clbench.tasks.corpus import corpus_identity, corpus_name, read_corpus
from clbench.training.batches import Batch, Endless
from clbench.training.context import Context
from clbench.training.stage import Stage

Texts = dict[str, Tensor]


class Tally:
    """A sum that is kept beside random streams, so that a resumed training has it."""

    value = 0.0

    def get_state(self) -> Tensor:
        """Return the sum."""
        return torch.tensor([self.value], dtype=torch.float64)

    def set_state(self, state: Tensor) -> None:
        """Continue from a sum."""
        self.value = float(state)


class TextReplay(Method):
    """Base of methods that add the `text_loss` of texts, which `_pass` yields, to that of rows.

    Attributes
    ----------
    share
        Share of texts among rows and texts. A stage trains on one text at least.
    weight
        Weight of a text relative to a row.
    """

    runs_in_trainer: ClassVar[bool] = True
    needs_decoder: ClassVar[bool] = True
    text_loss: ClassVar[Callable[..., Tensor]]
    _pass: ClassVar[Callable[..., Iterator[Texts | Batch]]]
    share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.01
    weight: Annotated[float, Field(gt=0.0, le=1e3)] = 1.0

    def before_stage(self, stage: Stage) -> None:
        """Start the stage's stream of texts."""
        self._batch = stage.protocol.batch_of(stage.name)
        self._rate = self._batch * self.share / (1.0 - self.share)  # texts a step
        self._size = max(1, ceil(self._rate - 1e-9))  # which is 144 for 144.00000000000003
        one_pass = partial(self._pass, size=self._size)
        self._stream = Endless(one_pass, stage.rng("texts"), stage.rng("masks"))
        self._packed = Tally()  # rows beyond the batch size, in batches
        stage.streams.update(batches=self._stream, packed=self._packed)

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the loss of the batch, plus that of texts in the steps in which some are due."""
        loss = stage.loss(batch)
        step = stage.done_before + stage.step
        if step == stage.part == 0:
            self._packed.value, before = 0.0, -1
        else:
            before = self._due(step - (stage.part == 0))
        if not stage.part_rows:  # in a Trainer, where a sequence may hold many rows
            self._packed.value += max(0.0, len(batch) / self._batch - 1.0 / stage.parts)
        for texts in islice(self._stream, self._due(step) - before):
            text_loss = self.text_loss(stage, texts)
            stage.sample("text_loss", text_loss)
            count = len(texts if isinstance(texts, Batch) else texts["input_ids"])
            loss = loss + self.weight * count / (stage.part_rows or len(batch)) * text_loss
        return loss

    def _due(self, step: int) -> int:
        """Return how many batches of texts are due after the first one until a step."""
        return int((step + self._packed.value) * self._rate / self._size)


class GenericReplay(TextReplay):
    """Train on about one text of a general corpus for every hundred rows of the task.

    Of all that a stage trains on, the share `share` are texts of the suite's `corpus`, with the
    model's pretraining loss (Bethune et al. 2025, arXiv 2502.06042: 1 % prevents forgetting the
    pretraining; Zhang et al. 2025, arXiv 2508.04676: a small fixed set of texts serves a whole
    sequence). The papers train causal models by one loss throughout; here a text adds the masked-LM
    loss over its predicted tokens (for decoders, the next-token loss) and weighs as much as a row.

    The language-model head stays as pretrained, its output table included. If the checkpoint has
    none, one is fitted to the same texts with the encoder frozen, and the result notes it. With
    trimmed embeddings, tokens that no task uses keep their pretrained embedding.

    Attributes
    ----------
    share, weight
        As in `TextReplay`.
    texts
        Largest number of texts, drawn once for all stages.
    text_length
        Tokens after which a text is cut.
    masking
        ``bert``, ``mask`` or ``any-position``; see `clbench.fisher.mask_tokens`.
    head_steps
        Steps to fit a missing head.
    """

    name: ClassVar[str] = "generic-replay"
    reads_corpus = True
    texts: Annotated[int, Field(ge=1)] = 1000
    text_length: Annotated[int, Field(ge=4)] = 128
    masking: Masking = "bert"
    head_steps: Annotated[int, Field(ge=1)] = 300

    def setup(self, context: Context) -> None:
        """Read the texts, and put the backbone into the language model; fit a missing head."""
        protocol, device, seed = context.protocol, context.device, context.protocol.data_seed
        self._task = LanguageTask(
            context.model_name,
            context.revision,
            seed=seed,
            length=self.text_length,
            masking=self.masking,
        )
        self._corpus = read_corpus(protocol.corpus, self.texts, seed)
        head_loss = self._task.fit_head(
            lambda: self._pass(
                torch_stream("head-order", seed), torch_stream("head-masks", seed), size=16
            ),
            {
                "corpus": corpus_identity(protocol.corpus),
                "settings": [self.texts, self._task.length, self.masking, self.head_steps, seed],
            },
            steps=self.head_steps,
            device=device,
            precision=context.precision,
        )
        context.note(
            f"generic-replay: {len(self._corpus)} texts of {corpus_name(protocol.corpus)}."
            f"{fitted_note(head_loss, self.head_steps)}"
        )
        model: Any = self._task.language.model.to(device, context.model.backbone.dtype)
        self._table = model.get_input_embeddings().weight.detach()
        self._rows = table_rows(context.model, len(self._table))
        self._language = model.requires_grad_(False).eval()
        if protocol.is_language_model:
            self._language = context.model.backbone  # which is the language model, head included
            del self._task.language
        else:
            setattr(model, model.base_model_prefix, context.model.backbone)

    def text_loss(self, stage: Stage, texts: Texts) -> Tensor:
        """Return the mean language-model loss of a batch of texts, a scalar."""
        texts = {name: value.to(stage.device) for name, value in texts.items()}
        rows = self._rows[texts["input_ids"]]
        pretrained = nn.functional.embedding(texts["input_ids"], self._table)
        inputs = {
            "inputs_embeds": torch.where(
                rows[..., None] >= 0, stage.model.embed(rows.clamp(min=0)), pretrained
            ),
            "attention_mask": texts["attention_mask"],
            "labels": texts["labels"] if "labels" in texts else next_tokens(texts),
        }
        with stage.precision.autocast():
            value: Tensor = masked_lm(self._language, inputs).mean_loss()
        return value

    def _pass(self, order: Generator, masks: Generator, *, size: int) -> Iterator[Texts]:
        """Return one pass over the texts in random order, in batches of `size`."""
        return self._task.batches(shuffled(self._corpus, order), masks, size)


def table_rows(model: TaskModel, tokens: int) -> Tensor:
    """Return the row of each of `tokens` tokens in the model's embedding table, -1 for none."""
    if model.vocabulary is None:
        return torch.arange(tokens, device=model.backbone.device)
    rows = torch.full((tokens,), -1, device=model.vocabulary.device)
    rows[model.vocabulary] = torch.arange(len(model.vocabulary), device=rows.device)
    return rows

"""KL anchor: keep a language model's next-token distribution near that of the base model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from clbench.core.errors import SettingsError
from clbench.methods.base import Method, should_record
from clbench.methods.lwf import distillation
from clbench.tasks.corpus import corpus_name, read_corpus

if TYPE_CHECKING:
    from clbench.training.batches import Batch
    from clbench.training.stage import Context, Stage


class KLAnchor(Method):
    """Penalise the divergence of next-token distributions from those of the base model.

    Adds ``weight·KL(base ‖ model)``, the mean over tokens, without dropout in the base model: the
    distillation of Li & Hoiem 2016 with the pretrained model as the teacher, here over tokens that
    the task does not train. Needs a language model.

    Attributes
    ----------
    weight
        Weight of the divergence.
    at
        ``prompts``: at random tokens of the batch's prompts. ``text``: in texts of the suite's
        corpus, which the task does not touch.
    tokens
        Tokens of each prompt or text at which the distributions are compared.
    texts
        Texts in a step, and `text_length`, the tokens after which they are cut; for ``text``.
    """

    name: ClassVar[str] = "kl-anchor"
    runs_in_trainer: ClassVar[bool] = True
    needs_decoder: ClassVar[bool] = True
    head_kinds: ClassVar[tuple[str, ...]] = ("language-model",)
    weight: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    at: Literal["prompts", "text"] = "prompts"
    tokens: Annotated[int, Field(ge=1)] = 16
    texts: Annotated[int, Field(ge=1)] = 4
    text_length: Annotated[int, Field(ge=4)] = 64

    def setup(self, context: Context) -> None:
        """Keep the base model's weights, and read the texts."""
        self._base = context.snapshot()
        self._corpus: list[str] = []
        if self.at == "text":
            from clbench.models.checkpoint import load_tokenizer

            protocol = context.protocol
            self._tokenizer = load_tokenizer(context.model_name, context.revision, plain=True)
            self._corpus = read_corpus(protocol.corpus, 1000, protocol.data_seed)
            context.note(f"kl-anchor: {len(self._corpus)} texts of {corpus_name(protocol.corpus)}.")

    def before_stage(self, stage: Stage) -> None:
        """Start the stage's stream of texts."""
        self._stream = self._text_numbers(stage)

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the loss of the batch plus the divergence."""
        loss = stage.loss(batch)
        compared = self._compared(stage, batch)
        outputs, targets = stage.logits(compared), stage.logits_of(self._base, compared)
        divergence = distillation(
            compared.predictions(outputs),
            compared.predictions(targets),
            temperature=1.0,
            regression=False,
        )
        if should_record(stage):
            stage.record("divergence", divergence)
        return loss + self.weight * divergence

    def _compared(self, stage: Stage, batch: Batch) -> Batch:
        """Return a batch that asks for the next tokens at random places."""
        inputs = dict(batch.inputs)
        if self.at == "text":
            chosen = [self._corpus[next(self._stream)] for _ in range(self.texts)]
            encoded = self._tokenizer(
                chosen,
                padding=True,
                truncation=True,
                max_length=self.text_length,
                return_tensors="pt",
            )
            names = ("input_ids", "attention_mask")
            inputs = {name: encoded[name].to(stage.device) for name in names}
            lengths = inputs["attention_mask"].sum(1)
        mask = inputs.get("attention_mask")
        first = 0 if mask is None else mask.int().argmax(1)  # not 0 with padding on the left
        if self.at == "prompts":
            lengths = inputs["predict"][:, 0] - first
            if not lengths.any():
                raise SettingsError(
                    "kl-anchor: every token of the rows is trained, so there are no prompts to "
                    "compare. Set at = 'text'."
                )
            lengths = lengths.clamp(min=1)  # the last place predicts the answer
        chance = torch.rand((len(lengths), self.tokens), generator=stage.rng("places"))
        places = (chance.to(lengths.device) * lengths[:, None]).long()
        places = places + torch.as_tensor(first).view(-1, 1).to(places.device)
        inputs["predict"] = places
        return replace(batch, inputs=inputs, labels=torch.zeros_like(places))

    def _text_numbers(self, stage: Stage) -> Iterator[int]:
        """Yield numbers of texts without end, each pass in a new order."""
        while self._corpus:
            yield from torch.randperm(len(self._corpus), generator=stage.rng("texts")).tolist()

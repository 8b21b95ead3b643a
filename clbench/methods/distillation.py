"""Methods that hold outputs: LwF those of earlier heads, a KL anchor those of the base model."""

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.core.errors import SettingsError
from clbench.methods.base import Method
from clbench.models.checkpoint import load_tokenizer
from clbench.tasks.corpus import corpus_name, read_corpus
from clbench.training.batches import Batch, Endless
from clbench.training.context import Context, Snapshot
from clbench.training.stage import Stage


class LwF(Method):
    """Distil the earlier heads' outputs for the new rows while the new task is learned.

    When a stage begins, every earlier head is evaluated once on all rows of the stage, without
    dropout. During training, each of these heads adds to the loss the divergence of its current
    outputs z from the recorded ones z_old, both softened by a temperature (Li & Hoiem 2016,
    section 3): ``KL(softmax(z_old/T) ‖ softmax(z/T))``, which is the paper's cross-entropy
    minus the entropy of the target and has the same gradient; for a regression head, the mean
    squared difference. There is no factor T². The earlier heads are trained too, as in the
    paper; a head that all tasks share is distilled from its own outputs. The paper's warm-up
    of the new head alone is left out. In a language model, every token of the new answers is
    distilled. There, and in a Trainer, the earlier model is kept and evaluated at each step.

    Attributes
    ----------
    temperature
        T.
    weight
        Weight of each earlier head's term (λ_o).
    """

    name = "lwf"
    runs_in_trainer = True
    temperature: Annotated[float, Field(gt=0.0, le=1e3)] = 2.0
    weight: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0

    def acts_in(self, index: int) -> bool:
        """Return False for the first stage, which has no earlier head."""
        return index > 0

    def before_stage(self, stage: Stage) -> None:
        """Record every earlier head's outputs for the stage's rows."""
        self._regression, self._targets = {}, {}
        in_trainer = not stage.tasks  # which shows the rows batch by batch
        keeps = stage.protocol.is_language_model or in_trainer
        self._before = stage.snapshot(stage.shared_names()) if keeps else None
        if self._before is not None:
            return
        self._regression = {task.head: task.regression for task in stage.tasks[: stage.index]}
        self._targets = {
            head: outputs[..., : stage.shown_before.get(head)]  # not those of new classes
            for head, outputs in stage.outputs_of(self._regression, stage.data).items()
        }

    def before_phase(self, stage: Stage) -> None:
        """Train the earlier heads, too."""
        stage.heads |= frozenset(self._targets)

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the task's loss and the earlier heads' terms, from one backbone pass."""
        if self._before is not None:
            logits, term = distil(stage, batch, self._before, self.temperature)
            stage.sample("distillation", term)
            return stage.criterion(logits, batch) + self.weight * term
        outputs = stage.logits_of_heads([batch.head, *self._targets], batch)
        loss = stage.criterion(outputs[batch.head], batch)
        if not self._targets:
            return loss
        rows = torch.from_numpy(batch.positions).to(stage.device, non_blocking=True)
        terms = []
        for head, targets in self._targets.items():
            # The scores of single choices have no classes to compare within a row.
            single = outputs[head].dim() == 2 and outputs[head].shape[1] == 1
            target = targets[rows]
            of_old = outputs[head][..., : target.shape[-1]]
            regression = self._regression[head] or single
            terms.append(
                distillation(of_old, target, temperature=self.temperature, regression=regression)
            )
        total = torch.stack(terms).sum()
        stage.sample("distillation", total)
        return loss + self.weight * total


def distil(
    stage: Stage, batch: Batch, before: Snapshot, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return the model's outputs for a batch, and their distance from those of earlier weights."""
    outputs, targets = stage.logits(batch), stage.logits_of(before, batch)
    pair = batch.predictions(outputs), batch.predictions(targets)
    return outputs, distillation(*pair, temperature=temperature, regression=batch.regression)


def distillation(
    outputs: Tensor, targets: Tensor, *, temperature: float, regression: bool
) -> Tensor:
    """Return the mean over rows of the distance between a head's outputs and targets, a scalar.

    Both have the shape (b, outputs), or (b, k, outputs) for k choices, whose distances are averaged
    too. The distance is the squared difference for regression, else the divergence of the softened
    class probabilities.
    """
    if regression:
        return nn.functional.mse_loss(outputs, targets)
    pair = (z.flatten(0, -2) / temperature for z in (outputs, targets))
    log_q, log_p = (torch.log_softmax(z, dim=-1) for z in pair)
    return nn.functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True)


class KLAnchor(Method):
    """Penalise the divergence of next-token distributions from those of the base model.

    Adds ``weight·KL(base ‖ model)``, the mean over tokens, without dropout in the base model: the
    distillation of Li & Hoiem 2016 with the pretrained model as the teacher, here at temperature 1
    and over tokens that the task does not train. Needs a language model.

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
        Texts in a step, which the parts of its batch divide among them, and `text_length`, the
        tokens after which they are cut; for ``text``.
    """

    name = "kl-anchor"
    runs_in_trainer = True
    needs_decoder = True
    head_kinds = ("language-model",)
    weight: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    at: Literal["prompts", "text"] = "prompts"
    tokens: Annotated[int, Field(ge=1)] = 16
    texts: Annotated[int, Field(ge=1)] = 4
    text_length: Annotated[int, Field(ge=4)] = 64

    @property
    def reads_corpus(self) -> bool:  # type: ignore[override]
        """Whether the texts are the suite's corpus."""
        return self.at == "text"

    def setup(self, context: Context) -> None:
        """Keep the base model's weights, and read the texts."""
        self._base = context.snapshot()
        self._corpus: list[str] = []
        if self.reads_corpus:
            protocol = context.protocol
            self._tokenizer = load_tokenizer(context.model_name, context.revision, plain=True)
            self._corpus = read_corpus(protocol.corpus, 1000, protocol.data_seed)
            context.note(f"kl-anchor: {len(self._corpus)} texts of {corpus_name(protocol.corpus)}.")

    def before_stage(self, stage: Stage) -> None:
        """Start the stage's stream of texts."""
        self._stream = Endless(
            lambda order: torch.randperm(len(self._corpus), generator=order).tolist(),
            stage.rng("texts"),
        )
        stage.streams["batches"] = self._stream

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the loss of the batch plus the divergence."""
        loss, share = stage.loss(batch), 1.0
        if self.reads_corpus:
            share = len(stage.part_of(self.texts)) / self.texts / stage.part_share
        if not share:
            return loss
        _, divergence = distil(stage, self._compared(stage, batch), self._base)
        stage.sample("divergence", divergence)
        return loss + self.weight * share * divergence

    def _compared(self, stage: Stage, batch: Batch) -> Batch:
        """Return a batch that asks for the next tokens at random places."""
        inputs = dict(batch.inputs)
        if self.reads_corpus:
            chosen = [self._corpus[next(self._stream)] for _ in stage.part_of(self.texts)]
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
            starts = torch.zeros_like(lengths)
        else:
            starts, first = batch.prompts()
            lengths = first - starts
            if not lengths.any():
                raise SettingsError(
                    "kl-anchor: every token of the rows is trained, so there are no prompts to "
                    "compare. Set at = 'text'."
                )
            lengths = lengths.clamp(min=1)  # the last place predicts the answer
        chance = torch.rand((len(lengths), self.tokens), generator=stage.rng("places"))
        places = (chance.to(lengths.device) * lengths[:, None]).long() + starts[:, None]
        inputs["predict"] = places = places.view(len(inputs["input_ids"]), -1)  # packed rows: one
        return replace(batch, inputs=inputs, labels=torch.zeros_like(places))

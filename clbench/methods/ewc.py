"""Elastic weight consolidation: hold the weights that earlier tasks, or the pretraining, need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from clbench.core.errors import SettingsError
from clbench.fisher.diagonal import Mode, diagonal_fisher
from clbench.fisher.losses import take
from clbench.methods.quadratic import PullingMethod, QuadraticPull, nothing_to_hold
from clbench.tasks.corpus import corpus_name

if TYPE_CHECKING:
    from clbench.fisher.losses import AnyBatch
    from clbench.fisher.squares import Rotation
    from clbench.models.classifier import TaskModel
    from clbench.training.stage import Context, Snapshot, Stage


class EWC(PullingMethod):
    """Pull towards the weights after each earlier task, weighted by Fisher information (EWC).

    From the second stage on, adds ``f·importance·Σ_j Σ F_j (θ − θ_j*)²`` with θ_j* the
    weights after task j and F_j the diagonal Fisher information of its loss there, over
    its training rows (Kirkpatrick et al. 2017, eq. 3, and its footnote on several
    penalties). F is the mean over rows of squared gradients of a row's loss, not normalised
    further, so an importance value is meaningful only together with `mode` and `half`. The
    penalties are stored as one: the F_j are added, and the common anchor is the mean of the
    θ_j* weighted by F_j, which has the same gradient.

    Attributes
    ----------
    importance
        λ. Not portable between data sets or code bases.
    half
        Whether the penalty has the factor f = ½, as in eq. 3; else f = 1.
    mode
        ``sampled``: labels drawn from the model, row by row (the Fisher information);
        ``empirical``: the true labels; ``batched``: squared gradients of batches of
        the protocol's size, smaller by about that size (van de Ven 2025).
    examples
        Largest number of rows to compute F from; None takes all.
    """

    name: ClassVar[str] = "ewc"
    runs_in_trainer: ClassVar[bool] = True
    takes_fisher: ClassVar[bool] = True
    importance: Annotated[float, Field(gt=0.0, le=1e12)] = 1000.0
    half: bool = True
    mode: Mode = "sampled"
    examples: Annotated[int, Field(ge=1)] | None = 2000

    def acts_in(self, index: int) -> bool:
        """Return False for the first stage, which has no earlier task."""
        return index > 0

    def pull(self, stage: Stage) -> QuadraticPull | None:
        """Return the pull on the weights that this stage shares with earlier ones."""
        shared = self._shared_anchor(stage)
        if not shared:
            return None
        return QuadraticPull(
            stage.model, shared, self.fisher, strength=self.importance, half=self.half
        )

    def _shared_anchor(self, stage: Stage) -> Snapshot:
        """Return the anchor of the weights that this stage shares with earlier ones."""
        anchor: Snapshot = getattr(self, "anchor", {})
        return {name: anchor[name] for name in stage.shared_names() if name in anchor}

    def after_stage(self, stage: Stage) -> None:
        """Add the Fisher information of the task just learned, unless it is the last one."""
        super().after_stage(stage)
        if stage.index == stage.stages - 1:
            return
        if stage.has_one_class:
            stage.note(nothing_to_hold(self.name, stage))
            return
        weights = dict(stage.model.named_parameters())
        head = stage.model.head_parameter_names(stage.data.head)  # a later task may share it
        names = [*stage.model.backbone_parameters(), *head]
        names = [name for name in names if weights[name].requires_grad]
        fisher = self._fisher(stage, names)
        anchor = stage.snapshot(names)
        if not hasattr(self, "fisher"):
            self.fisher, self.anchor = fisher, anchor
        else:
            self._add(fisher, anchor)

    def _fisher(
        self, stage: Stage, names: list[str], rotations: Mapping[str, Rotation] | None = None
    ) -> dict[str, Tensor]:
        """Return the Fisher information of the stage's rows for the weights `names`."""
        return task_fisher(
            stage, names, mode=self.mode, examples=self.examples, rotations=rotations
        )

    def _add(self, fisher: dict[str, Tensor], anchor: Snapshot) -> None:
        """Add a task's Fisher information; move the anchor to the weighted mean."""
        for name, value in fisher.items():
            if name not in self.fisher:
                self.fisher[name], self.anchor[name] = value, anchor[name]
                continue
            total = self.fisher[name] + value
            share = torch.where(total > 0, value / total, torch.ones_like(total))
            self.anchor[name] = torch.lerp(self.anchor[name], anchor[name], share)
            self.fisher[name] = total


class EWCOnline(EWC):
    """Pull towards the previous task's weights, with a decaying sum of Fisher information.

    ``F ← γF + F_new``, and the anchor is the weights after the previous task (Schwarz et al.
    2018, section 3.2, eq. 9; Huszár 2018). F_new is 0 for a head that the task does not use.
    With two tasks it equals `ewc`.

    Attributes
    ----------
    gamma
        γ: the factor on the Fisher information of earlier tasks, 0 to 1.
    """

    name: ClassVar[str] = "ewc-online"
    gamma: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0

    def _add(self, fisher: dict[str, Tensor], anchor: Snapshot) -> None:
        """Decay the sum for all weights, add a task's Fisher information and move the anchor."""
        for total in self.fisher.values():
            total.mul_(self.gamma)
        for name, value in fisher.items():
            if name in self.fisher:
                value += self.fisher[name]
            self.fisher[name], self.anchor[name] = value, anchor[name]


def task_fisher(
    stage: Stage,
    names: Sequence[str],
    *,
    mode: Mode,
    examples: int | None,
    rotations: Mapping[str, Rotation] | None = None,
) -> dict[str, Tensor]:
    """Return the diagonal Fisher information of a stage's loss for weights by name.

    It is computed from at most `examples` of the stage's own rows, drawn at random; None takes all.
    See `diagonal_fisher` for the modes and rotations.
    """
    return diagonal_fisher(
        stage.model,
        fisher_rows(stage, examples),
        "task",
        mode,
        generator=stage.rng("fisher-labels"),
        names=names,
        precision="bf16" if stage.precision.name == "bf16" else "float32",
        rotations=rotations,
    )


def fisher_rows(stage: Stage, examples: int | None) -> Iterator[AnyBatch]:
    """Yield batches of at most `examples` of the stage's own rows, in random order."""
    remaining = examples or len(stage.data.rows)
    for batch in stage.batches("fisher-rows"):
        yield batch if len(batch) <= remaining else take(batch, list(range(remaining)))
        remaining -= len(batch)
        if remaining <= 0:
            return


class EWCMLM(PullingMethod):
    """Hold the weights that the pretrained language model needs (EWC on masked-LM).

    Adds ``f·importance·Σ F (θ − θ*)²`` in every stage, with θ* the pretrained weights and F
    the diagonal Fisher information of the masked-LM loss there (Kenneweg et al. 2022,
    section 4.3; for causal decoders, of the next-token loss), over texts of the suite's
    `corpus`. F is the mean over texts of squared gradients of a text's mean loss over its
    predicted tokens, not normalised further, so an importance value is meaningful only
    together with `mode`, `half` and `masking`.

    F is cached on disk by model, corpus and settings. If the checkpoint has no language-model
    head, one is fitted to the same texts with the encoder frozen; the result notes it.

    Attributes
    ----------
    importance
        λ.
    half
        Whether the penalty has the factor f = ½, as in Kirkpatrick et al. 2017, eq. 3; else
        f = 1.
    mode
        ``sampled``: labels drawn from the model, text by text; ``empirical``: the true
        tokens, text by text; ``batched``: squared gradients of batches, as in the
        code of Kenneweg et al. 2022, smaller by about the batch size.
    masking
        ``bert``, ``mask`` or ``any-position``; see `clbench.fisher.mask_tokens`.
    examples
        Largest number of texts.
    text_length
        Tokens after which a text is cut.
    batch_size
        Texts in a batch of mode ``batched``; the other modes go text by text.
    head_steps
        Steps to fit a missing head.
    """

    name: ClassVar[str] = "ewc-mlm"
    runs_in_trainer: ClassVar[bool] = True
    needs_decoder: ClassVar[bool] = True
    importance: Annotated[float, Field(gt=0.0, le=1e12)] = 675.0
    half: bool = False
    mode: Literal["sampled", "empirical", "batched"] = "sampled"
    masking: Literal["bert", "mask", "any-position"] = "bert"
    examples: Annotated[int, Field(ge=1)] = 1000
    text_length: Annotated[int, Field(ge=4)] = 128
    batch_size: Annotated[int, Field(ge=1)] = 16
    head_steps: Annotated[int, Field(ge=1)] = 300

    def setup(self, context: Context) -> None:
        """Take the anchor and compute or load the Fisher information, in a resumed cell too."""
        from clbench.fisher.language import Recipe, pretrained_fisher

        fisher, facts = pretrained_fisher(
            context.model_name,
            context.revision,
            context.protocol.corpus,
            Recipe(
                mode=self.mode,
                masking=self.masking,
                examples=self.examples,
                text_length=self.text_length,
                batch_size=self.batch_size,
                head_steps=self.head_steps,
                seed=context.protocol.data_seed,
            ),
            device=context.device,
            precision=context.precision,
            whole=context.protocol.is_language_model,
        )
        self._fisher = fisher_of_backbone(context.model, fisher)
        self._anchor = context.snapshot(list(self._fisher))
        if not self._anchor:
            raise SettingsError(
                "ewc-mlm: the pretrained language model has none of the weights that are trained, "
                "as with adapters. Use l2-sp."
            )
        loss = "masked-LM" if facts["loss"] == "mlm" else "next-token"
        note = (
            f"ewc-mlm: Fisher of the {loss} loss over {facts['texts']} texts of "
            f"{corpus_name(context.protocol.corpus)} (mode {self.mode}), mean of its diagonal "
            f"{facts['mean']:.3g}."
        )
        if facts["head_loss"] is not None:
            first, last = facts["head_loss"]
            note += (
                f" The checkpoint has no language-model head: one was fitted in "
                f"{self.head_steps} steps, encoder frozen (loss {first:.2f} to {last:.2f})."
            )
        context.note(note)

    def pull(self, stage: Stage) -> QuadraticPull:
        """Return the pull towards the pretrained weights."""
        return QuadraticPull(
            stage.model, self._anchor, self._fisher, strength=self.importance, half=self.half
        )


def fisher_of_backbone(model: TaskModel, fisher: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return F by the classifier's names, on its device, for the rows of its vocabulary.

    Weights that the language model does not have, such as a pooler's, are left out.
    """
    table = model.backbone.get_input_embeddings().weight
    result = {}
    for name, parameter in model.backbone_parameters().items():
        value = fisher.get(name.removeprefix("backbone."))
        if value is None:
            continue
        if parameter is table and model.vocabulary is not None:
            value = value[model.vocabulary.cpu()]
        result[name] = value.to(parameter.device)
    return result

"""EWC towards the pretrained weights, with the Fisher information of the pretraining loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from clbench.core.errors import SettingsError
from clbench.methods.quadratic import PullingMethod, QuadraticPull
from clbench.tasks.corpus import corpus_name

if TYPE_CHECKING:
    from torch import Tensor

    from clbench.models.classifier import Classifier
    from clbench.training.stage import Context, Stage


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
        from clbench.fisher.pretrained import Recipe, pretrained_fisher

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


def fisher_of_backbone(model: Classifier, fisher: dict[str, Tensor]) -> dict[str, Tensor]:
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

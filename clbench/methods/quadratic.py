"""Quadratic penalties, added directly to the gradients; L2-SP, and EWC on the language model.

Every penalty of the form ``f·λ·Σ F (θ − θ*)²`` (EWC, SI, MAS, L2-SP) has the gradient
``2·f·λ·F·(θ − θ*)``, which needs no graph: `edit_gradients` adds it in one pass over the
weights.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.core.errors import PluginError, SettingsError
from clbench.fisher.diagonal import Mode
from clbench.fisher.language import Recipe, fitted_note, pretrained_fisher
from clbench.fisher.losses import Masking
from clbench.fisher.squares import Rotation, rotate, rotate_back
from clbench.methods.base import Method
from clbench.models.classifier import TaskModel
from clbench.tasks.corpus import corpus_name
from clbench.training.context import Context
from clbench.training.stage import Stage

Anchor = Literal["pretrained", "previous"]
Strength = Annotated[float, Field(ge=0.0, le=1e6)]
CHUNK = 1 << 17
"""Numbers handled at a time on the CPU, so that the differences stay in its cache."""


class QuadraticPull:
    """Pull weights towards an anchor by ``f·strength·Σ F (θ − θ*)²``, f = 1 or ½.

    Frozen weights are left alone; a weight without a gradient gets the pull as its gradient.
    Anchor and importance are used in place, not copied.

    Parameters
    ----------
    model
        The model whose weights are pulled.
    anchor
        θ* by the names of `torch.nn.Module.named_parameters`.
    importance
        F by the same names; each has its weight's shape or is a scalar tensor.
    strength
        λ.
    half
        Whether the penalty has the factor ½, so that the gradient is ``λ·F·(θ − θ*)``.
    rotations
        Rotations of matrices by name, along whose axes their importance is; by default none.

    Raises
    ------
    PluginError
        If an importance is not finite, or if the penalty is zero whatever the weights are.
    """

    def __init__(
        self,
        model: nn.Module,
        anchor: Mapping[str, Tensor],
        importance: Mapping[str, Tensor],
        *,
        strength: float,
        half: bool,
        rotations: Mapping[str, Rotation] | None = None,
    ) -> None:
        parameters, rotations = dict(model.named_parameters()), rotations or {}
        self._scale = float(strength) * (1.0 if half else 2.0)
        nonzero = False
        for key in anchor:
            largest = float(importance[key].abs().max()) if importance[key].numel() else 0.0
            if not largest < float("inf"):
                raise PluginError(
                    f"the importance of {key} is not a finite number. Lower lr, "
                    "or train in float32."
                )
            nonzero = nonzero or (parameters[key].requires_grad and self._scale * largest > 0)
        if not nonzero:
            raise PluginError(
                "the penalty is always 0, because its strength or the importance of every trained "
                "weight is 0. Raise the strength, or use vanilla to train without a penalty."
            )
        plain = [key for key in anchor if key not in rotations]
        self._device = next(iter(anchor.values())).device
        self._weights = [parameters[key] for key in plain]
        self._anchors = [anchor[key].detach().contiguous() for key in plain]
        self._importance = [importance[key].detach().contiguous() for key in plain]
        self._rotated = [
            (parameters[key], anchor[key], importance[key], rotation)
            for key, rotation in rotations.items()
            if key in anchor
        ]

    @torch.no_grad()
    def edit_gradients(self, stage: Stage | None = None) -> None:
        """Add the pull to the gradients; call it in the method's hook of the same name.

        With a `stage`, the penalty is also recorded as the curve ``penalty``.
        """
        if stage is not None and stage.is_sampled:
            stage.record("penalty", self.value())
        for weight in (*self._weights, *(term[0] for term in self._rotated)):
            if weight.requires_grad and weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        on_accelerator = []
        for i, weight in enumerate(self._weights):
            if weight.grad is None or not weight.requires_grad:
                continue
            if weight.device.type != "cpu":
                on_accelerator.append(i)
                continue
            parts = torch.split(weight.grad.view(-1), CHUNK)
            for (value, anchor, importance), part in zip(self._pieces(i), parts, strict=True):
                part.addcmul_(importance, value - anchor, value=self._scale)
        if on_accelerator:
            self._add_fused(on_accelerator)
        for weight, anchor, importance, rotation in self._rotated:
            if weight.grad is not None and weight.requires_grad:
                pull = rotate_back(importance * rotate(weight - anchor, rotation), rotation)
                weight.grad.add_(pull, alpha=self._scale)

    @torch.no_grad()
    def value(self) -> Tensor:
        """Return the current penalty, a float32 scalar without a graph."""
        dtype = torch.float64 if self._device.type == "cpu" else torch.float32
        total = torch.zeros((), dtype=dtype, device=self._device)
        for i in range(len(self._weights)):
            for weight, anchor, importance in self._pieces(i):
                total += ((weight - anchor).square_() * importance).sum()
        total = (total * (self._scale / 2)).float()
        for weight, anchor, importance, rotation in self._rotated:
            squares = rotate(weight - anchor, rotation).square()
            total = total + (importance * squares).sum() * (self._scale / 2)
        return total

    def _pieces(self, i: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Return flat parts of weight, anchor and importance number `i`."""
        weight = self._weights[i].detach()
        size = CHUNK if weight.device.type == "cpu" else max(1, weight.numel())
        tensors = (weight, self._anchors[i], self._importance[i].expand_as(weight))
        return zip(*(torch.split(tensor.reshape(-1), size) for tensor in tensors), strict=True)

    def _add_fused(self, numbers: list[int]) -> None:
        """Add the pull to the weights of these numbers in two launches, fast on accelerators."""
        weights = [self._weights[i].detach() for i in numbers]
        differences = torch._foreach_sub(weights, [self._anchors[i] for i in numbers])
        importance = [self._importance[i].expand_as(self._weights[i]) for i in numbers]
        gradients = [self._weights[i].grad for i in numbers]
        torch._foreach_addcmul_(gradients, importance, differences, value=self._scale)  # type: ignore[arg-type]


class PullingMethod(Method, ABC):
    """Base of methods whose penalty is a `QuadraticPull`, created anew for each stage."""

    _pull: QuadraticPull | None = None

    @abstractmethod
    def pull(self, stage: Stage) -> QuadraticPull | None:
        """Return the pull of a stage, or None if there is nothing to pull towards yet."""

    def before_stage(self, stage: Stage) -> None:
        """Create the stage's pull."""
        self._pull = self.pull(stage)

    def edit_gradients(self, stage: Stage) -> None:
        """Add the pull."""
        if self._pull is not None:
            self._pull.edit_gradients(stage)

    def after_stage(self, stage: Stage) -> None:
        """Release the stage's pull."""
        self._pull = None

    def holds_nothing(self, stage: Stage) -> bool:
        """Whether the stage has one class; its loss is then 0 whatever the weights are: note it."""
        data = stage.data
        compared = data.compared is not None and int(data.compared.sum()) == 1
        if not compared and stage.model.shown.get(data.head) != 1:
            return False
        stage.note(
            f"{self.name}: stage {stage.index} ({stage.name}) has one class, so its loss is 0 and "
            "the method holds nothing of it."
        )
        return True


class L2SP(PullingMethod):
    """Pull pretrained weights towards their starting point and new heads towards zero.

    Adds the gradient of ``α/2·‖θ − θ0‖² + β/2·‖θ_new‖²`` (Li, Grandvalet & Davoine 2018,
    section 3), for biases and normalisation too, which the authors' code leaves out by default. A
    head has no pretrained weights, so the
    head in training counts as new, even where tasks share it.

    Attributes
    ----------
    alpha
        Strength on weights that have a starting point.
    beta
        Strength on the head in training.
    anchor
        θ0: the ``pretrained`` weights, or the ``previous`` ones, with which the stage
        begins. With ``previous``, a head that an earlier task trained has a starting point too.
    """

    name = "l2-sp"
    holds_head = True
    runs_in_trainer = True
    alpha: Strength = 0.01
    beta: Strength = 0.01
    anchor: Anchor = "pretrained"

    def setup(self, context: Context) -> None:
        """Keep the pretrained weights."""
        if self.anchor == "pretrained":
            self._pretrained = context.snapshot()

    def pull(self, stage: Stage) -> QuadraticPull:
        """Return the pull: towards θ0, or towards 0 for a new head."""
        if self.anchor == "pretrained":
            start = dict(self._pretrained)
        else:
            start = stage.snapshot(stage.shared_names())
        strength = dict.fromkeys(start, self.alpha)
        weights = dict(stage.model.named_parameters())
        for name in stage.model.head_parameter_names(stage.data.head):
            if name not in start:
                start[name] = torch.zeros_like(weights[name])
                strength[name] = self.beta
        importance = {
            name: torch.tensor(value, device=stage.device) for name, value in strength.items()
        }
        return QuadraticPull(stage.model, start, importance, strength=1.0, half=True)


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

    name = "ewc-mlm"
    runs_in_trainer = True
    reads_corpus = True
    needs_decoder = True
    importance: Annotated[float, Field(gt=0.0, le=1e12)] = 675.0
    half: bool = False
    mode: Mode = "sampled"
    masking: Masking = "bert"
    examples: Annotated[int, Field(ge=1)] = 1000
    text_length: Annotated[int, Field(ge=4)] = 128
    batch_size: Annotated[int, Field(ge=1)] = 16
    head_steps: Annotated[int, Field(ge=1)] = 300

    def setup(self, context: Context) -> None:
        """Take the anchor and compute or load the Fisher information, in a resumed cell too."""
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
        context.note(
            f"ewc-mlm: Fisher of the {loss} loss over {facts['texts']} texts of "
            f"{corpus_name(context.protocol.corpus)} (mode {self.mode}), mean of its diagonal "
            f"{facts['mean']:.3g}.{fitted_note(facts['head_loss'], self.head_steps)}"
        )

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

"""What a clbench method sees of somebody's Trainer: its model, batches and settings."""

import inspect
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel, Trainer

from clbench.core.errors import ModelError, SettingsError, count, describe_errors, join_names
from clbench.hf.hosted_batch import HostedBatch, asked_tokens, row_starts
from clbench.models import answer_scores, classifier, families
from clbench.training.batches import Batch
from clbench.training.context import Snapshot
from clbench.training.device import Precision
from clbench.training.protocol import Protocol
from clbench.training.stage import Stage

HEAD = "task"
"""Name of the head of a classifier, for methods."""
Loss = Callable[..., Any]
Fisher = Mapping[str, Any] | str | Path


class HostedModel(classifier.TaskModel):
    """A transformers model in the shape that methods know: `backbone`, and a head for classifiers.

    It holds the modules of the model that the Trainer trains, not copies. A language model is all
    backbone, as in `clbench.models.answering.AnsweringModel`.
    """

    def __init__(self, model: Any) -> None:
        is_language_model = model.get_output_embeddings() is not None
        backbone = model if is_language_model else model.base_model
        find = families.family_of_whole if is_language_model else families.family_of
        super().__init__(backbone, find(backbone))
        self.is_language_model = is_language_model
        if not is_language_model:
            children = model.named_children()
            parts = {name: child for name, child in children if child is not backbone}
            self.heads[HEAD] = nn.ModuleDict(parts)
        self._whole = (model,)  # in a tuple, so that its weights are not listed twice

    def forward(
        self,
        inputs: dict[str, Tensor] | Callable[[], Any],
        head: str = HEAD,
        inputs_embeds: Tensor | None = None,
    ) -> Any:
        """Return the logits of the whole model; of language models at the places ``predict``.

        A function in place of inputs is called, so that other weights can take their places in it.
        """
        if head != HEAD or inputs_embeds is not None:
            raise SettingsError("a Trainer's model has one head, and reads tokens.")
        if callable(inputs):
            return inputs()
        if "predict" in inputs:
            texts = {name: value for name, value in inputs.items() if name != "predict"}
            return answer_scores.logits_at(self.backbone, inputs["predict"], **texts)
        return logits_of(self._whole[0](**inputs), has_loss="labels" in inputs)

    def head_parameter_names(self, name: str) -> list[str]:
        """Return the names of the parameters of the classifier's head, or none."""
        return [] if self.is_language_model else super().head_parameter_names(name)

    def randomise_backbone(self, seed: int) -> None:
        """Raise an error: the model of a Trainer keeps its weights."""
        raise SettingsError(
            "protect: a Trainer's model keeps its weights. Use initialisation = 'pretrained'."
        )


@dataclass
class HostedStage(Stage):
    """The stage of a method in a Trainer: the second of two, as the model has learned before.

    `loss` is the Trainer's own loss of the batch at hand. Weights that are frozen, such as those
    under adapters, are never copied.

    Attributes
    ----------
    model
        The Trainer's model.
    planned_steps
        Steps that the Trainer will take; 0 where its rows cannot be counted.
    rank
        Number of the process. Each draws its own random rows and places.
    returns_outputs
        Whether the Trainer's loss comes with the outputs if asked.
    make_optimizer
        Function that returns the Trainer's optimizer for parameter groups.
    inputs, own_loss, scale
        The batch at hand as the Trainer has it; the function that returns its loss, and with
        `return_outputs`, the outputs, too; and a factor that makes it a mean over the batch.
    tokens
        Predicted tokens that the Trainer divides sums by: a process's share of those of all parts
        of a step, or None for those of the batch at hand.
    caller
        The model as the Trainer calls it, if the method replaces the Trainer's loss.
    """

    model: HostedModel
    planned_steps: int = 0
    rank: int = 0
    returns_outputs: bool = True
    make_optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer] | None = None
    inputs: dict[str, Tensor] = field(default_factory=dict)
    own_loss: Loss | None = None
    scale: float = 1.0
    tokens: Tensor | float | None = None
    caller: Any = None
    _loss: Tensor | None = None
    _has_labels: bool = True

    @classmethod
    def of(cls, trainer: Trainer, scenario: str, corpus: str, **options: Any) -> Self:
        """Return the stage of a Trainer; `options` are other fields.

        Raises a ModelError or SettingsError if methods cannot know its model or its settings.
        """
        args, model = trainer.args, trainer.model
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        if not isinstance(inner, PreTrainedModel):
            raise ModelError(f"protect: {type(inner).__name__} is not a model of transformers.")
        hosted = HostedModel(inner)
        own = {id(value) for value in hosted.parameters()}
        outside = [n for n, v in model.named_parameters() if v.requires_grad and id(v) not in own]
        if outside:
            raise ModelError(
                f"protect: the Trainer trains {outside[0]}, which is not a parameter of the "
                "transformers model, as in prompt tuning. Use LoRA, or train the whole model."
            )
        device = next(hosted.parameters()).device
        precision = "bf16" if args.bf16 else "fp16" if args.fp16 else "float32"
        parameters = inspect.signature(type(trainer).compute_loss).parameters
        return cls(
            model=hosted,
            model_name=str(inner.config._name_or_path) or "(made from a configuration)",
            revision=None,
            protocol=_protocol(args, inner, corpus, speaks=hosted.is_language_model),
            device=device,
            precision=Precision(precision, device.type),
            seed=args.seed,
            scenario=scenario,
            stages=2,
            masks=None,
            index=1,
            planned_steps=planned_steps(trainer),
            rank=args.process_index,
            returns_outputs="return_outputs" in parameters,
            **options,
        )

    @property
    def data(self) -> Any:
        """The name of the head, and no rows: a Trainer shows them batch by batch only."""
        return SimpleNamespace(head=HEAD, name="the Trainer's data")

    @property
    def own_steps(self) -> int:
        """Steps that the Trainer will take; 0 where its rows cannot be counted."""
        return self.planned_steps

    def begin(self, inputs: dict[str, Tensor], own_loss: Loss, scale: float) -> Batch:
        """Take the batch at hand; return it as methods know it.

        For language models, it asks for the tokens that the Trainer's labels have.
        """
        self.inputs, self.own_loss, self.scale, self._loss = inputs, own_loss, scale, None
        arguments: dict[str, Any] = {
            name: value  # whole numbers are lengths of packed rows
            for name, value in inputs.items()
            if isinstance(value, Tensor | int) and name != "labels"
        }
        labels = inputs.get("labels")
        self._has_labels = labels is not None
        rows = len(next(value for value in arguments.values() if isinstance(value, Tensor)))
        if labels is None:
            labels = torch.zeros(rows, dtype=torch.long)
        config, speaks = self.model.config, self.protocol.is_language_model
        kind, outputs = config.problem_type, getattr(config, "num_labels", 0)
        is_regression = not speaks and (kind == "regression" or (kind is None and outputs == 1))
        # Labels of shape (b, c) are 0 or 1 for each of c classes, or targets.
        is_several = kind == "multi_label_classification" or (
            kind is None
            and labels.shape[1:] == (outputs,)
            and bool((labels == labels.bool()).all())
        )
        regression = is_regression or (labels.is_floating_point() and not is_several)
        # An encoder-decoder reads its labels to predict them.
        if labels.dim() > 1 and speaks and not getattr(config, "is_encoder_decoder", False):
            shift = int(self.model.family.pooling == "last")
            arguments["predict"], labels = asked_tokens(labels, shift)
        starts = None
        if rows == 1 and "position_ids" in inputs and "attention_mask" not in inputs:
            starts = row_starts(inputs["position_ids"], inputs.get("labels"))
        places, tokens = np.arange(len(labels)), labels.numel()
        return HostedBatch(
            arguments, labels, HEAD, regression, self.index, places, tokens, starts=starts
        )

    def own_fisher(self, fisher: Fisher, whole: nn.Module) -> Snapshot:
        """Return Fisher information by the names of `model`; a note tells what does not fit.

        Its names may also be those of the model's body or of `whole`, the Trainer's model. Raises a
        SettingsError if it does not fit the weights that are trained.
        """
        try:
            tensors = load_file(fisher) if isinstance(fisher, str | Path) else fisher
        except (OSError, SafetensorError) as error:
            raise SettingsError(f"protect: fisher: {fisher} cannot be read: {error}") from error
        names: dict[int, list[str]] = {}
        for part in (self.model, self.model.backbone.base_model, whole):
            for name, weight in part.named_parameters(remove_duplicate=False):
                names.setdefault(id(weight), []).append(name)
        values, missing, used = {}, [], set()
        for name, weight in self.trainable_weights().items():
            key = next((n for n in names[id(weight)] if n in tensors), None)
            if key is None:
                missing.append(names[id(weight)][-1])
                continue
            value = torch.as_tensor(tensors[key]).detach().to(weight.device, torch.float32)
            if value.shape != weight.shape:
                raise SettingsError(
                    f"protect: fisher: {key} has the shape {tuple(value.shape)}, the weight "
                    f"{tuple(weight.shape)}. Compute it with this model."
                )
            if not (torch.isfinite(value).all() and (value >= 0).all()):
                raise SettingsError(
                    f"protect: fisher: {key} has negative or non-finite values. Compute it again."
                )
            values[name] = value
            used.add(key)
        if not values:
            raise SettingsError(
                "protect: fisher names no weight that the Trainer trains. Compute it with this "
                "model; with adapters, use 'l2-sp'."
            )
        if missing:
            self.note(
                f"no Fisher information for {count(len(missing), 'trained weight')}, left "
                f"unprotected: {join_names(missing)}"
            )
        if others := sorted(tensors.keys() - used):
            self.note(
                f"Fisher information of {count(len(others), 'weight')} that the Trainer does not "
                f"train is not used: {join_names(others)}"
            )
        return values

    def snapshot(self, names: Sequence[str] | None = None) -> Snapshot:
        """Return a detached copy of those of the weights by name that are trained."""
        weights = dict(self.model.named_parameters())
        if names is None:
            names = list(self.model.backbone_parameters())
        return super().snapshot([name for name in names if weights[name].requires_grad])

    def shared_names(self) -> list[str]:
        """Return the names of all weights: the model comes with all of them."""
        return [name for name, _ in self.model.named_parameters()]

    def trainable_weights(self) -> dict[str, nn.Parameter]:
        """Return the weights that require gradients, by name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def rng(self, name: str) -> torch.Generator:
        """Return the generator `name` of this process."""
        return super().rng(f"{name}-{self.rank}" if self.rank else name)

    def loss(
        self,
        batch: Batch,
        *,
        weights: Mapping[str, Tensor] | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Return the Trainer's loss of the batch at hand, with other weights if given."""
        loss: Tensor = self._call(weights, self.own_loss, HEAD, inputs_embeds)
        return loss * self.scale

    def logits(self, batch: Batch, **options: Any) -> Tensor:
        """Return the model's outputs in float32: for language models, at the batch's places.

        Without other weights, the Trainer's loss is computed with them, if it can be.
        """
        if not self._has_labels:
            raise SettingsError(f"{self.scenario} needs labels, but the batch has none.")
        if "predict" in batch.inputs:
            if self.caller is not None and options.get("weights") is None:
                # Wrappers average the gradients of processes after a pass through them only.
                texts = {n: v for n, v in batch.inputs.items() if n != "predict"}
                places = batch.inputs["predict"]
                with self.precision.autocast():
                    return answer_scores.logits_at(
                        self.model.backbone, places, caller=self.caller, **texts
                    ).float()
            return super().logits(batch, **options)
        is_own = all(value is None for value in options.values()) and torch.is_grad_enabled()
        if is_own and self.returns_outputs:
            assert self.own_loss is not None
            loss, outputs = self.own_loss(return_outputs=True)
            self._loss = loss * self.scale
            return logits_of(outputs, has_loss=True).float()
        return super().logits(replace(batch, inputs=self.inputs), **options)

    def token_mean(self, values: Tensor, batch: Batch) -> Tensor:
        """Return a mean as in `Stage`, over the tokens that the Trainer's own loss counts."""
        if self.tokens is None:
            return super().token_mean(values, batch)
        return values.sum() * self.scale / self.tokens

    def criterion(self, outputs: Tensor, batch: Batch) -> Tensor:  # type: ignore[override]
        """Return the Trainer's loss of the batch at hand, whose outputs these are."""
        return self.loss(batch) if self._loss is None else self._loss

    def adam(self, groups: list[dict[str, Any]], kind: Any = None) -> torch.optim.Optimizer:
        """Return the Trainer's optimizer for these groups, or Adam of a `kind`."""
        if kind is not None or self.make_optimizer is None:
            return super().adam(groups, kind)
        return self.make_optimizer(groups)


def _protocol(args: Any, model: nn.Module, corpus: str, *, speaks: bool) -> Protocol:
    """Return the settings of a Trainer as those of clbench."""
    try:
        protocol = Protocol(
            lr=args.learning_rate,
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_epsilon,
            weight_decay=args.weight_decay,
            batch_size=args.per_device_train_batch_size * args.gradient_accumulation_steps,
            head="language-model" if speaks else "classification",
            corpus=corpus,
            data_seed=args.seed,
        )
    except ValidationError as error:
        texts = "; ".join(describe_errors(error))
        raise SettingsError(f"protect: the arguments of the Trainer: {texts}") from error
    recomputes = any(getattr(m, "gradient_checkpointing", False) for m in model.modules())
    recomputes = recomputes or args.gradient_checkpointing
    in_bf16 = any(p.dtype == torch.bfloat16 for p in model.parameters() if p.requires_grad)
    weights = "bf16" if in_bf16 else "float32"
    return protocol.model_copy(update={"gradient_checkpointing": recomputes, "weights": weights})


def logits_of(outputs: Any, *, has_loss: bool) -> Tensor:
    """Return the logits in a model's outputs: a dictionary, or a tuple that may start with a loss.

    Raises a ModelError if there are none.
    """
    values = outputs.get("logits") if isinstance(outputs, Mapping) else outputs[int(has_loss)]
    if not isinstance(values, Tensor):
        raise ModelError("protect: the model returns no logits to compare. Use another method.")
    return values


def planned_steps(trainer: Trainer) -> int:
    """Return how many steps a Trainer will take; 0 where its rows cannot be counted."""
    args, rows, steps = trainer.args, trainer.train_dataset, 0
    if getattr(args, "packing", False):  # of TRL
        return 0
    if args.max_steps > 0:
        steps = args.max_steps
    elif isinstance(rows, Sized):
        rows_a_step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        steps = ceil(args.num_train_epochs * ceil(len(rows) / rows_a_step))
    return steps

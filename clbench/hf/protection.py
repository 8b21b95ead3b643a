"""A method of clbench at work in a Trainer."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ValidationError
from torch import Tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel, Trainer, TrainerCallback

from clbench.core.errors import ModelError, SettingsError, describe_errors
from clbench.hf.host import HostedModel, HostedPrecision, HostedStage
from clbench.methods.base import Method
from clbench.training import hook_checks
from clbench.training.protocol import Protocol

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


class Protection:
    """A method at work in a Trainer; see `protect`.

    Attributes
    ----------
    method, stage
        The method, and what it sees.
    whole
        The Trainer's model.
    """

    def __init__(self, trainer: Trainer, method: Method, corpus: str) -> None:
        self.method = method
        self._trainer = trainer
        self._in_step = False
        self._made: Optimizer | None = None
        self._has_warned = False
        args = trainer.args
        model: Any = trainer.model
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        if not isinstance(inner, PreTrainedModel):
            raise ModelError(f"protect: {type(inner).__name__} is not a model of transformers.")
        self.whole, hosted = model, HostedModel(inner)
        known = {id(value) for value in hosted.parameters()}
        outside = [n for n, v in model.named_parameters() if v.requires_grad and id(v) not in known]
        if outside:
            raise ModelError(
                f"protect: {outside[0]} is trained but is no weight of the transformers model, as "
                "in prompt tuning. Use LoRA, or train the whole model."
            )
        device = next(hosted.parameters()).device
        name = "bf16" if args.bf16 else "fp16" if args.fp16 else "float32"
        recomputes = any(getattr(m, "gradient_checkpointing", False) for m in inner.modules())
        parameters = inspect.signature(type(trainer).compute_loss).parameters
        self.stage = HostedStage(
            model=hosted,
            model_name=str(inner.config._name_or_path) or "(made from a configuration)",
            revision=None,
            protocol=_protocol(
                args, corpus, speaks=hosted.is_language_model, recomputes=recomputes
            ),
            device=device,
            precision=HostedPrecision(name, device.type),
            seed=args.seed,
            scenario=f"protect: {method.name!r}",
            stages=2,
            masks=None,
            index=1,
            rank=args.process_index,
            make_optimizer=self._optimizer_of,
            returns_outputs="return_outputs" in parameters,
        )
        self._check_method()

    @property
    def notes(self) -> list[str]:
        """Lines of the method for the user, such as which texts it reads."""
        return self.stage.notes

    def start(self) -> None:
        """Set the method up with the present weights, and take part in the Trainer's steps."""
        own = type(self._trainer)
        self.method.setup(self.stage)
        self.method.before_stage(self.stage)
        self._check_optimizer()
        self._trainer.__class__ = type(f"Protected{own.__name__}", (_Protected, own), {})
        self._trainer.protection = self
        self._trainer.add_callback(_Steps(self))

    def loss(self, own_loss: Callable[..., Any], inputs: dict[str, Any], items: Any) -> Tensor:
        """Return the method's loss of a batch, as the Trainer's `compute_loss` returns its own."""
        if self._is_plain:
            return torch.as_tensor(own_loss())
        trainer, stage = self._trainer, self.stage
        is_share = getattr(trainer, "loss_is_scaled_for_ga", None)
        if is_share is None:
            counts = trainer.model_accepts_loss_kwargs and items is not None
            is_share = counts or trainer.compute_loss_func is not None
        parts = float(trainer.current_gradient_accumulation_steps) if is_share else 1.0
        if is_share:
            self._warn_of_sums(inputs)
        stage.model.train()
        batch = stage.begin(inputs, own_loss, parts)
        loss = hook_checks.loss(self.method.loss(stage, batch))
        if (penalty := hook_checks.penalty(self.method.penalty(stage))) is not None:
            loss = loss + penalty
        stage.part += 1
        return loss / parts

    def edit_gradients(self) -> None:
        """Let the method change the gradients of a step, before they are clipped."""
        if type(self.method).edit_gradients is Method.edit_gradients:
            return
        scaler = getattr(self._trainer.accelerator, "scaler", None)
        scale = 1.0 if scaler is None else float(scaler.get_scale())
        if scale == 1.0:
            self.method.edit_gradients(self.stage)
            return
        self._scale_gradients(1.0 / scale)  # fp16's, which the Trainer removes later
        self.method.edit_gradients(self.stage)
        self._scale_gradients(scale)

    def optimizer(self) -> Optimizer | None:
        """Return the method's optimizer for a training, or None if the Trainer's own is as good."""
        if not self._makes_optimizer():
            return None
        stage, trainer = self.stage, self._trainer
        if trainer.state.max_steps <= 0:
            raise SettingsError(
                f"{stage.scenario} creates the optimizer inside train(). Do not call "
                "create_optimizer yourself."
            )
        self._check_optimizer()
        stage.steps = stage.total_steps = trainer.state.max_steps
        groups = hook_checks.parameter_groups(self.method.parameter_groups(stage), stage.model)
        self._made = hook_checks.optimizer(self.method.optimizer(stage, groups), stage.model)
        if type(self.method).optimizer is not Method.optimizer and "adam" not in trainer.args.optim:
            stage.note(f"{self.method.name}: its optimizer replaces {trainer.args.optim!s}.")
        return self._made

    def check_made(self) -> None:
        """Raise a SettingsError if the Trainer replaced the method's optimizer by its own."""
        if self._trainer.optimizer is not self._made:
            raise SettingsError(
                f"{self.stage.scenario} makes the optimizer, but create_optimizer of "
                f"{type(self._trainer).__mro__[2].__name__} replaces it. Remove "
                "that, or use l2-sp or ewc-mlm."
            )

    def _check_optimizer(self) -> None:
        """Raise a SettingsError if the Trainer has an optimizer where the method makes one."""
        present = self._trainer.optimizer
        present = getattr(present, "optimizer", present)  # that accelerate wraps
        if self._makes_optimizer() and present is not None and present is not self._made:
            raise SettingsError(
                f"{self.stage.scenario} makes the optimizer, but the Trainer has one. Do not pass "
                "optimizers to it, and call protect before the first train()."
            )

    def _makes_optimizer(self) -> bool:
        """Whether the method needs an optimizer or groups of weights of its own."""
        kind, stage = type(self.method), self.stage
        if kind.optimizer is not Method.optimizer:
            return True
        if kind.parameter_groups is Method.parameter_groups:
            return False
        groups = self.method.parameter_groups(stage)
        stage.log.clear()
        usual = {id(weight) for weight in stage.trainable()}
        return len(groups) > 1 or {id(weight) for weight in groups[0]["params"]} != usual

    def logs(self) -> dict[str, float]:
        """Return the last point of each curve of the method since the last call."""
        points = {f"{self.method.name}/{name}": p[-1][1] for name, p in self.stage.log.items()}
        self.stage.log.clear()
        return points

    def _scale_gradients(self, factor: float) -> None:
        gradients = [p.grad for p in self.stage.trainable() if p.grad is not None]
        torch._foreach_mul_(gradients, factor)

    def _warn_of_sums(self, inputs: dict[str, Any]) -> None:
        """Warn once if the Trainer adds up mean losses, beside which the method's terms are small.

        It does so with classifiers of transformers, which ignore ``num_items_in_batch``.
        """
        trainer, labels = self._trainer, inputs.get("labels")
        parts = trainer.current_gradient_accumulation_steps * trainer.accelerator.num_processes
        is_class = isinstance(labels, Tensor) and labels.dim() == 1
        if self._has_warned or parts == 1 or not is_class or trainer.compute_loss_func is not None:
            return
        self._has_warned = True
        warnings.warn(
            f"{self.stage.scenario}: with this model, the Trainer sums the mean losses of the "
            f"{parts} micro-batches of a step instead of averaging them, so the method's terms are "
            f"{parts} times weaker beside them. Set trainer.loss_is_scaled_for_ga = False, and "
            "average_tokens_across_devices=False in TrainingArguments.",
            stacklevel=2,
        )

    def _optimizer_of(self, groups: list[dict[str, Any]]) -> Optimizer:
        """Return the Trainer's kind of optimizer; biases and norms have no weight decay."""
        trainer: Any = self._trainer
        make, options = trainer.optimizer_cls_and_kwargs or trainer.get_optimizer_cls_and_kwargs(
            trainer.args, self.whole
        )
        if not isinstance(make, type) or {"params", "model", "optimizer_dict"} & options.keys():
            raise SettingsError(
                f"{self.stage.scenario} divides the weights into groups, which optim = "
                f"{trainer.args.optim!s} does itself. Use adamw_torch."
            )
        names = {*trainer.get_decay_parameter_names(self.whole)}
        decayed = {id(v) for name, v in self.whole.named_parameters() if name in names}
        parts = []
        for group in groups:
            for is_decayed, decay in ((True, trainer.args.weight_decay), (False, 0.0)):
                inside = [p for p in group["params"] if (id(p) in decayed) == is_decayed]
                if inside:
                    parts.append({**group, "params": inside, "weight_decay": decay})
        optimizer: Optimizer = make(parts, **options)
        return optimizer

    @property
    def _is_plain(self) -> bool:
        """Whether the method leaves the loss to the Trainer."""
        kind = type(self.method)
        return kind.loss is Method.loss and kind.penalty is Method.penalty

    def _check_method(self) -> None:
        method, stage = self.method, self.stage
        if stage.protocol.head not in method.head_kinds:
            raise SettingsError(f"{stage.scenario} needs a model with a language-model head.")
        is_decoder = stage.model.family.pooling == "last"
        if method.needs_decoder and stage.protocol.is_language_model and not is_decoder:
            raise SettingsError(f"{stage.scenario} needs a decoder, such as GPT-2 or Llama.")
        if not any(p.requires_grad for p in stage.model.backbone_parameters().values()):
            raise SettingsError(
                f"{stage.scenario}: only the head is trained, so the model itself forgets nothing. "
                "Unfreeze its layers, or do without protect."
            )
        method.check_protocol(stage.protocol)


def _protocol(args: Any, corpus: str, *, speaks: bool, recomputes: bool) -> Protocol:
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
    checkpointing = recomputes or args.gradient_checkpointing
    return protocol.model_copy(update={"gradient_checkpointing": checkpointing})


class _Protected:
    """What the class of a protected Trainer has before its own: a method's part in its steps."""

    protection: Protection

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        protection = self.protection
        protection._in_step = True
        try:
            loss = super().training_step(*args, **kwargs)  # type: ignore[misc]
        finally:
            protection._in_step = False
        if self.accelerator.sync_gradients:  # type: ignore[attr-defined]
            protection.edit_gradients()
        return loss

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        own = super().compute_loss  # type: ignore[misc]
        if not self.protection._in_step:
            return own(model, inputs, *args, **kwargs)

        def own_loss(**options: Any) -> Any:
            return own(model, dict(inputs), *args, **{**kwargs, **options})

        return self.protection.loss(own_loss, inputs, kwargs.get("num_items_in_batch"))

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        optimizer = self.protection.optimizer()
        if optimizer is not None:
            self.optimizer = optimizer
        made = super().create_optimizer(*args, **kwargs)  # type: ignore[misc]
        if optimizer is not None:
            self.protection.check_made()
        return made

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            logs = {**logs, **self.protection.logs()}
        super().log(logs, *args, **kwargs)  # type: ignore[misc]


class _Steps(TrainerCallback):  # type: ignore[misc]
    """Tells a method of the beginning and the end of each step."""

    def __init__(self, protection: Protection) -> None:
        self._protection = protection

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        stage = self._protection.stage
        stage.step, stage.part = state.global_step, 0
        self._protection.method.before_step(stage)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._protection.method.after_step(self._protection.stage)

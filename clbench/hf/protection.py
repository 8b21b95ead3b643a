"""Protect what a model can do, with a method of clbench, while somebody's Trainer trains it."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from clbench.core.errors import SettingsError
from clbench.core.options import checks_arguments
from clbench.hf.host import Fisher, HostedStage
from clbench.hf.refusals import problem_of
from clbench.methods.base import METHODS, Method
from clbench.suite.baselines import read_baseline
from clbench.tasks.corpus import resolve_corpus
from clbench.training import hook_values

RANDOM = "clbench_random_{}.safetensors"
"""File of the random streams of one process, by its number, in a checkpoint."""


@checks_arguments
def protect(
    trainer: Trainer,
    method: str = "l2-sp",
    *,
    fisher: Fisher | None = None,
    corpus: str | None = None,
    **settings: Any,
) -> "Protection":
    """Let a method of clbench protect what the model of a Trainer can do now; then call `train`.

    The class of the method is the one that ``clbench run`` trains with. Its terms are added to the
    Trainer's own loss or gradients, before they are clipped. The model at this call is the
    reference, even if the Trainer later resumes from a checkpoint, so call it with the base model.
    A method acts on the weights that are trained, such as those of adapters. Its curves, such as
    the penalty, are in the Trainer's logs as ``<method>/<curve>``.

    Parameters
    ----------
    trainer
        A Trainer of transformers, or one made from it, before `train` is called.
    method
        A method or baseline (``clbench list methods``) that needs only the model, the batch and
        the gradient: ``ewc``, ``ewc-mlm``, ``l2-sp``, ``recadam``, ``kl-anchor``, ``mixout``,
        ``lwf``, ``layerwise`` (``bertcl-combined``, ``layer-lr``), ``freeze-bottom``,
        ``generic-replay``, ``self-replay``, or ``dft``, ``asft``, ``eaft`` and ``talr``, which
        replace the Trainer's loss.
    fisher
        For ``ewc``: the Fisher information of what was learned before, as `diagonal_fisher` of
        `clbench.fisher` returns it, or a safetensors file of it. Its names are those of the
        Trainer's model or of its part without head.
    corpus
        Texts for ``ewc-mlm``, ``generic-replay`` and ``kl-anchor`` at texts: ``built-in`` (the
        default), ``wiki40b/en``, or a file with one text per line.
    settings
        Settings of the method; by default those of the baseline.

    Returns
    -------
    Protection
        With the method and its `notes`.

    Raises
    ------
    ClbenchError
        If the method and the Trainer do not fit, or a setting or `fisher` is wrong.
    """
    baseline = read_baseline(method)
    values = {**baseline.settings, **settings}
    if {"lr", "lr_multiple"} & values.keys():
        raise SettingsError(
            f"protect: {method!r}: lr and lr_multiple have no effect in a Trainer. Set "
            "learning_rate in TrainingArguments."
        )
    instance = METHODS.get(baseline.method)(**values)
    if corpus is not None and not instance.reads_corpus:
        raise SettingsError(f"protect: {method!r}, as it is set, reads no corpus=. Remove it.")
    texts = resolve_corpus("built-in" if corpus is None else corpus, Path.cwd(), "corpus")
    protection = Protection(trainer, instance, texts)
    if fisher is not None and not instance.takes_fisher:
        raise SettingsError(f"protect: {method!r} does not use fisher=. Remove it.")
    if instance.takes_fisher:
        if fisher is None:
            raise SettingsError(
                f"protect: {method!r} needs fisher=: what clbench.fisher.diagonal_fisher returns "
                "for rows of the old data. Without old data, use 'ewc-mlm' or 'l2-sp'."
            )
        own = protection.stage.own_fisher(fisher, protection.whole)
        instance.load_state({"fisher": own, "anchor": protection.stage.snapshot(list(own))})
    protection.start()
    return protection


@checks_arguments
class Protection(TrainerCallback):  # type: ignore[misc]
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
        self._optimizer: torch.optim.Optimizer | None = None
        self._has_warned = False
        self.whole: Any = trainer.model
        self.stage = HostedStage.of(
            trainer, f"protect: {method.name!r}", corpus, make_optimizer=self._optimizer_of
        )
        if problem := problem_of(trainer, method, self.stage):
            raise SettingsError(f"protect: {problem}")
        method.check_protocol(self.stage.protocol)

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
        self._trainer.add_callback(self)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Tell the method that a step begins."""
        self.stage.step, self.stage.part = state.global_step, 0
        self.method.before_step(self.stage)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Tell the method that a step is over."""
        self.method.after_step(self.stage)

    def loss(
        self, own_loss: Callable[..., Any], model: Any, inputs: dict[str, Any], items: Any
    ) -> torch.Tensor:
        """Return the method's loss of a batch, as the Trainer's `compute_loss` returns its own.

        `items` is the number of tokens by which the Trainer divides the sums of a step's parts.
        """
        trainer, stage, kind = self._trainer, self.stage, type(self.method)
        stage.parts = trainer.current_gradient_accumulation_steps
        stage.part_share = 1.0 / stage.parts
        if kind.loss is Method.loss and kind.penalty is Method.penalty:
            return torch.as_tensor(own_loss())
        is_share = getattr(trainer, "loss_is_scaled_for_ga", None)
        if is_share is None:
            counts = trainer.model_accepts_loss_kwargs and items is not None
            is_share = counts or trainer.compute_loss_func is not None
        parts = float(trainer.current_gradient_accumulation_steps) if is_share else 1.0
        if is_share:
            self._warn_of_sums(inputs)
        stage.model.train()
        if kind.replaces_loss:
            stage.caller, stage.tokens = model, items if is_share else None
            if stage.tokens is not None and trainer.args.average_tokens_across_devices:
                stage.tokens = items / trainer.accelerator.num_processes
        batch = stage.begin(inputs, own_loss, parts)
        loss = hook_values.checked_loss(self.method.loss(stage, batch))
        if (penalty := hook_values.checked_penalty(self.method.penalty(stage))) is not None:
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

    def create_optimizer(self, own: Callable[[], Any]) -> Any:
        """Give the Trainer the method's optimizer, if it makes one; else call the Trainer's `own`.

        Raises a SettingsError if the Trainer has another one or makes it nevertheless.
        """
        if not self._makes_optimizer():
            return own()
        stage, trainer = self.stage, self._trainer
        if trainer.state.max_steps <= 0:
            raise SettingsError(
                f"{stage.scenario} creates the optimizer inside train(). Do not call "
                "create_optimizer yourself."
            )
        self._check_optimizer()
        stage.steps = stage.total_steps = trainer.state.max_steps
        groups = hook_values.checked_groups(self.method.parameter_groups(stage), stage.model)
        self._optimizer = hook_values.checked_optimizer(
            self.method.optimizer(stage, groups), stage.model
        )
        if type(self.method).optimizer is not Method.optimizer and "adam" not in trainer.args.optim:
            stage.note(f"{self.method.name}: its optimizer replaces {trainer.args.optim!s}.")
        trainer.optimizer = self._optimizer
        returned = own()
        if trainer.optimizer is not self._optimizer:
            raise SettingsError(
                f"{stage.scenario} makes the optimizer, but create_optimizer of "
                f"{type(trainer).__mro__[2].__name__} replaces it. Remove that, or use l2-sp or "
                "ewc-mlm."
            )
        return returned

    def _check_optimizer(self) -> None:
        """Raise a SettingsError if the Trainer has an optimizer where the method makes one."""
        present = self._trainer.optimizer
        present = getattr(present, "optimizer", present)  # that accelerate wraps
        if self._makes_optimizer() and present is not None and present is not self._optimizer:
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

    def save_streams(self, checkpoint: Path) -> None:
        """Store the states of the method's random streams beside those of the Trainer."""
        states = {name: each.get_state() for name, each in self.stage.streams.items()}
        if states:
            save_file(states, checkpoint / RANDOM.format(self.stage.rank))

    def load_streams(self, checkpoint: Path) -> None:
        """Continue the random streams from a checkpoint."""
        path = checkpoint / RANDOM.format(self.stage.rank)
        for name, state in (load_file(path) if path.is_file() else {}).items():
            self.stage.streams.setdefault(name, torch.Generator()).set_state(state)
        if self.stage.streams and not path.is_file():
            self.stage.note(f"{checkpoint} has no {path.name}: masks and texts start anew.")

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
        is_class = torch.is_tensor(labels) and (labels.dim() == 1 or labels.is_floating_point())
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

    def _optimizer_of(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
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
        optimizer: torch.optim.Optimizer = make(parts, **options)
        return optimizer


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

        return self.protection.loss(own_loss, model, inputs, kwargs.get("num_items_in_batch"))

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        own = super().create_optimizer  # type: ignore[misc]
        return self.protection.create_optimizer(lambda: own(*args, **kwargs))

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)  # type: ignore[misc]
        self.protection.save_streams(Path(output_dir))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)  # type: ignore[misc]
        if checkpoint is not None:
            self.protection.load_streams(Path(checkpoint))

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            logs = {**logs, **self.protection.logs()}
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

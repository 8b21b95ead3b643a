"""Protect what a model can do, with a method of clbench, while somebody's Trainer trains it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer

from clbench.core.errors import SettingsError, count
from clbench.hf.host import HostedModel
from clbench.hf.protection import Protection
from clbench.methods.base import METHODS, Method
from clbench.suite.baselines import read_baseline
from clbench.tasks.corpus import resolve_corpus

Fisher = Mapping[str, Tensor] | str | Path


def protect(
    trainer: Trainer,
    method: str = "l2-sp",
    *,
    fisher: Fisher | None = None,
    corpus: str = "built-in",
    **settings: Any,
) -> Protection:
    """Let a method of clbench protect what the model of a Trainer can do now; then call `train`.

    The class of the method is the one that ``clbench run`` trains with. Its terms are added to the
    Trainer's own loss or gradients, before they are clipped, whatever computes them: gradient
    accumulation, mixed precision, several processes, PEFT and TRL's ``SFTTrainer`` work as before.
    The model at this call is the reference, even if the Trainer later resumes from a checkpoint,
    so call it with the base model. With adapters, whose base weights are
    frozen, a method acts on the weights that are trained. The curves of the method, such as the
    penalty, are in the Trainer's logs as ``<method>/<curve>``.

    Parameters
    ----------
    trainer
        A Trainer of transformers, or one made from it, before `train` is called.
    method
        A method or baseline (``clbench list methods``) that needs only the model, the batch and
        the gradient: ``ewc``, ``ewc-mlm``, ``l2-sp``, ``recadam``, ``kl-anchor``, ``mixout``,
        ``lwf``, ``layerwise`` (``bertcl-combined``) or ``generic-replay``.
    fisher
        For ``ewc``: the Fisher information of what was learned before, as `diagonal_fisher` of
        `clbench.fisher` returns it, or a safetensors file of it. Its names are those of the
        Trainer's model or of its part without head.
    corpus
        Texts for ``ewc-mlm``, ``generic-replay`` and ``kl-anchor``: ``built-in``, ``wiki40b/en``,
        or a file with one text per line.
    settings
        Settings of the method; by default those of the baseline.

    Returns
    -------
    Protection
        With the method and its `notes`.

    Raises
    ------
    ClbenchError
        If the method needs more than a Trainer has, or the Trainer does what the method cannot
        take part in; if a setting is wrong; or if `fisher` is missing or does not fit the model.
    """
    if not isinstance(trainer, Trainer):
        raise SettingsError(f"protect: {type(trainer).__name__} is not a Trainer of transformers.")
    baseline = read_baseline(method)
    if {"lr", "lr_multiple"} & {**baseline.settings, **settings}.keys():
        raise SettingsError(
            f"protect: {method!r}: lr and lr_multiple have no effect in a Trainer. Set "
            "learning_rate in TrainingArguments."
        )
    chosen = METHODS.get(baseline.method)(**{**baseline.settings, **settings})
    _check(trainer, chosen)
    protection = Protection(trainer, chosen, resolve_corpus(corpus, Path.cwd(), "corpus"))
    if fisher is None and chosen.takes_fisher:
        raise SettingsError(
            f"protect: {method!r} needs fisher=: what clbench.fisher.diagonal_fisher returns for "
            "rows of the old data. Without old data, use 'ewc-mlm' or 'l2-sp'."
        )
    if fisher is not None:
        if not chosen.takes_fisher:
            raise SettingsError(f"protect: {method!r} does not use fisher=. Remove it.")
        values = _by_own_names(protection, fisher)
        anchor = protection.stage.snapshot(list(values))
        chosen.load_state({"fisher": values, "anchor": anchor})
    protection.start()
    return protection


def _by_own_names(protection: Protection, fisher: Fisher) -> dict[str, Tensor]:
    """Return Fisher information by the names of the hosted model, on its device.

    Raises a SettingsError if it does not fit the weights that are trained.
    """
    stage = protection.stage
    given = _read(fisher) if isinstance(fisher, str | Path) else fisher
    values, missing, used = {}, [], set()
    names = _names(protection.whole, stage.model)
    for name, weight in stage.model.named_parameters():
        if not weight.requires_grad:
            continue
        key = next((n for n in names[id(weight)] if n in given), None)
        own = names[id(weight)][-1]
        if key is None:
            missing.append(own)
            continue
        value = torch.as_tensor(given[key]).detach().to(weight.device, torch.float32)
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
        stage.note(
            f"{protection.method.name}: no Fisher information for "
            f"{count(len(missing), 'trained weight')}, left unprotected: {', '.join(missing[:3])}"
            f"{' …' if missing[3:] else ''}"
        )
    if others := sorted(given.keys() - used):
        stage.note(
            f"{protection.method.name}: Fisher information of {count(len(others), 'weight')} that "
            f"the Trainer does not train is not used: {', '.join(others[:3])}"
            f"{' …' if others[3:] else ''}"
        )
    return values


def _read(path: str | Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(path)
        return tensors
    except (OSError, SafetensorError) as error:
        raise SettingsError(f"protect: fisher: {path} cannot be read: {error}") from error


def _names(model: Any, hosted: HostedModel) -> dict[int, list[str]]:
    """Return the names that each weight has for methods, in the body and in the Trainer's model."""
    names: dict[int, list[str]] = {}
    for part in (hosted, hosted.backbone.base_model, model):
        for name, weight in part.named_parameters(remove_duplicate=False):
            names.setdefault(id(weight), []).append(name)
    return names


def _check(trainer: Trainer, method: Method) -> None:
    """Raise a SettingsError if a Trainer cannot have this method."""
    problem, args, model = None, trainer.args, trainer.model
    if hasattr(trainer, "protection"):
        problem = f"the Trainer is protected by {trainer.protection.method.name!r} already."
    elif not method.runs_in_trainer:
        problem = f"{method.name!r} {_needs(method)}"
    elif model is None or trainer.model_init is not None:
        problem = "the Trainer makes its model later, by model_init. Give it the model."
    elif trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        problem = "the weights are spread over processes, by FSDP or DeepSpeed. Use plain DDP."
    elif args.n_gpu > 1:
        problem = (
            "the Trainer uses several GPUs in one process. Start a process per GPU with torchrun."
        )
    elif "lomo" in args.optim:
        problem = "LOMO updates the weights in the backward pass. Use adamw_torch."
    elif args.torch_compile:
        problem = "torch_compile is not supported. Set torch_compile=False."
    elif getattr(model, "is_quantized", False) and not hasattr(model, "get_base_model"):
        problem = "quantised weights cannot be trained. Train PEFT adapters instead."
    if problem is not None:
        raise SettingsError(f"protect: {problem}")


def _needs(method: Method) -> str:
    """Say what a method needs that a Trainer does not have."""
    if method.name == "vanilla":
        return "is what the Trainer does by itself."
    if method.keeps_rows:
        return "keeps rows of earlier tasks, which the Trainer does not have."
    if method.only_consolidates:
        return "changes the weights after training. Use `clbench mend`."
    if method.needs_task_id:
        return "has weights for each task. Use `clbench run`."
    return "cannot run in a Trainer. Use `clbench run`."

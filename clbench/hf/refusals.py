"""Why a Trainer cannot have a method."""

from transformers import Trainer

from clbench.hf.host import HostedStage
from clbench.methods.base import Method

LIBRARIES = ("transformers", "trl")
"""Where the loss of a Trainer is that of its labels alone, unless its arguments say otherwise."""


def problem_of(trainer: Trainer, method: Method, stage: HostedStage) -> str | None:
    """Return why a Trainer cannot have a method, if it cannot."""
    args, model = trainer.args, stage.model
    if hasattr(trainer, "protection"):
        return f"the Trainer is protected by {trainer.protection.method.name!r} already."
    if not method.runs_in_trainer or method.keeps_rows:
        return f"{method.name!r} {_needs(method)}"
    if trainer.model_init is not None:
        return "the Trainer makes its model later, by model_init. Give it the model."
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return (
            "the weights are spread over processes, by FSDP or DeepSpeed. Use plain DDP, with LoRA "
            "if memory is short; or train without protect, save the whole model, and use "
            "`clbench mend`."
        )
    if args.n_gpu > 1:
        return "the Trainer uses several GPUs in one process. Start a process per GPU: torchrun."
    if method.replaces_loss and (args.label_smoothing_factor or trainer.compute_loss_func):
        return (
            f"{method.name!r} replaces the Trainer's loss. Remove compute_loss_func and "
            "label_smoothing_factor."
        )
    own = type(trainer).compute_loss
    if method.replaces_loss and own.__module__.partition(".")[0] not in LIBRARIES:
        return (
            f"{method.name!r} replaces the loss that {own.__qualname__} computes. Use a method "
            "that adds to it, such as 'l2-sp', or a Trainer of transformers or TRL."
        )
    kind = str(getattr(args, "loss_type", "nll"))
    if method.replaces_loss and "nll" not in kind:
        return f"{method.name!r} replaces the Trainer's loss. Set loss_type='nll', not {kind!r}."
    if "lomo" in args.optim:
        return "LOMO updates the weights in the backward pass. Use adamw_torch."
    if args.torch_compile:
        return "torch_compile is not supported. Set torch_compile=False."
    if stage.protocol.head not in method.head_kinds:
        return f"{method.name!r} needs a model with a language-model head."
    if method.needs_decoder and model.is_language_model and model.family.pooling != "last":
        return f"{method.name!r} needs a decoder, such as GPT-2 or Llama."
    if not any(weight.requires_grad for weight in model.backbone_parameters().values()):
        return (
            "only the head is trained, so the model itself forgets nothing. Unfreeze its layers, "
            "or do without protect."
        )
    return None


def _needs(method: Method) -> str:
    """Say what a method needs that a Trainer does not have."""
    if method.name == "vanilla":
        return "is what the Trainer does by itself."
    if method.keeps_rows:
        return "keeps rows of earlier tasks, which the Trainer does not have."
    if method.writes_answers:
        return "trains on answers that it lets the model write. Use `clbench run`."
    if method.only_consolidates:
        return "changes the weights after training. Use `clbench mend`."
    if method.needs_task_id:
        return "has weights for each task. Use `clbench run`."
    return "cannot run in a Trainer. Use `clbench run`."

"""The Fisher information of a pretrained model's own language-model loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

from clbench.core.errors import ModelError
from clbench.core.files import Facts, cached_tensors
from clbench.core.seeds import stream_seed, torch_stream
from clbench.fisher.diagonal import Mode, diagonal_fisher
from clbench.fisher.language_modelling import Masking, fit_head, text_batches
from clbench.fisher.losses import named_loss
from clbench.models.checkpoint import LanguageModel, load_language_model, load_tokenizer
from clbench.models.families import usable_length
from clbench.models.locate import model_identity
from clbench.tasks.corpus import corpus_identity, read_corpus
from clbench.training.device import Precision


@dataclass(frozen=True)
class Recipe:
    """Settings of the Fisher information of a pretrained model."""

    mode: Mode = "sampled"  # as in diagonal_fisher
    masking: Masking = "bert"  # as in mask_tokens; encoders only
    examples: int = 1000  # largest number of texts of the corpus
    text_length: int = 128  # tokens after which a text is cut
    batch_size: int = 16  # texts in a batch; matters in mode "batched" only
    head_steps: int = 300  # steps of fitting a head that the checkpoint lacks
    seed: int = 0  # of texts, masks and sampled labels


def pretrained_fisher(
    name: str,
    revision: str | None,
    corpus: str,
    recipe: Recipe,
    *,
    device: torch.device,
    precision: Precision,
    whole: bool = False,
) -> tuple[dict[str, Tensor], Facts]:
    """Return the Fisher information at the pretrained weights, computed once and cached on disk.

    `corpus` is what `clbench.tasks.corpus.resolve_corpus` returns. With `whole`, the weights of the
    language-model head are included, and names are those in the whole model.

    Returns
    -------
    fisher : dict of str to Tensor
        By the backbone's names of its weights, on the CPU, for the whole vocabulary.
    facts : dict
        ``loss`` (``mlm`` or ``clm``), ``texts``, ``mean`` (of all numbers), and
        ``head_loss``: first and last loss of a head that was fitted, else None.

    Raises
    ------
    ModelError, DataError
        If the model or the corpus cannot be read.
    """
    key = {
        "model": model_identity(name, revision),
        "corpus": corpus_identity(corpus),
        "recipe": asdict(recipe),
        "numerics": [device.type, precision.name, torch.get_num_threads()],
        "versions": [torch.__version__, transformers.__version__],
        **({"whole": True} if whole else {}),
    }

    def compute() -> tuple[dict[str, Tensor], Facts]:
        head_seed = stream_seed("language-head", recipe.seed)
        language = load_language_model(name, revision, head_seed=head_seed)
        model = language.model.to(device)
        tokenizer = load_tokenizer(name, revision)
        length = min(recipe.text_length, usable_length(model.config) or recipe.text_length)
        if language.loss == "mlm" and tokenizer.mask_token_id is None:
            raise ModelError(f"model {name!r}: its tokenizer has no mask token. Set mask_token.")
        batches = list(
            text_batches(
                read_corpus(corpus, recipe.examples, recipe.seed),
                tokenizer,
                max_length=length,
                generator=torch_stream("masks", recipe.seed),
                masking=recipe.masking if language.loss == "mlm" else None,
                batch_size=recipe.batch_size if recipe.mode == "batched" else None,
            )
        )
        names, head_loss = language.backbone_names(), None
        if whole:
            names = {name: name for name, _ in model.named_parameters()}
        if language.missing:
            order = torch.randperm(len(batches), generator=torch_stream("head-order", recipe.seed))
            shuffled, loss = [batches[i] for i in order.tolist()], named_loss(language.loss)
            steps = recipe.head_steps
            head_loss = fit_head(model, names, shuffled, loss, steps=steps, precision=precision)
        fisher = diagonal_fisher(
            model,
            batches,
            language.loss,
            recipe.mode,
            seed=recipe.seed,
            names=names,
            precision="bf16" if precision.name == "bf16" else "float32",
        )
        total = float(sum(value.double().sum() for value in fisher.values()))
        facts = {
            "loss": language.loss,
            "texts": sum(len(batch["input_ids"]) for batch in batches),
            "mean": total / sum(value.numel() for value in fisher.values()),
            "head_loss": head_loss,
        }
        return {names[key]: value for key, value in fisher.items()}, facts

    return cached_tensors("fisher", key, compute)


def fit_missing_head(
    language: LanguageModel,
    name: str,
    revision: str | None,
    recipe: Mapping[str, Any],
    batches: Callable[[], Sequence[dict[str, Tensor]]],
    *,
    steps: int,
    device: torch.device,
    precision: Precision,
) -> tuple[float, float]:
    """Fit the head that a checkpoint lacks, with the encoder frozen, or load it from the cache.

    Parameters
    ----------
    language
        The model; its head is changed.
    name, revision
        As the user named it.
    recipe
        Plain JSON values on which `batches` and the steps depend.
    batches
        Returns the texts, as `text_batches` yields them; called only if the head is not cached.
    steps, device, precision
        Of the training.

    Returns
    -------
    tuple of float
        The first and the last loss, as `fit_head` returns them.
    """
    backbone = language.backbone_names().keys()
    head = {n: p for n, p in language.model.named_parameters() if n not in backbone}
    key = {
        "model": model_identity(name, revision),
        **recipe,
        "numerics": [device.type, precision.name, torch.get_num_threads()],
        "versions": [torch.__version__, transformers.__version__],
    }

    def compute() -> tuple[dict[str, Tensor], Facts]:
        losses = fit_head(
            language.model.to(device),
            backbone,
            batches(),
            named_loss(language.loss),
            steps=steps,
            precision=precision,
        )
        return dict(head), {"losses": losses}

    fitted, facts = cached_tensors("heads", key, compute)
    with torch.no_grad():
        for parameter, value in head.items():
            value.copy_(fitted[parameter])
    first, last = facts["losses"]
    return first, last

"""The language-model loss of a pretrained model, and its Fisher information.

Every use of this loss goes through `LanguageTask`: Fisher information here, replay of text, the
score of what a model retains, and audits.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import cycle, islice
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from clbench.core.errors import ModelError
from clbench.core.files import Facts, cached_tensors
from clbench.core.seeds import stream_seed, torch_stream
from clbench.fisher.diagonal import Mode, diagonal_fisher
from clbench.fisher.losses import Masking, TextBatch, named_loss, on_device, text_batches
from clbench.models import checkpoint, classifier, families
from clbench.tasks.corpus import corpus_identity, read_corpus
from clbench.training.device import Precision, circumstances

HEAD_LR = 1e-3
"""Learning rate of a missing head: Adam's suggested default (Kingma & Ba 2015, Algorithm 1)."""


class LanguageTask:
    """The task that a model was pretrained on: to predict masked tokens, or every next one.

    Parameters
    ----------
    name, revision
        As in `clbench.models.locate.local_folder`.
    seed
        Seed of a head that the checkpoint lacks.
    length
        Tokens after which a text is cut, if the model takes as many.
    masking
        As in `mask_tokens`; for encoders only.
    config, tokenizer, kind
        What is known already of a model that may have no checkpoint; by default as there.

    Attributes
    ----------
    kind
        ``mlm`` or ``clm``.
    loss
        The loss of that name; see `clbench.fisher.losses`.
    tokenizer, length, masking
        Of `batches`; `masking` is None for causal models.

    Raises
    ------
    ModelError
        If transformers has no language-model head for the architecture, or the tokenizer no mask.
    """

    def __init__(
        self,
        name: str,
        revision: str | None = None,
        *,
        seed: int,
        length: int,
        masking: Masking,
        config: PreTrainedConfig | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        kind: Literal["mlm", "clm"] | None = None,
    ) -> None:
        self._name, self._revision, self._seed = name, revision, seed
        config = config or checkpoint.load_config(name, revision)
        self.kind = kind or checkpoint.language_class(config, name)[1]
        self.loss = named_loss(self.kind)
        self.tokenizer = (
            checkpoint.load_tokenizer(name, revision) if tokenizer is None else tokenizer
        )
        self.length = min(length, families.usable_length(config) or length)
        self.masking = masking if self.kind == "mlm" else None
        if self.masking is not None and self.tokenizer.mask_token_id is None:
            raise ModelError(f"model {name!r}: its tokenizer has no mask token. Set mask_token.")

    @cached_property
    def language(self) -> checkpoint.LanguageModel:
        """The pretrained model with its head, loaded on first use; delete it to free its memory."""
        head_seed = stream_seed("language-head", self._seed)
        return checkpoint.load_language_model(self._name, self._revision, head_seed=head_seed)

    def batches(
        self, texts: Sequence[str], masks: torch.Generator, batch_size: int | None = None
    ) -> Iterator[TextBatch]:
        """Yield texts as batches, masked with numbers from `masks`; see `text_batches`."""
        return text_batches(
            texts,
            self.tokenizer,
            max_length=self.length,
            generator=masks,
            masking=self.masking,
            batch_size=batch_size,
        )

    def fit_head(
        self,
        batches: Callable[[], Iterable[TextBatch]],
        recipe: Mapping[str, Any],
        *,
        steps: int,
        device: torch.device,
        precision: Precision,
    ) -> tuple[float, float] | None:
        """Fit the head if the checkpoint lacks it, with the backbone frozen; cached on disk.

        All weights of the head are trained with Adam on the model's own loss, without dropout.

        Parameters
        ----------
        batches
            Returns the batches, which are repeated; called only if the head is not cached.
        recipe
            Plain JSON values on which `batches` and the steps depend.

        Returns
        -------
        tuple of float or None
            Mean loss over the first and over the last tenth of the steps; None if the checkpoint
            has a head.
        """
        if not self.language.missing:
            return None
        model, backbone = self.language.model, self.language.backbone_names()
        head = {name: p for name, p in model.named_parameters() if name not in backbone}
        key = {**recipe, **circumstances(self._name, self._revision, device, precision)}

        def compute() -> tuple[dict[str, Tensor], Facts]:
            model.to(device)
            optimizer, losses = torch.optim.Adam(head.values(), lr=HEAD_LR), []
            with classifier.evaluating(model, trained=head.values()):
                for batch in islice(cycle(batches()), steps):
                    with precision.autocast():
                        value = self.loss(model, on_device(batch, device)).mean_loss()
                    optimizer.zero_grad()
                    value.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    losses.append(value.detach())
                optimizer.zero_grad()
            tenth = max(1, steps // 10)
            first, last = (torch.stack(part).mean() for part in (losses[:tenth], losses[-tenth:]))
            return dict(head), {"losses": (float(first), float(last))}

        fitted, facts = cached_tensors("heads", key, compute)
        with torch.no_grad():
            for name, parameter in head.items():
                parameter.copy_(fitted[name])
        first, last = facts["losses"]
        return first, last

    @contextmanager
    def around(self, backbone: Any, device: torch.device) -> Iterator[nn.Module]:
        """Yield the pretrained head around another backbone, in evaluation mode on `device`.

        A projection that shares the table of the embeddings shares that of `backbone`. A backbone
        that has a language-model head of its own is yielded as it is.
        """
        if backbone.get_output_embeddings() is not None:
            yield backbone.to(device).eval()
            return
        model: Any = self.language.model
        self.free_backbone()
        setattr(model, model.base_model_prefix, backbone.to(device))
        if self._tied:
            table = model.get_input_embeddings().weight
            self._projection.weight = nn.Parameter(table.detach(), requires_grad=False)
        try:
            yield model.to(device).eval()
        finally:
            self.free_backbone()

    def free_backbone(self) -> None:
        """Free the memory of the model's own backbone, for which `around` has no use."""
        model: Any = self.language.model
        if self._tied:
            self._projection.weight = nn.Parameter(torch.empty(0), requires_grad=False)
        setattr(model, model.base_model_prefix, nn.Identity())

    @cached_property
    def _projection(self) -> Any:
        return self.language.model.get_output_embeddings()

    @cached_property
    def _tied(self) -> bool:
        return self._projection.weight is self.language.model.get_input_embeddings().weight


def fitted_note(losses: Sequence[float] | None, steps: int) -> str:
    """Return a sentence on a head that `fit_head` fitted, after a blank; empty without one."""
    if losses is None:
        return ""
    return (
        " The checkpoint has no language-model head: one was fitted in "
        f"{steps} steps, encoder frozen (loss {losses[0]:.2f} to {losses[1]:.2f})."
    )


def shuffled(items: Sequence[Any], generator: torch.Generator) -> list[Any]:
    """Return the items in random order."""
    return [items[i] for i in torch.randperm(len(items), generator=generator).tolist()]


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
        "corpus": corpus_identity(corpus),
        "recipe": asdict(recipe),
        **circumstances(name, revision, device, precision),
    }

    def compute() -> tuple[dict[str, Tensor], Facts]:
        seed, most = recipe.seed, recipe.text_length
        task = LanguageTask(name, revision, seed=seed, length=most, masking=recipe.masking)
        texts = read_corpus(corpus, recipe.examples, seed)
        size = recipe.batch_size if recipe.mode == "batched" else None
        batches = list(task.batches(texts, torch_stream("masks", seed), size))
        head_loss = task.fit_head(
            lambda: shuffled(batches, torch_stream("head-order", seed)),
            {"corpus": key["corpus"], "recipe": key["recipe"]},
            steps=recipe.head_steps,
            device=device,
            precision=precision,
        )
        model, names = task.language.model.to(device), task.language.backbone_names()
        if whole:
            names = {name: name for name, _ in model.named_parameters()}
        fisher = diagonal_fisher(
            model,
            batches,
            task.kind,
            recipe.mode,
            seed=seed,
            names=names,
            precision="bf16" if precision.name == "bf16" else "float32",
        )
        total = float(sum(value.double().sum() for value in fisher.values()))
        facts = {
            "loss": task.kind,
            "texts": sum(len(batch["input_ids"]) for batch in batches),
            "mean": total / sum(value.numel() for value in fisher.values()),
            "head_loss": head_loss,
        }
        return {names[name]: value for name, value in fisher.items()}, facts

    return cached_tensors("fisher", {**key, **({"whole": True} if whole else {})}, compute)

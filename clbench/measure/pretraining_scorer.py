"""Scores besides the tasks': a pretrained head on held-out texts, and lm-evaluation-harness."""

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from clbench.core import seeds, user_code
from clbench.core.errors import NonFiniteLossError, SettingsError, did_you_mean, named
from clbench.fisher import language, losses
from clbench.models import classifier, encoding
from clbench.tasks.corpus import corpus_identity, corpus_name, read_corpus
from clbench.training.device import Precision, resolve_precision
from clbench.training.protocol import Protocol

Batches = Sequence[dict[str, torch.Tensor]]
HEAD_TEXTS = 2000
"""Maximum texts for fitting a missing head."""
FEW_TOKENS = 400
"""Tokens below which the standard error of an accuracy can exceed 0.025."""
LITTLE = 2.0
"""Below this multiple of the most frequent token's share, accuracy leaves little to forget."""


class PretrainingScorer:
    """Scores a backbone with its pretrained language-model head.

    Parameters
    ----------
    task
        The task of the pretrained model, whose own backbone is freed.
    batches, part
        Masked texts, and a part of them for the points of curves.
    source
        Description of the texts, for notes in results.
    """

    def __init__(
        self, task: language.LanguageTask, batches: Batches, part: Batches, source: str
    ) -> None:
        self._task, self._batches, self._part = task, batches, part
        labels = torch.cat([_labels(batch) for batch in batches])
        self._tokens = len(labels)
        self._baseline = int(labels.bincount().max()) / len(labels)
        self._text = (
            f"pretraining: {'masked-LM' if task.kind == 'mlm' else 'next-token'} accuracy over "
            f"{self._tokens} tokens of {source} (always the most frequent token: "
            f"{self._baseline:.3f})"
        )
        self.part_tokens = sum(int(batch["attention_mask"].sum()) for batch in part)
        task.free_backbone()

    def score(
        self,
        backbone: torch.nn.Module,
        *,
        part: bool = False,
        precision: Precision,
        device: torch.device,
    ) -> dict[str, float]:
        """Score a backbone in evaluation mode; see `ColumnScorer`.

        Returns
        -------
        dict
            ``accuracy``, the share of correct predictions, and ``cross_entropy`` in nats per
            token, both over all predicted tokens.

        Raises
        ------
        NonFiniteLossError
            If the weights have diverged.
        """
        correct = loss = count = 0.0
        around = self._task.around(backbone, device)
        with torch.inference_mode(), precision.autocast(), around as model:
            for batch in self._part if part else self._batches:
                outputs = self._task.loss(model, losses.on_device(batch, device))
                assert outputs.mask is not None
                tokens = outputs.mask.sum()
                hits = (outputs.logits.argmax(-1) == outputs.labels) * outputs.mask
                correct, count = correct + float(hits.sum()), count + float(tokens)
                loss += float(outputs.mean_loss() * tokens)
        check_finite(loss)
        return {"accuracy": correct / count, "cross_entropy": loss / count}

    def describe(self, initial: dict[str, float] | None = None) -> str:
        """Return a line about the texts, and whether `initial` scores leave much to forget."""
        if self._tokens < FEW_TOKENS:
            return f"{self._text}; these are fewer than {FEW_TOKENS} tokens: use a longer corpus."
        if initial is None or initial["accuracy"] >= LITTLE * self._baseline:
            return f"{self._text}."
        return (
            f"{self._text}. The pretrained model's {initial['accuracy']:.3f} is close to that, so "
            "it has little to forget. Use a checkpoint that was pretrained as a language model."
        )


def check_finite(*measures: float) -> None:
    """Raise a NonFiniteLossError if a measure on held-out texts is no finite number."""
    if not np.isfinite(measures).all():
        raise NonFiniteLossError(
            "the loss on held-out texts is no longer a finite number: training diverged. "
            f"Lower lr, set clip_norm, or use {named('precision', 'float32')}."
        )


def make_scorer(
    protocol: Protocol,
    device: torch.device,
    *,
    texts: Sequence[str],
    text_length: int,
    head_steps: int,
) -> PretrainingScorer:
    """Return the scorer of the protocol's model on held-out texts.

    A checkpoint without a language-model head gets one that is fitted on the rest of the corpus,
    with the encoder frozen, and cached on disk. The other parameters are settings of
    `clbench.shifts.dataset.Pretraining`.

    Raises
    ------
    ModelError, DataError
        If the model has no language-model head, its tokenizer no mask, or the corpus no text.
    """
    seed, corpus = protocol.data_seed, protocol.corpus
    task = language.LanguageTask(
        protocol.model, protocol.revision, seed=seed, length=text_length, masking="mask"
    )
    whole = list(task.batches(texts, seeds.torch_stream("held-out-masks", seed)))
    source = (
        f"{sum(map(losses.size_of, whole))} held-out texts of {corpus_name(corpus)}, cut at "
        f"{task.length} tokens"
    )

    def head_batches() -> Batches:
        others = read_corpus(corpus, HEAD_TEXTS, seed)
        batches = list(task.batches(others, seeds.torch_stream("head-masks", seed)))
        return language.shuffled(batches, seeds.torch_stream("head-order", seed))

    settings = {"texts": HEAD_TEXTS, "text_length": text_length, "head_steps": head_steps}
    head_loss = task.fit_head(
        head_batches,
        {"corpus": corpus_identity(corpus), "settings": {**settings, "seed": seed}},
        steps=head_steps,
        device=device,
        precision=resolve_precision(protocol.precision, device),
    )
    if head_loss is not None:
        source += (
            f", by a head fitted in {head_steps} steps with the encoder frozen: the checkpoint has "
            f"none (loss {head_loss[0]:.2f} to {head_loss[1]:.2f})"
        )
    return PretrainingScorer(task, whole, _thinned(whole, protocol.curve_rows), source)


def _thinned(batches: Batches, count: int) -> Batches:
    """Return about `count` of the masked texts, spread evenly over the batches."""
    total = sum(map(losses.size_of, batches))
    if total <= count:
        return batches
    positions = np.linspace(0, total - 1, count).round().astype(int)
    part, start = [], 0
    for batch in batches:
        rows = positions[(positions >= start) & (positions < start + losses.size_of(batch))] - start
        start += losses.size_of(batch)
        if len(rows):
            part.append({key: value[rows] for key, value in batch.items()})
    return part


def _labels(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the tokens to predict; shape (n,)."""
    labels = batch["labels"] if "labels" in batch else losses.next_tokens(batch)
    return labels[labels != encoding.IGNORED]


HarnessScores = dict[str, dict[str, float]]


def check_harness(tasks: Sequence[str]) -> None:
    """Raise a SettingsError if the harness is missing, or does not know one of the tasks."""
    if not tasks:
        return
    if importlib.util.find_spec("lm_eval") is None:
        raise SettingsError(f"{named('lm_eval')} needs the package lm-eval: pip install lm-eval.")
    from lm_eval.tasks import TaskManager

    known = TaskManager().all_tasks
    for name in tasks:
        if name not in known:
            hint = did_you_mean(name, known)
            raise SettingsError(f"{named('lm_eval')}: there is no task {name!r}.{hint}")


def harness_scores(
    model: classifier.TaskModel,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[str],
    *,
    batch_size: int,
) -> HarnessScores:
    """Return the scores of tasks by name and metric, such as ``acc`` and ``acc_norm``."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    model.eval()
    harness: Any = HFLM(pretrained=model.backbone, tokenizer=tokenizer, batch_size=batch_size)
    state = user_code.GlobalState()  # the harness seeds all random numbers
    try:
        results: Any = simple_evaluate(model=harness, tasks=list(tasks), bootstrap_iters=0)
    finally:
        state.restore()
    return {
        name: {
            metric.removesuffix(",none"): float(value)
            for metric, value in scores.items()
            if isinstance(value, int | float) and "," in metric
        }
        for name, scores in results["results"].items()
    }

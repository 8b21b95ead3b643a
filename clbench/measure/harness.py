"""Tasks of the LM Evaluation Harness on a trained language model, if ``lm-eval`` is installed."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from clbench.core.errors import SettingsError, did_you_mean
from clbench.models.answering import AnsweringModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HarnessScores = dict[str, dict[str, float]]


def check_harness(tasks: Sequence[str]) -> None:
    """Raise a SettingsError if the harness is missing, or does not know one of the tasks."""
    if not tasks:
        return
    if importlib.util.find_spec("lm_eval") is None:
        raise SettingsError("--lm-eval needs the package lm-eval: pip install lm-eval.")
    from lm_eval.tasks import TaskManager

    known = TaskManager().all_tasks
    for name in tasks:
        if name not in known:
            raise SettingsError(f"--lm-eval: there is no task {name!r}.{did_you_mean(name, known)}")


def harness_scores(
    model: AnsweringModel,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[str],
    *,
    batch_size: int,
) -> HarnessScores:
    """Return the scores of tasks by name and metric, such as ``acc`` and ``acc_norm``."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    harness: Any = HFLM(pretrained=model.backbone, tokenizer=tokenizer, batch_size=batch_size)
    with _random_state():  # which the harness seeds
        results: Any = simple_evaluate(model=harness, tasks=list(tasks), bootstrap_iters=0)
    return {
        name: {
            metric.removesuffix(",none"): float(value)
            for metric, value in scores.items()
            if isinstance(value, int | float) and "," in metric
        }
        for name, scores in results["results"].items()
    }


@contextmanager
def _random_state() -> Iterator[None]:
    """Restore the global random state of Python, NumPy and PyTorch."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002

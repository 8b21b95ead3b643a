"""How far a language model has moved from its base model on the task that it has just learned."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from clbench.core.seeds import stream_seed
from clbench.measure.capabilities import Measures
from clbench.measure.writer import Writer
from clbench.models.answer_scores import LOGITS
from clbench.models.answering import AnsweringModel
from clbench.models.encoding import PromptRows
from clbench.training.batches import TaskData
from clbench.training.context import Context
from clbench.training.writing import padded_tokens, uniform, write_rows


def kl_sums(base: Tensor, current: Tensor) -> tuple[float, float]:
    """Return the sums of KL(base ‖ current) and of KL(current ‖ base), in nats.

    Arguments are logits of shape (n, v): a next-token distribution in each row.
    """
    p, q = (logits.float().log_softmax(-1) for logits in (base, current))
    gap = p - q
    return float((p.exp() * gap).sum()), -float((q.exp() * gap).sum())


@dataclass
class Divergence:
    """Compares a cell's model with a copy of what it was when this object was made.

    The copy takes the memory of the weights. Distributions are compared batch by batch and never
    kept, in the weights' own precision: rounding by autocast would hide small divergences.

    Attributes
    ----------
    gold
        For each task rows with their answers.
    context
        The cell's.
    writer
        Draws answers.
    scoring
        Gives a context with the weights that the method has for a task.
    """

    gold: Sequence[TaskData]
    context: Context
    writer: Writer
    scoring: Callable[[int], AbstractContextManager[object]]
    _drawn: dict[int, TaskData] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._base = deepcopy(self._model).requires_grad_(requires_grad=False).eval()

    @property
    def _model(self) -> AnsweringModel:
        model = self.context.model
        assert isinstance(model, AnsweringModel)
        return model

    def measure(self, task: int) -> Measures:
        """Return the divergences on a task's prompts, in nats per token.

        Each is the mean over the tokens of an answer, its end token included, of the KL divergence
        between two next-token distributions over the whole vocabulary, given prompt and answer so
        far: a sum over all rows' tokens, divided by their number. On answers that the current model
        draws, KL(current ‖ base) estimates that of whole answers over their mean length, and so
        does KL(base ‖ current) on those of the base model (Shenfeld et al. 2025, arXiv 2509.04259,
        relate the latter to forgetting).

        Returns
        -------
        dict
            ``forward_kl``, KL(base ‖ current), and ``reverse_kl``, KL(current ‖ base), on the right
            answers; ``forward_kl_base`` and ``reverse_kl_base`` on answers that the base model
            draws, once for all stages; and ``forward_kl_own`` and ``reverse_kl_own`` on answers
            that the current model draws.
        """
        self._model.eval()
        with self.scoring(task):
            if task not in self._drawn:
                self._drawn[task] = self._draw(self._base, task, "base")
            own = self._draw(self._model, task, "own")
            texts = {"": self.gold[task], "_base": self._drawn[task], "_own": own}
            found = {suffix: self._compare(data) for suffix, data in texts.items()}
        return {
            f"{direction}_kl{suffix}": value
            for suffix, pair in found.items()
            for direction, value in zip(("forward", "reverse"), pair, strict=True)
        }

    def _draw(self, model: AnsweringModel, task: int, kind: str) -> TaskData:
        """Return the rows of a task with answers that a model draws, up to their end."""
        data, context = self.gold[task], self.context
        rows = data.rows
        assert isinstance(rows, PromptRows)
        prompts = replace(data, rows=replace(rows, answers=None))
        seed = stream_seed("drawn answers", kind, context.seed, context.scenario, task)
        most = self.writer.length(data)
        draws = uniform((len(rows), most), torch.Generator().manual_seed(seed))
        own = replace(context, model=model)
        answers = padded_tokens(write_rows(own, prompts, self.writer.stops, most, draws))
        return replace(data, rows=replace(rows, answers=answers))

    @torch.inference_mode()
    def _compare(self, data: TaskData) -> tuple[float, float]:
        """Return the mean divergences over the answers' tokens, forward and reverse."""
        rows = data.rows
        assert isinstance(rows, PromptRows)
        assert rows.answers is not None
        width = rows.answers.shape[1] * int(self._model.config.get_text_config().vocab_size)
        size = max(1, min(self.context.protocol.eval_batch_size, LOGITS // width))
        sums, count = np.zeros(2), 0
        for batch in data.longest_first(size, self.context.device):
            base, current = (
                batch.predictions(model(batch.inputs, batch.head))
                for model in (self._base, self._model)
            )
            sums += kl_sums(base, current)
            count += len(current)
        return float(sums[0]) / count, float(sums[1]) / count

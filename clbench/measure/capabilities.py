"""What a language model writes, and what it can still do after each stage.

Five measures, none of which depends on the tasks' labels: the loss on held-out text, zero-shot
choices among texts, divergence from and agreement with the base model's next tokens, and
whether answers are among the allowed ones.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self
from uuid import uuid4

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from clbench.core.errors import DataError, ModelError
from clbench.core.seeds import numpy_stream
from clbench.measure.pretraining_scorer import check_finite
from clbench.measure.questions import ask, check_written
from clbench.measure.writer import Writer, chosen_answers
from clbench.models import answering, encoding
from clbench.models.answer_scores import logits_at
from clbench.models.checkpoint import load_config
from clbench.models.likelihood import answer_batches, likelihood
from clbench.models.prompts import PromptEncoder
from clbench.shifts.base import ShiftContext
from clbench.shifts.scenario import Scenario
from clbench.tasks.general import GENERAL, GeneralTask, Question
from clbench.tasks.registry import general_task
from clbench.tasks.sampling import stratified
from clbench.tasks.spec import OwnTaskSpec
from clbench.tasks.task import Task
from clbench.training.batches import TaskData
from clbench.training.context import Context
from clbench.training.protocol import Protocol

Measures = dict[str, float]
PLACES = 8
"""Tokens of each text at which distributions are compared."""
TEXT_LENGTH = 64
"""Tokens after which a held-out text is cut."""
CHOICES = 4
"""Continuations to choose from."""
LEAST_WORDS = 8
"""Words of a text that can be continued."""
BATCH = 32


@dataclass(frozen=True)
class CapabilityData:
    """Texts and questions, the same for all cells of a scenario.

    Attributes
    ----------
    texts
        Held-out texts of the corpus.
    prompts, continuations
        Beginnings of some texts, and for each `CHOICES` continuations, of which `right` is true.
    tasks
        Further tasks to answer without training, as rows to score.
    tokenizer
        The model's tokenizer.
    general
        General tasks with their questions.
    identity
        Kept by pickle, as for workers, and by nothing else.
    """

    texts: tuple[str, ...]
    prompts: tuple[str, ...]
    continuations: tuple[tuple[str, ...], ...]
    right: tuple[int, ...]
    tasks: tuple[TaskData, ...]
    tokenizer: PreTrainedTokenizerBase
    general: tuple[tuple[GeneralTask, list[Question]], ...] = ()
    identity: str = field(default_factory=lambda: uuid4().hex, init=False)

    @classmethod
    def of(
        cls,
        texts: Sequence[str],
        tasks: Sequence[TaskData],
        tokenizer: PreTrainedTokenizerBase,
        seed: int,
        general: Sequence[tuple[GeneralTask, list[Question]]] = (),
    ) -> Self:
        """Return the data made of held-out texts.

        The second half of a text has to be told from those of three other texts.

        Raises
        ------
        DataError
            If fewer than four texts have eight words.
        """
        long = [words for words in map(str.split, texts) if len(words) >= LEAST_WORDS]
        if len(long) < CHOICES:
            raise DataError(
                f"capability_rows needs {CHOICES} held-out texts of {LEAST_WORDS} words or more; "
                f"only {len(long)} of the {len(texts)} texts drawn qualify. Raise capability_rows, "
                "or give a longer corpus."
            )
        rng = numpy_stream("capabilities", seed)
        starts = [" ".join(words[: len(words) // 2]) for words in long]
        ends = [" " + " ".join(words[len(words) // 2 :]) for words in long]
        continuations, right = [], []
        for i, end in enumerate(ends):
            others = rng.choice([j for j in range(len(ends)) if j != i], CHOICES - 1, replace=False)
            choices = [ends[j] for j in others]
            right.append(int(rng.integers(CHOICES)))
            choices.insert(right[-1], end)
            continuations.append(tuple(choices))
        return cls(
            tuple(texts),
            tuple(starts),
            tuple(continuations),
            tuple(right),
            tuple(tasks),
            tokenizer,
            tuple(general),
        )


@dataclass
class Capabilities:
    """Measures a cell's model; the first measurement is that of the base model.

    Attributes
    ----------
    data
        What to measure on.
    context
        The cell's.
    scored, writer
        Rows of the scenario's tasks, of which few are answered, and how the model writes.
    scoring
        Gives a context with the weights that the method has for a task, for its answers; all else
        is measured with the weights that a stage leaves.
    """

    data: CapabilityData
    context: Context
    scored: Sequence[TaskData]
    writer: Writer
    scoring: Callable[[int], AbstractContextManager[object]]
    _base: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    _newest: ClassVar[tuple[str, Measures, list[float], Any] | None] = None

    def of_base(
        self, scores: Callable[[], tuple[list[float], float]]
    ) -> tuple[Measures, list[float]]:
        """Return the measures of the base model, and its score on each task before its stage.

        `scores` gives the latter, and the mean over the tasks in the end. Cells that a process runs
        one after another on the same data share them: nothing was trained, nor set up, yet.
        """
        self.context.model.eval()
        key = f"{self.data.identity} {self.context.precision} {self.context.device}"
        if (newest := Capabilities._newest) is None or newest[0] != key:
            measures, (first, average) = self.measure(1), scores()
            newest = key, {**measures, "average": average}, first, self._base
            Capabilities._newest = newest
        _, measures, first, self._base = newest
        return dict(measures), first

    def measure(self, tasks: int) -> Measures:
        """Return the measures, with answers to the first `tasks` tasks.

        Returns
        -------
        dict
            ``text_loss``, in nats per token; ``zero_shot``, mean accuracy over the continuations
            and the further tasks, and ``zero_shot: NAME`` of each; ``divergence``, mean KL of the
            base model's next-token distribution from the present one, in nats; ``same_token``,
            share of places with the base model's most probable token; ``obedience``, share of
            written answers that are allowed ones. A cell adds ``average``, the base model's mean
            score over its tasks, and ``ahead``, the score of the next task before it is trained,
            minus the base model's, both among the classes that the task is trained with.

        Raises
        ------
        NonFiniteLossError
            If training has diverged.
        """
        model = self.context.model
        assert isinstance(model, answering.AnsweringModel)
        model.eval()
        is_base = not self._base  # the method has not been set up yet
        with torch.inference_mode(), self.context.precision.autocast():
            measures = self._on_texts(model)
            found = self._zero_shot(model)
        with self.context.precision.autocast():
            found |= self._general(model)
        measures["zero_shot"] = float(np.mean([*found.values()]))
        measures |= {f"zero_shot: {name}": value for name, value in found.items()}
        measures |= self._obedience(tasks, is_base=is_base)
        check_finite(*measures.values())
        return measures

    def _on_texts(self, model: answering.AnsweringModel) -> Measures:
        """Return loss, divergence and agreement on the held-out texts."""
        total = count = divergence = same = 0.0
        places, is_base = 0, not self._base
        rng = numpy_stream("capability places", self.context.protocol.data_seed)
        starts = range(0, len(self.data.texts), BATCH)
        for number, start in enumerate(starts):
            texts = list(self.data.texts[start : start + BATCH])
            options = {"truncation": True, "max_length": TEXT_LENGTH, "return_tensors": "pt"}
            batch = self.data.tokenizer(texts, padding=True, **options).to(self.context.device)
            ids, mask = batch["input_ids"], batch["attention_mask"]
            lengths = mask.sum(1)
            at = torch.arange(ids.shape[1] - 1, device=ids.device).expand(len(ids), -1)
            logits = logits_at(model.backbone, at, input_ids=ids, attention_mask=mask).float()
            chosen = logits.gather(-1, ids[:, 1:, None]).squeeze(-1)
            real = mask[:, 1:].bool()
            total += float((logits.logsumexp(-1) - chosen)[real].sum())
            count += float(real.sum())
            drawn = torch.from_numpy(rng.random((len(ids), PLACES)))  # float64, which MPS lacks
            spots = (drawn * (lengths.cpu()[:, None] - 1).clamp(min=1)).long().to(ids.device)
            present = logits.gather(1, spots[..., None].expand(-1, -1, logits.shape[-1]))
            present = present.log_softmax(-1)
            best = present.argmax(-1)
            if is_base:
                self._base.append((present.half().cpu(), best.cpu()))
            kept, best_before = (value.to(ids.device) for value in self._base[number])
            base = kept.float().log_softmax(-1)
            divergence += float((base.exp() * (base - present)).sum())
            same += float((best_before == best).sum())
            places += spots.numel()
        return {
            "text_loss": total / count,
            "divergence": 0.0 if is_base else divergence / places,
            "same_token": same / places,
        }

    def _zero_shot(self, model: answering.AnsweringModel) -> Measures:
        """Return the accuracy of choices that no task trains."""
        data, backbone = self.data, model.backbone
        scores = likelihood(backbone, data.tokenizer, data.prompts, data.continuations)
        lengths = [[len(text.split()) for text in row] for row in data.continuations]
        chosen = (scores / np.asarray(lengths)).argmax(1)  # long ones are improbable
        found = {"continuation": float((chosen == data.right).mean())}
        for task in data.tasks:
            outputs = self.context.outputs(task)
            found[task.name] = float((outputs.argmax(1) == task.rows.labels).mean())
        return found

    def _general(self, model: answering.AnsweringModel) -> Measures:
        """Return the share of general tasks' questions that are answered rightly, by task."""
        found: Measures = {}
        for task, questions in self.data.general:
            answers = ask((model.backbone, self.data.tokenizer), task, questions)
            found[task.name] = float(np.mean([right for right, _, _ in answers.marks]))
        return found

    def _obedience(self, tasks: int, *, is_base: bool) -> Measures:
        """Return the share of written answers that are allowed ones, if tasks have any."""
        allowed: list[bool] = []
        for data in self.scored[:tasks]:
            if isinstance(data.rows, encoding.PromptRows) and data.rows.names is not None:
                few = np.arange(len(data.rows))[: self.context.protocol.capability_rows]
                rows = data.rows.take(few)
                own = nullcontext() if is_base else self.scoring(data.task)
                with own:
                    texts = self.writer.texts(self.context, replace(data, rows=rows))
                allowed += (chosen_answers(texts, rows) >= 0).tolist()
        return {"obedience": float(np.mean(allowed))} if allowed else {}


def check_not_trained(names: Sequence[str], tasks: Sequence[Task]) -> None:
    """Raise a DataError if a task to answer without training is one of the scenario's.

    The general task ``boolq`` has the rows of ``super_glue/boolq``, for instance, which therefore
    may not be named beside it either.
    """
    trained = {task.name.partition("[")[0] for task in tasks}
    for name in names:
        if same := [one for one in trained if one == name or one.endswith(f"/{name}")]:
            raise DataError(
                f"capability_tasks: the scenario trains {same[0]!r}. Name a task that it does not."
            )
        if name in GENERAL and (same := [one for one in names if one.endswith(f"/{name}")]):
            raise DataError(
                f"capability_tasks: {name!r} and {same[0]!r} have the same rows. Name one of them."
            )


def capability_data(
    context: ShiftContext,
    protocol: Protocol,
    prompts: PromptEncoder,
    scenario: Scenario,
    data: Path | None,
    own: Mapping[str, OwnTaskSpec],
) -> CapabilityData | None:
    """Return what a language model is measured on in a scenario; None if nothing is asked for.

    `data` and `own` say where tasks are, as in `clbench.tasks.registry.load_task`.

    Raises
    ------
    DataError, ModelError
        If a task is trained or has no classes, the corpus is too short, or the model is an
        encoder-decoder.
    """
    count = protocol.capability_rows
    if count is None:
        return None
    if prompts.encoder_decoder:
        raise ModelError(
            f"model {protocol.model!r}: capability_rows needs a decoder, but this is "
            "an encoder-decoder. Remove capability_rows from [protocol]."
        )
    check_not_trained(protocol.capability_tasks, scenario.tasks)
    tasks, general = [], []
    for name in protocol.capability_tasks:
        if asked := general_task(name, own):
            if not (questions := asked.questions(data, count, context.seed)):
                raise DataError(f"capability_tasks: {name!r} has no rows. Use a complete copy.")
            check_written(prompts.tokenizer, asked, questions[0])
            general.append((asked, questions))
            continue
        task = context.task(name)
        if not task.labels:
            raise DataError(f"capability_tasks: {name!r} has no classes to choose from.")
        rng = numpy_stream("capability rows", name, context.seed)
        rows = task.scored.take(stratified(task.scored.labels, count, rng))
        encoded = prompts.encode(task, rows, to_train=False).lock()
        pad = int(prompts.tokenizer.pad_token_id or 0)
        tasks.append(TaskData(0, name, name, False, encoded, pad))
    texts = context.held_out_texts(count)
    found = CapabilityData.of(texts, tasks, prompts.tokenizer, context.seed, general)
    config = load_config(protocol.model, protocol.revision)
    try:
        for _ in answer_batches(config, found.tokenizer, found.prompts, found.continuations):
            pass
    except DataError as error:
        raise DataError(
            f"capability_rows: halves of texts of {protocol.corpus}: {error}"
        ) from error
    return found

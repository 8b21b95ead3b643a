"""Methods on data that the model writes: texts, right answers, self-distillation, rewards."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from operator import eq
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Generator, Tensor, nn

from clbench.core.errors import DataError
from clbench.core.shapes import only_shapes
from clbench.methods.base import Method
from clbench.methods.distillation import distillation
from clbench.methods.generic_replay import TextReplay
from clbench.models.answering import stop_tokens
from clbench.models.checkpoint import load_tokenizer
from clbench.models.families import usable_length
from clbench.tasks.metrics import TEXT_METRICS
from clbench.training import writing
from clbench.training.batches import Batch, TaskData
from clbench.training.context import Context
from clbench.training.stage import Stage
from clbench.training.writing import Tokens, padded_tokens, prompt_rows, prompts_of

SPARE = 8
"""Tokens that an answer may have beyond the longest one of the rows."""
MOST_TOKENS = 100_000
SHOWN = 64
"""Most rows of which SDFT counts right answers before a stage."""
Temperature = Annotated[float, Field(gt=0.0, le=10.0)]


class OnPolicy(Method):
    """Base of methods that let a language model write, at a `temperature` of sampling."""

    head_kinds: ClassVar[tuple[str, ...]] = ("language-model",)
    writes_answers: ClassVar[bool] = True
    temperature: Temperature = 1.0

    def setup(self, context: Context) -> None:
        """Load the tokenizer."""
        name, revision = context.model_name, context.revision
        self._tokenizer: Any = load_tokenizer(name, revision, plain=True)
        self._stops = stop_tokens(self._tokenizer)

    def scores(
        self, data: TaskData, written: Sequence[Tokens], gold: Sequence[Tokens]
    ) -> list[float]:
        """Return the score of each text by the task's first metric; of a class, 1 if it is given.

        `written` has equally many texts for each row of `gold`, in its order.
        """
        own = writing.lines(self._tokenizer, written)
        given = self._tokenizer.batch_decode(gold, skip_special_tokens=True)
        score = TEXT_METRICS[data.metric] if data.metric else lambda a, b: float(a == b)
        each = len(written) // len(gold)
        return [score(text, given[number // each].strip()) for number, text in enumerate(own)]


class SelfReplay(OnPolicy, TextReplay):
    """Train on a few texts that the model itself wrote before the stage.

    Marek et al. 2026 (arXiv 2605.26097) keep a model's distributions in its own samples by a
    divergence. The next-token loss used here has the same gradient, in the mean and at temperature
    1, as KL(model before the stage ‖ model); they compare both. Other attributes are those of
    `TextReplay`.

    Attributes
    ----------
    texts
        Largest number of texts in a stage. No more are written than its steps read once.
    text_length
        Most tokens to write, within the positions that the model has.
    prompts
        ``none``: begin with the model's own beginning-of-text token. ``old``: answer prompts of
        earlier tasks. The first stage is then vanilla's, and the method keeps rows.
    """

    name: ClassVar[str] = "self-replay"
    texts: Annotated[int, Field(ge=1)] = 1000
    text_length: Annotated[int, Field(ge=4, le=MOST_TOKENS)] = 128
    prompts: Literal["none", "old"] = "none"

    @property
    def keeps_rows(self) -> bool:  # type: ignore[override]
        """Whether texts begin with prompts of earlier tasks."""
        return self.prompts == "old"

    def acts_in(self, index: int) -> bool:
        """Return False for a first stage without old prompts."""
        return index > 0 or self.prompts == "none"

    def before_stage(self, stage: Stage) -> None:
        """Let the model write the texts."""
        super().before_stage(stage)
        count, tokenizer, stops = self.texts, self._tokenizer, [int(self._tokenizer.eos_token_id)]
        if steps := stage.own_steps:
            count = min(count, ceil(steps * self._rate) + 1)
        first = [token for token in tokenizer("")["input_ids"] if token not in stops]
        known = [first or [stops[0] if (own := tokenizer.bos_token_id) is None else int(own)]]
        if self.prompts == "old":
            stops = self._stops
            known = [p for task in range(stage.index) for p in prompts_of(stage.earlier(task).rows)]
        drawn = torch.randint(len(known), (count,), generator=stage.rng("prompts"))
        starts = [known[number] for number in drawn.tolist()]
        pad = int(tokenizer.pad_token_id or 0)
        data = TaskData(stage.index, "texts", stage.data.head, False, prompt_rows(starts), pad)
        texts = writing.draw_rows(stage, data, stops, self.text_length, self.temperature)
        self._data, self._device = replace(data, rows=prompt_rows(starts, texts)), stage.device

    def text_loss(self, stage: Stage, texts: Batch) -> Tensor:
        """Return the mean next-token loss of what was written in a batch of texts, a scalar."""
        return Stage.criterion(stage.logits(texts), texts)

    def _pass(self, order: Generator, masks: Generator, *, size: int) -> Iterator[Batch]:
        numbers = torch.randperm(len(self._data.rows), generator=order).numpy()
        for start in range(0, len(numbers), size):
            yield self._data.batch(numbers[start : start + size], self._device)


class SelfSFT(OnPolicy):
    """Train on the model's own answers to the new task's prompts, where they are right.

    Before the stage, the model writes `samples` answers to each prompt. The first right one
    replaces the given answer (rejection sampling: Zelikman et al. 2022; Yuan et al. 2023, who keep
    all different ones). Answers of classes must equal the given one, and if their tokens do, too,
    only ``otherwise = "drop"`` differs from vanilla.

    Attributes
    ----------
    samples
        Answers written to each prompt.
    threshold
        Least score of a right text by the task's first metric.
    otherwise
        Prompts without a right answer keep the given one (``gold``, as in Gupta et al. 2024), so
        that all rows are learned in as many steps as vanilla has, or are left out (``drop``).
    """

    name: ClassVar[str] = "self-sft"
    temperature: Temperature = 0.7
    samples: Annotated[int, Field(ge=1, le=1000)] = 4
    threshold: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    otherwise: Literal["gold", "drop"] = "gold"

    def training_data(self, stage: Stage) -> Sequence[TaskData]:
        """Return the rows with the model's own answers."""
        data = stage.data
        rows: Any = data.rows
        gold, end = answers_of(rows), int(self._tokenizer.eos_token_id)
        prompts = rows.take(np.repeat(np.arange(len(rows)), self.samples))
        asked = replace(data, rows=replace(prompts, answers=None))
        most = max(map(len, gold)) + SPARE
        written = writing.draw_rows(stage, asked, self._stops, most, self.temperature)
        chosen: dict[int, Tokens] = {}
        for number, score in enumerate(self.scores(data, written, gold)):
            row = number // self.samples
            if row not in chosen and score >= self.threshold:
                chosen[row] = [*(t for t in written[number] if t not in self._stops), end]
        stage.note(
            f"self-sft: {stage.name}: {len(chosen)} of {len(rows)} prompts have a right answer "
            f"among {self.samples}."
        )
        drops = self.otherwise == "drop" and not only_shapes()
        kept = sorted(chosen) if drops else range(len(rows))
        if not kept:
            raise DataError(
                f"self-sft: no answer to a prompt of {stage.name!r} is right. Set "
                "otherwise = 'gold', or raise samples."
            )
        answers = padded_tokens([chosen.get(row, gold[row]) for row in kept])
        return [replace(data, rows=replace(rows.take(kept), answers=answers))]


class SDFT(OnPolicy):
    """Self-distillation fine-tuning: learn from the same model with the answer in its context.

    At each step the model writes an answer to each prompt of the batch. The loss is the mean over
    its tokens of KL(student ‖ teacher): the student reads the prompt, the teacher an example before
    it (Shenfeld et al. 2026, arXiv 2601.19897, section 3). The teacher has no gradient; it begins
    as the model before the stage and follows its moving average. Simplified: the example is the
    prompt with its given answer, without the paper's words around it, which need a model that
    follows instructions; the first three tokens, which the authors' code skips, count; and the mean
    is over all tokens of the batch, where their code takes it over each answer first, so here
    longer answers weigh more. Before a stage, a note tells of how many rows the model gives the
    first line of the answer, with the example and without.

    Attributes
    ----------
    ema
        Share of the model in the teacher after each step: 0 keeps the model before the stage.
    divergence
        ``reverse``: KL(student ‖ teacher), as in the paper. ``forward``: KL(teacher ‖ student), the
        default of the authors' code.
    """

    name: ClassVar[str] = "sdft"
    needs_decoder: ClassVar[bool] = True
    ema: Annotated[float, Field(ge=0.0, le=1.0)] = 0.01
    divergence: Literal["reverse", "forward"] = "reverse"

    def before_stage(self, stage: Stage) -> None:
        """Let the teacher begin as the model, and note what it makes of the answers it sees."""
        # In bfloat16, a weight would lose the steps of the average.
        self._teacher = {n: v.float() for n, v in stage.snapshot(stage.shared_names()).items()}
        self._note_what_examples_tell(stage)

    def _note_what_examples_tell(self, stage: Stage) -> None:
        rows: Any = stage.data.rows
        rows = rows.take(np.linspace(0, len(rows) - 1, min(SHOWN, len(rows)), dtype=int))
        prompts, gold = prompts_of(rows), answers_of(rows)
        most = max(map(len, gold)) + SPARE
        given = writing.lines(self._tokenizer, gold)
        right = TEXT_METRICS[stage.data.metric] if stage.data.metric else eq
        counts = []
        for starts in (self.examples(stage, prompts, gold, most), prompts):
            asked = replace(stage.data, rows=prompt_rows(starts))
            own = writing.lines(
                self._tokenizer, writing.write_rows(stage, asked, self._stops, most)
            )
            counts.append(sum(right(*pair) >= 1.0 for pair in zip(own, given, strict=True)))
        if not only_shapes():
            stage.note(
                f"sdft: {stage.name}: the model gives the right answer to {counts[0]} of "
                f"{len(rows)} rows with the answer in its context, and to {counts[1]} without."
            )

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the divergence at the tokens that the model writes now."""
        rows = stage.data.rows.take(batch.positions)
        prompts, gold = prompts_of(rows), answers_of(rows)
        most, data = max(map(len, gold)) + SPARE, replace(stage.data, rows=prompt_rows(prompts))
        draws = writing.uniform((len(prompts), most), stage.rng("answers"))
        answers = writing.write_rows(stage, data, self._stops, most, draws, self.temperature)
        shown = self.examples(stage, prompts, gold, most)
        dtype, outputs = stage.model.backbone.dtype, []
        teacher = {name: value.to(dtype) for name, value in self._teacher.items()}
        for starts, weights in ((prompts, None), (shown, teacher)):
            asked = replace(data, rows=prompt_rows(starts, answers))
            part = asked.batch(np.arange(len(answers)), stage.device)
            logits = stage.logits_of(weights, part) if weights else stage.logits(part)
            outputs.append(part.predictions(logits))
        own, other = outputs
        pair = (other, own) if self.divergence == "reverse" else (own, other)
        return distillation(*pair, temperature=1.0, regression=False)

    def examples(
        self, stage: Stage, prompts: Sequence[Tokens], gold: Sequence[Tokens], most: int
    ) -> list[Tokens]:
        """Return what the teacher reads: each prompt with its answer, then the prompt again.

        It loses its start where it leaves no room for `most` tokens.
        """
        tokenizer, chat = self._tokenizer, stage.protocol.chat
        chat = bool(tokenizer.chat_template) if chat is None else chat
        gap = tokenizer("\n" if chat else "\n\n", add_special_tokens=False)["input_ids"]
        # The end token ends a turn of a chat; elsewhere it would part the prompt from the example.
        cut = None if chat or not gap else -1
        again = [p[len(p) > 1 and p[0] == tokenizer.bos_token_id :] for p in prompts]
        parts = zip(prompts, gold, again, strict=True)
        limit = usable_length(stage.model.config)
        room = 0 if limit is None else max(1, limit - most)  # 0 cuts nothing
        return [[*prompt, *answer[:cut], *gap, *more][-room:] for prompt, answer, more in parts]

    @torch.no_grad()
    def after_step(self, stage: Stage) -> None:
        """Move the teacher towards the model."""
        weights = dict(stage.model.named_parameters())
        for name, value in self._teacher.items():
            value.lerp_(weights[name].to(value), self.ema)


class GRPO(OnPolicy):
    """Group-relative policy optimisation: reinforce the own answers that are better than others.

    At each step the model writes `samples` answers to each prompt of the batch, of at most eight
    tokens more than the longest given answer. The loss is the mean over their tokens of −A·log p,
    where p is the probability of a token at `temperature` and A the advantage of its answer, a
    constant (Shao et al. 2024, arXiv 2402.03300, equation 3, without the penalty of its divergence
    from the model before). As each answer is used once, the ratio of that equation is taken as 1,
    and nothing is clipped. The mean over all tokens of the batch, in place of one over each answer
    first, is TRL's ``dapo`` (after Yu et al. 2025, arXiv 2503.14476, section 3.3). The reward is
    the score of the answer's first line: 1 for the given class, or in regression for the nearest
    of the listed numbers, else 0; for texts the task's first metric. The curve ``reward`` is its
    mean. A note says where no answer was ever rewarded more than another.

    Attributes
    ----------
    samples
        Answers written to each prompt, a group.
    advantage
        Of reward r: ``normalised``: (r − mean)/(s + 1e-4), with mean and standard deviation s of
        the group. ``centred``: r − mean (Liu et al. 2025, arXiv 2503.20783). ``reward``: r itself,
        so that wrong answers have no gradient, though their tokens count in the mean; at
        temperature 1, where one answer of one token is right and its end token certain, the
        gradient is in the mean nearly proportional to that of DFT.
    """

    name: ClassVar[str] = "grpo"
    samples: Annotated[int, Field(ge=2, le=1000)] = 8
    advantage: Literal["normalised", "centred", "reward"] = "normalised"
    has_learned = False

    def before_stage(self, stage: Stage) -> None:
        """Nothing has been learned yet."""
        self.has_learned = False

    def after_stage(self, stage: Stage) -> None:
        """Note if nothing was learned."""
        if not self.has_learned and not only_shapes():
            stage.note(
                f"grpo: {stage.name}: no answer to a prompt was ever rewarded more than another, "
                "so nothing was learned."
            )

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the loss of answers that the model writes now, a scalar."""
        rows: Any = stage.data.rows.take(np.repeat(batch.positions, self.samples))
        gold, data = answers_of(rows), replace(stage.data, rows=replace(rows, answers=None))
        most = max(map(len, gold)) + SPARE
        draws = writing.uniform((len(rows), most), stage.rng("answers"))
        written = writing.write_rows(stage, data, self._stops, most, draws, self.temperature)
        scores = torch.tensor(self.scores(data, written, gold), device=stage.device)
        stage.sample("reward", scores.mean())
        advantages = self.advantages(scores.view(-1, self.samples)).flatten()
        self.has_learned |= bool(advantages.any())
        asked = replace(data, rows=replace(rows, answers=padded_tokens(written)))
        part = asked.batch(np.arange(len(written)), stage.device)
        outputs = stage.logits(part) / self.temperature
        losses = nn.functional.cross_entropy(
            outputs.flatten(0, 1), part.labels.flatten(), reduction="none"
        )
        return stage.token_mean(advantages[:, None] * losses.view(part.labels.shape), part)

    def advantages(self, rewards: Tensor) -> Tensor:
        """Return the advantages of rewards of shape (rows, samples)."""
        if self.advantage == "reward":
            return rewards
        differ = (rewards != rewards[:, :1]).any(1, keepdim=True)  # the mean is rounded
        centred = (rewards - rewards.mean(1, keepdim=True)) * differ
        if self.advantage == "centred":
            return centred
        return centred / (rewards.std(1, keepdim=True) + 1e-4)


def answers_of(rows: Any) -> list[Tokens]:
    """Return the tokens of the answers of `PromptRows` to train on, with their end tokens."""
    return [[token for token in answer if token >= 0] for answer in rows.answers.tolist()]

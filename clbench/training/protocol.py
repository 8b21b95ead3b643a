"""How every method trains, and the record of a stage."""

import math
from functools import lru_cache, partial
from typing import Annotated, Any, Literal, Self

import pydantic
from typing_extensions import TypedDict

from clbench.core.errors import printable
from clbench.core.registry import Amount, Count

MOST = 10**9
"""Largest number of rows, steps and the like."""
Positive = Annotated[int, pydantic.Field(gt=0, le=MOST)]
Fraction = Annotated[float, pydantic.Field(gt=0.0, lt=1.0)]
Share = Annotated[float, pydantic.Field(ge=0.0, lt=1.0)]
BY_TASK = ("task_epochs", "task_steps", "task_batch_size", "task_metric")
"""Settings that are tables with one value for each task."""
PATHS = ("model", "revision", "corpus")
"""Settings that may say where something is: recipes tell by its content what it is."""
SMOKE_ROWS, SMOKE_SCORED = (
    {"task": (40, 200), "class": (2, 20)},
    {"task": (20, 50), "class": (2, 20)},
)
"""Fewest and most rows of a smoke run to train on and to score on, by what their limits count."""
SMOKE_STEPS = 20
"""Most steps of a stage of a smoke run."""


def later(default: Any) -> Any:
    """Return a field that recipes leave out at its default, as those of earlier versions do."""
    return pydantic.Field(default, exclude_if=lambda value: value == default)


class Protocol(pydantic.BaseModel):
    """Settings of the `[protocol]` table of a suite.

    Defaults are those of the BERTcL paper (Kenneweg et al. 2022, section 4.3) where it states
    one: Adam with betas (0.9, 0.999) and eps 1e-8, batch size 16, at most 256 tokens, flat rate
    2e-5, cosine decay with warm-up over 10 % of the steps, restarted for each task, a dense layer
    on [CLS], no early stopping.

    Attributes
    ----------
    model
        Name of a built-in model or of a model on the hub, or a local folder.
    revision
        Branch, tag or commit of a hub model.
    pooling
        ``first`` token, ``last`` real token, ``mean`` over real tokens, or ``auto`` by family.
    head_dropout
        Dropout between the pooled vector and the head.
    head
        ``classification``: a new head for each task, or one that tasks share.
        ``language-model``: the model's own head answers every task in words, by its template
        (`clbench.tasks.task`); nothing is added and the task is never told.
    head_loss
        Classes of a shared head among which a row of the stage's task is trained: ``all`` so far,
        as it is scored (as in the code of SEQ*, Zheng et al. 2024), or those of the ``stage`` (as
        in FACIL, Masana et al. 2022, for methods without rows of earlier tasks). Rows of earlier
        tasks are always trained among all (as in ER-ACE, Caccia et al. 2022).
    answer_by
        How a language model is scored on classes: ``likelihood`` takes the most probable answer of
        the task, ``generation`` what it writes.
    answer_score
        Whether answers are ranked by the ``sum`` or the ``mean`` of their tokens' log-probability.
    answer_length
        Most tokens of a text to write, of a task with targets.
    list_answers
        Whether a language model's prompts of tasks with classes begin with the answers to choose
        from; those of Wang et al. 2023 (O-LoRA) list them, too, after an instruction.
    chat
        Whether prompts are put into the model's chat template; None: if it has one.
    packing
        Whether a language model trains on the rows of a batch without padding between them.
    accumulation
        Parts of a batch that pass through the model one after another, to save memory.
    gradient_checkpointing
        Whether to recompute activations in the backward pass, to save memory.
    weights
        Number format of weights and optimizer; `precision` is that of the computation where
        weights are float32.
    epochs, steps
        Length of a stage; `steps` overrides `epochs`.
    task_epochs, task_steps
        Length of a stage by the task's name; they override `epochs` and `steps`.
    batch_size, task_batch_size
        Rows in a batch, for all tasks and by the task's name.
    task_metric
        Metric of R, p_o and p_s by the task's name; by default the task's first metric.
    max_length
        Tokens after which a text is cut.
    lr, betas, eps, weight_decay
        Flat rate and settings of Adam; with weight decay above 0, of AdamW.
    schedule, warmup
        Shape of the rate over a stage's steps, and the share of steps that warm up.
    clip_norm
        Largest gradient norm; None for no clipping.
    precision
        ``float32``, ``bf16`` (autocast), or ``auto``: see `clbench.training.device.fast_bf16`.
    corpus
        Running text for methods that use the language-model loss: ``built-in``, ``wiki40b/en``
        from the hub, a text file with one text a line, or a Parquet table.
    limit
        Largest number of rows of each split, stratified by label.
    scored_limit
        Largest number of rows to score on; by default `limit`.
    limit_per
        What these limits count: the rows of a ``task``, or of each ``class``.
    scored_limit_per
        The same for `scored_limit` alone; None is as `limit_per`.
    smoke
        Whether to try the suite at about a tenth of its rows, scored rows and steps; at most
        200 rows, 50 scored ones and 20 steps. Its scores are no result.
    subset
        Training rows within `limit`: ``fixed`` takes the same ones for every seed; ``seed`` draws
        others for each, so that intervals over seeds include the choice of the rows. The rows that
        are scored stay the same: differences between seeds then come from training.
    data_seed
        Seed of limits and of the tuning split; the same for all cells.
    score_on
        ``validation`` for reports. ``tuning`` holds out `tuning_fraction` of the training rows
        and scores on them, for searches and other choices of settings; a task whose loader gives
        tuning rows is scored on these.
    curve_points, curve_rows
        Number of times that all tasks so far are scored during a stage, and of validation rows
        of each. There are fewer points if scoring would take more than 10 % of the training work
        (`clbench.training.engine.SCORING_SHARE`). The end of a stage is scored on all rows.
    probe_rows
        Training rows of each task to fit linear probes on, after each stage; by default none
        (`clbench.measure.rows`).
    capability_rows
        Held-out texts, and rows of each task, on which a language model is measured before and
        after every stage (`clbench.measure.capabilities`); by default none.
    capability_tasks
        Names of tasks that no scenario trains, to answer without training; also those of
        `clbench.tasks.general.GENERAL`, such as ``mmlu`` and ``ifeval``.
    kl_rows
        Scored rows of each task on which a language model is compared with the base model, by the
        KL divergence, after the task's stage (`clbench.measure.divergence`); by default none.
    relearn_rows, relearn_margin
        Most rows of the first task on which the final model is trained again until the task's score
        is within the margin of what it was (`clbench.measure.relearning`); by default none. At a
        margin of -1 all numbers of rows are tried.
    relearn_rate, relearn_steps
        The rate of that, as a multiple of `lr`, and its steps, by default those of a stage on so
        many rows.
    lm_eval
        Names of tasks of the LM Evaluation Harness to run after the last stage.
    eval_batch_size
        Rows in a batch when scoring.
    trim_embeddings
        Keep the embedding rows of only those tokens that occur in the scenario. Exact: the other
        rows get no gradient.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    model: Annotated[str, pydantic.Field(min_length=1)] = "tiny"
    revision: str | None = None
    pooling: Literal["auto", "first", "last", "mean"] = "auto"
    head_dropout: Share = 0.0
    head: Literal["classification", "language-model"] = later("classification")
    head_loss: Literal["all", "stage"] = later("all")
    answer_by: Literal["likelihood", "generation"] = later("likelihood")
    answer_score: Literal["sum", "mean"] = later("sum")
    answer_length: Positive = later(64)
    list_answers: bool = later(False)
    chat: bool | None = later(None)
    packing: bool = later(False)
    accumulation: Positive = later(1)
    gradient_checkpointing: bool = later(False)
    weights: Literal["float32", "bf16"] = later("float32")
    epochs: Positive = 3
    steps: Positive | None = None
    task_epochs: dict[str, Positive] = {}
    task_steps: dict[str, Positive] = {}
    batch_size: Positive = 16
    task_batch_size: dict[str, Positive] = {}
    task_metric: dict[str, Annotated[str, pydantic.Field(min_length=1)]] = {}
    max_length: Annotated[int, pydantic.Field(ge=4, le=MOST)] = 256
    lr: Annotated[float, pydantic.Field(gt=0.0, le=1.0)] = 2e-5
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: Annotated[float, pydantic.Field(gt=0.0)] = 1e-8
    weight_decay: Annotated[float, pydantic.Field(ge=0.0)] = 0.0
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: Share = 0.1
    clip_norm: Annotated[float, pydantic.Field(gt=0.0)] | None = None
    precision: Literal["auto", "float32", "bf16"] = "auto"
    corpus: Annotated[str, pydantic.Field(min_length=1)] = "built-in"
    limit: Positive | None = None
    scored_limit: Positive | None = later(None)
    limit_per: Literal["task", "class"] = later("task")
    scored_limit_per: Literal["task", "class"] | None = later(None)
    smoke: bool = later(False)
    subset: Literal["fixed", "seed"] = later("fixed")
    data_seed: Annotated[int, pydantic.Field(ge=0)] = 0
    score_on: Literal["validation", "tuning"] = "validation"
    tuning_fraction: Fraction = 0.1
    curve_points: Annotated[int, pydantic.Field(ge=0, le=MOST)] = 10
    curve_rows: Positive = 300
    probe_rows: Positive | None = later(None)
    capability_rows: Positive | None = later(None)
    capability_tasks: list[str] = later([])
    kl_rows: Positive | None = later(None)
    relearn_rows: Positive | None = later(None)
    relearn_margin: Annotated[float, pydantic.Field(ge=-1.0, lt=1.0)] = later(0.02)
    relearn_rate: Annotated[float, pydantic.Field(gt=0.0, le=1e3)] = later(1.0)
    relearn_steps: Positive | None = later(None)
    lm_eval: list[str] = later([])
    eval_batch_size: Positive = 64
    trim_embeddings: bool = True

    @pydantic.model_validator(mode="after")
    def _settings_fit_together(self) -> Self:
        if self.subset == "seed" and self.limit_per == "class":
            raise ValueError("subset = 'seed' needs limit_per = 'task'")
        only_language_models = (
            *("answer_by", "answer_score", "answer_length", "list_answers", "chat", "packing"),
            *("capability_rows", "capability_tasks", "kl_rows", "lm_eval"),
            *("weights", "gradient_checkpointing"),
        )
        given = [key for key in only_language_models if key in self.model_fields_set]
        if self.is_language_model and (self.pooling != "auto" or self.head_dropout):
            raise ValueError("pooling and head_dropout are settings of classification heads")
        if given and not self.is_language_model:
            raise ValueError(f"{given[0]} needs head = 'language-model'")
        if self.is_language_model and self.head_loss == "stage":
            raise ValueError("head_loss = 'stage' needs head = 'classification'")
        if self.capability_tasks and self.capability_rows is None:
            raise ValueError("capability_tasks needs capability_rows, the rows to measure on")
        if len({*self.capability_tasks}) < len(self.capability_tasks):
            raise ValueError("capability_tasks must name each task once")
        return self

    @property
    def is_language_model(self) -> bool:
        """Whether the model's own head answers every task."""
        return self.head == "language-model"

    @property
    def limits(self) -> dict[str, Any]:
        """Arguments of `clbench.tasks.task.Task.limited`."""
        per, scored_per = self.limit_per, self.scored_limit_per or self.limit_per
        limit, scored = self.limit, self.scored_limit
        if self.smoke:
            scored = _tenth(scored or limit, SMOKE_SCORED[scored_per])
            limit = _tenth(limit, SMOKE_ROWS[per])
        return {
            "limit": limit,
            "scored": scored,
            "by_class": per == "class",
            "scored_by_class": scored_per == "class",
            "every_class": self.smoke,
            "seed": self.data_seed,
        }

    def stage_length(self, task: str, rows: int) -> tuple[int, int]:
        """Return the steps of a stage on `rows` training rows, and the steps of one epoch."""
        per_epoch = -(-rows // self.batch_of(task))
        return self.stage_steps(task, per_epoch), per_epoch

    def stage_steps(self, task: str, per_epoch: int) -> int:
        """Return the steps of a stage of which one epoch takes `per_epoch`.

        A part of a task, such as ``glue/sst2[short]``, falls back to the settings of ``glue/sst2``.
        """
        base = task.partition("[")[0]
        steps = self.task_steps.get(task, self.task_steps.get(base))
        epochs = self.task_epochs.get(task, self.task_epochs.get(base))
        if steps is None and epochs is None:
            steps = self.steps
        if self.smoke and steps is not None:
            steps = _tenth(steps, (1, SMOKE_STEPS))
        elif steps is None:
            steps = (epochs or self.epochs) * per_epoch
        return min(steps, SMOKE_STEPS) if self.smoke else steps

    def one_pass(self) -> Self:
        """Return the protocol with one epoch for every task."""
        once: dict[str, Any] = {"epochs": 1, "steps": None, "task_epochs": {}, "task_steps": {}}
        return self.model_copy(update=once)

    def batch_of(self, task: str) -> int:
        """Return the rows in a batch of `task`, or of the task that it is a part of."""
        sizes = self.task_batch_size
        return sizes.get(task, sizes.get(task.partition("[")[0], self.batch_size))

    def subset_seed(self, seed: int) -> int | None:
        """Return what draws the training rows of a cell besides `data_seed`: `seed`, or None."""
        return seed if self.subset == "seed" else None

    def rate_factor(self, step: int, steps: int) -> float:
        """Return the factor on the rate at a step, counted from 0, of `steps` steps.

        A linear warm-up from 0 to 1, then a half cosine or a line down to 0, or 1 throughout
        (Kenneweg et al. 2022, section 4.3: cosine, 10 % warm-up). The last step never belongs to
        the warm-up: a stage of one step, whose rate would be 0, would not train.
        """
        warmup = min(math.ceil(self.warmup * steps), steps - 1)
        if step < warmup:
            return step / warmup
        if self.schedule == "constant":
            return 1.0
        progress = min(1.0, (step - warmup) / max(1, steps - warmup))
        if self.schedule == "linear":
            return 1.0 - progress
        return 0.5 * (1.0 + math.cos(math.pi * progress))


def _tenth(number: int | None, bounds: tuple[int, int]) -> int:
    """Return a tenth of a number within bounds, but not more than the number; None is endless."""
    fewest, most = bounds
    return most if number is None else min(number, max(fewest, min(most, number // 10)))


LONGEST_STORED_NAME = 200
"""Characters after which a name is cut: a part of a task has a longer name than the task."""

Name = Annotated[
    str, pydantic.AfterValidator(lru_cache(partial(printable, longest=LONGEST_STORED_NAME)))
]
Value = Annotated[float, pydantic.Field(ge=-1e39, le=1e39)] | None
"""A value of a curve: at most a float32, as diverging losses are; None where it is not finite."""
Point = Annotated[list[Value], pydantic.Field(min_length=2, max_length=2)]
OPEN = pydantic.ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


@pydantic.with_config(OPEN)
class _Curves(TypedDict, total=False, extra_items=list[Point]):  # type: ignore[call-arg]
    step: list[Count]
    loss: list[Value]
    lr: list[Value]
    scores: dict[str, list[Point]]


Curves = Annotated[
    dict[str, Any], pydantic.GetPydanticSchema(lambda _, schema_of: schema_of(_Curves))
]


class StageRecord(pydantic.BaseModel):
    """Training on one task of a cell.

    Attributes
    ----------
    task
        Name of the task or of a part of it, such as ``glue/sst2[short]``.
    rows, steps, epochs
        Training rows (those of earlier tasks included), optimizer steps, passes over the rows.
    examples, tokens
        Rows and real tokens (without padding) that went through the model.
    train_seconds, eval_seconds
        Time of training, and of scoring during and after it, in seconds. Steps whose memory is
        measured are slow, so they are not timed: the time of the others is scaled up by the tokens.
    memory_mb
        Peak size of a training step's tensors in megabytes (1e6 bytes), at the largest batches of
        the stage, see `clbench.training.memory.StepMemory`.
    cached
        Whether the stage came from the stage cache. Times are then those of the run that
        trained it.
    curves
        ``step``, ``loss`` (mean since the last point) and ``lr`` (of the first group, at the last
        step) as lists of equal length, ``scores`` as a list of ``[step, score]`` for each task, and
        the method's own curves.
    """

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    task: Name
    rows: Count
    steps: Count
    epochs: Amount
    examples: Count
    tokens: Count
    train_seconds: Amount
    eval_seconds: Amount = 0.0
    memory_mb: Amount | None = None
    cached: bool = False
    curves: Curves = {}

    def points(self, curve: str, task: str | None = None) -> list[tuple[float, float]]:
        """Return steps and finite values of a curve, of ``scores`` those on one task."""
        curves = self.curves
        if curve in ("loss", "lr"):
            pairs = zip(curves.get("step", []), curves.get(curve, []), strict=False)
        else:
            pairs = curves.get(curve, []) if task is None else curves.get(curve, {}).get(task, [])
        return [(step, value) for step, value in pairs if None not in (step, value)]

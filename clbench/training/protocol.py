"""How every method of a suite is trained and scored: the settings that cells share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]


BY_TASK = ("task_epochs", "task_steps", "task_batch_size", "task_metric")
"""Settings that are given task by task."""


class Protocol(BaseModel):
    """Settings of the `[protocol]` table of a suite.

    Defaults are those of the BERTcL paper (Kenneweg et al. 2022, section 4.3) where it
    states one: Adam with betas (0.9, 0.999) and eps 1e-8, batch size 16, at most 256
    tokens, flat rate 2e-5, cosine decay with warm-up over 10 % of the steps, restarted for
    each task, a dense layer on [CLS], no early stopping.

    Attributes
    ----------
    model
        Name of a built-in model, of a model on the hub, or a local folder.
    revision
        Branch, tag or commit of a hub model.
    pooling
        ``first`` token, ``last`` real token, ``mean`` over real tokens, or ``auto`` by family.
    head_dropout
        Dropout between the pooled vector and the head.
    epochs, steps
        Length of a stage; `steps`, where given, overrides `epochs`.
    task_epochs, task_steps
        The same for single tasks, by the task's name; they override the general ones.
    batch_size, task_batch_size
        Rows in a batch; the same for single tasks, by the task's name.
    task_metric
        Which of a task's metrics R, p_o and p_s hold, by the task's name; else its first.
    max_length
        Tokens after which a text is cut.
    lr, betas, eps, weight_decay
        The flat rate and Adam's settings; weight decay above 0 is decoupled (AdamW).
    schedule, warmup
        Shape of the rate over a stage's steps and the share of steps that warm up.
    clip_norm
        Largest gradient norm, or None for no clipping.
    precision
        ``auto`` is bf16 autocast where the hardware does it fast, otherwise float32.
    corpus
        Running text for methods that look at the language-model loss: ``built-in``,
        ``wiki40b/en`` from the hub, a text file with one text a line, or a Parquet table.
    limit
        At most so many rows of each split, stratified by label.
    data_seed
        Seed of limits and of the tuning split; the same for all cells.
    score_on
        ``validation`` reports; ``tuning`` holds `tuning_fraction` of the training rows out
        and scores on them, for anything that selects.
    curve_points, curve_rows
        How often all seen tasks are scored during a stage, and on at most how many
        validation rows of each (the end of a stage is always scored on all rows).
    eval_batch_size
        Rows in a batch of scoring.
    trim_embeddings
        Keep only the embedding rows of tokens that the scenario can meet. Exact: the other
        rows get no gradient.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[str, Field(min_length=1)] = "tiny"
    revision: str | None = None
    pooling: Literal["auto", "first", "last", "mean"] = "auto"
    head_dropout: Share = 0.0
    epochs: Positive = 3
    steps: Positive | None = None
    task_epochs: dict[str, Positive] = {}
    task_steps: dict[str, Positive] = {}
    batch_size: Positive = 16
    task_batch_size: dict[str, Positive] = {}
    task_metric: dict[str, Annotated[str, Field(min_length=1)]] = {}
    max_length: Annotated[int, Field(ge=4)] = 256
    lr: Annotated[float, Field(gt=0.0, le=1.0)] = 2e-5
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: Annotated[float, Field(gt=0.0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: Share = 0.1
    clip_norm: Annotated[float, Field(gt=0.0)] | None = None
    precision: Literal["auto", "float32", "bf16"] = "auto"
    corpus: Annotated[str, Field(min_length=1)] = "built-in"
    limit: Positive | None = None
    data_seed: Annotated[int, Field(ge=0)] = 0
    score_on: Literal["validation", "tuning"] = "validation"
    tuning_fraction: Fraction = 0.1
    curve_points: Annotated[int, Field(ge=0)] = 10
    curve_rows: Positive = 300
    eval_batch_size: Positive = 64
    trim_embeddings: bool = True

    def stage_length(self, task: str, rows: int) -> tuple[int, int]:
        """Steps of a stage and steps of one epoch.

        Parameters
        ----------
        task
            Name of the stage's task; a part like ``glue/sst2[short]`` falls back to the
            settings of ``glue/sst2``.
        rows
            Number of training rows.

        Returns
        -------
        tuple of int
            (total steps, steps per epoch)
        """
        base = task.partition("[")[0]
        per_epoch = -(-rows // self.batch_of(task))
        steps = self.task_steps.get(task, self.task_steps.get(base))
        if steps is not None:
            return steps, per_epoch
        epochs = self.task_epochs.get(task, self.task_epochs.get(base))
        if epochs is None and self.steps is not None:
            return self.steps, per_epoch
        return (epochs or self.epochs) * per_epoch, per_epoch

    def batch_of(self, task: str) -> int:
        """Rows in a batch of `task`; a part like ``glue/sst2[short]`` falls back to its task."""
        sizes = self.task_batch_size
        return sizes.get(task, sizes.get(task.partition("[")[0], self.batch_size))

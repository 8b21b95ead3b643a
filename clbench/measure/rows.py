"""Rows of R and of P: score the tasks of a cell, and linear probes of its features."""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
import transformers

from clbench.core.errors import DataError
from clbench.core.files import Facts, cached_tensors
from clbench.core.shapes import only_shapes
from clbench.measure.capabilities import CapabilityData
from clbench.measure.writer import Array, Writer, as_outputs, chosen_answers
from clbench.methods.base import Method
from clbench.models import classifier, encoding
from clbench.models.families import output_width
from clbench.results.cell import correct_rows, pack_rows
from clbench.shifts.scenario import Scenario
from clbench.tasks.metrics import right_texts, score, score_texts, told_scores
from clbench.tasks.task import IntArray, Rows, Task
from clbench.training.batches import TaskData
from clbench.training.context import Context
from clbench.training.device import Precision

Row = list[dict[str, float] | None]


class ColumnScorer(Protocol):
    """Scores a backbone on something that is not a task of the scenario.

    Attributes
    ----------
    part_tokens
        Number of tokens, without padding, that `score` reads with `part`.
    """

    part_tokens: int

    def score(
        self,
        backbone: torch.nn.Module,
        *,
        part: bool = False,
        precision: Precision,
        device: torch.device,
    ) -> dict[str, float]:
        """Return all metrics of the backbone, which is on `device` and has its whole vocabulary.

        With `part`, score on a part of the data only, for the points of curves.
        """

    def describe(self, initial: dict[str, float] | None = None) -> str:
        """Return one line about what is scored and the scores before training."""


@dataclass(frozen=True)
class PreparedScenario:
    """A scenario ready for training.

    Attributes
    ----------
    train, scored, curve
        For each task its training rows, the rows that R is scored on, and a stratified
        subset of those for the points of curves.
    vocabulary
        Ids of the tokens that occur, ascending; None if the embedding table stays whole.
    scorers
        Scorers of the columns of R before those of the tasks.
    probed
        For each task a stratified subset of the training rows, for linear probes; empty without
        probes.
    floors
        For each column of R the score of always predicting the training rows' majority class;
        None for the columns of scorers, and for tasks whose classes are a part of a head's: among
        all of them, scores can fall far below that.
    writer
        How a language model writes texts; None for other models.
    notes
        Lines for the readers of all cells.
    capabilities
        What a language model is measured on besides the tasks; None measures nothing.
    gold
        For each task a stratified subset of the scored rows, with their answers, on which a
        language model is compared with the base model; empty without `kl_rows`.
    """

    scenario: Scenario
    train: tuple[TaskData, ...]
    scored: tuple[TaskData, ...]
    curve: tuple[TaskData, ...]
    vocabulary: IntArray | None
    scorers: tuple[ColumnScorer, ...] = ()
    floors: tuple[float | None, ...] = ()
    probed: tuple[TaskData, ...] = ()
    writer: Writer | None = None
    notes: tuple[str, ...] = ()
    capabilities: CapabilityData | None = None
    gold: tuple[TaskData, ...] = ()

    def shown(self, count: int) -> dict[str, int]:
        """Return the outputs in use of each growing head after `count` tasks."""
        shown: dict[str, int] = {}
        for task in self.scenario.tasks[:count]:
            if task.seen is not None:
                shown[task.head] = max(task.seen, shown.get(task.head, 0))
        return shown


@dataclass(frozen=True)
class RowScorer:
    """Scores the model of `context`, with the weights that the method has for each task.

    A reference, which trains `task` alone, is scored on that task only.
    """

    scenario: PreparedScenario
    method: Method
    context: Context
    task: int | None

    def tasks(self, index: int) -> Sequence[int]:
        """Return the tasks to score after stage `index`: all so far, or that of a reference."""
        return range(index + 1) if self.task is None else [index]

    def row(self, index: int, *, curve: bool = False) -> tuple[Row, list[str | None]]:
        """Return the row of R after stage `index`, and which rows of each task are right.

        With `curve`, on the rows for curves only.
        """
        context, data = self.context, self.scenario.curve if curve else self.scenario.scored
        row: Row = [None] * len(data)
        correct: list[str | None] = [None] * len(data)
        writer = self.scenario.writer
        for j in self.tasks(index):
            task, rows = self.scenario.scenario.tasks[j], data[j].rows
            metrics, own = task.metrics, task.own
            with self.method.scoring(j):
                if writer is not None and writer.writes(data[j]):
                    assert isinstance(rows, encoding.PromptRows)
                    texts = writer.texts(context, data[j])
                    if rows.targets is not None:
                        row[j] = score_texts(metrics, texts, rows.targets)
                        correct[j] = pack_rows(right_texts(texts, rows.targets))
                        continue
                    choices = chosen_answers(texts, rows)
                    outputs, own = as_outputs(choices, rows), ()  # no second choice is written
                else:
                    outputs = context.outputs(data[j])
            to_come = len(task.labels) - outputs.shape[1] if own else 0
            if to_come:  # classes that a growing head has not yet, so that metrics count them
                outputs = np.pad(outputs, ((0, 0), (0, to_come)), constant_values=outputs.min() - 1)
            scores = score(metrics, outputs, rows.labels, rows.groups)
            if own:
                scores |= told_scores(outputs, rows.labels, np.asarray(own))
            row[j] = scores
            if not task.regression:
                correct[j] = pack_rows(correct_rows(outputs, rows.labels))
        extra = self.extra_columns(part=curve)
        return [*extra, *row], [*[None] * len(extra), *correct]

    def main_score(self, task: int) -> float:
        """Return the main score of a task, trained or not."""
        row, _ = replace(self, task=task).row(task)
        score = self.scenario.scenario.main_scores(row)[len(self.scenario.scorers) + task]
        assert score is not None
        return score

    def extra_columns(self, *, part: bool = False) -> Row:
        """Return the row's extra columns, scored on a `part` or all; None for references."""
        context = self.context
        row: Row = [None] * len(self.scenario.scorers)
        for j, scorer in enumerate(self.scenario.scorers if self.task is None else ()):
            row[j] = scorer.score(
                context.model.backbone,
                part=part,
                precision=context.precision,
                device=context.device,
            )
        return row

    def curve_tokens(self, index: int) -> int:
        """Return the tokens of scoring a point of a curve in stage `index`."""
        tasks = [self.scenario.curve[j] for j in self.tasks(index)]
        rows = sum(int(task.rows.lengths.sum()) for task in tasks)
        if writer := self.scenario.writer:
            rows += sum(
                writer.length(task) * len(task.rows) for task in tasks if writer.writes(task)
            )
        return rows + sum(scorer.part_tokens for scorer in self.scenario.scorers)

    def by_name(self, row: Row) -> dict[str, float]:
        """Return the main scores in a row of R by column name; a second of a name is numbered."""
        scenario = self.scenario.scenario
        times: Counter[str] = Counter()
        result: dict[str, float] = {}
        for (name, _), value in zip(scenario.columns, scenario.main_scores(row), strict=True):
            times[name] += 1
            if value is not None:
                result[name if times[name] == 1 else f"{name} ({times[name]})"] = value
        return result


ProbeRow = list[float | None]
BEFORE = -1
"""The stage before the first one: the pretrained model."""
MOST_ITERATIONS = 300


def check_probe_rows(count: int, tasks: Sequence[Task]) -> None:
    """Raise a DataError unless a probe has a row of each class."""
    for task in tasks:
        if count < (classes := len(task.own or task.labels)):
            raise DataError(
                f"probe_rows = {count} is less than the {classes} classes of task "
                f"{task.name!r}. Raise it."
            )


@dataclass(frozen=True)
class LinearProbes:
    """Probes the model of `context`, with the weights that the method has for each task."""

    scenario: PreparedScenario
    method: Method
    context: Context

    def row(self, stage: int) -> ProbeRow:
        """Return a row of P: the main score of a probe for each column of R after `stage`.

        The probe of task j is fitted on the tasks up to ``max(stage, j)`` that have j's head, so it
        chooses among the classes that the head knows too. None for multiple choice, which has a
        vector for each choice, and for columns of scorers. The stage `BEFORE` is the pretrained
        model, before any method changes it.
        """
        tasks = self.scenario.scenario.tasks
        features: dict[int, Array] = {}
        probes: dict[tuple[int, ...], Callable[[Array], Array]] = {}
        row: ProbeRow = [None] * (len(self.scenario.scorers) + len(tasks))
        for j, task in enumerate(tasks):
            if task.free_text or task.train.choices:
                continue
            fitted = tuple(k for k in range(max(stage, j) + 1) if tasks[k].head == task.head)
            for k in fitted:
                if k not in features:
                    features[k] = self._features(self.scenario.probed[k], k, stage)
            if fitted not in probes:
                labels = [self.scenario.probed[k].rows.labels for k in fitted]
                fit = fit_regression if task.regression else fit_classes
                inputs = np.concatenate([features[k] for k in fitted])
                probes[fitted] = fit(inputs, np.concatenate(labels), task.outputs)
            data = self.scenario.scored[j]
            outputs = probes[fitted](self._features(data, j, stage))
            metric = task.metrics[0]
            scores = score([metric], outputs, data.rows.labels, data.rows.groups)
            row[len(self.scenario.scorers) + j] = scores[metric]
        return row

    def _features(self, data: TaskData, task: int, stage: int) -> Array:
        with self.method.scoring(task) if task <= stage else nullcontext():
            return self.context.features(data)


def fit_classes(features: Array, labels: IntArray, outputs: int) -> Callable[[Array], Array]:
    """Return a function from features to log-probabilities of shape (n, outputs).

    Logistic regression on standardised features, with an L2 penalty of weight 1 (the default of
    scikit-learn). Classes without rows get a log-probability of -1e9.
    """
    from sklearn import linear_model, pipeline, preprocessing

    classes = np.unique(labels)
    if len(classes) > 1:
        model = pipeline.make_pipeline(
            preprocessing.StandardScaler(),
            linear_model.LogisticRegression(max_iter=MOST_ITERATIONS),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the optimizer, which may stop early
            model.fit(features, labels)

    def predict(features: Array) -> Array:
        result = np.full((len(features), outputs), -1e9, dtype=np.float32)
        if len(classes) > 1:
            with np.errstate(divide="ignore"):  # a probability may be rounded to 0
                result[:, classes] = model.predict_log_proba(features).clip(-1e9)
        else:
            result[:, classes] = 0.0
        return result

    return predict


def fit_regression(features: Array, labels: Array, outputs: int) -> Callable[[Array], Array]:
    """Return a function from features to predictions of shape (n, 1): ridge regression.

    On standardised features, with a penalty of weight 1 (the default of scikit-learn).
    """
    from sklearn import linear_model, pipeline, preprocessing

    model = pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.Ridge())
    model.fit(features, labels)
    return lambda features: np.asarray(model.predict(features), np.float32)[:, None]


BATCH_TOKENS = 8192
"""Most tokens in a batch, padding included; a longer row is a batch of its own."""


def embed_rows(
    backbone: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerBase,
    rows: Rows,
    max_length: int,
    device: str | torch.device = "cpu",
    pooling: classifier.Pooling = "auto",
    *,
    identity: Mapping[str, Any] | None = None,
) -> Array:
    """Return one vector per row, computed in float32 without dropout.

    For multiple choice it is the mean over the choices.

    Parameters
    ----------
    backbone, tokenizer
        A whole pretrained backbone, which is moved to `device`, and its tokenizer.
    rows, max_length
        Texts, and the number of tokens to truncate them to; labels are ignored.
    pooling
        As in `clbench.models.classifier.build_classifier`; ``auto`` is [CLS] for encoders.
    identity
        The model's identity, from `clbench.models.locate.model_identity`. With it the vectors are
        stored in the user's cache, by identity, rows and settings.

    Returns
    -------
    ndarray
        Shape (n, h), float32.
    """

    def compute() -> tuple[dict[str, torch.Tensor], Facts]:
        if not len(rows):
            return {"vectors": torch.empty(0, output_width(backbone.config))}, {}
        encoded = encoding.encode(rows, tokenizer, max_length)
        model = classifier.Classifier(backbone, {}, head_seed=lambda name: 0, pooling=pooling)
        model.to(device).eval()

        def features(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
            vectors = model.features(inputs).float()
            return vectors.mean(1) if encoded.choices else vectors

        vectors = map_rows(features, encoded, int(tokenizer.pad_token_id), device)
        return {"vectors": torch.from_numpy(vectors)}, {}

    if identity is None:
        tensors, _ = compute()
    else:
        settings = [encoding.tokenizer_digest(tokenizer), rows.digest, max_length, pooling]
        key = {"model": dict(identity), "settings": settings}
        tensors, _ = cached_tensors("embeddings", key, compute)
    array: Array = tensors["vectors"].numpy()
    return array


def map_rows(
    function: Callable[[dict[str, torch.Tensor]], torch.Tensor],
    encoded: encoding.EncodedRows,
    pad: int,
    device: str | torch.device,
) -> Array:
    """Return `function`'s outputs for all rows, shape (n, …), in inference mode.

    It gets padded batches on `device`, and returns shape (b, …).
    """
    # Rows of similar length together: little padding, and the same batches every time.
    order = np.argsort(encoded.lengths, kind="stable")[::-1]
    parts, start = [], 0
    with torch.inference_mode():
        while start < len(order):
            longest = int(encoded.lengths[order[start]])
            at = order[start : start + max(1, BATCH_TOKENS // max(1, longest))]
            inputs, _ = encoded.collate(at, pad)
            inputs = {name: value.to(device) for name, value in inputs.items()}
            parts.append(function(inputs).float().cpu().numpy())
            start += len(at)
            if only_shapes():  # the other batches are no larger
                return np.zeros((len(order), *parts[0].shape[1:]), np.float32)
    result = np.empty((len(order), *parts[0].shape[1:]), dtype=np.float32)
    result[order] = np.concatenate(parts)
    return result

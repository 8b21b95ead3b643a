"""Linear probes: how much of each task a linear layer can read from the model's features.

A head can forget a task that the features still separate (Davari et al. 2022). A probe is a new
linear layer, fitted on the frozen pooled features of some training rows, scored on the rows of R.
It never changes the model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from clbench.measure.rows import PreparedScenario
from clbench.methods.base import Method
from clbench.tasks.metrics import score
from clbench.training import hook_checks
from clbench.training.batches import TaskData
from clbench.training.stage import Context

Array = npt.NDArray[np.float32]
ProbeRow = list[float | None]
BEFORE = -1
"""The stage before the first one: the pretrained model."""
MOST_ITERATIONS = 300


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
        with hook_checks.scoring(self.method.scoring(task)) if task <= stage else nullcontext():
            return self.context.features(data)


def fit_classes(
    features: Array, labels: npt.NDArray[np.int64], outputs: int
) -> Callable[[Array], Array]:
    """Return a function from features to log-probabilities of shape (n, outputs).

    Logistic regression on standardised features, with an L2 penalty of weight 1 (the default of
    scikit-learn). Classes without rows get a log-probability of -1e9.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classes = np.unique(labels)
    if len(classes) > 1:
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=MOST_ITERATIONS))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
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


def fit_regression(
    features: Array, labels: npt.NDArray[np.float32], outputs: int
) -> Callable[[Array], Array]:
    """Return a function from features to predictions of shape (n, 1): ridge regression.

    On standardised features, with a penalty of weight 1 (the default of scikit-learn).
    """
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), Ridge())
    model.fit(features, labels)
    return lambda features: np.asarray(model.predict(features), np.float32)[:, None]

"""Metrics: scores of a model's outputs against the labels; greater is better."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from difflib import SequenceMatcher
from functools import cache
from typing import Any, Protocol, TypeVar

import numpy as np

from clbench.core import errors
from clbench.core.registry import Registry
from clbench.core.user_code import unchanged, user_code

Array = np.typing.NDArray[Any]
Function = TypeVar("Function", bound=Callable[..., float])


class Metric(Protocol):
    """A registered metric.

    `regression` tells whether it scores regression tasks, `grouped` whether it gets the groups of
    rows as a third argument.
    """

    regression: bool
    grouped: bool

    def __call__(self, outputs: Array, labels: Array, /, *groups: Array) -> float:
        """Return the score of `outputs`."""
        ...


def _metric_error(name: str, entry: object) -> str | None:
    return None if hasattr(entry, "grouped") else "decorate it with @clbench.metric('name')"


METRICS: Registry[Metric] = Registry("metric", check=_metric_error, group="clbench.metrics")


def metric(
    name: str, *, regression: bool = False, grouped: bool = False
) -> Callable[[Function], Function]:
    """Register a metric: a function of outputs and labels that returns a score.

    A classification metric gets logits of shape (n, C) and class numbers of shape (n,), a
    regression metric predictions and targets, both float64 of shape (n,). The score must be
    finite, and greater must be better: return the negative of an error.

    Parameters
    ----------
    name
        Name for the key `metrics` of a task and for ``[protocol.task_metric]``.
    regression
        Whether it scores regression tasks instead of classification.
    grouped
        Whether it scores groups of rows, and gets their numbers as a third argument, shape (n,).

    Examples
    --------
    >>> @metric("top-2")
    ... def top_2(outputs, labels):
    ...     best = outputs.argsort(axis=1)[:, -2:]
    ...     return (best == labels[:, None]).any(axis=1).mean()
    """

    def decorate(function: Function) -> Function:
        function.regression, function.grouped = regression, grouped  # type: ignore[attr-defined]
        return METRICS.register(name)(function)

    return decorate


@metric("accuracy")
def accuracy(outputs: Array, labels: Array) -> float:
    """Return the share of rows whose greatest logit (the first one if tied) is the label's."""
    return float((outputs.argmax(axis=1) == labels).mean())


@metric("f1")
def f1(outputs: Array, labels: Array) -> float:
    """Return F1 of class 1 for two logits, for more the mean over the labels' classes.

    0 where it is undefined. Classes of other tasks in a shared head are none of the labels'.
    """
    from sklearn.metrics import f1_score

    classes = [1] if outputs.shape[1] == 2 else np.unique(labels)
    predicted = outputs.argmax(axis=1)
    return float(f1_score(labels, predicted, labels=classes, average="macro", zero_division=0))


@metric("matthews")
def matthews(outputs: Array, labels: Array) -> float:
    """Return the Matthews correlation, for more classes R_K (Gorodkin 2004); 0 if undefined."""
    from sklearn.metrics import matthews_corrcoef

    predicted = outputs.argmax(axis=1)
    if np.ptp(predicted) == 0 or np.ptp(labels) == 0:
        return 0.0
    return float(matthews_corrcoef(labels, predicted))


@metric("pearson", regression=True)
def pearson(outputs: Array, labels: Array) -> float:
    """Return the Pearson correlation; 0 if either side is constant."""
    from scipy.stats import pearsonr

    if np.ptp(outputs) == 0 or np.ptp(labels) == 0:
        return 0.0
    return float(pearsonr(outputs, labels).statistic)


@metric("spearman", regression=True)
def spearman(outputs: Array, labels: Array) -> float:
    """Return the Spearman correlation, with mean ranks for ties; 0 if either side is constant."""
    from scipy.stats import rankdata

    return pearson(rankdata(outputs), rankdata(labels))


@metric("exact-match", grouped=True)
def exact_match(outputs: Array, labels: Array, groups: Array) -> float:
    """Return the share of groups all of whose rows are right (MultiRC: Khashabi et al. 2018)."""
    _, numbers = np.unique(groups, return_inverse=True)
    wrong = np.bincount(numbers, outputs.argmax(axis=1) != labels)
    return float((wrong == 0).mean())


def metrics_for(regression: bool) -> list[str]:
    """Return the names of the metrics of single rows for regression or classification, sorted."""
    kinds = ((name, METRICS.get(name)) for name in METRICS)
    return [name for name, m in kinds if m.regression == regression and not m.grouped]


def check_metrics(
    where: str,
    names: Sequence[str],
    regression: bool,
    *,
    free_text: bool = False,
    groups: bool = True,
) -> None:
    """Raise a DataError unless all metrics exist and are for this kind of task.

    The task has numbers or texts to predict, or else classes; `groups` tells whether its rows
    form groups.
    """
    for name in names:
        if free_text:
            if name not in TEXT_METRICS:
                hint = errors.did_you_mean(name, TEXT_METRICS)
                raise errors.DataError(f"{where}: {name!r} is not a metric of texts.{hint}")
        elif name not in METRICS or METRICS.get(name).regression != regression:
            kind = "regression" if regression else "classification"
            hint = errors.did_you_mean(name, metrics_for(regression))
            raise errors.DataError(f"{where}: {name!r} is not a {kind} metric.{hint}")
        elif METRICS.get(name).grouped and not groups:
            raise errors.DataError(
                f"{where}: metric {name!r} scores groups of rows, and the task has none. Name the "
                "columns that tell groups apart in its key `group`."
            )


def is_foreign(name: str) -> bool:
    """Whether a metric comes from a plug-in or another package."""
    return not METRICS.where(name).startswith("clbench.")


def score(
    metrics: Sequence[str], outputs: Array, labels: Array, groups: Array | None = None
) -> dict[str, float]:
    """Return the scores of a model's outputs by metric, in the order of `metrics`.

    `outputs` are logits of shape (n, C), or predictions of shape (n,) or (n, 1) for regression;
    `labels` are class numbers or targets, shape (n,), and `groups` the numbers of the groups of
    rows, shape (n,), for metrics that score groups. Raises a NonFiniteLossError if an output is not
    finite, and a DataError or PluginError for a metric that is unknown or misbehaves.
    """
    if not np.isfinite(outputs).all():
        rows = int((~np.isfinite(outputs)).reshape(len(outputs), -1).any(axis=1).sum())
        raise errors.NonFiniteLossError(
            f"the model's outputs are not finite numbers for {rows} of {len(outputs)} rows: "
            "training diverged. Lower the learning rate, set clip_norm, or train in float32."
        )
    scores: dict[str, float] = {}
    for name in metrics:
        function = METRICS.get(name)
        check_metrics("score", [name], function.regression, groups=groups is not None)
        more = [np.array(groups)] if function.grouped else []
        if function.regression:
            outputs = np.asarray(outputs, dtype=np.float64).reshape(len(labels))
            labels = np.asarray(labels, dtype=np.float64)
        # Copies, as a metric may change what it gets.
        with unchanged(f"metric {name!r}") if is_foreign(name) else nullcontext():
            value: Any = function(outputs.copy(), labels.copy(), *more)
        try:
            scores[name] = float(value)
        except (TypeError, ValueError) as error:
            raise errors.PluginError(
                f"metric {name!r} must return a number, not {errors.describe_type(value)}."
            ) from error
        if not np.isfinite(scores[name]):
            raise errors.DataError(f"Metric {name!r} returned {scores[name]}, not a finite number.")
    return scores


def told_scores(outputs: Array, labels: Array, own: Array) -> dict[str, float]:
    """Return scores that tell two kinds of errors apart, for a task that shares its head.

    ``told`` is the accuracy among the task's `own` classes only, as if the task were told
    (task-incremental); ``elsewhere`` is the share of rows whose greatest logit is that of another
    task's class. `outputs` are logits, shape (n, C), and `labels` class numbers, shape (n,).
    """
    told = own[outputs[:, own].argmax(axis=1)]
    return {
        "told": float((told == labels).mean()),
        "elsewhere": float((~np.isin(outputs.argmax(axis=1), own)).mean()),
    }


def floor_score(
    metric: str, train: Array, labels: Array, outputs: int, groups: Array | None = None
) -> float | None:
    """Return the score of a constant prediction: the majority class, or the mean in regression.

    The labels of the training rows, `train`, decide the constant (the smaller class if tied);
    `labels` and `groups` are those of the rows to score, and `outputs` is the number of logits of
    a row. Correlations with a constant are 0. None if the metric of a plug-in cannot score it.
    """
    if METRICS.get(metric).regression:
        constant = np.full(len(labels), np.mean(train), dtype=np.float64)
    else:
        constant = np.zeros((len(labels), outputs))
        constant[:, np.bincount(train).argmax()] = 1.0
    with suppress(errors.ClbenchError), user_code(f"metric {metric!r}"):
        return score([metric], constant, labels, groups)[metric]
    return None


RowMetric = Callable[[str, str], float]
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NUMBER = re.compile(
    r"(?<![\d.])(?:(?<!\w)[-+])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
)


def normalise(text: str) -> str:
    """Return a text in lower case, without punctuation, articles and extra blanks.

    As in the evaluation of SQuAD (Rajpurkar et al. 2016).
    """
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact(prediction: str, target: str) -> float:
    """Return 1 if both texts are equal but for blanks around them, else 0."""
    return float(prediction.strip() == target.strip())


def token_f1(prediction: str, target: str) -> float:
    """Return F1 over the words of both normalised texts (SQuAD: Rajpurkar et al. 2016)."""
    first, second = normalise(prediction).split(), normalise(target).split()
    if not first or not second:
        return float(first == second)
    shared = sum((Counter(first) & Counter(second)).values())
    return 2 * shared / (len(first) + len(second))


def numeric(prediction: str, target: str) -> float:
    """Return 1 if the last number in the prediction equals that in the target, else 0."""
    first, second = (_NUMBER.findall(text) for text in (prediction, target))
    if not first or not second:
        return 0.0
    one, other = (float(numbers[-1].replace(",", "")) for numbers in (first, second))
    return float(one == other)


def first_letter(prediction: str, target: str) -> float:
    """Return 1 if both texts begin with the same letter, as the choice of an answer, else 0."""
    return float(prediction.strip()[:1] == target.strip()[:1] != "")


def edit_similarity(prediction: str, target: str) -> float:
    """Return twice the number of matching characters per character of both texts (difflib)."""
    return SequenceMatcher(None, prediction.strip(), target.strip(), autojunk=False).ratio()


def rouge_l(prediction: str, target: str) -> float:
    """Return ROUGE-L's F-measure (Lin 2004) with stemming, through ``rouge-score``."""
    return float(_rouge().score(target, prediction)["rougeL"].fmeasure)


@cache
def _rouge() -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise errors.SettingsError(
            "metric 'rouge-l' needs rouge-score: pip install 'clbench[text]', or choose other "
            "metrics, such as token-f1."
        ) from error
    return RougeScorer(["rougeL"], use_stemmer=True)


TEXT_METRICS: dict[str, RowMetric] = {
    "exact": exact,
    "token-f1": token_f1,
    "numeric": numeric,
    "first-letter": first_letter,
    "edit-similarity": edit_similarity,
    "rouge-l": rouge_l,
}
"""Metrics of one row, given prediction and target; their scores are means over rows."""


def score_texts(
    metrics: Sequence[str], predictions: Sequence[str], targets: Sequence[str]
) -> dict[str, float]:
    """Return the mean score by metric, in the order of `metrics`."""
    pairs = list(zip(predictions, targets, strict=True))
    return {name: float(np.mean([TEXT_METRICS[name](*pair) for pair in pairs])) for name in metrics}


def right_texts(predictions: Sequence[str], targets: Sequence[str]) -> np.typing.NDArray[np.bool_]:
    """Return which predictions are exact, shape (n,)."""
    return np.array([exact(p, t) == 1.0 for p, t in zip(predictions, targets, strict=True)])

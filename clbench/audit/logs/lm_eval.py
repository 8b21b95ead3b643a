"""Logs of lm-evaluation-harness with ``--log_samples``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clbench.audit.logs.formats import (
    Entry,
    Setup,
    digest_of,
    get,
    json_lines,
    json_object,
    log_format,
)

LIKELIHOODS = {"perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"}
"""Metrics of which samples hold the log-likelihood, alone or with the units it is divided by."""


@log_format("lm-eval", "samples_*.jsonl")
def read(path: Path) -> Iterator[Entry]:
    """Yield the items of ``samples_TASK_TIME.jsonl``; settings are from ``*_TIME.json`` beside it.

    An item has a line for each filter of the answers, and its metrics are named as in the results:
    ``exact_match,strict-match``, without the filter ``none``. The first metric of the task's
    ``metric_list`` decides, by the first filter.
    """
    task, _, time = path.stem.removeprefix("samples_").rpartition("_")
    facts: dict[str, Any] = {}
    if results := sorted(path.parent.glob(f"*_{time}.json")):
        facts = json_object(results[0].read_bytes(), str(results[0]))
    rising = facts.get("higher_is_better", {}).get(task) or {}
    config = facts.get("configs", {}).get(task) or {}
    order = [str(each.get("metric")) for each in config.get("metric_list") or ()]
    shots = facts.get("n-shot", {}).get(task)
    base = dict(
        task=task,
        run=f"{path.parent}/{time}",
        model=str(facts.get("model_name") or ""),
        prompting="" if shots is None else f"{shots} shots",
    )
    setups: dict[str, Setup] = {}
    for where, row in json_lines(path):
        end = "" if (name := row.get("filter", "none")) == "none" else f",{name}"
        if end not in setups:
            falling = {f"{m}{end}" for m in rising if rising[m] is False and m not in LIKELIHOODS}
            setups[end] = Setup(
                **base, metrics=tuple(f"{m}{end}" for m in order), falling=frozenset(falling)
            )
        given = digest_of(row.get("prompt_hash") or row.get("arguments"), row.get("doc_hash") or "")
        scores = {f"{m}{end}": _score(m, get(row, m, where)) for m in get(row, "metrics", where)}
        answers = row.get("resps") or ()
        ranked = len(answers) > 1 and isinstance(answers[0], list)
        choices = len(answers) if ranked and "acc" in row["metrics"] else 0
        yield Entry(setups[end], str(get(row, "doc_id", where)), given, scores, choices, where)


def _score(metric: str, value: Any) -> Any:
    if metric in LIKELIHOODS and isinstance(value, list) and len(value) == 2:
        return value[0] / value[1]
    return value

"""Logs of lm-evaluation-harness with ``--log_samples``."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clbench.audit.logs.formats import Entry, Setup, digest_of, json_lines, log_format

LIKELIHOODS = {"perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"}
"""Metrics of which samples hold the log-likelihood, alone or with the units it is divided by."""


@log_format("lm-eval", "samples_*.jsonl")
def read(path: Path) -> Iterator[Entry]:
    """Yield the items of ``samples_TASK_TIME.jsonl``; settings are from ``*_TIME.json`` beside it.

    An item has a line for each filter, and metrics are named as in the results:
    ``exact_match,strict-match``, without the filter ``none``.
    """
    task, _, time = path.stem.removeprefix("samples_").rpartition("_")
    results: dict[str, Any] = next(
        (json.loads(file.read_bytes()) for file in path.parent.glob(f"*_{time}.json")), {}
    )
    shots = results.get("n-shot", {}).get(task)
    rising = results.get("higher_is_better", {}).get(task) or {}
    falling = {metric for metric in rising if rising[metric] is False} - LIKELIHOODS
    setup = Setup(
        task,
        f"{path.parent}/{time}",
        results.get("model_name") or "",
        "" if shots is None else f"{shots} shots",
    )
    for row in json_lines(path):
        end = "" if (name := row.get("filter", "none")) == "none" else f",{name}"
        setup.falling |= {f"{metric}{end}" for metric in falling}
        given = digest_of(row.get("prompt_hash") or row["arguments"], row.get("doc_hash"))
        metrics = row.get("metrics") or [metric for metric in rising if metric in row]
        scores = {f"{metric}{end}": _score(metric, row[metric]) for metric in metrics}
        ranked = "acc" in metrics and len(row["resps"]) > 1  # one: the likelihood of a text
        choices = len(row["resps"]) if ranked else 0
        yield Entry(setup, str(row["doc_id"]), given, scores, choices)


def _score(metric: str, value: Any) -> Any:
    return value[0] / value[1] if metric in LIKELIHOODS and isinstance(value, list) else value

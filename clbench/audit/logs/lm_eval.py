"""Logs of lm-evaluation-harness with ``--log_samples``."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clbench.audit.logs.formats import FORMATS, Entry, Metric, digest_of, json_lines

LIKELIHOODS = {"perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"}
"""Metrics of which samples hold the log-likelihood, alone or with the units it is divided by."""


@FORMATS.register("samples_*.jsonl")
def read(path: Path) -> Iterator[Entry]:
    """Yield the items of ``samples_TASK_TIME.jsonl``; settings are from ``*_TIME.json`` beside it.

    An item has a line for each filter, and metrics are named as in the results:
    ``exact_match,strict-match``, without the filter ``none``.
    """
    task, _, time = path.stem.removeprefix("samples_").rpartition("_")
    results: dict[str, Any] = next(
        (json.loads(file.read_bytes()) for file in path.parent.glob(f"*_{time}.json")), {}
    )
    model, shots = results.get("model_name") or "", results.get("n-shot", {}).get(task)
    prompting = "" if shots is None else f"{shots} shots"
    rising = results.get("higher_is_better", {}).get(task) or {}
    falling = {metric for metric in rising if rising[metric] is False} - LIKELIHOODS
    for row in json_lines(path):
        end = "" if (name := row.get("filter", "none")) == "none" else f",{name}"
        given = digest_of(row.get("prompt_hash") or row["arguments"], row.get("doc_hash"))
        metrics = row.get("metrics") or [metric for metric in rising if metric in row]
        scores = {}
        for metric in metrics:
            value = row[metric]
            if metric in LIKELIHOODS and isinstance(value, list):
                value = value[0] / value[1]
            scores[Metric(f"{metric}{end}", metric in falling)] = value
        ranked = "acc" in metrics and len(row["resps"]) > 1  # one: the likelihood of a text
        choices, run = len(row["resps"]) if ranked else 0, f"{path.parent}/{time}"
        yield Entry(task, run, str(row["doc_id"]), given, scores, choices, model, prompting)

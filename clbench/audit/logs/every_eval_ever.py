"""Instance files of Every Eval Ever."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clbench.audit.logs.formats import FORMATS, Entry, Metric, digest_of, json_lines


@FORMATS.register("*_samples.jsonl")
def read(path: Path) -> Iterator[Entry]:
    """Yield the items of ``UUID_samples.jsonl``; metrics are described in ``UUID.json`` beside it.

    An item has a line for each result.
    """
    metrics: dict[Any, Metric] = {}
    if (about := path.with_name(path.stem.removesuffix("_samples") + ".json")).is_file():
        for each in json.loads(about.read_bytes())["evaluation_results"]:
            result, config = each.get("evaluation_result_id"), each["metric_config"]
            name = config.get("metric_id") or config.get("metric_name") or result or "score"
            ends = [config.get(key) for key in ("min_score", "max_score")]
            if config.get("score_type") == "binary":
                ends = [0, 1]
            low, high = (None if end is None else float(end) for end in ends)  # "Infinity", too
            metrics[result] = Metric(name, bool(config.get("lower_is_better")), low, high)
    for row in json_lines(path):
        result, given = row.get("evaluation_result_id"), row["input"]
        metric = metrics.get(result, Metric(result or "score"))
        asked = digest_of(given.get("formatted") or "", given["raw"], given["reference"])
        what = row["evaluation_name"], row["evaluation_id"], row["sample_id"], asked
        scores, choices = {metric: row["evaluation"]["score"]}, len(given.get("choices") or ())
        yield Entry(*what, scores, choices, row["model_id"])

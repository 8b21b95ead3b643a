"""Instance files of Every Eval Ever."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clbench.audit.logs.formats import Entry, Setup, digest_of, json_lines, log_format


@log_format("every-eval-ever", "*_samples.jsonl")
def read(path: Path) -> Iterator[Entry]:
    """Yield the items of ``UUID_samples.jsonl``; metrics are described in ``UUID.json`` beside it.

    An item has a line for each result.
    """
    configs: dict[Any, dict[str, Any]] = {}
    if (about := path.with_name(path.name.removesuffix("_samples.jsonl") + ".json")).is_file():
        results = json.loads(about.read_bytes())["evaluation_results"]
        configs = {each.get("evaluation_result_id"): each["metric_config"] for each in results}
    setups: dict[tuple[str, str], Setup] = {}
    for row in json_lines(path):
        task, result, given = row["evaluation_name"], row.get("evaluation_result_id"), row["input"]
        config = configs.get(result, {})
        metric = config.get("metric_id") or config.get("metric_name") or result or "score"
        if (task, metric) not in setups:
            ends = [config.get(key) for key in ("min_score", "max_score")]
            least, most = (
                -1e12 if ends[0] is None else ends[0],
                1e12 if ends[1] is None else ends[1],
            )
            least, most = (0, 1) if config.get("score_type") == "binary" else (least, most)
            setups[task, metric] = Setup(
                task,
                row["evaluation_id"],
                row["model_id"],
                falling=frozenset({metric} if config.get("lower_is_better") else ()),
                ranges={metric: (float(least), float(most))} if config else {},
            )
        asked = digest_of(given.get("formatted") or "", given["raw"], given["reference"])
        scores = {metric: row["evaluation"]["score"]}
        choices = len(given.get("choices") or ())
        yield Entry(setups[task, metric], row["sample_id"], asked, scores, choices)

"""Instance files of Every Eval Ever."""

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


@log_format("every-eval-ever", "*_samples.jsonl")
def read(path: Path) -> Iterator[Entry]:
    """Yield the items of ``UUID_samples.jsonl``; metrics are described in ``UUID.json`` beside it.

    An item has a line for each metric. The first result of an evaluation decides.
    """
    results: dict[str, dict[str, Any]] = {}
    about = path.with_name(path.name.removesuffix("_samples.jsonl") + ".json")
    if about.is_file():
        whole = json_object(about.read_bytes(), str(about)).get("evaluation_results") or ()
        results = {str(each.get("evaluation_result_id")): each for each in whole}
    setups: dict[tuple[str, ...], Setup] = {}
    for where, row in json_lines(path):
        task, result = str(get(row, "evaluation_name", where)), row.get("evaluation_result_id")
        config = results.get(str(result), {}).get("metric_config", {})
        metric = str(config.get("metric_id") or config.get("metric_name") or result or "score")
        run, model = str(get(row, "evaluation_id", where)), str(row.get("model_id") or "")
        key = task, run, model, metric
        if key not in setups:
            falling = frozenset({metric} if config.get("lower_is_better") else ())
            least, most = (config.get(f"{end}_score") for end in ("min", "max"))
            if config.get("score_type") == "binary":
                least, most = 0.0, 1.0
            ends = float("-inf" if least is None else least), float("inf" if most is None else most)
            setups[key] = Setup(task, run, model, falling=falling, ranges=((metric, *ends),))
        given, judged = get(row, "input", where), get(row, "evaluation", where)
        prompt = given.get("formatted") or "", given.get("raw"), given.get("reference")
        scores = {metric: judged.get("score")}
        choices = len(given.get("choices") or ())
        item = str(get(row, "sample_id", where))
        yield Entry(setups[key], item, digest_of(*prompt), scores, choices, where)

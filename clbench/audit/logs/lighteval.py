"""Details of lighteval, in Parquet."""

import re
from collections.abc import Iterator
from pathlib import Path

from pyarrow import parquet

from clbench.audit.logs.formats import FORMATS, Entry, Metric, digest_of

COLUMNS = ("doc.id", "doc.query", "doc.instruction", "doc.choices", "doc.sampling_methods")


@FORMATS.register("details_*.parquet")
def read(path: Path) -> Iterator[Entry]:
    """Yield the items of ``details/MODEL/TIME/details_TASK|SHOTS_TIME.parquet``."""
    name, _, time = path.stem.removeprefix("details_").rpartition("_")
    parts = re.split(r"\|(\d+)(?:\|[01])?$", name)  # older versions end with |0 or |1
    task, shots = parts[0], "".join(parts[1:2])
    model = path.parent.parent.name if path.parent.name == time else ""
    columns = [*COLUMNS, "model_response.input", "metric"]
    wanted = [end for each in columns for end in (each, re.sub(r"^\w+", r"__\g<0>__", each))]
    for batch in parquet.ParquetFile(path).iter_batches(columns=wanted):
        for row in batch.to_pylist():
            doc, answer, metrics = (
                row.get(key) or row[f"__{key}__"] for key in ("doc", "model_response", "metric")
            )
            asked = answer["input"], doc.get("instruction"), doc["query"], doc["choices"]
            ranked = "LOGPROBS" in str(doc.get("sampling_methods"))
            scores = {Metric(metric): score for metric, score in metrics.items()}
            what = task, time, str(doc["id"]), digest_of(*asked), scores
            choices = len(doc["choices"]) if ranked else 0
            yield Entry(*what, choices, model, f"{shots} shots" if shots else "")

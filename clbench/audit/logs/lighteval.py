"""Details of lighteval, in Parquet."""

from collections.abc import Iterator
from pathlib import Path

from clbench.audit.logs.formats import Entry, Setup, digest_of, log_format
from clbench.audit.logs.table import parquet

COLUMNS = ("id", "query", "instruction", "choices", "sampling_methods")


@log_format("lighteval", "details_*.parquet")
def read(path: Path) -> Iterator[Entry]:
    """Yield the items of ``details/MODEL/TIME/details_TASK|SHOTS_TIME.parquet``.

    The first metric of the details decides.
    """
    name, _, time = path.stem.removeprefix("details_").rpartition("_")
    task, shots = name, ""
    while (parts := task.rpartition("|"))[0] and parts[2].isdecimal():
        task, shots = parts[0], parts[2]  # of older versions, TASK|SHOTS|0
    in_place = path.parent.name == time and len(path.parents) > 2
    model = path.parent.parent.name if in_place else ""
    setup = Setup(task, time, model, f"{shots} shots" if shots else "")
    wanted = [f"{doc}.{column}" for doc in ("doc", "__doc__") for column in COLUMNS]
    prompts = ("model_response.input", "__model_response__.input")
    for number, row in enumerate(parquet(path, [*wanted, *prompts, "metric", "__metric__"])):
        doc, answer = (
            row.get(key) or row.get(f"__{key}__") or {} for key in ("doc", "model_response")
        )
        scores = row.get("metric") or row.get("__metric__") or {}
        ranked = "LOGPROBS" in str(doc.get("sampling_methods"))
        choices = doc.get("choices") or []
        given = digest_of(answer.get("input"), doc.get("instruction"), doc.get("query"), choices)
        where = f"{path}, row {number + 1}"
        yield Entry(
            setup, str(doc.get("id") or number), given, scores, len(choices) if ranked else 0, where
        )

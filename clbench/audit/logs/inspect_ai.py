"""Logs of inspect: ``.eval``, which is a zip of JSON files, and ``.json``."""

import json
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyarrow as pa

from clbench.audit.logs.formats import FORMATS, Entry, Metric, digest_of
from clbench.core.errors import DataError

VALUES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""Scores in letters and words, as inspect's ``value_to_float`` reads them."""
CUT = "\n(content truncated)"
"""How a text in a summary ends if it was cut."""
ZSTANDARD = 93


@FORMATS.register("*.eval")
@FORMATS.register("*.json")
def read(path: Path) -> Iterator[Entry]:
    """Yield the samples of a log. Each epoch is a run; each part of a score is a metric."""
    if path.suffix.lower() == ".json":
        log = json.loads(path.read_bytes())
        if not isinstance(log, dict) or "eval" not in log:
            return
        samples = log.get("samples") or []
    else:
        with ZipFile(path) as archive:
            started = "header.json" not in archive.namelist()  # it is written when a run ends
            log = {"status": "started"} if started else _member(archive, path, "header.json")
            samples = [] if started else _member(archive, path, "summaries.json")
            for sample in samples:
                if CUT in str(sample["input"]):
                    name = f"samples/{sample['id']}_epoch_{sample['epoch']}"
                    whole = f"{name}.json" in archive.namelist()
                    name += ".json" if whole else "/sample.json"
                    sample["input"] = _member(archive, path, name)["input"]
    if (status := log.get("status", "success")) != "success":
        raise DataError(
            f"{path}: the run is not whole: its status is {status!r}. Finish it with inspect "
            "eval-retry, then remove this log."
        )
    about, steps = log["eval"], log.get("plan", {}).get("steps", ())
    solvers = [(step["solver"], step.get("params")) for step in steps]
    digest = digest_of(solvers, about.get("task_args"))[:6]
    prompting = f"solvers {', '.join(solver for solver, _ in solvers)} with settings {digest}"
    for sample in samples:
        choices = sample.get("choices") or []
        given = digest_of(sample["input"], choices, sample.get("target"))
        what = about["task"], f"{path} {sample['epoch']}", str(sample["id"]), given
        scores = dict(_scores(sample.get("scores") or {}))
        yield Entry(*what, scores, len(choices), about.get("model") or "", prompting)


def _member(archive: ZipFile, path: Path, name: str) -> Any:
    """Return a JSON file of the archive, also if it is compressed by Zstandard (Python < 3.14)."""
    info = archive.getinfo(name)
    if info.compress_type != ZSTANDARD:
        return json.loads(archive.read(info))
    with path.open("rb") as file:
        file.seek(info.header_offset + 26)  # the lengths of the two fields before the content
        lengths = file.read(4)
        file.seek(int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little"), 1)
        content = pa.BufferReader(file.read(info.compress_size))
    return json.loads(pa.input_stream(content, compression="zstd").read())


def _scores(scores: dict[str, Any]) -> Iterator[tuple[Metric, Any]]:
    for scorer, score in scores.items():
        parts = value if isinstance(value := score["value"], dict) else {"": value}
        for part, each in parts.items():
            if isinstance(each, str):
                each = VALUES.get(each, VALUES.get(each.lower(), each))
            unscored = isinstance(each, float) and isnan(each)
            yield Metric(f"{scorer}/{part}".rstrip("/")), None if unscored else each

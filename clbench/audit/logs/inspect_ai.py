"""Logs of inspect: ``.eval``, which is a zip of JSON files, and ``.json``."""

import json
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from clbench.audit.logs.formats import Entry, Setup, digest_of, log_format

VALUES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""Scores in letters and words, as inspect's ``value_to_float`` reads them."""
CUT = "\n(content truncated)"
"""How a text in a summary ends if it was cut."""
ZSTANDARD = 93


@log_format("inspect", "*.eval", "*.json")
def read(path: Path) -> Iterator[Entry]:
    """Yield the samples of a log. Each epoch is a run; each part of a score is a metric."""
    if path.suffix == ".json":
        log = json.loads(path.read_bytes())
        if not isinstance(log, dict) or "eval" not in log:
            return
        samples = log.get("samples") or []
    else:
        with ZipFile(path) as archive:
            log = json.loads(_member(archive, path, "header.json"))
            samples = json.loads(_member(archive, path, "summaries.json"))
            for sample in samples:
                if CUT in str(sample["input"]):
                    name = f"samples/{sample['id']}_epoch_{sample['epoch']}"
                    whole = f"{name}.json" in archive.namelist()
                    name += ".json" if whole else "/sample.json"
                    sample["input"] = json.loads(_member(archive, path, name))["input"]
    about, steps = log["eval"], log.get("plan", {}).get("steps", ())
    solvers = [(step["solver"], step.get("params")) for step in steps]
    digest = digest_of(solvers, about.get("task_args"))[:6]
    made = f"solvers {', '.join(solver for solver, _ in solvers)} with settings {digest}"
    setups: dict[int, Setup] = {}
    for sample in samples:
        epoch, choices = sample["epoch"], sample.get("choices") or []
        run = Setup(about["task"], f"{path} {epoch}", about.get("model") or "", made)
        given = digest_of(sample["input"], choices, sample.get("target"))
        scores = dict(_scores(sample.get("scores") or {}))
        yield Entry(setups.setdefault(epoch, run), str(sample["id"]), given, scores, len(choices))


def _member(archive: ZipFile, path: Path, name: str) -> bytes:
    """Return a file of the archive, also if it is compressed by Zstandard (Python < 3.14)."""
    info = archive.getinfo(name)
    if info.compress_type != ZSTANDARD:
        return archive.read(info)
    import pyarrow as pa

    with path.open("rb") as file:
        file.seek(info.header_offset + 26)  # the lengths of the two fields before the content
        lengths = file.read(4)
        file.seek(int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little"), 1)
        content = pa.BufferReader(file.read(info.compress_size))
    return bytes(pa.input_stream(content, compression="zstd").read())


def _scores(scores: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for scorer, score in scores.items():
        parts = value if isinstance(value := score["value"], dict) else {"": value}
        for part, each in parts.items():
            number = (
                VALUES.get(each, VALUES.get(each.lower(), each)) if isinstance(each, str) else each
            )
            unscored = isinstance(number, float) and isnan(number)
            yield f"{scorer}/{part}".rstrip("/"), None if unscored else number

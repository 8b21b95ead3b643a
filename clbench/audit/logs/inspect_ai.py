"""Logs of inspect: ``.eval``, which is a zip of JSON files, and ``.json``."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from clbench.audit.logs.formats import Entry, Setup, digest_of, get, json_object, log_format
from clbench.core.errors import DataError
from clbench.core.files import read_file

VALUES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""Scores in letters and words, as inspect's ``value_to_float`` reads them."""
CUT = "...\n(content truncated)"
"""How the input in a summary ends if it was cut."""
ZSTANDARD = 93


@log_format("inspect", "*.eval")
def read(path: Path) -> Iterator[Entry]:
    """Yield the samples of an ``.eval`` file, by their summaries where these have the whole input.

    Each epoch is a run. The first scorer decides; values of several parts are metrics of their own.
    """
    try:
        with ZipFile(path) as archive:
            names = set(archive.namelist())
            header = "header.json" if "header.json" in names else "_journal/start.json"
            facts = json_object(_member(archive, path, header), f"{path}, {header}")
            entries = sorted(name for name in names if name.startswith("samples/"))
            if "summaries.json" in names:
                whole = json.loads(_member(archive, path, "summaries.json"))
            else:
                ends = (n for n in entries if n.count("/") == 1 or n.endswith("/sample.json"))
                whole = [json_object(_member(archive, path, n), f"{path}, {n}") for n in ends]
            for sample in whole:
                if CUT in str(sample.get("input")):
                    stem = f"samples/{sample['id']}_epoch_{sample['epoch']}"
                    name = f"{stem}.json" if f"{stem}.json" in names else f"{stem}/sample.json"
                    sample |= json_object(_member(archive, path, name), f"{path}, {name}")
            yield from _entries(path, facts, whole)
    except (BadZipFile, KeyError, EOFError, ValueError, OSError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(
            f"{path}: is not a whole log of inspect ({reason}). Copy it again."
        ) from error


@log_format("inspect-json", "*.json")
def read_json(path: Path) -> Iterator[Entry]:
    """Yield the samples of a log in JSON; none if the file is something else."""
    facts = json_object(read_file(path), str(path))
    if isinstance(facts.get("eval"), dict):
        yield from _entries(path, facts, facts.get("samples") or [])


def _member(archive: ZipFile, path: Path, name: str) -> bytes:
    """Return a file of the archive, also if it is compressed by Zstandard (Python < 3.14)."""
    info = archive.getinfo(name)
    if info.compress_type != ZSTANDARD:
        return archive.read(info)
    import pyarrow as pa

    with path.open("rb") as file:
        file.seek(info.header_offset + 26)
        lengths = file.read(4)
        file.seek(int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little"), 1)
        content = pa.BufferReader(file.read(info.compress_size))
    with pa.input_stream(content, compression="zstd") as stream:
        return bytes(stream.read())


def _entries(path: Path, facts: dict[str, Any], samples: list[dict[str, Any]]) -> Iterator[Entry]:
    about = get(facts, "eval", str(path))
    steps = [(s.get("solver"), s.get("params")) for s in facts.get("plan", {}).get("steps", ())]
    names = ", ".join(str(solver) for solver, _ in steps) or "none"
    made = f"solvers {names} with settings {digest_of(steps, about.get('task_args'))[:6]}"
    setups: dict[Any, Setup] = {}
    for sample in samples:
        where = f"{path}, sample {sample.get('id')}, epoch {sample.get('epoch')}"
        epoch = get(sample, "epoch", where)
        if epoch not in setups:
            task, model = str(get(about, "task", str(path))), str(about.get("model") or "")
            setups[epoch] = Setup(task, f"{path}, epoch {epoch}", model, made)
        scores = dict(_scores(sample.get("scores") or {}))
        choices = sample.get("choices") or []
        given = digest_of(sample.get("input"), choices, sample.get("target"))
        yield Entry(
            setups[epoch], str(get(sample, "id", where)), given, scores, len(choices), where
        )


def _scores(scores: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield metric and value; a score that is not a number is none (inspect's unscored)."""
    for scorer, score in scores.items():
        value = score.get("value")
        parts = value if isinstance(value, dict) else {"": value}
        for part, each in parts.items():
            if isinstance(each, str):
                each = VALUES.get(each, VALUES.get(each.lower(), each))
            if isinstance(each, float) and each != each:
                each = None
            yield f"{scorer}/{part}".rstrip("/"), each

"""Malformed cells, tables, logs and caches in the folder of a finished run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from clbench.results.archive import pack
from faults.cases import ODD_FILES, REPORT, RUN, Case, as_odd_file, spoil, spoil_bytes

COMBINE = ["combine", "a.log", "b.log", "--out", "mine.toml"]
TRIAL = [0.8, 0.7, 0.75, *(2e-5 * 0.9**n for n in range(10))]


def _set(*path: Any, value: Any) -> Callable[[dict[str, Any]], object]:
    def apply(cell: dict[str, Any]) -> None:
        holder: Any = cell
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = value

    return apply


CELLS: dict[str, Callable[[dict[str, Any]], object]] = {
    "no stages": _set("stages", value=[]),
    "one stage of two": lambda cell: cell["stages"].pop(),
    "a protocol that is a list": _set("settings", "protocol", value=[]),
    "settings that are empty": _set("settings", value={}),
    "scores of 1e308": lambda cell: cell["scores"].update(dict.fromkeys(cell["scores"], 1e308)),
    "R of 1e308": _set("R", value=[[1e308, None], [1e308, 1e308]]),
    "1e308 seconds": _set("train_seconds", value=1e308),
    "negative seconds": _set("train_seconds", value=-5.0),
    "a stage of 1e308 seconds": _set("stages", 0, "train_seconds", value=1e308),
    "R that disagrees with the scores": _set("R", 1, value=[0.123, 0.456]),
    "no scores": _set("scores", value={}),
    "no R": _set("R", value=[]),
    "R with a row too many": lambda cell: cell["R"].append([0.5, 0.5]),
    "a short row of R": lambda cell: cell["R"][1].pop(),
    "a seed of -1": _set("seed", value=-1),
    "the schema true": _set("schema_version", value=True),
    "the schema 1.0": _set("schema_version", value=1.0),
    "no tasks": _set("tasks", value=[]),
    "one task of two": lambda cell: cell["tasks"].pop(),
    "the status done": _set("status", value="done"),
    "memory of -1": _set("peak_memory_mb", value=-1.0),
    "another scenario": _set("scenario", value="other"),
    "another method": _set("baseline", value="other"),
    "an unknown score": lambda cell: cell["scores"].update(mystery=0.5),
}
"""By what is wrong: no such cell is a finished one."""
OPEN = {
    "the schema 1.0",
    "another method",
    "another scenario",
    "settings that are empty",
    "one stage of two",
    "an unknown score",
}
"""Whether these are refused is up to the reader."""


def cell(number: int, rng: Random, folder: Path) -> Case:
    """Spoil the file of a cell, and report, compare or resume the run."""
    paths = sorted((folder / "out" / "cells").glob("*.json"))
    if number < 2 * len(CELLS):  # a reference has one row of R
        paths = [path for path in paths if "--reference" not in path.name]
    path = rng.choice(paths)
    words = rng.choice([REPORT, REPORT, RUN, RUN, ["compare", "out", "out2", "--formats", "png"]])
    content, seen = json.loads(path.read_text()), ""
    if number < 2 * len(CELLS):
        what, change = list(CELLS.items())[number // 2]
        words = (REPORT, RUN)[number % 2]
        change(content)
        path.write_text(json.dumps(content))
        seen = "" if what in OPEN else path.name
    elif number - 2 * len(CELLS) < len(ODD_FILES):
        what = ODD_FILES[number - 2 * len(CELLS)]
        as_odd_file(path, what)
    elif rng.random() < 0.2:
        data, what = spoil_bytes(path.read_bytes(), rng)
        path.write_bytes(data)
    else:
        content, what = spoil(content, rng)
        path.write_text(json.dumps(content))
    what = f"{' '.join(words[:2])} with {path.name}: {what}"
    return Case(what, words, dry=words == RUN, seen=seen, checks=_no_lost_cell(folder))


def log(number: int, rng: Random, folder: Path) -> Case:
    """Spoil what else a run wrote, its packed cells, or the trial logs of `combine`."""
    if number % 3 == 0:
        return _trials(rng, folder)
    if number % 9 == 4:
        return _archive(rng, folder)
    out = folder / "out"
    files = [out / "suite.json", out / "scores.csv", *sorted((out / "scenarios").glob("*"))]
    files += [out / ".lock", *sorted((out / "stages").glob("*"))]
    path, words = rng.choice(files), rng.choice([REPORT, RUN])
    kind = rng.choice(["odd file", "bytes", "values"])
    if path.name == ".lock" and kind == "odd file":
        kind = "bytes"
    if kind == "odd file":
        what = rng.choice(ODD_FILES)
        if path.is_dir():
            what = "folder"
        else:
            as_odd_file(path, what)
    elif kind == "values" and path.suffix == ".json":
        content, what = spoil(json.loads(path.read_text()), rng)
        path.write_text(json.dumps(content))
    else:
        data, what = spoil_bytes(path.read_bytes() or b"\0", rng)
        path.write_bytes(data)
    if words == RUN:  # something is left to do
        rng.choice(sorted((out / "cells").glob("*.json"))).unlink()
    what = f"{words[0]} with {path.relative_to(folder)}: {what}"
    return Case(what, words, dry=words == RUN, checks=_no_lost_cell(folder))


def _archive(rng: Random, folder: Path) -> Case:
    """Pack the cells of the run and spoil the archive."""
    path = pack(folder / "out")
    data, what = spoil_bytes(path.read_bytes(), rng)
    path.write_bytes(data)
    words = rng.choice([REPORT, RUN])

    def checks(folder: Path, undisturbed: Path) -> Iterator[str]:
        if path.read_bytes() != data:
            yield f"{path.name} was changed"

    seen = "" if what == "twice" else path.name  # the same cells, twice
    what = f"{words[0]} with {path.name}: {what}"
    return Case(what, words, dry=words == RUN, seen=seen, checks=checks)


def _trials(rng: Random, folder: Path) -> Case:
    """Spoil a log of trials."""
    for name in ("a.log", "b.log"):
        lines = [",".join(f"{value * (1 + 0.01 * n):g}" for value in TRIAL) for n in range(6)]
        (folder / name).write_text("\n".join([*lines, ""]))
    path = folder / "a.log"
    if rng.random() < 0.7:
        lines = path.read_text().splitlines()
        row = lines[1].split(",")
        place = rng.randrange(len(row))
        odd = [
            "1e300",
            "-1",
            "nan",
            "inf",
            "0",
            "",
            "x",
            "1e-320",
            "1e308",
            "9" * 5_000,
            "\x1b[31m",
        ]
        row[place] = rng.choice(odd)
        lines[1] = ",".join(row)
        path.write_text("\n".join(lines))
        what = f"a.log: number {place + 1} of trial 2 is {row[place]!a:.40}"
    else:
        data, what = spoil_bytes(path.read_bytes(), rng)
        path.write_bytes(data)
        what = f"a.log: {what}"

    def checks(folder: Path, undisturbed: Path) -> Iterator[str]:
        from faults.sandbox import command

        if (folder / "mine.toml").exists():
            run = ["run", "small.toml", "--methods", "mine.toml", "--model", "tiny", "--dry-run"]
            if command(run, folder).code == 2:
                yield "combine wrote a file that run refuses"

    return Case(f"combine: {what}", COMBINE, writes=("mine.toml", "mine.png"), checks=checks)


def _no_lost_cell(folder: Path) -> Callable[[Path, Path], Iterator[str]]:
    """Check later that every cell file of `folder` is still there, or moved aside."""
    before = _names(folder)

    def checks(folder: Path, undisturbed: Path) -> Iterator[str]:
        if lost := before - _names(folder):
            yield f"{min(lost)} is gone"

    return checks


def _names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "out" / "cells").rglob("*.json")}

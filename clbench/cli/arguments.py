"""Arguments that several commands share, and the parsing of lists, times and seeds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from clbench.core.errors import SettingsError, did_you_mean

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def option(metavar: str, text: str, *names: str) -> Any:
    """Return an option with a value, by default named after its parameter."""
    return typer.Option(*names, metavar=metavar, help=text)


def flag(name: str, text: str) -> Any:
    """Return an option without a value."""
    return typer.Option(name, help=text)


Suite = Annotated[
    str,
    typer.Argument(metavar="SUITE", help="A packaged suite (clbench list suites) or a suite file."),
]
Model = Annotated[
    str | None,
    option("NAME|DIR", "Built-in model, model folder, or name on the hub.  [default: the suite's]"),
]
Data = Annotated[
    str | None,
    option("DIR", "Folder with copies of hub repositories, such as DIR/glue.  [default: the hub]"),
]
Corpus = Annotated[
    str | None,
    option(
        "FILE|NAME",
        "Text for ewc-mlm, generic-replay and the shift pretraining: a file with one text per "
        "line, wiki40b/en or built-in.  [default: the suite's]",
    ),
]
Limit = Annotated[int | None, option("ROWS", "Maximum rows of each split.  [default: the suite's]")]
Subset = Annotated[
    str | None,
    option(
        "fixed|seed",
        "Training rows within the limit: the same for every seed, or others for each.  "
        "[default: the suite's]",
    ),
]
Epochs = Annotated[int | None, option("N", "Passes over each task's rows.  [default: the suite's]")]
Precision = Annotated[
    str | None,
    option(
        "auto|float32|bf16",
        "Training precision; auto is bf16 on hardware with fast bf16.  [default: the suite's]",
    ),
]
Head = Annotated[
    str | None,
    option(
        "classification|language-model",
        "Heads for each task, or the model's own head, which answers in words.  "
        "[default: the suite's]",
    ),
]
Device = Annotated[str, option("DEVICE", "Device to train on: auto, cpu, cuda, cuda:N or mps.")]
Plugins = Annotated[
    list[Path] | None,
    option(
        "FILE",
        "Python file that registers methods, shifts, tasks, models or metrics; repeatable.",
        "--plugin",
    ),
]
Address = Annotated[
    str | None,
    option("ADDRESS", "Ray cluster: auto, host:port or ray://host:port.  [default: this machine]"),
]
Workers = Annotated[
    int | None,
    option("N", "Worker processes, one cell each at a time.  [default: 1, this process]"),
]
Threads = Annotated[
    int | None, option("N", "CPU threads per cell.  [default: cores / workers; 1 on a cluster]")
]
Gpus = Annotated[
    float | None, option("X", "GPUs per cell, such as 0.5.  [default: 1, or an equal share]")
]
ReportOut = Annotated[
    Path | None, option("DIR", "Folder of the report.  [default: report/ in the first run]")
]
Formats = Annotated[str, option("A,B", "File formats of the figures: png, svg, pdf.")]


def choice(option: str, value: str, choices: Sequence[str]) -> str:
    """Return `value` if it is one of `choices`, else raise a SettingsError."""
    if value not in choices:
        raise SettingsError(f"{option} {value!r} is unknown.{did_you_mean(value, choices)}")
    return value


def words(option: str, values: Iterable[str] | None) -> list[str] | None:
    """Return the values of a repeatable option, split at commas; None if it is not given.

    Raises a SettingsError if the option is given but empty.
    """
    texts = list(values or ())
    if not texts:
        return None
    parts = [word.strip() for text in texts for word in text.split(",")]
    if not all(parts):
        raise SettingsError(f"{option} {','.join(texts)!r}: holds an empty name. Leave it out.")
    return parts


def seconds(option: str, value: str) -> float:
    """Return ``90``, ``90s``, ``30m``, ``2h`` or ``1d`` in seconds, or raise a SettingsError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", value)
    if match is None or float(match[1]) == 0:
        raise SettingsError(f"{option} {value!r}: must be a time such as 90s, 30m or 2h.")
    return float(match[1]) * UNITS[match[2]]


def seeds(value: str | None) -> list[int] | str | None:
    """Return the seeds of a list such as ``0,1,2``, ``0-4`` or ``7,0-4``, in order, each once.

    A value that starts with ``until-settled`` is returned unchanged. Raises a SettingsError for any
    other form, an empty range, or too many seeds.
    """
    from clbench.suite.question import MOST_SEEDS, UNTIL_SETTLED

    if value is None or value.startswith(UNTIL_SETTLED):
        return value
    numbers: dict[int, None] = {}
    for part in value.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise SettingsError(
                f"--seeds {value!r}: {part.strip()!r} is not a seed or range. Write 0,1,2 or 0-4."
            )
        if len(numbers) + last - first >= MOST_SEEDS:
            raise SettingsError(f"--seeds {value!r}: has more than {MOST_SEEDS} seeds. Give fewer.")
        numbers.update(dict.fromkeys(range(first, last + 1)))
    return list(numbers)

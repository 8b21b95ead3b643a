"""The trial logs of the authors of BERTcL."""

from __future__ import annotations

import math
import re
from pathlib import Path

from clbench.errors import DataError
from clbench.messages import describe_missing
from clbench.search.trial import Trial

RATES = 10
SCORES = ("the score on D_o before the shift", "the score on D_s", "the score on D_o after it")
PER_TRIAL = len(SCORES) + RATES


def read_log(path: str | Path) -> list[Trial]:
    """Read a log as the authors' code writes it.

    One line of comma-separated numbers, 13 a trial: the score on D_o before the shift, that
    on D_s, that on D_o after both, and the ten rates from the embeddings to the head. A comma
    at the end is allowed, and a trial or several on a line of their own.

    Raises
    ------
    DataError
        If the file is missing, empty, no text, holds something that is no number, a score
        that is no fraction, a rate that is not above 0, or a trial that is broken off; with
        the line, the number's place in it and the trial.
    """
    file = Path(path)
    text = _text(file)
    trials: list[Trial] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            trials += _line(f"{file}, line {number}", line, len(trials))
    if not trials:
        raise DataError(f"{file}: is empty. A log has {PER_TRIAL} numbers a trial.")
    return trials


def _text(file: Path) -> str:
    if file.is_dir():
        raise DataError(f"{file}: is a folder. Give the log in it.")
    try:
        return file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{file}: {describe_missing(file)}.") from None
    except OSError as fault:
        raise DataError(f"{file}: cannot be read: {fault.strerror}.") from fault
    except UnicodeDecodeError as fault:
        raise DataError(f"{file}: byte {fault.start + 1} is no text. Give a trial log.") from fault


def _line(place: str, line: str, before: int) -> list[Trial]:
    fields = [(match.start() + 1, match[0]) for match in re.finditer(r"[^,]*(?:,|$)", line)]
    fields = [(column, field.rstrip(",").strip()) for column, field in fields if field]
    if fields and not fields[-1][1]:
        fields.pop()  # blanks after the last comma
    numbers = [_number(place, number, *field) for number, field in enumerate(fields, 1)]
    whole, rest = divmod(len(numbers), PER_TRIAL)
    if rest:
        raise DataError(
            f"{place}: {len(numbers)} numbers are {whole} times {PER_TRIAL} and {rest} more, "
            f"from column {fields[whole * PER_TRIAL][0]} on. A trial is broken off, or has not "
            f"{RATES} rates."
        )
    trials = []
    for start in range(0, len(numbers), PER_TRIAL):
        first, p_s, last, *rates = numbers[start : start + PER_TRIAL]
        try:
            trials.append(Trial(tuple(rates), p_o=last, p_s=p_s, p_o_before=first))
        except ValueError as fault:
            raise DataError(
                f"{place}, trial {before + len(trials) + 1}, which begins at column "
                f"{fields[start][0]}: {fault}."
            ) from fault
    return trials


def _number(place: str, number: int, column: int, field: str) -> float:
    try:
        value = math.nan if "_" in field else float(field)  # Python reads 1_0 as 10
    except ValueError:
        value = math.nan
    if math.isfinite(value):
        return value
    trial, position = divmod(number - 1, PER_TRIAL)
    what = SCORES[position] if position < len(SCORES) else f"rate {position - len(SCORES) + 1}"
    got = repr(field) if field else "nothing"
    raise DataError(
        f"{place}, column {column}: {what} of trial {trial + 1} must be a number, got {got}."
    )

"""Read the trials of a pair of tasks from a search folder or from a log of the authors' code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clbench.core.errors import DataError, count
from clbench.core.files import read_file
from clbench.models.groups import Division
from clbench.search.combination import Trial
from clbench.search.search_folder import SearchFolder, TrialRecord
from clbench.search.space import SearchOrigin

SCORES, RATES = 3, 10
"""How many numbers a trial has in a log of the authors' code."""


@dataclass(frozen=True)
class TrialSource:
    """The complete trials of one pair of tasks; a log has neither split, origin nor records."""

    path: Path
    trials: Sequence[Trial]
    name: str
    split: str = ""  # description of the rows that give the rewards
    origin: SearchOrigin | None = None
    records: Sequence[TrialRecord] = ()  # all trials of the search


def read_source(path: str | Path) -> TrialSource:
    """Read a search folder or a trial log; raise a DataError if it has no complete trial."""
    path = Path(path)
    if not path.is_dir():
        return TrialSource(path, read_log(path), path.stem)
    folder = SearchFolder(path)
    origin, content, records = folder.origin(), folder.content(), folder.read()
    trials = [trial for record in records if (trial := record.trial()) is not None]
    if not trials:
        raise DataError(f"{path}: none of its {len(records)} trials is complete.")
    name, split = content.get("scenario") or path.name, content.get("split", "")
    return TrialSource(path, trials, name, split, origin, records)


def read_log(path: str | Path) -> list[Trial]:
    """Read a trial log of the authors' code.

    A line holds comma-separated numbers, 13 for each trial: the score on D_o before the shift,
    the score on D_s, the score on D_o after it, and ten rates from the embeddings to the head.

    Raises
    ------
    DataError
        If the file is unreadable, or a number is missing or wrong; names the line and trial.
    """
    try:
        lines = read_file(Path(path)).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise DataError(f"{path} cannot be read as a trial log: {reason}.") from error
    trials: list[Trial] = []
    size = SCORES + RATES
    for number, line in enumerate(lines, 1):
        fields = line.strip().rstrip(",").split(",") if line.strip() else []
        if len(fields) % size:
            raise DataError(
                f"{path}, line {number}: has {count(len(fields), 'number')}, which is not a "
                f"multiple of {size} ({SCORES} scores and {RATES} rates for each trial)."
            )
        for start in range(0, len(fields), size):
            try:
                p_o_before, p_s, p_o, *rates = map(float, fields[start : start + size])
                trials.append(Trial(tuple(rates), p_o, p_s, p_o_before))
            except ValueError as error:
                raise DataError(
                    f"{path}, line {number}, trial {len(trials) + 1}: {error}."
                ) from error
    if not trials:
        raise DataError(f"{path} is empty. A trial log has {size} numbers for each trial.")
    return trials


def common_origin(
    sources: Sequence[TrialSource],
    *,
    flat: float | None = None,
    depth: int | None = None,
    division: Division | None = None,
) -> SearchOrigin:
    """Return the flat rate and model that the rates of all sources refer to.

    By default these are the searches'; a log counts as a search on BERT base at 2e-5. `flat`
    replaces the flat rates of the searches.

    Raises
    ------
    DataError
        If searches differ from each other, or from `depth` or `division`.
    """
    values = {"flat": flat, "depth": depth, "division": division}
    changes: dict[str, Any] = {key: value for key, value in values.items() if value is not None}
    origins = {source.path: source.origin for source in sources if source.origin is not None}
    origin = replace(next(iter(origins.values()), SearchOrigin()), **changes)
    for path, other in origins.items():
        for name in ("depth", "division", "flat"):
            expected, value = getattr(origin, name), getattr(other, name)
            if value != expected and not (name == "flat" and flat is not None):
                hint = "Give --flat." if name == "flat" else "Combine searches on one model."
                raise DataError(f"{path} was searched with {name} {value}, not {expected}. {hint}")
    return origin

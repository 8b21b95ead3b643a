"""Values of options that are more than one word or number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from clbench.errors import SettingsError, did_you_mean

MOST_SEEDS = 1000
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
PRECISIONS = ("auto", "float32", "bf16")


def choice(what: str, value: str, known: Sequence[str]) -> str:
    """`value`, if it is one of `known`.

    Raises
    ------
    SettingsError
        If it is none of them, with the nearest.
    """
    if value not in known:
        raise SettingsError(f"{what} {value!r} is unknown.{did_you_mean(value, known)}")
    return value


def words(option: str, values: Iterable[str] | None) -> list[str] | None:
    """Values of a repeatable option whose values may also be joined by commas.

    Raises
    ------
    SettingsError
        If the option is given and names nothing.
    """
    given = list(values or ())
    if not given:
        return None
    found = [word.strip() for value in given for word in value.split(",") if word.strip()]
    if not found:
        raise SettingsError(f"{option} {','.join(given)!r}: names nothing. Leave it out for all.")
    return found


def seconds(option: str, value: str) -> float:
    """Seconds from ``90``, ``90s``, ``30m``, ``2h`` or ``1d``.

    Raises
    ------
    SettingsError
        If it is none of these, or 0.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", value)
    if match is None or float(match[1]) == 0:
        raise SettingsError(f"{option} {value!r}: must be a time such as 90s, 30m or 2h.")
    return float(match[1]) * UNITS[match[2]]


def seeds(value: str | None) -> list[int] | None:
    """Seeds from ``0,1,2`` or ``0-4`` or both; each counts once, in the order given.

    Raises
    ------
    SettingsError
        If a part is neither, a range runs backwards, or there are more than a thousand.
    """
    if value is None:
        return None
    found: dict[int, None] = {}
    for part in value.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part)
        if match is None:
            raise SettingsError(
                f"--seeds {value!r}: {part.strip()!r} is no seed. Give seeds as 0,1,2 or 0-4."
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise SettingsError(f"--seeds {value!r}: the range {part.strip()} runs backwards.")
        if len(found) + last - first >= MOST_SEEDS:
            raise SettingsError(f"--seeds {value!r}: more than {MOST_SEEDS} seeds.")
        found.update(dict.fromkeys(range(first, last + 1)))
    return list(found)

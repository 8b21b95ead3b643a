"""Where trials come from: the folder of a search, or a log of the authors' code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clbench.errors import DataError
from clbench.models.groups import Division
from clbench.search.baseline import FoundOn
from clbench.search.logs import read_log
from clbench.search.outcome import cost_of
from clbench.search.search_folder import SearchFolder
from clbench.search.trial import Trial
from clbench.suite.baselines import Cost


@dataclass(frozen=True)
class Source:
    """The trials of one pair.

    Attributes
    ----------
    path
        Where they were read.
    trials
        Those that came to their end.
    name
        Of the pair.
    found
        What they were found on; None where a log does not say.
    cost
        Of the search, if it is known.
    split
        What its rewards are of, in words; empty where a log does not say.
    """

    path: Path
    trials: tuple[Trial, ...]
    name: str
    found: FoundOn | None = None
    cost: Cost | None = None
    split: str = ""


def read_source(path: str | Path) -> Source:
    """Read the folder of a search, or a log.

    Raises
    ------
    DataError
        If there is neither, or it is broken, or no trial came to its end.
    """
    place = Path(path)
    if not place.is_dir():
        return Source(place, tuple(read_log(place)), place.stem)
    folder = SearchFolder(place)
    found = folder.found_on()
    records = folder.read()
    trials = tuple(trial for record in records if (trial := record.trial()) is not None)
    if not trials:
        raise DataError(f"{place}: none of its {len(records)} trials came to its end.")
    settings = folder.settings()
    name, split = (str(settings.get(key, "")) for key in ("scenario", "split"))
    return Source(place, trials, name or place.name, found, cost_of(records), split)


def agreed(
    sources: Sequence[Source],
    *,
    flat: float | None = None,
    depth: int | None = None,
    division: Division | None = None,
) -> FoundOn:
    """What the rates of all sources are for.

    Parameters
    ----------
    sources
        One a pair.
    flat, depth, division
        What the user says. Logs say nothing: there the defaults are those of the paper, BERT base
        at a flat rate of 2e-5.

    Raises
    ------
    DataError
        If sources differ, from one another or from what the user says; a flat rate that the user
        gives holds for all.
    """
    usual = FoundOn()
    wanted = FoundOn(
        usual.flat if flat is None else flat,
        usual.depth if depth is None else depth,
        usual.division if division is None else division,
    )
    known = [source for source in sources if source.found is not None]
    if not known:
        return wanted
    first = known[0]
    assert first.found is not None
    for name, given in (("depth", depth), ("division", division)):
        if given is not None and given != getattr(first.found, name):
            raise DataError(
                f"--{name} {given}: {first.path} was searched with {getattr(first.found, name)}. "
                f"Leave --{name} out."
            )
    for other in known[1:]:
        for name in ("depth", "division", "flat"):
            mine, theirs = getattr(first.found, name), getattr(other.found, name)
            if mine != theirs and not (name == "flat" and flat is not None):
                hint = (
                    "Give --flat for what multiples are of."
                    if name == "flat"
                    else ("Combine searches on one model.")
                )
                raise DataError(
                    f"{first.path} and {other.path} were searched with {name} {mine} and "
                    f"{theirs}. {hint}"
                )
    return FoundOn(
        first.found.flat if flat is None else flat, first.found.depth, first.found.division
    )


def total(sources: Sequence[Source]) -> Cost | None:
    """Cost of all searches together; logs tell none, and None if there is nothing but logs."""
    known = [source.cost for source in sources if source.cost is not None]
    if not known:
        return None
    return Cost(
        trials=sum(cost.trials for cost in known),
        epochs=sum(cost.epochs for cost in known),
        seconds=round(sum(cost.seconds for cost in known), 3),
    )

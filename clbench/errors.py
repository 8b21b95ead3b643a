"""Everything that a user can cause, as one family of exceptions.

The command line prints any of them as a single line and exits with code 2; from
Python they are ordinary exceptions to catch.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ClbenchError(Exception):
    """Base of every error that the user can mend; its text says what, where and how."""


class SuiteError(ClbenchError):
    """A suite or baseline file is wrong: an unknown key, a wrong type, a value out of range."""


class UnknownNameError(ClbenchError):
    """A method, shift, task, model, suite or scenario of that name does not exist."""


class SettingsError(ClbenchError):
    """The settings of a method or shift do not fit its declared fields."""


class DataError(ClbenchError):
    """A data file or data folder is missing, broken, empty or lacks what was asked of it."""


class ShiftError(ClbenchError):
    """A shift would leave an empty part or a part with a single class."""


class ModelError(ClbenchError):
    """A checkpoint is missing, cannot be read safely, or is of a kind that cannot be used."""


class PluginError(ClbenchError):
    """A plug-in file cannot be imported or does not define what it should."""


class RunFolderError(ClbenchError):
    """The output folder is in use, belongs to other settings, or cannot be written."""


class NonFiniteLossError(ClbenchError):
    """Training diverged: the loss of a step was infinite or not a number. Fails its cell only."""


class SearchError(ClbenchError):
    """A search of learning rates came to nothing: no trial reached its end."""


MOST_NAMES = 8
"""Names that a message lists whole; of more, only the nearest."""

LONGEST_NAME = 40
"""Letters of a name that a message shows; a file without a header has texts for names."""


def did_you_mean(name: str, known: Iterable[str], see: str = "") -> str:
    """The end of a message about an unknown `name`: the nearest known ones, then all or some.

    Parameters
    ----------
    name
        What the user wrote.
    known
        What would have been right.
    see
        A command that lists them, named where there are too many for a message.

    Returns
    -------
    str
        ``" Did you mean 'x'? Available: …"``, starting with a space, without the question
        when nothing is near.
    """
    names = sorted(set(known))
    lowered = {candidate.lower(): candidate for candidate in names}
    near = [lowered[n] for n in difflib.get_close_matches(name.lower(), lowered, n=2, cutoff=0.5)]
    question = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    return f"{question} Available: {_some(name, names, see)}."


def _some(name: str, names: list[str], see: str) -> str:
    """All `names`, or the nearest to `name` and how many more there are."""
    listed, rest = names, ""
    if len(names) > MOST_NAMES:
        ranked = sorted(names, key=lambda other: -_likeness(name, other))
        listed = sorted(ranked[: MOST_NAMES - 2])
        rest = f" and {len(names) - len(listed)} more" + (f" ({see})" if see else "")
    return (", ".join(_cut(other) for other in listed) or "none") + rest


def _likeness(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio()


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"

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


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown `name`: the nearest known ones, then all.

    Parameters
    ----------
    name
        What the user wrote.
    known
        What would have been right.

    Returns
    -------
    str
        ``" Did you mean 'x'? Available: …"``, starting with a space, without the question
        when nothing is near.
    """
    names = sorted(set(known))
    lowered = {candidate.lower(): candidate for candidate in names}
    near = difflib.get_close_matches(name.lower(), lowered, n=2, cutoff=0.5)
    question = f" Did you mean {' or '.join(repr(lowered[n]) for n in near)}?" if near else ""
    return f"{question} Available: {', '.join(names) or 'none'}."

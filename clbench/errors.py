"""The errors a user can cause; the command line prints each as one line and exits with 2."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches


class ClbenchError(Exception):
    """Base of all errors that a user can fix; the text says what is wrong, where, and how."""


class SuiteError(ClbenchError):
    """A suite or baseline file has an unknown key, a wrong type or a value out of range."""


class UnknownNameError(ClbenchError):
    """No method, shift, task, model, suite or scenario has that name."""


class SettingsError(ClbenchError):
    """The settings of a method or shift do not fit its declared fields."""


class DataError(ClbenchError):
    """A data file or folder is missing, damaged, empty or incomplete."""


class ShiftError(ClbenchError):
    """A shift would leave an empty part, or a part with a single class."""


class ModelError(ClbenchError):
    """A checkpoint is missing, cannot be loaded safely, or has an unsupported architecture."""


class PluginError(ClbenchError):
    """A plug-in cannot be imported, or does not define what it should."""


class RunFolderError(ClbenchError):
    """The folder of a run is in use, holds cells of other settings, or cannot be written."""


class ClusterError(ClbenchError):
    """Ray died in the middle of a run; the finished cells are kept."""


class NonFiniteLossError(ClbenchError):
    """Training diverged: the loss became infinite or NaN. Only the cell fails."""


class SearchError(ClbenchError):
    """A search of learning rates has no complete trial."""


MOST_NAMES = 8
"""Longest list of names in a message; of a longer one, all but the first are counted."""


def did_you_mean(name: str, candidates: Iterable[str], see: str = "") -> str:
    """Return a hint for the end of a message about an unknown `name`; it starts with a space.

    The hint is ``" Did you mean 'x'?"`` if a candidate is similar, else ``" Available: a, b."``.
    A list that is cut ends with `see`, the command that prints all of it.
    """
    names = sorted(set(candidates))
    if near := nearest(name, names):
        return near
    rest = ""
    if len(names) > MOST_NAMES:
        rest = f" ({see})" if see else ""
        names = sorted(names, key=lambda n: SequenceMatcher(None, name, n).ratio())[::-1]
        names[: MOST_NAMES - 2] = sorted(names[: MOST_NAMES - 2])
    return f" Available: {join_names(names)}{rest}."


def join_names(names: Iterable[str]) -> str:
    """Return names with commas, ``none`` without any; a long list ends with ``and 5 more``."""
    # The column names of a data file without a header are whole texts.
    short = [name if len(name) <= 40 else f"{name[:39]}…" for name in names]
    if len(short) > MOST_NAMES:
        return f"{', '.join(short[: MOST_NAMES - 2])} and {len(short) - MOST_NAMES + 2} more"
    return ", ".join(short) or "none"


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` with the one or two nearest names; empty if none is near."""
    lowered = {candidate.lower(): candidate for candidate in candidates}
    near = [lowered[n] for n in get_close_matches(name.lower(), lowered, n=2, cutoff=0.5)]
    return f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""

"""The method that is checked: where it comes from, and fresh instances of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from clbench.errors import PluginError
from clbench.methods.base import METHODS, Method
from clbench.suite.baselines import Baseline, read_baseline


@dataclass(frozen=True)
class Candidate:
    """A method with its settings.

    Attributes
    ----------
    baseline
        Name, settings and their sources.
    kind
        The method's class.
    registered
        Whether a suite can name it.
    """

    baseline: Baseline
    kind: type[Method]
    registered: bool

    @property
    def name(self) -> str:
        """The baseline's."""
        return self.baseline.name

    def make(self, kind: type[Method] | None = None) -> Method:
        """A fresh instance, of a subclass if one is given."""
        return (kind or self.kind)(**self.baseline.settings)


def candidate_of(
    method: str | Baseline | type[Method], settings: Mapping[str, Any] | None = None
) -> Candidate:
    """Find what is to be checked.

    Parameters
    ----------
    method
        What a suite's ``methods`` may name (a baseline, its file, a registered method,
        ``module:Class``), or a class.
    settings
        Replace those of the baseline, key by key.

    Raises
    ------
    UnknownNameError, SuiteError, PluginError
        If there is no such method, its baseline file is wrong, or it cannot be imported.
    SettingsError
        If `settings` do not fit.
    """
    if isinstance(method, type):
        if not issubclass(method, Method):
            raise PluginError(f"{method.__qualname__} is no subclass of clbench.Method.")
        name = method.name or method.__name__
        baseline = Baseline(name, name)
        kind: type[Method] = method
        registered = name in METHODS and METHODS.get(name) is method
    else:
        baseline = method if isinstance(method, Baseline) else read_baseline(method)
        kind = METHODS.get(baseline.method)
        registered = True
    if not settings:
        return Candidate(baseline, kind, registered)
    changed = replace(baseline, settings={**baseline.settings, **settings})
    kind(**changed.settings)  # what the caller asks for is no promise of the method's
    return Candidate(changed, kind, registered)

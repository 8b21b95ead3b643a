"""The method under check, and the result of a check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from clbench.errors import PluginError
from clbench.methods.base import METHODS, Method
from clbench.suite.baselines import Baseline, read_baseline


@dataclass(frozen=True)
class Row:
    """The result of one check.

    Attributes
    ----------
    check
        Name of the check; see `clbench.conformance.CHECKS`.
    status
        ``pass``, ``fail``, or ``skip`` if an earlier failure prevents the check.
    reason
        Finding in one line.
    hint
        What to do about a failure.
    numbers
        Measured values by name.
    """

    check: str
    status: Literal["pass", "fail", "skip"]
    reason: str
    hint: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)


class FailedCheckError(Exception):
    """The reason why a check failed."""


@dataclass(frozen=True)
class Candidate:
    """The method under check: its class, and a baseline with its settings."""

    baseline: Baseline
    method: type[Method]

    @classmethod
    def of(
        cls, method: str | Baseline | type[Method], settings: Mapping[str, Any] | None = None
    ) -> Candidate:
        """Return the candidate for a method; see `clbench.conformance.check`.

        Raises
        ------
        UnknownNameError, SuiteError, PluginError
            If there is no such method, its baseline file is wrong, or it cannot be imported.
        SettingsError
            If `settings` do not fit.
        """
        if isinstance(method, type):
            if not issubclass(method, Method):
                raise PluginError(f"{method.__qualname__} is not a subclass of clbench.Method.")
            name = method.name or method.__name__
            candidate = cls(Baseline(name, name), method)
        else:
            baseline = method if isinstance(method, Baseline) else read_baseline(method)
            candidate = cls(baseline, METHODS.get(baseline.method))
        if settings:
            merged = {**candidate.baseline.settings, **settings}
            candidate.method(**merged)  # a wrong setting is the caller's error, not a failed check
            candidate = cls(replace(candidate.baseline, settings=merged), candidate.method)
        return candidate

    def make(self) -> Method:
        """Return a new instance of the method."""
        return self.method(**self.baseline.settings)

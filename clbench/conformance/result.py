"""What one check found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["pass", "fail", "skip"]


@dataclass(frozen=True)
class Row:
    """One check of one method.

    Attributes
    ----------
    check
        Its name; see `clbench.conformance.CHECKS`.
    status
        ``pass``; ``fail``; ``skip`` where another failure keeps it from being made.
    reason
        What was found.
    hint
        What to do about a failure.
    numbers
        What was measured, by name, as plain values.
    """

    check: str
    status: Status
    reason: str
    hint: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)


class FailedCheckError(Exception):
    """A check failed: the reason and what to do about it."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint

"""How tests call the command, and what the suite of the fixture ``place`` runs."""

from __future__ import annotations

from collections.abc import Callable

Call = Callable[..., tuple[int, str, str]]
"""The fixture ``clbench``: returns the exit code, the output and the errors."""
RUN = ("run", "mine.toml", "--no-references")
KEYS = [
    "one-two--vanilla--seed0",
    "one-two--frozen--seed0",
    "one-two--vanilla--seed1",
    "one-two--frozen--seed1",
]

"""The command line: one module a verb."""

from __future__ import annotations

from clbench.cli.entry import main

__all__ = ["main"]

"""The command line: one module for each verb."""

from __future__ import annotations

from clbench.cli.app import main

__all__ = ["main"]

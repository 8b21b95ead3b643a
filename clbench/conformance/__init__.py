"""Check that a method keeps its promises; behind ``clbench check``."""

from clbench.conformance.checks import CHECKS, Row, check

__all__ = ["CHECKS", "Row", "check"]

"""Check that a method keeps its promises; behind ``clbench check``."""

from clbench.conformance.checks import check
from clbench.conformance.sessions import CHECKS, Row

__all__ = ["CHECKS", "Row", "check"]

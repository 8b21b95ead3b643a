"""Check that a method keeps its promises; behind ``clbench check``."""

from clbench.conformance.checks import check
from clbench.conformance.session import CHECKS, Row

__all__ = ["CHECKS", "Row", "check"]

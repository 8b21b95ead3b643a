"""Check that a method keeps its promises; behind ``clbench check``.

>>> from clbench.conformance import check
>>> for row in check("vanilla"):
...     print(row.check, row.status)  # doctest: +SKIP
"""

from clbench.conformance.checks import CHECKS, Row, check

__all__ = ["CHECKS", "Row", "check"]

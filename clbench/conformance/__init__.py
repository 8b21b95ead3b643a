"""Does a method keep its promises? The checks behind ``clbench check``.

>>> from clbench.conformance import check
>>> for row in check("vanilla"):
...     print(row.check, row.status)  # doctest: +SKIP
"""

from __future__ import annotations

from clbench.conformance.checks import CHECKS, check
from clbench.conformance.result import Row

__all__ = ["CHECKS", "Row", "check"]

"""Short audits, and the rows of one task."""

from __future__ import annotations

from typing import Any

from clbench.audit.items import Items, load_items

QUICK: Any = {"tasks": ["synthetic/sentiment"], "rows": 200, "texts": 60}
"""Options of a short audit."""


def items_of(name: str = "synthetic/sentiment", count: int = 200) -> Items:
    """Return the items of a built-in task."""
    (items,) = load_items([name], data=None, rows=count)
    return items

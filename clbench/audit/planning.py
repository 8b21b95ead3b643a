"""What an audit can show, before it starts: the loss that its rows detect, and when to look."""

import math
from collections.abc import Mapping, Sequence

from scipy.special import ndtri

from clbench.audit.changes import items_needed
from clbench.core.errors import named
from clbench.results.statistics import ALPHA, POWER

FLIPS = 0.2
"""Share of items assumed to flip: of the probes and tasks of `docs/audit.md`, 0.1 to 0.4 do."""
UNRELATED = 0.5
"""Share of items that flip between two unrelated models of accuracy ½."""
LOOKS = (1, 2, 4)
"""Multiples of the rows after which an audit looks, if it goes on until it is settled."""


def rows_needed(loss: float, tests: int, flips: float = FLIPS, alpha: float = ALPHA) -> int:
    """Return the rows with which 80 % of audits of that many tests show a loss of accuracy.

    `items_needed`, and 2 / loss more because an exact test's counts are whole (Fleiss, Tytun & Ury
    1980, Biometrics 36). At least as many items flip as are lost.
    """
    return items_needed(max(flips, loss), loss, alpha / tests) + math.ceil(2.0 / loss)


def detectable(rows: int, tests: int, flips: float = FLIPS, alpha: float = ALPHA) -> float:
    """Return the loss of accuracy that 80 % of audits show, the inverse of `rows_needed`."""
    q2 = float(ndtri(1.0 - alpha / tests / 2) + ndtri(POWER)) ** 2
    loss = (1.0 + math.sqrt(1.0 + rows * flips * q2)) / rows
    return min(1.0, loss if loss <= flips else (2.0 + q2) / rows)


def plan(
    sizes: Mapping[str, int], tests: int, detect: float | None = None, alpha: float = ALPHA
) -> str:
    """Return a line on what the items of each task can show at an error rate.

    `detect` is the loss for which their number was chosen, if it was.
    """
    name, fewest = min(sizes.items(), key=lambda each: each[1])
    usual, unrelated = (detectable(fewest, tests, flips, alpha) for flips in (FLIPS, UNRELATED))
    flipping = (
        f"{100 * FLIPS:.0f} % of the items flip" if usual <= FLIPS else "only lost items flip"
    )
    line = (
        f"{fewest:,} items of {name} show a loss of {usual:.3f} with {100 * POWER:.0f} % power if "
        f"{flipping}" + (f", and of {unrelated:.3f} if half do." if unrelated <= UNRELATED else ".")
    )
    if detect is not None and fewest < (needed := rows_needed(detect, tests, alpha=alpha)):
        line += f" {named('detect', detect)} needs {needed:,} items; the task has no more."
    return line


def looks(rows: int, most: int) -> Sequence[int]:
    """Return the numbers of rows after which an audit looks, if a task has at most `most`."""
    return sorted({min(rows * times, max(rows, most)) for times in LOOKS})

"""Checks of what a method holds, frees and takes."""

from __future__ import annotations

from collections.abc import Mapping

from clbench.conformance.check_run import CheckRun
from clbench.conformance.result import FailedCheckError

MOST = 4.0
"""Copies of the model that a method may add to its attributes in a stage."""
GROWTH = 0.05
"""Copies of the model by which its attributes may grow in the second half of a stage."""
LEFT = 0.5
"""Copies of the model that may be alive when a cell is over."""


def frees(first: CheckRun, counted: CheckRun, vanilla: CheckRun) -> str:
    """Nothing big outlives the cell, and what is held does not grow with the steps."""
    if first.stays:
        raise FailedCheckError(
            f"{' and '.join(first.stays)} outlived the cell.",
            "Hold it in attributes of the method only, not in the class, the module, a cache or "
            "a hook that is never removed.",
        )
    model = vanilla.model_bytes
    left = (counted.left or 0) / model
    if left > LEFT:
        raise FailedCheckError(
            f"tensors of {left:.1f} times the model's weights outlived the cell.",
            "Hold tensors in attributes of the method only, not in the class or the module.",
        )
    before = 0.0
    for stage, held in enumerate(counted.held):
        copies = held / model
        if copies - before > MOST:
            raise FailedCheckError(
                f"after stage {stage} its attributes hold {copies:.1f} times the model's weights, "
                f"{copies - before:.1f} more than before it.",
                "Sum up what is taken at every step, and delete what is not needed any more.",
            )
        before = copies
    for stage, grown in enumerate(counted.grown):
        if grown / model > GROWTH:
            raise FailedCheckError(
                f"in the second half of stage {stage} alone its attributes grew by "
                f"{grown / model:.2f} times the model's weights.",
                "Sum up what is taken at every step, detached, instead of keeping each of it.",
            )
    return "nothing outlives the cell, and nothing grows with the steps"


def memory(counted: CheckRun, plain: CheckRun) -> dict[str, float]:
    """Extra memory beyond vanilla.

    Parameters
    ----------
    counted, plain
        Runs with bytes counted, of the method and of vanilla.

    Returns
    -------
    dict
        ``held_bytes`` (in its attributes at the end), ``peak_bytes`` (of live tensors beyond
        vanilla's), and both as multiples of the model's weights: ``held_models``,
        ``peak_models``.
    """
    held = counted.held[-1]
    peak = (counted.peak or 0) - (plain.peak or 0)
    model = plain.model_bytes
    return {
        "held_bytes": held,
        "peak_bytes": peak,
        "held_models": held / model,
        "peak_models": peak / model,
    }


def time(first: CheckRun, last: CheckRun, vanilla: CheckRun) -> dict[str, float]:
    """Extra time.

    Parameters
    ----------
    first, last, vanilla
        A whole run of the method; one of at least its last stage and one of vanilla, made
        one after the other.

    Returns
    -------
    dict
        ``step_ratio`` (median time of a step of the last stage, by vanilla's) and
        ``other_seconds`` (in `setup` and `after_stage`).
    """
    ratio = last.step_seconds / max(vanilla.step_seconds, 1e-9)
    return {"step_ratio": ratio, "other_seconds": first.other_seconds}


def told(numbers: Mapping[str, float]) -> str:
    """The costs in one line; memory in copies of the model's weights."""
    return (
        f"holds {numbers['held_models']:.2f} × the model's weights; at the peak "
        f"{numbers['peak_models']:+.2f} ×; a step takes {numbers['step_ratio']:.2f} × vanilla's; "
        f"setup and consolidation {numbers['other_seconds']:.2f} s"
    )

"""The points of a sweep: a baseline at other values of the settings that are worth tuning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from clbench.core.errors import SettingsError
from clbench.suite.baselines import Baseline, Range, Sweep

LR_MULTIPLES: list[Any] = [0.1, 0.2, 0.5, 1.0, 2.0]
"""Flat rates that every method is tuned over, as multiples of its own. Few, so that methods that
train the first stage alike share it."""
RATES = {"lr", "lr_multiple"}
"""Settings of the flat rate, which every method has."""


def axes(baseline: Baseline, *, keep_rate: bool = False) -> Sweep:
    """Return the settings over which a baseline is tuned.

    The flat rate is one of them unless `keep_rate`, or if the method takes none.
    """
    sweep = dict(baseline.sweep)
    if not (sweep.keys() & RATES) and _takes_rate(baseline):
        sweep["lr_multiple"] = LR_MULTIPLES
    return {key: axis for key, axis in sweep.items() if not (keep_rate and key in RATES)}


def own_values(
    baseline: Baseline, settings: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the values of the swept settings in a baseline, or in one with other `settings`."""
    from clbench.methods.base import METHODS

    method = METHODS.get(baseline.method)(**{**baseline.settings, **settings})
    return {key: getattr(method, key) for key in axes(baseline)}


def count_points(baseline: Baseline, *, keep_rate: bool = False) -> float:
    """Return the number of points of a sweep, the baseline's own among them."""
    swept, own = axes(baseline, keep_rate=keep_rate), own_values(baseline)
    sizes = [
        (axis.high - axis.low + 1 if axis.is_whole else math.inf)
        if isinstance(axis, Range)
        else len(axis)
        for axis in swept.values()
    ]
    return math.prod(sizes) + any(own[key] not in axis for key, axis in swept.items())


def _takes_rate(baseline: Baseline) -> bool:
    from clbench.methods.base import METHODS

    try:
        METHODS.get(baseline.method)(**{**baseline.settings, "lr_multiple": LR_MULTIPLES[0]})
    except SettingsError:
        return False
    return True


def variant(baseline: Baseline, name: str, settings: Mapping[str, Any]) -> Baseline:
    """Return a point of the sweep of a baseline: the same with other settings."""
    unchanged = {key: text for key, text in baseline.sources.items() if key not in settings}
    return replace(
        baseline,
        name=name,
        settings={**baseline.settings, **settings},
        sources=unchanged,
        family=baseline.name,
    )


def dial_points(baseline: Baseline, count: int) -> list[Baseline]:
    """Return `count` points of a baseline along its dial, fewer where it has fewer values.

    The first one is the baseline itself, in place of the nearest point.
    """
    swept = axes(baseline)
    if not swept:
        return [replace(baseline, family=baseline.name)]
    setting, axis = next(iter(swept.items()))
    own = own_values(baseline)[setting]
    if isinstance(axis, Range):
        values = axis.values(count)
        nearest = values[len(values) // 2]
        if isinstance(own, int | float):
            nearest = axis.nearest(values, own)
    else:
        values = _spread(axis, count)
        nearest = values[-1]
    if own in values:
        values.remove(own)
    elif len(values) == count:
        values.remove(nearest)
    labels = [_label(value) for value in values]
    if None in labels or len({*labels}) < len(labels):  # no names of files, or not unique
        labels = [f"s{number}" for number in range(1, len(values) + 1)]
    points = [
        variant(baseline, f"{baseline.name}-{label}", {setting: value})
        for label, value in zip(labels, values, strict=True)
    ]
    return [replace(baseline, family=baseline.name), *points]


def _spread(choices: list[Any], count: int) -> list[Any]:
    """Return `count` of the choices at equal distances in their list, both ends included."""
    last = len(choices) - 1
    chosen = {round(i * last / max(1, count - 1)) for i in range(count)}
    return [choices[i] for i in sorted(chosen)]


def _label(value: Any) -> str | None:
    """Return a value as the end of a baseline's name, or None if it is no positive number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:g}" if is_number and value >= 0 else None

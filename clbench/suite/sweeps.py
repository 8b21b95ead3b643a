"""Sweeps: the settings over which a baseline is tuned, and points of it along them."""

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from clbench.core import errors
from clbench.suite.baselines import Axis, Baseline, Range, Sweep, toml_text, variant
from clbench.suite.read import raise_errors

LR_MULTIPLES: list[Any] = [0.1, 0.2, 0.5, 1.0, 2.0]
"""Flat rates that every method is tuned over, as multiples of its own. Few, so that methods that
train the first stage alike share it."""
RATES = {"lr", "lr_multiple"}
"""Settings of the flat rate, which every method has."""


def check_sweep(baseline: Baseline) -> None:
    """Raise a SuiteError if the method, which is imported, refuses values of its file's sweep."""
    if baseline.path is None or baseline.family or baseline.table != Baseline.table:
        return  # settings and sweep are not of one file
    with suppress(errors.SettingsError):  # wrong settings or a missing package: an error of the run
        baseline.build()
        problems = []
        for key, axis in baseline.sweep.items():
            for value in (axis.low, axis.high) if isinstance(axis, Range) else axis:
                try:
                    baseline.build(**{key: value})
                except errors.SettingsError as error:
                    problems.append(f"[sweep] {errors.quote_key(key)} {toml_text(value)}: {error}")
                    break
        raise_errors(baseline.path, problems)


def axes(baseline: Baseline, *, keep_rate: bool = False) -> Sweep:
    """Return the settings over which a baseline is tuned.

    The flat rate is one of them unless `keep_rate`, or if the method takes none.
    """
    sweep = dict(baseline.sweep)
    if not sweep.keys() & RATES:
        with suppress(errors.SettingsError):
            baseline.build(lr_multiple=LR_MULTIPLES[0])
            sweep["lr_multiple"] = LR_MULTIPLES
    return {key: axis for key, axis in sweep.items() if not (keep_rate and key in RATES)}


def own_values(baseline: Baseline, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the values of the swept settings in a baseline, or in one with other `settings`."""
    method = baseline.build(**(settings or {}))
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


def dial_points(baseline: Baseline, *counts: int) -> list[Baseline]:
    """Return points of a baseline along its dial, or on a grid over its first two swept settings.

    There are `counts` values of each setting, fewer where it has fewer; the baseline's own value is
    one of them, in place of the nearest. The first point is the baseline itself.
    """
    check_sweep(baseline)
    swept, own = axes(baseline), own_values(baseline)
    values = [
        _values(axis, own[setting], count)
        for (setting, axis), count in zip(swept.items(), counts, strict=False)
    ]
    labels = [_labels(some) for some in values]
    points = [replace(baseline, family=baseline.name)]
    for numbers in itertools.product(*(range(len(some)) for some in values)):
        if any(numbers):
            chosen = [some[number] for some, number in zip(values, numbers, strict=True)]
            texts = [some[number] for some, number in zip(labels, numbers, strict=True)]
            settings = {
                key: value
                for key, value, number in zip(swept, chosen, numbers, strict=False)
                if number  # not the baseline's own
            }
            points.append(variant(baseline, "-".join([baseline.name, *texts]), settings))
    return points


def _values(axis: Axis, own: Any, count: int) -> list[Any]:
    """Return `count` values of a setting, the own one first."""
    if isinstance(axis, Range):
        values = axis.values(count)
        is_number = isinstance(own, int | float)
        nearest = axis.nearest(values, own) if is_number else values[len(values) // 2]
    else:
        last = len(axis) - 1
        chosen = {round(i * last / max(1, count - 1)) for i in range(count)}
        values = [axis[i] for i in sorted(chosen)]
        nearest = values[-1]
        if all(type(value) in (int, float) and value > 0 for value in (own, *values)):
            nearest = min(values, key=lambda value: abs(math.log(value / own)))
    if own in values:
        values.remove(own)
    elif len(values) == count:
        values.remove(nearest)
    return [own, *values]


def _labels(values: Sequence[Any]) -> list[str]:
    """Return numbers as they are; if one is no name of a file, or is repeated, s0, s1, ..."""
    texts = [f"{value:g}" if type(value) in (int, float) and value >= 0 else "" for value in values]
    others = texts[1:]
    if "" in others or len({*others}) < len(others):
        return [f"s{number}" for number in range(len(values))]
    return [texts[0] or "s0", *others]

"""The settings of a baseline that are worth tuning, and their ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from clbench.suite.baselines import Baseline

LR_MULTIPLES: list[Any] = [0.1, 0.2, 0.5, 1.0, 2.0]
"""Flat rates that every method is tuned over, as multiples of its own. Few, so that methods that
train the first stage alike share it."""


class Range(BaseModel):
    """Values between two ends, both included; whole numbers if both ends are."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    low: int | float
    high: int | float
    scale: Literal["log", "linear"] = "log"

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if not self.low < self.high or (self.scale == "log" and self.low <= 0):
            raise ValueError("low must be below high, and above 0 on a log scale")
        return self

    def values(self, count: int) -> list[Any]:
        """Return `count` values at equal distances on the scale, both ends included."""
        low, high = self.low, self.high
        shares = [i / max(1, count - 1) for i in range(count)]
        if self.scale == "log":
            values = [math.exp(math.log(low) * (1 - s) + math.log(high) * s) for s in shares]
        else:
            values = [low * (1 - share) + high * share for share in shares]
        if isinstance(low, int) and isinstance(high, int):
            return list(dict.fromkeys(map(round, values)))
        return [float(f"{value:.3g}") for value in values]


Choices = Annotated[list[Any], Field(min_length=2)]
Sweep = dict[str, Range | Choices]
"""Ranges or choices by setting; the first is the dial that trades old against new tasks."""


def axes(baseline: Baseline, *, keep_rate: bool = False) -> Sweep:
    """Return the settings over which a baseline is tuned, the flat rate unless `keep_rate`."""
    sweep = {**baseline.sweep, "lr_multiple": baseline.sweep.get("lr_multiple", LR_MULTIPLES)}
    return {key: axis for key, axis in sweep.items() if not (keep_rate and key == "lr_multiple")}


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
    """Return a baseline and `count` variants along its dial, fewer where it has fewer values."""
    setting, axis = next(iter(axes(baseline).items()))
    values = axis.values(count) if isinstance(axis, Range) else _spread(axis, count)
    own = baseline.settings.get(setting, 1.0 if setting == "lr_multiple" else None)
    values = [value for value in values if value != own]
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

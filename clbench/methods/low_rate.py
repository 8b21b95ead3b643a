"""Vanilla at a low rate: the control for methods that lower the rate of some weights."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from clbench.methods.vanilla import Vanilla


class LowRate(Vanilla):
    """Fine-tune all weights at a fraction of the flat rate, in all stages.

    A control for `layerwise`: rates by layer must do better than one rate as low as their mean.
    The default of `lr_multiple` is the geometric mean of the ten multiples that Kenneweg et al.
    2022 published (baseline ``bertcl-combined``).
    """

    name: ClassVar[str] = "low-rate"
    control: ClassVar[bool] = True
    lr_multiple: Annotated[float, Field(gt=0.0, le=1e6)] = 0.1519074799

"""Plain fine-tuning: every weight at one learning rate."""

from __future__ import annotations

from typing import ClassVar

from clbench.methods.base import Method


class Vanilla(Method):
    """Fine-tune all weights at one rate; the reference for other methods."""

    name: ClassVar[str] = "vanilla"

    def acts_in(self, index: int) -> bool:
        """Return False."""
        return False

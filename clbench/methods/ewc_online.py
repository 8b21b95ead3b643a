"""Online EWC: one anchor, and an importance that fades."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from clbench.methods.ewc import EWC

if TYPE_CHECKING:
    from torch import Tensor

    from clbench.training.stage import Snapshot


class EWCOnline(EWC):
    """Pull towards the weights after the last task, by a fading sum of Fisher information.

    ``F ← γF + F_new``, and the anchor is the weights after the last task (Schwarz et al.
    2018, section 3.2, eq. 9; Huszár 2018). F_new of a head that the task has not is 0. On two
    tasks it is `ewc`.

    Attributes
    ----------
    gamma
        γ: how much of the importance of earlier tasks stays, 0 to 1.
    """

    name: ClassVar[str] = "ewc-online"
    gamma: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0

    def _take_in(self, found: dict[str, Tensor], weights: Snapshot) -> None:
        """Fade what is held, also of heads that this task has not; add, and move the anchor."""
        for value in self.fisher.values():
            value.mul_(self.gamma)
        for name, fisher in found.items():
            if name in self.fisher:
                fisher += self.fisher[name]
            self.fisher[name], self.anchor[name] = fisher, weights[name]

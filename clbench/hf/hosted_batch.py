"""A batch of somebody's Trainer, whose rows may be packed, as methods know it."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clbench.models.encoding import IGNORED
from clbench.training.batches import Batch


@dataclass(frozen=True)
class HostedBatch(Batch):
    """A batch of which `count` rows may be packed into fewer sequences."""

    count: int = 0

    def __len__(self) -> int:
        return self.count

    def token_rows(self) -> Tensor:
        """Return the number of the row that each label belongs to, shape of the labels."""
        if self.count == len(self.labels):
            return super().token_rows()
        rows = (self.inputs["position_ids"] == 0).cumsum(1) - 1
        return rows.gather(1, self.inputs["predict"])

    def prompts(self) -> tuple[Tensor, Tensor]:
        """Return where each row begins and where its answer is first predicted, shape (b,)."""
        if self.count == len(self.labels):
            return super().prompts()
        starts = (self.inputs["position_ids"][0] == 0).nonzero()[:, 0]
        end = self.inputs["position_ids"].shape[1]
        places = self.inputs["predict"][0].masked_fill(self.labels[0] == IGNORED, end)
        first = torch.full_like(starts, end)
        first = first.scatter_reduce(0, self.token_rows()[0], places, "amin")
        return starts, torch.where(first < end, first, starts)


def asked_tokens(labels: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """Return the places that predict labelled tokens, and these tokens: both of shape (b, m).

    `labels` of shape (b, t) have -100 where nothing is predicted; a place predicts the token
    `shift` further on. Rows with fewer tokens are filled up with place 0 and token -100.
    """
    ahead = nn.functional.pad(labels[:, shift:], (0, shift), value=IGNORED)
    asked = ahead != IGNORED
    order = asked.int().argsort(dim=1, descending=True, stable=True)
    places = order[:, : max(1, int(asked.sum(1).max()))]
    tokens = ahead.gather(1, places)
    return places.masked_fill(tokens == IGNORED, 0), tokens

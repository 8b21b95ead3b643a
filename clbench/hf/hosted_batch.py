"""A batch of somebody's Trainer, whose rows may be packed, as methods know it."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clbench.models.encoding import IGNORED
from clbench.training.batches import Batch


@dataclass(frozen=True)
class HostedBatch(Batch):
    """A batch of rows, or of one sequence in which rows begin at the places `starts`."""

    starts: Tensor | None = None

    def __len__(self) -> int:
        return super().__len__() if self.starts is None else len(self.starts)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return outputs as `Batch` does; with several labels, each is one of two classes."""
        if self.labels.is_floating_point() and not self.regression:
            return torch.stack([outputs, torch.zeros_like(outputs)], dim=-1)
        return super().predictions(outputs)

    def token_rows(self) -> Tensor:
        """Return the number of the row that each label belongs to, shape of the labels."""
        if self.starts is None:
            return super().token_rows()
        return torch.searchsorted(self.starts, self.inputs["predict"], right=True) - 1

    def prompts(self) -> tuple[Tensor, Tensor]:
        """Return where each row begins and where its answer is first predicted, shape (b,)."""
        if self.starts is None:
            return super().prompts()
        end = self.inputs["input_ids"].shape[1]
        places = self.inputs["predict"][0].masked_fill(self.labels[0] == IGNORED, end)
        first = torch.full_like(self.starts, end)
        first = first.scatter_reduce(0, self.token_rows()[0], places, "amin")
        return self.starts, torch.where(first < end, first, self.starts)


def row_starts(positions: Tensor, labels: Tensor | None) -> Tensor:
    """Return where packed rows begin in a sequence of which `positions` are those in the rows.

    Padding at the end, which looks like rows of one token without a label, is left out.
    """
    positions = positions.flatten(0, -2)[0]
    jumps = nn.functional.pad(positions[1:] != positions[:-1] + 1, (1, 1), value=True)
    begins, ends = jumps[:-1], jumps[1:]
    if labels is not None and labels.shape == (1, len(positions)):
        lone = begins & ends & (labels[0] == IGNORED)
        padding = lone.flip(0).cumprod(0).flip(0).bool()
        begins = torch.cat([begins[:1], begins[1:] & ~padding[1:]])
    return begins.nonzero()[:, 0]


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

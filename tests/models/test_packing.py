"""Rows of packed sequences."""

import torch

from clbench.models.packing import PackedRows


def test_rows_are_padded_in_groups_and_come_back() -> None:
    lengths = [5, 3, 2, 1]
    tokens = torch.arange(1.0, 12.0)
    states = tokens.view(1, 1, -1, 1).expand(1, 2, -1, 3)  # one sequence, two heads
    rows = PackedRows.of(lengths, torch.device("cpu"))
    assert [(group.rows, group.length) for group in rows.groups] == [(2, 5), (1, 2), (1, 1)]
    padded = [group.pad(states) for group in rows.groups]
    assert [p.shape for p in padded] == [(2, 2, 5, 3), (1, 2, 2, 3), (1, 2, 1, 3)]
    assert padded[0][0, 0, :, 0].tolist() == [1, 2, 3, 4, 5]
    assert padded[0][1, 1, :3, 2].tolist() == [6, 7, 8]
    assert padded[1][0, 0, :, 0].tolist() == [9, 10]
    back = [g.unpad(p.transpose(1, 2)) for g, p in zip(rows.groups, padded, strict=True)]
    assert torch.equal(torch.cat(back), states[0].transpose(0, 1))

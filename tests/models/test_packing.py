"""Rows of packed sequences."""

import torch

from clbench.models.packing import row_groups


def test_rows_are_padded_in_groups_and_come_back() -> None:
    lengths = [5, 3, 2, 1]
    tokens = torch.arange(1.0, 12.0).view(-1, 1, 1).repeat(1, 2, 3).requires_grad_()
    groups = row_groups(lengths, torch.device("cpu"))
    assert [(group.rows, group.length) for group in groups] == [(2, 5), (1, 2), (1, 1)]
    parts = tokens.split([8, 2, 1])
    padded = [group.pad(part) for group, part in zip(groups, parts, strict=True)]
    assert [p.shape for p in padded] == [(2, 2, 5, 3), (1, 2, 2, 3), (1, 2, 1, 3)]
    assert padded[0][0, 0, :, 0].tolist() == [1, 2, 3, 4, 5]
    assert padded[0][1, 1, :3, 2].tolist() == [6, 7, 8]
    assert padded[1][0, 0, :, 0].tolist() == [9, 10]
    back = torch.cat([g.unpad(p.transpose(1, 2)) for g, p in zip(groups, padded, strict=True)])
    assert torch.equal(back, tokens)
    (back * tokens.detach()).sum().backward()
    assert torch.equal(tokens.grad, tokens)


def test_padding_gets_no_gradient_from_the_tokens() -> None:
    group = row_groups([3, 2], torch.device("cpu"))[0]
    padded = torch.ones(2, 3, 1, 1, requires_grad=True)
    group.unpad(padded).sum().backward()
    assert padded.grad.flatten().tolist() == [1, 1, 1, 1, 1, 0]

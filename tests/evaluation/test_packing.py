from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from clbench.evaluation.state_io import UnstorableStateError, pack, unpack

CPU = torch.device("cpu")


def test_nested_values_come_back() -> None:
    state = {
        "anchor": {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(True)},
        "kept": [(np.array([3, 1]), 0.5), None, "text"],
        2: -1,
    }
    skeleton, tensors = pack(state)
    back = unpack(json.loads(json.dumps(skeleton)), tensors, CPU)
    assert torch.equal(back["anchor"]["a.weight"], state["anchor"]["a.weight"])
    assert back["anchor"]["b"].dtype == torch.bool
    assert back["kept"][0][0].tolist() == [3, 1]
    assert isinstance(back["kept"][0], tuple)
    assert back["kept"][1:] == [None, "text"]
    assert back[2] == -1


def test_what_is_packed_is_a_copy() -> None:
    weight = torch.zeros(2)
    _, tensors = pack({"w": weight})
    weight += 1
    assert tensors["t0"].tolist() == [0.0, 0.0]


def test_views_and_shared_tensors_are_stored_whole() -> None:
    base = torch.arange(6.0).reshape(2, 3)
    skeleton, tensors = pack([base, base.T])
    back = unpack(skeleton, tensors, CPU)
    assert torch.equal(back[1], base.T)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {"b": {1, 2}}}, r"state\.a\.b is a set"),
        ([object()], r"state\[0\] is a object"),
        ({(1, 2): 0}, "key of type tuple"),
        ({"t": np.array(["x"])}, r"state\.t is an array"),
    ],
)
def test_other_types_are_named(value: object, path: str) -> None:
    with pytest.raises(UnstorableStateError, match=path):
        pack(value)

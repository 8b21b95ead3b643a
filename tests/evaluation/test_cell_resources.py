from __future__ import annotations

from typing import Any

import pytest

from clbench.errors import SettingsError
from clbench.evaluation.cell_resources import CellResources, check_room, needed
from clbench.evaluation.ray_session import check_listening
from clbench.evaluation.resources import Resources


def node(cpus: float, gpus: float = 0) -> dict[str, Any]:
    return {"Alive": True, "Resources": {"CPU": cpus, **({"GPU": gpus} if gpus else {})}}


@pytest.mark.parametrize(
    ("needs", "nodes", "cells"),
    [
        (CellResources(1, 0), [node(2), node(3)], 5),
        (CellResources(2, 0), [node(3), node(3)], 2),  # a cell does not lie across nodes
        (CellResources(4, 0), [node(3), node(3)], 0),
        (CellResources(1, 1.0), [node(8, 2), node(8)], 2),
        (CellResources(1, 0.5), [node(8, 1)], 2),
        (CellResources(1, 0.5), [node(1, 1)], 1),
        (CellResources(1, 2.0), [node(8, 3)], 1),
        (CellResources(1, 0), [{"Alive": True}], 0),
    ],
)
def test_cells_that_fit(needs: CellResources, nodes: list[dict[str, Any]], cells: int) -> None:
    assert needs.fitting(nodes) == cells


class FakeRay:
    def __init__(self, *nodes: dict[str, Any]) -> None:
        self._nodes = nodes

    def nodes(self) -> list[dict[str, Any]]:
        return list(self._nodes)

    def cluster_resources(self) -> dict[str, float]:
        return {"GPU": sum(node["Resources"].get("GPU", 0) for node in self._nodes)}


def test_a_cluster_that_can_never_run_a_cell_is_refused_with_the_numbers() -> None:
    check_room(FakeRay(node(2), node(4, 1)), CellResources(4, 1.0))
    gone = {**node(64), "Alive": False}
    with pytest.raises(SettingsError) as caught:
        check_room(FakeRay(node(2), node(4), gone), CellResources(8, 1.0))
    assert str(caught.value) == ("No node has a GPU that Ray knows of. Leave out --device cuda.")
    with pytest.raises(SettingsError) as caught:
        check_room(FakeRay(node(2), node(4), gone), CellResources(8, 0))
    assert str(caught.value) == (
        "A cell takes 8 cores, but no node has that: the largest has 4 cores. Lower --threads."
    )
    with pytest.raises(SettingsError, match=r"has 4 cores and 1 GPUs\. Lower --threads or --gpus"):
        check_room(FakeRay(node(4, 1)), CellResources(2, 2.0))


@pytest.mark.parametrize("address", ["auto", "local", "anyscale://x", "nonsense"])
def test_only_addresses_with_a_port_are_asked(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    check_listening(address)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "auto"])
def test_nobody_at_the_address(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ConnectionError, match="ray status"):
        check_listening(address)


@pytest.mark.parametrize(
    ("there", "place", "share"),
    [
        (1, Resources(workers=2), 0.5),
        (1, Resources(workers=3), 0.3333),
        (8, Resources(workers=8), 1.0),
        (8, Resources(workers=2), 1.0),
        (2, Resources(address="auto"), 1.0),
        (2, Resources(workers=4, address="auto"), 1.0),
    ],
)
def test_workers_of_this_machine_share_its_gpus(there: int, place: Resources, share: float) -> None:
    ray = FakeRay(node(8, there))
    assert needed(ray, place, "auto").gpus == share
    assert needed(ray, place, "cpu").gpus == 0


@pytest.mark.parametrize(("device", "fault"), [("mps", "one GPU"), ("cuda:1", "--device cuda")])
def test_devices_that_workers_cannot_share(device: str, fault: str) -> None:
    with pytest.raises(SettingsError, match=fault):
        needed(FakeRay(node(8, 1)), Resources(workers=2), device)
    with pytest.raises(SettingsError, match="no GPU"):
        needed(FakeRay(node(8)), Resources(workers=2, gpus=0.5), "auto")

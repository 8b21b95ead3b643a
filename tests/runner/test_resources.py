from __future__ import annotations

import socket
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import clbench
from clbench.core.errors import SettingsError
from clbench.evaluation import resources as former
from clbench.runner import resources as module
from clbench.runner.resources import (
    START_ATTEMPTS,
    CellResources,
    LocalServers,
    Resources,
    cell_resources,
    check_reachable,
    connected,
    cores,
)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"workers": 0}, "workers: must be greater than or equal to 1, got 0."),
        ({"threads": -1}, "threads: must be greater than or equal to 1, got -1."),
        ({"workers": 2, "gpus": 1.5}, "gpus 1.5: must be a fraction"),
        ({"workers": 2, "gpus": 0.0}, "gpus 0: must be a fraction"),
        ({"workers": 2, "gpus": float("nan")}, "gpus nan: must be a fraction"),
        ({"gpus": 0.5}, "Also give workers or address."),
        ({"address": " "}, "address: is empty."),
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, object], text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Resources(**values)  # type: ignore[arg-type]
    assert text in str(caught.value)


def test_resources_are_public_and_have_their_former_name() -> None:
    assert clbench.Resources is former.Resources is Resources


def test_one_process_is_the_default_and_a_cluster_is_not() -> None:
    assert Resources().alone
    assert Resources(workers=1).alone
    assert Resources(threads=3).alone
    assert not Resources(workers=2).alone
    assert not Resources(workers=1, address="auto").alone


def test_workers_share_the_cores() -> None:
    assert Resources(workers=2).threads_here == max(1, cores() // 2)
    assert Resources(workers=4_000).threads_here == 1
    assert Resources(workers=2, threads=3).threads_here == 3


def node(cpus: float, gpus: float = 0) -> dict[str, Any]:
    return {"Alive": True, "Resources": {"CPU": cpus, **({"GPU": gpus} if gpus else {})}}


@pytest.mark.parametrize(
    ("cell", "nodes", "capacity"),
    [
        (CellResources(1, 0), [node(2), node(3)], 5),
        (CellResources(2, 0), [node(3), node(3)], 2),  # a cell does not span nodes
        (CellResources(4, 0), [node(3), node(3)], 0),
        (CellResources(1, 1.0), [node(8, 2), node(8)], 2),
        (CellResources(1, 0.5), [node(8, 1)], 2),
        (CellResources(1, 0.5), [node(1, 1)], 1),
        (CellResources(1, 2.0), [node(8, 3)], 1),
        (CellResources(1, 0.2), [node(8, 1)], 5),
        (CellResources(1, 0.1), [node(80, 8)], 80),
        (CellResources(1, 0.3), [node(80, 8)], 24),
        (CellResources(1, 0), [node(2), {**node(4), "Alive": False}], 2),
    ],
)
def test_capacity_counts_cells_node_by_node(
    cell: CellResources, nodes: list[dict[str, Any]], capacity: int
) -> None:
    assert cell.capacity(nodes) == capacity


class FakeRay:
    def __init__(self, *nodes: dict[str, Any]) -> None:
        self._nodes = nodes

    def nodes(self) -> list[dict[str, Any]]:
        return list(self._nodes)

    def cluster_resources(self) -> dict[str, float]:
        return {"GPU": sum(node["Resources"].get("GPU", 0) for node in self._nodes)}


def test_a_cluster_that_can_never_run_a_cell_is_refused() -> None:
    gone = {**node(64), "Alive": False}
    here = Resources(address="auto", threads=4)
    assert cell_resources(FakeRay(node(2), node(4, 1)), here, "auto") == CellResources(4, 1.0)
    with pytest.raises(SettingsError) as caught:
        cell_resources(FakeRay(node(2), node(4), gone), here, "cuda")
    assert str(caught.value) == "device='cuda': Ray sees no GPU. Use device='cpu'."
    with pytest.raises(SettingsError) as caught:
        cell_resources(FakeRay(node(2), node(4), gone), replace(here, threads=8), "cpu")
    assert str(caught.value) == "A cell needs 8 cores, which no node has. Lower threads."
    with pytest.raises(SettingsError, match=r"4 cores and 2 GPU, .* Lower threads or gpus"):
        cell_resources(FakeRay(node(4, 1)), replace(here, gpus=2.0), "auto")


@pytest.mark.parametrize("address", ["auto", "local", "anyscale://x", "nonsense"])
def test_addresses_without_a_port_are_left_to_ray(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    check_reachable(Resources(address=address))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "auto"])
def test_an_address_where_nothing_listens_is_refused(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(SettingsError, match=r"Ray cannot be reached: .* `ray status` .*cluster\?$"):
        check_reachable(Resources(address=address))


@pytest.mark.parametrize(
    ("gpus", "resources", "share"),
    [
        (1, Resources(workers=2), 0.5),
        (1, Resources(workers=3), 0.3333),
        (2, Resources(workers=3), 0.5),  # a cell has one GPU at most
        (8, Resources(workers=8), 1.0),
        (8, Resources(workers=2), 1.0),
        (2, Resources(address="auto"), 1.0),
        (2, Resources(workers=4, address="auto"), 1.0),
    ],
)
def test_workers_of_this_machine_share_its_gpus(
    gpus: int, resources: Resources, share: float
) -> None:
    ray = FakeRay(node(8, gpus))
    assert cell_resources(ray, resources, "auto").gpus == share
    assert cell_resources(ray, resources, "cpu").gpus == 0


@pytest.mark.parametrize(
    ("device", "error"), [("mps", "cannot share its GPU"), ("cuda:1", "Give device=.cuda.")]
)
def test_devices_that_workers_cannot_share(device: str, error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        cell_resources(FakeRay(node(8, 1)), Resources(workers=2), device)
    with pytest.raises(SettingsError, match="sees no GPU"):
        cell_resources(FakeRay(node(8)), Resources(workers=2, gpus=0.5), "auto")


class FailingRay:
    """Fails to start some times, as when its agents are late."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.starts = 0
        worker = SimpleNamespace(_worker_logs_enabled=True)
        self._private = SimpleNamespace(worker=worker)

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: Any) -> None:
        self.starts += 1
        if self.starts <= self.failures:
            raise Exception("The current node timed out during startup.\nAsk Ray.")

    def shutdown(self) -> None:
        pass


def test_a_start_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FailingRay(START_ATTEMPTS - 1)
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    with connected(Resources(workers=2)) as started:
        assert started is ray
    assert ray.starts == START_ATTEMPTS


def test_a_start_that_always_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FailingRay(99)
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    with pytest.raises(SettingsError) as caught, connected(Resources(workers=2)):
        pass
    assert str(caught.value) == (
        "this machine: Ray cannot be reached or started (3 attempts; logs are in "
        "/tmp/ray/session_latest/logs): The current node timed out during startup. Ask Ray."
    )
    assert ray.starts == START_ATTEMPTS


def test_servers_that_stop_to_listen_are_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        port = raylet.getsockname()[1]
        context = SimpleNamespace(get_node_id=lambda: "here", gcs_address=f"127.0.0.1:{port}")
        nodes = [
            {"NodeID": "here", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port},
            {"NodeID": "other", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": 1},
        ]
        ray = SimpleNamespace(get_runtime_context=lambda: context, nodes=lambda: nodes)
        servers = LocalServers(ray, Resources(workers=2))
        on_cluster = LocalServers(ray, Resources(address="ray://cluster:1"))
        assert servers.alive()
    assert not servers.alive()
    assert on_cluster.alive()

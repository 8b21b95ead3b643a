"""The resources of cells: those that the user requests, those of a node, and the Ray session."""

import logging
import math
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from clbench.core.errors import SettingsError, error_text, named, sentence
from clbench.core.options import check_types, described, where

if TYPE_CHECKING:
    import torch

CONNECT_SECONDS = 10.0
"""Timeout for connecting to a cluster, in seconds."""
START_ATTEMPTS = 3
"""How often to start Ray here: it gives its own agents 15 s, which a busy machine may exceed.
Processes of a failed start end with this one."""
ANSWER_SECONDS = 5.0
"""Timeout for an answer of Ray's servers on this machine, in seconds."""
RETRIES = 2
"""How often a cell restarts after its worker has died."""
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    "RAY_task_oom_retries": str(RETRIES),
}
"""Set before importing Ray: no telemetry, no notices, no endless retries when out of memory."""


MOST = 4096
"""Most workers, and threads of a cell; far more than a machine has."""


@described
@dataclass(frozen=True, kw_only=True)
class Resources:
    """Where cells run, how many at a time, and what each gets.

    Attributes
    ----------
    {options}

    Raises
    ------
    SettingsError
        If a value is of another type or out of range, or `gpus` is given for a run in one process.
    """

    workers: Annotated[
        int | None,
        Field(ge=1, le=MOST),
        where(
            "Worker processes, each with one cell (of a search: trial) at a time.",
            "N",
            default="1, this process; on a cluster as many as fit",
        ),
    ] = None
    address: Annotated[
        str | None,
        where(
            "Ray cluster: auto, host:port or ray://host:port.", "ADDRESS", default="this machine"
        ),
    ] = None
    threads: Annotated[
        int | None,
        Field(ge=1, le=MOST),
        where(
            "CPU threads of each worker. On a CPU, the last digits of scores depend on it.",
            "N",
            default="cores / workers; 1 on a cluster",
        ),
    ] = None
    gpus: Annotated[
        float | None,
        where("GPUs of each worker, such as 0.5.", "X", default="1, or an equal share"),
    ] = None

    def __post_init__(self) -> None:
        check_types(self)
        if self.address is not None and not self.address.strip():
            raise SettingsError(
                f"{named('address')}: is empty. Give auto, host:port or ray://host:port, or leave "
                "it out."
            )
        gpus = self.gpus
        if gpus is not None and not (0 < gpus <= 1 or (gpus <= MOST and gpus == int(gpus) > 0)):
            raise SettingsError(
                f"{named('gpus')} {gpus:g}: must be a fraction between 0 and 1, or a whole number "
                f"up to {MOST}."
            )
        if gpus is not None and self.alone:
            raise SettingsError(
                f"{named('gpus')}: divides GPUs among workers. Also give {named('workers')} or "
                f"{named('address')}."
            )

    @property
    def alone(self) -> bool:
        """Whether cells run one after another in this process."""
        return self.address is None and self.workers in (None, 1)

    @property
    def threads_here(self) -> int:
        """Threads per cell on this machine."""
        return self.threads or max(1, cores() // (self.workers or 1))

    def device_here(self, name: str) -> "torch.device":
        """Return the device of this process: the one called `name`, or the best if others train."""
        from clbench.training.device import resolve_device

        return resolve_device(name if self.address is None else "auto")


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_mb() -> float:
    """Return the memory of this machine, or of the container that the process runs in."""
    sizes = [float("inf")]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e6)
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text(encoding="ascii").strip()).isdecimal():
        sizes.append(int(text) / 1e6)
    return min(sizes)


@dataclass(frozen=True)
class CellResources:
    """The threads and GPUs that a cell occupies on a node."""

    threads: int
    gpus: float

    def capacity(self, nodes: Sequence[dict[str, Any]]) -> int:
        """Return how many cells can run at once on `nodes`, from `ray.nodes()`."""
        total = 0
        for resources in (node["Resources"] for node in nodes if node["Alive"]):
            room = resources.get("CPU", 0) // self.threads
            if self.gpus:  # Ray counts in ten-thousandths, where 1.0 // 0.2 is 5 and not 4
                share, gpus = max(1, round(1e4 * self.gpus)), int(resources.get("GPU", 0))
                # A part of a GPU lies on one of them.
                cells = gpus * (10_000 // share) if share < 10_000 else 10_000 * gpus // share
                room = min(room, cells)
            total += int(room)
        return total

    def __str__(self) -> str:
        text = f"{self.threads} core{'s' if self.threads > 1 else ''}"
        return f"{text} and {self.gpus:g} GPU" if self.gpus else text


def cell_resources(ray: Any, resources: Resources, device: str) -> CellResources:
    """Return the resources of a cell, from the user's request and those of the nodes.

    `ray` is the connected module; `device` is the option: ``auto``, ``cpu``, ``cuda`` …

    Raises
    ------
    SettingsError
        If workers cannot share the device, or no node is large enough for a cell.
    """
    kind = device.partition(":")[0]
    gpus = float(ray.cluster_resources().get("GPU", 0))
    if kind == "auto":
        kind = "cuda" if gpus else "cpu"
    given = named("device", device)
    if kind == "mps":
        raise SettingsError(f"{given}: workers cannot share its GPU. Leave out {named('workers')}.")
    if device.startswith("cuda:"):
        raise SettingsError(f"{given}: Ray chooses the GPU. Give {named('device', 'cuda')}.")
    if resources.gpus and kind != "cuda":
        raise SettingsError(f"{named('gpus')}: Ray sees no GPU. Leave out {named('gpus')}.")
    share = 0.0
    if kind == "cuda":
        share, workers = resources.gpus or 1.0, resources.workers or 0
        if resources.gpus is None and resources.address is None and 0 < gpus < workers:
            share = math.floor(1e4 / math.ceil(workers / gpus)) / 1e4  # a cell has one GPU at most
    threads = resources.threads_here if resources.address is None else resources.threads or 1
    cell = CellResources(threads, share)
    if cell.capacity(ray.nodes()):
        return cell
    if share and not gpus:
        raise SettingsError(f"{given}: Ray sees no GPU. Use {named('device', 'cpu')}.")
    remedy = " or ".join(map(named, ("threads", "gpus") if share else ("threads",)))
    raise SettingsError(f"A cell needs {cell}, which no node has. Lower {remedy}.")


@contextmanager
def connected(resources: Resources) -> Iterator[Any]:
    """Start Ray on this machine or join a cluster, yield the module, and disconnect at the end.

    Raises
    ------
    SettingsError
        If Ray cannot be started or the cluster does not answer.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        yield ray
        return
    check_reachable(resources)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        _start(ray, resources)
    finally:
        with suppress(ValueError, TypeError):  # `ray.init` replaces it, but only in a main thread
            signal.signal(signal.SIGTERM, handler)
    # Ray prints dead workers to stdout, among the results, and has no public switch for that.
    ray._private.worker._worker_logs_enabled = False
    try:
        yield ray
    finally:
        ray.shutdown()
        ray._private.worker._worker_logs_enabled = True


def _start(ray: Any, resources: Resources) -> None:
    """Start Ray on this machine, again if it fails, or join a cluster."""
    options: dict[str, Any] = {
        "address": resources.address or "local",
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "configure_logging": False,
    }
    where, attempts, hint = named("address", resources.address), 1, ""
    if resources.address is None:
        where, attempts = "this machine", START_ATTEMPTS
        hint = f" ({attempts} attempts; logs are in /tmp/ray/session_latest/logs)"
        options |= {
            "num_cpus": (resources.workers or 1) * resources.threads_here,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
        }
    for attempt in range(1, attempts + 1):
        try:
            ray.init(**options)
            return
        except Exception as error:  # Ray raises a bare one if its raylet does not start
            if attempt == attempts:
                line = sentence(error_text(error))
                raise SettingsError(
                    f"{where}: Ray cannot be reached or started{hint}: {line}"
                ) from error


def check_reachable(resources: Resources) -> None:
    """Raise a SettingsError if nothing listens at the cluster's address; Ray would wait minutes."""
    address = resources.address or ""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "auto")
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return  # this machine, auto without an address, or a form that Ray itself checks
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        where = named("address", resources.address)
        text = f"{where}: Ray cannot be reached: {error}. Does `ray status` show the cluster?"
        raise SettingsError(text) from error


class LocalServers:
    """Ray's servers on this machine, without which it ends this process after some seconds.

    Parameters
    ----------
    ray, resources
        The connected module, and where cells run; servers of other machines are not watched.
    """

    def __init__(self, ray: Any, resources: Resources) -> None:
        self._addresses: list[tuple[str, int]] = []
        address = resources.address or ""
        if address.startswith("ray://"):
            return  # a proxy on the cluster is connected to them
        context = ray.get_runtime_context()
        for node in ray.nodes():
            if node["NodeID"] == context.get_node_id():
                self._addresses.append((node["NodeManagerAddress"], node["NodeManagerPort"]))
        if not address:
            host, _, port = context.gcs_address.rpartition(":")
            self._addresses.append((host, int(port)))

    def alive(self) -> bool:
        """Whether all servers accept connections, at once or a second later."""
        for pause in (0.0, 1.0):
            time.sleep(pause)
            with suppress(OSError):
                for address in self._addresses:
                    socket.create_connection(address, ANSWER_SECONDS).close()
                return True
        return False

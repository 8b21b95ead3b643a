"""Ray, started for a run or joined, without its noise and its ways to end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from clbench.errors import SettingsError
from clbench.evaluation.resources import Resources

CONNECT_SECONDS = 10.0
"""Seconds in which a cluster must answer."""


@contextmanager
def connected(place: Resources) -> Iterator[Any]:
    """Ray, started here or joined; what was started or joined is left again."""
    # Set before the import: nothing is reported to anyone, and no notice printed about GPUs.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # each is handled here
    import ray

    if ray.is_initialized():
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    with _own_signals():
        try:
            if place.address is None:
                ray.init(
                    address="local",
                    num_cpus=(place.workers or 1) * place.threads_here,
                    include_dashboard=False,
                    _node_ip_address="127.0.0.1",
                    **quiet,
                )
            else:
                check_listening(place.address)
                ray.init(address=place.address, **quiet)
        except (ConnectionError, RuntimeError, ValueError, OSError) as fault:
            where = "this machine" if place.address is None else f"--address {place.address}"
            lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
            raise SettingsError(
                f"{where}: Ray cannot be reached or started: {lines[0] if lines else fault}"
            ) from fault
    try:
        with _no_echo(ray):
            yield ray
    finally:
        ray.shutdown()


@contextmanager
def _no_echo(ray: Any) -> Iterator[None]:
    """Keep Ray from printing of each death what a note of this run says already.

    It goes to stdout, among results, and Ray has no setting for it.
    """
    module, switch = ray._private.worker, "_worker_logs_enabled"
    if not hasattr(module, switch):
        yield
        return
    before = getattr(module, switch)
    setattr(module, switch, False)
    try:
        yield
    finally:
        setattr(module, switch, before)


def check_listening(address: str) -> None:
    """Raise ConnectionError where nobody answers; Ray would try for many minutes."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "auto")
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return  # auto without an address, or a form that Ray itself will judge
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as fault:
        raise ConnectionError(f"{fault}. Does `ray status` show the cluster?") from fault


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this program's ways to end, which Ray replaces by its own."""
    main = threading.current_thread() is threading.main_thread()
    names = ("SIGTERM", "SIGINT", "SIGHUP") if main else ()
    numbers_ = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers_}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)

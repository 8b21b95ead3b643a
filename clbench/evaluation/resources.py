"""Where the cells of a run are trained, as the user says it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from clbench.errors import SettingsError


@dataclass(frozen=True)
class Resources:
    """Where cells run, how many at a time, and what each gets.

    Attributes
    ----------
    workers
        Cells at a time; None is one, or on a cluster as many as its resources allow.
    address
        Of a Ray cluster: ``auto``, ``host:port`` or ``ray://host:port``. None is this machine.
    threads
        Processor threads of a cell. None shares this machine's cores among the workers; on a
        cluster it is 1.
    gpus
        GPUs of a cell: a fraction below 1, or a whole number. None is 1 where cells train on
        GPUs, or a fraction where this machine has fewer of them than workers.

    Raises
    ------
    SettingsError
        If a number is out of range, or `gpus` is given for a run in one process.
    """

    workers: int | None = None
    address: str | None = None
    threads: int | None = None
    gpus: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("workers", self.workers), ("threads", self.threads)):
            if value is not None and value < 1:
                raise SettingsError(f"--{name} {value}: must be 1 or more.")
        if self.address is not None and not self.address.strip():
            raise SettingsError(
                "--address: is empty. Give auto, host:port or ray://host:port, or leave it out."
            )
        gpus = self.gpus
        if gpus is None:
            return
        if not gpus > 0 or (gpus > 1 and gpus != int(gpus)):
            raise SettingsError(
                f"--gpus {gpus:g}: must be a fraction between 0 and 1, or a whole number."
            )
        if self.alone:
            raise SettingsError(
                "--gpus: shares GPUs among workers. Give --workers or --address as well."
            )

    @property
    def alone(self) -> bool:
        """Whether cells run one after another in this process."""
        return self.address is None and self.workers in (None, 1)

    @property
    def threads_here(self) -> int:
        """Threads of a cell among `workers` of this machine."""
        return self.threads or max(1, cores() // (self.workers or 1))


def cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

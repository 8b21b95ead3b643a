"""Options of a command that change what a suite file says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from clbench.errors import SettingsError, UnknownNameError, did_you_mean
from clbench.suite.faults import explain
from clbench.suite.read import Suite
from clbench.suite.schema import ScenarioSpec
from clbench.tasks.corpus import resolve_corpus
from clbench.training.protocol import Protocol

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?|mps")


def choose_scenarios(suite: Suite, patterns: Sequence[str] | None) -> list[ScenarioSpec]:
    """The suite's scenarios that match any of the shell patterns, in the suite's order.

    Raises
    ------
    UnknownNameError
        If a pattern matches none; the message lists all.
    """
    if patterns is None:
        return list(suite.file.scenario)
    names = suite.scenario_names
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UnknownNameError(
                f"--scenarios {pattern!r} matches no scenario of {suite.name}."
                f"{did_you_mean(pattern, names)}"
            )
    if not patterns:
        raise UnknownNameError(f"--scenarios: is empty.{did_you_mean('', names)}")
    return [
        scenario
        for scenario in suite.file.scenario
        if any(fnmatchcase(scenario.name, pattern) for pattern in patterns)
    ]


def choose_seeds(suite: Suite, seeds: Sequence[int] | None) -> list[int]:
    """The seeds of the command, else of the suite.

    Raises
    ------
    SettingsError
        If there are none, or one is negative, no whole number or given twice.
    """
    if seeds is None:
        return list(suite.file.seeds)
    for position, seed in enumerate(seeds):
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise SettingsError(f"--seeds: must be whole numbers from 0 on, got {seed!r}.")
        if seed in seeds[:position]:
            raise SettingsError(f"--seeds: {seed} is given twice. Remove one of them.")
    if not seeds:
        raise SettingsError("--seeds: is empty. Give at least one, such as 0.")
    return list(seeds)


def check_device(device: str) -> None:
    """Check how a device is written; whether the machine has it shows when it is used.

    Raises
    ------
    SettingsError
        If it is none of the known forms.
    """
    if not _DEVICE.fullmatch(device):
        raise SettingsError(
            f"--device {device!r}: must be auto, cpu, cuda, cuda:N (N a number) or mps."
        )


def override(
    suite: Suite,
    *,
    model: str | None,
    limit: int | None,
    epochs: int | None,
    precision: str | None,
    corpus: str | Path | None = None,
) -> Protocol:
    """The suite's protocol with the command's options.

    Raises
    ------
    SettingsError
        If an option has a value that the protocol does not allow.
    DataError
        If there is no such file of text.
    """
    protocol = suite.file.protocol
    changes: dict[str, Any] = {
        key: value
        for key, value in {"limit": limit, "epochs": epochs, "precision": precision}.items()
        if value is not None
    }
    if epochs is not None:
        changes |= {"task_epochs": {}, "steps": None, "task_steps": {}}
    if model is not None:
        # The revision in a suite is one of the suite's own model.
        changes |= {"model": model, "revision": None}
    else:
        changes["model"] = _model_of(suite)
    changes["corpus"] = (
        resolve_corpus(protocol.corpus, suite.base, "[protocol] corpus")
        if corpus is None
        else resolve_corpus(str(corpus), Path(), "--corpus")
    )
    values = {**protocol.model_dump(), **changes}
    try:
        return Protocol.model_validate(values, strict=True)
    except ValidationError as fault:
        raise SettingsError(f"--{explain(fault, values, Protocol)[0]}") from fault


def _model_of(suite: Suite) -> str:
    """The suite's model; a folder is looked for beside the suite file."""
    from clbench.models.locate import MODELS

    name = suite.file.protocol.model
    if name in MODELS:
        return name
    beside: Path = suite.base / Path(name).expanduser()
    return str(beside) if beside.is_dir() or name.startswith(".") else name

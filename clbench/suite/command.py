"""The command that a plan stands for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clbench.suite import packaged
from clbench.suite.baselines import Baseline
from clbench.suite.read import Suite

LISTS = ("methods", "seeds")
"""Options whose values one word holds."""
REPEATED = {"scenarios": "--scenarios", "plugins": "--plugin"}
"""Options that are given once for each value."""
UNSAID: tuple[Any, ...] = (None, False, "auto")


def command_of(suite: Suite, options: Mapping[str, Any]) -> tuple[str, ...]:
    """The words of ``clbench run`` that make the same cells.

    Parameters
    ----------
    suite
        A packaged one is named, another given by its path.
    options
        As for `clbench.suite.plan.make_plan`, without ``out``; what is not given is left out.
    """
    is_packaged = packaged.suites().get(suite.path.stem) == suite.path
    words = ["clbench", "run", suite.path.stem if is_packaged else _shown(suite.path)]
    for name, value in options.items():
        if name in REPEATED:
            for each in value or ():
                words += [REPEATED[name], _shown(each)]
        elif name in LISTS and value is not None:
            words += [f"--{name}", ",".join(map(_shown, value))]
        elif value is True:
            words.append(f"--{name}")
        elif value not in UNSAID:
            words += [f"--{name}", _shown(value)]
    return tuple(words)


def _shown(value: Any) -> str:
    if isinstance(value, Baseline):
        return value.name
    if isinstance(value, Path) and value.is_absolute() and value.is_relative_to(Path.cwd()):
        return str(value.relative_to(Path.cwd()))
    return str(value)

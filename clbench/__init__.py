"""Continual-learning benchmarks for transformers on text.

Names are imported on first use: ``import clbench`` loads neither torch nor transformers.
"""

import importlib
from typing import TYPE_CHECKING, Any

from clbench.core import __version__ as __version__

if TYPE_CHECKING:
    from clbench import conformance as conformance
    from clbench import figures as figures
    from clbench import fisher as fisher
    from clbench import optim as optim
    from clbench import search as search
    from clbench.api import run as run
    from clbench.core.errors import ClbenchError as ClbenchError
    from clbench.methods.base import Method as Method
    from clbench.methods.base import method as method
    from clbench.models.groups import lr_groups as lr_groups
    from clbench.models.likelihood import likelihood as likelihood
    from clbench.results.score_tables import Run as Run
    from clbench.results.score_tables import load_run as load_run
    from clbench.runner.resources import Resources as Resources
    from clbench.shifts.base import Shift as Shift
    from clbench.shifts.base import shift as shift
    from clbench.suite.options import RunOptions as RunOptions
    from clbench.tasks.metrics import metric as metric
    from clbench.tasks.registry import task as task
    from clbench.tasks.task import Rows as Rows
    from clbench.tasks.task import Task as Task

_EXPORTS = {
    "ClbenchError": "clbench.core.errors",
    "Method": "clbench.methods.base",
    "Resources": "clbench.runner.resources",
    "Rows": "clbench.tasks.task",
    "Run": "clbench.results.score_tables",
    "RunOptions": "clbench.suite.options",
    "Shift": "clbench.shifts.base",
    "Task": "clbench.tasks.task",
    "likelihood": "clbench.models.likelihood",
    "load_run": "clbench.results.score_tables",
    "lr_groups": "clbench.models.groups",
    "method": "clbench.methods.base",
    "metric": "clbench.tasks.metrics",
    "run": "clbench.api",
    "shift": "clbench.shifts.base",
    "task": "clbench.tasks.registry",
}

_MODULES = ("conformance", "figures", "fisher", "optim", "search")

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"clbench.{name}")
    if name not in _EXPORTS:
        raise AttributeError(f"module 'clbench' has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS, *_MODULES})

"""From a task's name to its rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clbench.errors import DataError, UnknownNameError, did_you_mean
from clbench.tasks.files import FileTaskSpec
from clbench.tasks.identity import code_identity
from clbench.tasks.registry import TASKS, TaskSource
from clbench.tasks.spec import OwnTaskSpec, SyntheticTaskSpec
from clbench.tasks.synthetic_task import SyntheticTask
from clbench.tasks.task import Task


def load_task(name: str, *, data: Path | None, base: Path, own: Mapping[str, OwnTaskSpec]) -> Task:
    """The task called `name`, whole.

    Parameters
    ----------
    name
        Of a ``[task.NAME]`` table in `own`, of GLUE, of a synthetic task or of a plug-in.
    data
        Folder that holds a mirror of the hub repository as ``glue/``; None for the hub.
    base
        Folder of the suite file.
    own
        The suite's ``[task.NAME]`` tables.

    Raises
    ------
    UnknownNameError
        If there is no such task.
    DataError
        If its rows cannot be read or are not what a task needs.
    """
    from clbench.tasks.check import check_task

    spec = _own(name, own)
    if isinstance(spec, FileTaskSpec):
        from clbench.tasks.own import load_own

        return check_task(name, load_own(name, spec, base))
    return check_task(name, _loader(name, spec)(TaskSource(data, base)))


def task_identity(
    name: str, *, data: Path | None, base: Path, own: Mapping[str, OwnTaskSpec]
) -> dict[str, Any]:
    """What decides the rows of a task, found without building the task.

    That is digests of its files, the hub repository's pinned revision, or the version of
    its generator; equal identities mean equal rows. Raises as `load_task` does for unknown
    names and missing files.

    Returns
    -------
    dict
        Plain JSON values, with ``name`` among them and no paths.
    """
    spec = _own(name, own)
    if isinstance(spec, FileTaskSpec):
        from clbench.tasks.own import own_identity

        return {"name": name, **own_identity(name, spec, base)}
    loader = _loader(name, spec)
    identity = getattr(loader, "identity", None)
    found = identity(TaskSource(data, base)) if identity else code_identity(loader)
    return {"name": name, **found}


def known_metrics(name: str, own: Mapping[str, OwnTaskSpec]) -> tuple[str, ...]:
    """The metrics of a task, as far as they are known before it is loaded.

    That is of GLUE, of the suite's own tables, and of a plug-in whose loader has an attribute
    ``metrics``; of others none are.
    """
    if name not in own and name not in TASKS:
        return ()
    spec = own.get(name)
    if isinstance(spec, FileTaskSpec):
        return spec.scores
    return tuple(getattr(_loader(name, spec), "metrics", ()))


def _loader(name: str, spec: SyntheticTaskSpec | None) -> Any:
    return TASKS.get(name) if spec is None else SyntheticTask.own(name, spec)


def _own(name: str, own: Mapping[str, OwnTaskSpec]) -> OwnTaskSpec | None:
    if name in own:
        if name in TASKS:
            raise DataError(
                f"task {name!r} is both a [task.{name}] table of the suite and a registered "
                "task. Give the table another name."
            )
        if "[" in name or "]" in name:
            raise DataError(
                f"task {name!r}: brackets mark the parts of a shift. "
                "Give the table a name without them."
            )
        return own[name]
    if name not in TASKS:
        known = [*TASKS.names(), *own]
        raise UnknownNameError(
            f"Unknown task {name!r}.{did_you_mean(name, known, 'clbench list tasks')}"
        )
    return None

"""The registry of tasks, and the loading of tasks by name, a suite's own ones included."""

import inspect
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from clbench.core.errors import DataError, UnknownNameError, describe_type, did_you_mean
from clbench.core.files import digest
from clbench.core.registry import Registry
from clbench.tasks.facts import FACTS
from clbench.tasks.file_task import FileTask
from clbench.tasks.general import GENERAL, GeneralTask
from clbench.tasks.hub_task import HubTask, Newsgroups
from clbench.tasks.metrics import METRICS, TEXT_METRICS, check_metrics, is_foreign, metrics_for
from clbench.tasks.spec import FileTaskSpec, HubTaskSpec, OwnTaskSpec
from clbench.tasks.synthetic import SPECS
from clbench.tasks.tables import UNLABELLED
from clbench.tasks.task import Rows, Task, TaskSource

TaskLoader = Callable[[TaskSource], Task]
"""A registered entry: a function of a `TaskSource` that returns a `Task`.

A loader may have a method ``identity(source) -> dict`` that identifies its rows in results;
without it the digest of its source file does. With an attribute ``metrics``, a suite's
`task_metric` can be checked before the task is loaded.
"""

Loader = TypeVar("Loader", bound=TaskLoader)


def _task_error(name: str, entry: object) -> str | None:
    if "[" in name or "]" in name:
        return "the name of a task must not contain brackets, which mark parts of a task"
    return None if callable(entry) else "a task must be a function of a TaskSource"


TASKS: Registry[TaskLoader] = Registry("task", check=_task_error, group="clbench.tasks")

with Path(__file__).with_name("hub_tasks.toml").open("rb") as _file:
    for _name, _table in tomllib.load(_file).items():
        TASKS.add(_name, HubTask(_name, HubTaskSpec(**_table), packaged=True))
with Path(__file__).with_name("text_tasks.toml").open("rb") as _file:
    for _group, _content in tomllib.load(_file).items():
        for _name, _table in _content["tasks"].items():
            _spec = HubTaskSpec(**{**_content["common"], **_table})
            TASKS.add(f"{_group}/{_name}", HubTask(f"{_group}/{_name}", _spec, packaged=True))
TASKS.add("20newsgroups", Newsgroups())
for _synthetic in (*SPECS.values(), *FACTS):
    TASKS.add(f"synthetic/{_synthetic.kind}", _synthetic)


def task(name: str) -> Callable[[Loader], Loader]:
    """Register a task of your own.

    Examples
    --------
    >>> @task("my/shouting")
    ... def load(source: TaskSource) -> Task:
    ...     train = Rows.of(["HELLO", "hello", "YES", "yes"], None, [1, 0, 1, 0])
    ...     return Task("my/shouting", ("calm", "loud"), ("accuracy",), train, train, "my/shouting")
    """
    return TASKS.register(name)


def load_task(name: str, *, data: Path | None, base: Path, own: Mapping[str, OwnTaskSpec]) -> Task:
    """Return the task called `name`, with all its rows.

    `own` are the ``[task.NAME]`` tables of the suite; `data` and `base` are those of `TaskSource`.

    Raises
    ------
    UnknownNameError, DataError
        If there is no such task, or its rows cannot be read or are invalid.
    """
    return check_task(name, _loader(name, own)(TaskSource(data, base)))


def hub_source(task: Task) -> dict[str, Any]:
    """Return ``hub``, ``config``, ``split`` and ``revision`` of a known task's reported rows."""
    loader = TASKS.get(task.name) if task.name in TASKS else None
    is_own = "columns" in task.source or "dataset" not in task.source  # a suite's, of that name
    if not isinstance(loader, HubTask) or is_own:
        return {}
    spec = loader.spec
    place = {"config": spec.config, "revision": spec.revision}
    return {"hub": spec.hub, "split": spec.split("validation"), **place}


def load_column(
    name: str, column: str, *, data: Path | None, base: Path, own: Mapping[str, OwnTaskSpec]
) -> dict[str, dict[int, str]]:
    """Return the cells of a column of a task, by split (``train``, ``validation``) and row.

    Rows have the numbers of `Rows.index`; the parameters are those of `load_task`. Raises a
    DataError if the column is missing, or the task is neither in files nor on the hub.
    """
    loader = _loader(name, own)
    if not isinstance(loader, FileTask | HubTask):
        raise DataError(f"task {name!r} has no columns: it is neither in files nor on the hub.")
    return loader.column(TaskSource(data, base), column)


def general_task(name: str, own: Mapping[str, OwnTaskSpec]) -> GeneralTask | None:
    """Return the general task called `name`; None if a task that can be trained has that name.

    Raises an UnknownNameError if there is neither.
    """
    if name in own or name in TASKS:
        return None
    if name not in GENERAL:
        names = [*TASKS.names(), *own, *GENERAL]
        hint = did_you_mean(name, names, "clbench list tasks, or a task of clbench audit")
        raise UnknownNameError(f"Unknown task {name!r}.{hint}")
    return GENERAL[name]


def task_identity(
    name: str, *, data: Path | None, base: Path, own: Mapping[str, OwnTaskSpec]
) -> dict[str, Any]:
    """Return what decides the rows and metrics of a task, also a general one, without loading it.

    That is digests of files, rows or code, or the revision of a hub repository, as plain JSON
    values without paths: equal identities mean equal rows. Unknown names, missing files and unknown
    metrics raise the errors of `load_task`.
    """
    if general := general_task(name, own):
        return {"name": name, **general.origin(data)}
    loader = _loader(name, own)
    identify = getattr(loader, "identity", None)
    identity = identify(TaskSource(data, base)) if identify else code_identity(loader)
    metrics = {
        metric: code_identity(METRICS.get(metric))
        for metric in getattr(loader, "metrics", ())
        if metric in METRICS and is_foreign(metric)
    }
    return {"name": name, **identity, **({"metric_code": metrics} if metrics else {})}


def template_identity(name: str, own: Mapping[str, OwnTaskSpec]) -> dict[str, Any]:
    """Return what decides the prompts and answers of a task, also a general one.

    Empty for tasks of plug-ins, whose code is part of `task_identity`.
    """
    if general := general_task(name, own):
        return general.template
    loader = _loader(name, own)
    if isinstance(loader, FileTask | HubTask):
        return {"prompt": loader.spec.prompt, "answers": loader.spec.answers}
    template = getattr(loader, "template", None)
    return template().to_json() if template is not None else {}


def task_metrics(name: str, own: Mapping[str, OwnTaskSpec]) -> tuple[str, ...]:
    """Return the metrics that a task declares, the main one first; empty if only its code tells."""
    return tuple(getattr(_loader(name, own), "metrics", ()))


def score_metrics(name: str, own: Mapping[str, OwnTaskSpec]) -> list[str]:
    """Return the metrics that can score a task; empty if only its rows decide that."""
    if name not in own and name not in TASKS:
        return []
    metrics = task_metrics(name, own)
    if not metrics:
        return []
    if metrics[0] in TEXT_METRICS:
        return sorted(TEXT_METRICS)
    return sorted({*metrics_for(METRICS.get(metrics[0]).regression), *metrics})


def code_identity(entry: Any) -> dict[str, str]:
    """Return the name of a function, class or callable object, and the digest of its file.

    Without a file, as in an interactive session, the module's name replaces the digest.
    """
    code = entry if inspect.isroutine(entry) or inspect.isclass(entry) else type(entry)
    name = code.__qualname__
    try:
        return {"code": name, "digest": digest(Path(inspect.getsourcefile(code) or ""))}
    except (OSError, TypeError):
        return {"code": name, "module": code.__module__}


def _loader(name: str, own: Mapping[str, OwnTaskSpec]) -> Any:
    if name in own:
        spec = own[name]
        if isinstance(spec, FileTaskSpec):
            return FileTask(name, spec)
        if isinstance(spec, HubTaskSpec):
            return HubTask(name, spec)
        options = spec.model_dump(exclude={"synthetic"})
        return replace(SPECS[spec.synthetic], name=name, options=options)
    if name not in TASKS:
        names = [*TASKS.names(), *own]
        raise UnknownNameError(
            f"Unknown task {name!r}.{did_you_mean(name, names, 'clbench list tasks')}"
        )
    return TASKS.get(name)


def check_task(name: str, task: Any) -> Task:
    """Return `task`, what the loader of `name` returned, if it can be trained on and scored.

    Raises a DataError if not, which names the split and what is wrong with it.
    """
    where = f"task {name!r}"
    if not isinstance(task, Task):
        raise DataError(f"{where}: its loader returned {type(task).__name__}, not a Task.")
    if task.name != name:
        raise DataError(f"{where}: its loader named it {task.name!r}. Use one name for both.")
    if len(task.labels) == 1:
        raise DataError(
            f"{where}: there is only one class, {task.labels[0]!r}. A task needs two or more."
        )
    if task.can_share_head and len({*task.labels}) < len(task.labels):
        name = next(name for name in task.labels if task.labels.count(name) > 1)
        raise DataError(f"{where}: two classes are called {name!r}. Rename one.")
    if not task.metrics:
        raise DataError(f"{where}: it has no metric. Name one, such as accuracy.")
    for split, rows in task.splits.items():
        groups, free_text = rows.groups is not None, task.free_text
        check_metrics(where, task.metrics, task.regression, free_text=free_text, groups=groups)
        _check_rows(task, rows, f"{where}, {split} rows")
    return task


def _check_rows(task: Task, rows: Rows, where: str) -> None:
    if len(rows) == 0:
        raise DataError(f"{where}: there are none.")
    if (rows.second is None) == task.is_pair or len(rows.texts) != len(task.train.texts):
        raise DataError(f"{where}: every split needs as many texts per row as the training rows.")
    if rows.choices and (rows.second is not None or len(rows.choices) != len(task.labels)):
        raise DataError(
            f"{where}: {len(rows.choices)} choices and {len(task.labels)} labels; multiple choice "
            "needs a label for each choice, and no second text."
        )
    if (rows.targets is None) == task.free_text:
        raise DataError(f"{where}: every split needs targets, or none does.")
    for texts in rows.texts:
        if not len(texts) == len(rows.labels) == len(rows.index):
            raise DataError(
                f"{where}: {len(texts)} texts, {len(rows.labels)} labels and {len(rows.index)} "
                "positions; every row needs one of each."
            )
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise DataError(
                    f"{where}: the text of row {row} is {text!r}, {describe_type(text)}."
                )
    valid, allowed = np.isfinite(rows.labels), "a finite number"
    if task.free_text:
        valid, allowed = rows.labels == 0, "0 for rows with targets"
    elif not task.regression:
        valid = (rows.labels >= 0) & (rows.labels < len(task.labels))
        allowed = f"from 0 to {len(task.labels) - 1}, a position in `labels`"
    if not valid.all():
        row = int(np.flatnonzero(~valid)[0])
        hint = UNLABELLED if rows.labels[row] == -1 else ""
        raise DataError(
            f"{where}: the label of row {row} is {rows.labels[row]}; it must be {allowed}.{hint}"
        )

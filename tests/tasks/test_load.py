from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clbench.errors import DataError, PluginError, UnknownNameError
from clbench.tasks.files import FileTaskSpec
from clbench.tasks.load import load_task, task_identity
from clbench.tasks.registry import GLUE_NAMES, TASKS, TaskSource, task
from clbench.tasks.task import Rows, Task

ROWS = Rows.of(["a", "b", "c"], None, [0, 1, 0])
GOOD = Task("mine", ("no", "yes"), ("accuracy",), ROWS, ROWS, "mine")
OWN = FileTaskSpec(train="t.csv", validation_fraction=0.5, text="text", label="label")


def load(name: str, own: dict[str, FileTaskSpec] | None = None) -> Task:
    return load_task(name, data=None, base=Path(), own=own or {})


@pytest.fixture
def register() -> Iterator[Any]:
    """Register a task for one test."""
    added = []

    def add(name: str, loader: Any) -> None:
        task(name)(loader)
        added.append(name)

    yield add
    for name in added:
        del TASKS._entries[name]


def test_all_of_glue_is_listed_without_heavy_imports() -> None:
    code = (
        "import sys, clbench.tasks.registry as r, clbench.tasks.load, clbench.tasks.files\n"
        "assert {f'glue/{n}' for n in r.GLUE_NAMES} <= set(r.TASKS.names())\n"
        "heavy = {'torch', 'transformers', 'datasets', 'sklearn', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len(GLUE_NAMES) == 9


def test_unknown_tasks_name_the_nearest_of_all_kinds() -> None:
    with pytest.raises(
        UnknownNameError, match=r"Unknown task 'glue/sst'. Did you mean 'glue/sst2'"
    ):
        load("glue/sst")
    with pytest.raises(UnknownNameError, match="Did you mean 'urgent'"):
        load("urgnet", {"urgent": OWN})
    with pytest.raises(UnknownNameError, match="Did you mean 'urgent'"):
        task_identity("urgnet", data=None, base=Path(), own={"urgent": OWN})


def test_own_names_that_clash() -> None:
    with pytest.raises(DataError, match=r"both a \[task\.glue/rte\] table of the suite and a reg"):
        load("glue/rte", {"glue/rte": OWN})
    with pytest.raises(DataError, match="brackets mark the parts of a shift"):
        load("a[short]", {"a[short]": OWN})
    with pytest.raises(PluginError, match="must not hold brackets"):
        task("a[b]")(lambda source: GOOD)


def test_a_task_of_a_plug_in(register: Any, tmp_path: Path) -> None:
    seen: list[TaskSource] = []

    def loader(source: TaskSource) -> Task:
        seen.append(source)
        return GOOD

    register("mine", loader)
    assert load_task("mine", data=tmp_path, base=Path("b"), own={}) is GOOD
    assert seen == [TaskSource(tmp_path, Path("b"))]
    identity = task_identity("mine", data=None, base=Path(), own={})
    assert identity["name"] == "mine"
    assert identity["code"].endswith("loader")
    assert len(identity["digest"]) == 32


def test_a_plug_in_may_tell_its_own_identity(register: Any) -> None:
    class Loader:
        def __call__(self, source: TaskSource) -> Task:
            return GOOD

        def identity(self, source: TaskSource) -> dict[str, Any]:
            return {"version": 3}

    register("mine", Loader())
    assert task_identity("mine", data=None, base=Path(), own={}) == {"name": "mine", "version": 3}


PAIRS = Rows.of(["a", "b"], ["c", "d"], [0, 1])


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([GOOD], "its loader returned list, not a Task"),
        (replace(GOOD, name="other"), "its loader named it 'other'"),
        (replace(GOOD, labels=("no",)), "there is a single class, 'no'"),
        (replace(GOOD, metrics=()), "it has no metric"),
        (replace(GOOD, metrics=("acuracy",)), "no metric 'acuracy' here. Did you mean 'accuracy'"),
        (replace(GOOD, metrics=("pearson",)), "no metric 'pearson' here"),
        (replace(GOOD, train=ROWS.take([])), "train rows: there are none"),
        (replace(GOOD, validation=PAIRS), "validation rows: every split must have as many texts"),
        (replace(GOOD, tuning=Rows.of(["a"], None, [2])), "tuning rows: the label of row 0 is 2; "),
        (replace(GOOD, train=Rows.of(["a"], None, [-1])), "is -1 (-1 marks an unlabelled test"),
        (
            replace(GOOD, train=Rows.of([1], None, [1])),
            "the text of row 0 is 1, a whole number and no text",
        ),  # type: ignore[list-item]
        (replace(GOOD, train=Rows.of(["a"], None, [0, 1])), "1 texts, 2 labels and 1 positions"),
        (
            replace(
                GOOD,
                labels=(),
                metrics=("pearson",),
                train=Rows.of(["a"], None, [float("nan")], regression=True),
            ),
            "the label of row 0 is nan; labels must be finite numbers",
        ),
    ],
)
def test_what_a_loader_may_not_return(result: Any, message: str, register: Any) -> None:
    register("mine", lambda source: result)
    with pytest.raises(DataError) as caught:
        load("mine")
    assert message in str(caught.value)
    assert str(caught.value).startswith("task 'mine'")

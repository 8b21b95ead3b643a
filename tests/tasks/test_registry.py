from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clbench.core.errors import PluginError, UnknownNameError
from clbench.tasks.metrics import METRICS, metric
from clbench.tasks.registry import TASKS, TaskSource, load_task, score_metrics, task, task_identity
from clbench.tasks.spec import FileTaskSpec, SyntheticTaskSpec
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


def test_glue_is_listed_without_heavy_imports() -> None:
    code = (
        "import sys, clbench.tasks.registry as r\n"
        "assert sum(n.startswith('glue/') for n in r.TASKS.names()) == 9\n"
        "heavy = {'torch', 'transformers', 'datasets', 'sklearn', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_task_gets_the_nearest_name_of_all_kinds() -> None:
    with pytest.raises(
        UnknownNameError, match=r"Unknown task 'glue/sst'. Did you mean 'glue/sst2'"
    ):
        load("glue/sst")
    with pytest.raises(UnknownNameError, match="Did you mean 'urgent'"):
        load("urgnet", {"urgent": OWN})
    with pytest.raises(UnknownNameError, match="Did you mean 'urgent'"):
        task_identity("urgnet", data=None, base=Path(), own={"urgent": OWN})


def test_names_with_brackets_are_an_error() -> None:
    with pytest.raises(PluginError, match="must not contain brackets"):
        task("a[b]")(lambda source: GOOD)
    for name in ("a\nb", "x" * 101, ""):
        with pytest.raises(PluginError, match="must be a text of 1 to 100 printable characters"):
            task(name)


def test_a_registered_loader_gets_the_source_and_its_file_is_the_identity(
    register: Any, tmp_path: Path
) -> None:
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


def test_a_loader_may_have_its_own_identity(register: Any) -> None:
    class Loader:
        def __call__(self, source: TaskSource) -> Task:
            return GOOD

        def identity(self, source: TaskSource) -> dict[str, Any]:
            return {"version": 3}

    register("mine", Loader())
    assert task_identity("mine", data=None, base=Path(), own={}) == {"name": "mine", "version": 3}


def test_the_code_of_a_plug_in_metric_is_part_of_the_identity(tmp_path: Path) -> None:
    @metric("always-one")
    def always_one(outputs: Any, labels: Any) -> float:
        return 1.0

    try:
        table = {"x": SyntheticTaskSpec(synthetic="qa")}
        assert score_metrics("x", table) == ["accuracy", "always-one", "f1", "matthews"]
        assert score_metrics("glue/stsb", {}) == ["pearson", "spearman"]
        assert score_metrics("none", {}) == []
        (tmp_path / "t.csv").write_text("text,label\na,x\n")
        own = {"mine": OWN.model_copy(update={"metrics": ["always-one"]})}
        identity = task_identity("mine", data=None, base=tmp_path, own=own)
        assert identity["metric_code"]["always-one"]["code"].endswith("always_one")
    finally:
        del METRICS._entries["always-one"]


def test_identity_follows_content_and_settings_but_not_the_folder(tmp_path: Path) -> None:
    def identity(folder: str, content: str, **changes: Any) -> dict[str, Any]:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "t.csv").write_text(content)
        keys = {"train": "t.csv", "validation_fraction": 0.5, "text": "text", "label": "label"}
        own = {"mine": FileTaskSpec(**{**keys, **changes})}
        return task_identity("mine", data=None, base=tmp_path / folder, own=own)

    first = identity("a", "text,label\na,x\n")
    assert first == {
        "name": "mine",
        "files": {"train": "d5f2949f788280b57331b7d51df3586f"},
        "formats": {"train": "csv"},
        "validation_fraction": 0.5,
        "text": ["text"],
        "label": "label",
        "labels": None,
        "regression": False,
        "metrics": None,
        "quotes": True,
    }
    assert json.loads(json.dumps(first)) == first
    assert identity("b", "text,label\na,x\n") == first
    assert identity("b", "text,label\na,y\n") != first
    assert identity("a", "text,label\na,x\n", validation_fraction=0.4) != first

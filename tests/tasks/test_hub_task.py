from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from clbench.core.errors import DataError
from clbench.tasks.hub_task import HubTask
from clbench.tasks.registry import TASKS, load_column, load_task, task_identity
from clbench.tasks.spec import HubTaskSpec
from clbench.tasks.task import Task

GLUE = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli")
HUB, REVISION = "nyu-mll/glue", "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"
NEWS = HubTaskSpec(hub="someone/news", text="text", splits={"validation": "test"})


def spec_of(name: str) -> HubTaskSpec:
    loader = TASKS.get(f"glue/{name}")
    assert isinstance(loader, HubTask)
    return loader.spec


def frame_of(spec: HubTaskSpec, count: int) -> pd.DataFrame:
    texts = {text: [f"{text} {i}" for i in range(count)] for text in spec.columns[:-1]}
    labels = [i % len(spec.labels) if spec.labels else i / 2 for i in range(count)]
    return pd.DataFrame({**texts, "label": labels, "idx": range(count)})


def write(folder: Path, **splits: pd.DataFrame) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, frame in splits.items():
        frame.to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return folder


def write_glue(data: Path, *names: str) -> Path:
    """Write a copy of GLUE with 7 training and 6 validation rows of each task."""
    for name in names:
        spec = spec_of(name)
        splits = {"train": frame_of(spec, 7), spec.split("validation"): frame_of(spec, 6)}
        write(data / "glue" / name, **splits)
    return data


def write_news(folder: Path, labels: list[Any]) -> Path:
    frame = pd.DataFrame({"text": [f"text {i}" for i in range(len(labels))], "label": labels})
    return write(folder, train=frame, test=frame)


def load(name: str, data: Path | None) -> Task:
    return load_task(f"glue/{name}", data=data, base=Path(), own={})


def load_news(data: Path | None, **changes: Any) -> Task:
    own = {"news": NEWS.model_copy(update=changes)}
    return load_task("news", data=data, base=Path(), own=own)


@pytest.fixture(autouse=True)
def _own_datasets_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets-cache")


@pytest.mark.parametrize("name", ["cola", "stsb", "mnli"])
def test_a_task_of_glue_from_a_copy_on_disk(name: str, tmp_path: Path) -> None:
    spec = spec_of(name)
    task = load(name, write_glue(tmp_path, name))
    assert task.name == task.head == f"glue/{name}"
    assert (len(task.train), len(task.validation)) == (7, 6)
    assert list(task.train.first) == [f"{spec.columns[0]} {i}" for i in range(7)]
    assert task.is_pair == (len(spec.text) == 2)
    assert task.train.labels.tolist() == frame_of(spec, 7)["label"].tolist()
    assert task.train.labels.dtype == (np.int64 if spec.labels else np.float32)
    assert json.loads(json.dumps(task.source)) == task.source


def test_the_table_of_glue() -> None:
    assert {name for name in TASKS if name.startswith("glue/")} == {f"glue/{n}" for n in GLUE}
    assert all((spec_of(name).hub, spec_of(name).config) == (HUB, name) for name in GLUE)
    metrics = {name: spec_of(name).scores for name in GLUE}
    assert metrics.pop("stsb") == ("pearson", "spearman")
    assert all(first == "accuracy" for first, *_ in metrics.values())
    assert {n: others for n, (_, *others) in metrics.items() if others} == {
        "cola": ["matthews"],
        "mrpc": ["f1"],
        "qqp": ["f1"],
    }


def test_identity_of_a_copy_follows_its_files(tmp_path: Path) -> None:
    data = write_glue(tmp_path, "rte")
    path = data / "glue" / "rte" / "train-00000-of-00001.parquet"
    first = task_identity("glue/rte", data=data, base=Path(), own={})
    digests = {
        file.name: hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
        for file in path.parent.iterdir()
    }
    assert first == {"name": "glue/rte", "dataset": "mirror", "config": "rte", "files": digests}
    frame_of(spec_of("rte"), 9).to_parquet(path)
    assert task_identity("glue/rte", data=data, base=Path(), own={}) != first
    assert len(load("rte", data).train) == 9


def test_identity_of_the_hub_is_its_revision(tmp_path: Path) -> None:
    expected = {"name": "glue/rte", "dataset": HUB, "config": "rte", "revision": REVISION}
    for data in (None, tmp_path):
        assert task_identity("glue/rte", data=data, base=Path(), own={}) == expected


def test_the_hub_is_asked_for_the_revision_and_names_the_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    calls = []
    folder = str(write_news(tmp_path / "news", [1, 0, 1]))
    files = {"train": "train-*", "test": "test-*"}
    news = datasets.load_dataset(folder, data_files=files)
    news = news.cast_column("label", datasets.ClassLabel(names=["world", "sports"]))

    def hub(*args: Any, **keys: Any) -> Any:
        calls.append((args, keys))
        return news

    monkeypatch.setattr(datasets, "load_dataset", hub)
    task = load_news(None, revision="abc")
    assert calls == [(("someone/news",), {"name": None, "revision": "abc"})]
    assert task.labels == ("world", "sports")
    assert task.train.labels.tolist() == [1, 0, 1]
    other_order = load_news(None, labels=["sports", "world"])
    assert other_order.labels == ("sports", "world")
    assert other_order.train.labels.tolist() == [0, 1, 0]
    with pytest.raises(DataError, match="the classes are world, sports, but `labels` are film"):
        load_news(None, labels=["film", "world"])
    with pytest.raises(DataError, match=r"it has 2 classes, not 3\. Use a complete"):
        load_news(None, classes=3)
    with pytest.raises(DataError, match="split 'dev' of someone/news on the hub: there is no such"):
        load_news(None, splits={"validation": "dev"})


def test_rows_of_some_classes_can_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    folder = str(write_news(tmp_path / "news", [2, 0, 1, 2]))
    news = datasets.load_dataset(folder, data_files={"train": "train-*", "test": "test-*"})
    named = news.cast_column("label", datasets.ClassLabel(names=["yes", "other", "no"]))
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **keys: named)
    task = load_news(None, without=["other"])
    assert task.labels == ("yes", "no")
    assert task.train.labels.tolist() == [1, 0, 1]
    assert task.train.index.tolist() == [0, 1, 3]
    own = {"news": NEWS.model_copy(update={"without": ["other"]})}
    column = load_column("news", "label", data=None, base=Path(), own=own)
    assert column["train"] == {0: "no", 1: "yes", 3: "no"}
    with pytest.raises(DataError, match="every row is of a class in `without`"):
        load_news(None, without=["yes", "other", "no"])
    with pytest.raises(DataError, match=r"no row is of the class 'othr'\. Did you mean 'other'"):
        load_news(None, without=["othr"])


def test_rows_of_another_configuration_are_not_read(tmp_path: Path) -> None:
    write_news(tmp_path / "news" / "full", [1, 0, 1])
    with pytest.raises(DataError, match=r"config = 'plus'; folders in .*: full\)"):
        load_news(tmp_path, config="plus")
    assert len(load_news(tmp_path, config="plus", folder="full").train) == 3
    write_news(tmp_path / "news" / "plus", [1, 0])
    assert len(load_news(tmp_path, config="plus", folder="full").train) == 2


WRITTEN = ("trace/", "sni/")
PACKAGED = sorted(
    name
    for name in TASKS
    if isinstance(TASKS.get(name), HubTask)
    and not name.startswith(("glue/", "super_glue/", *WRITTEN))
) + [f"super_glue/{name}" for name in ("boolq", "cb", "copa", "multirc", "wic")]


@pytest.mark.parametrize("name", PACKAGED)
def test_every_packaged_task_is_described_and_read_from_a_copy(name: str, tmp_path: Path) -> None:
    loader = TASKS.get(name)
    assert isinstance(loader, HubTask)
    spec = loader.spec
    assert spec.revision
    assert spec.licence
    assert spec.rows
    assert loader.classes > 1
    count = loader.classes
    texts = {column: [f"{column} {i}" for i in range(3 * count)] for column in spec.columns}
    frame = pd.DataFrame({**texts, spec.label: [i % count for i in range(3 * count)]})
    folder = tmp_path / spec.hub.rpartition("/")[2] / (spec.config or "data")
    write(folder, **{spec.split(split): frame for split in ("train", "validation")})
    task = load_task(name, data=tmp_path, base=Path(), own={})
    assert (len(task.labels), len(task.train)) == (count, 3 * count)
    assert task.train.labels.tolist() == list(range(count)) * 3
    assert task.outputs == (1 if spec.choices else count)
    read = " ".join(column[0] for column in task.train.texts)
    used = [name for columns in spec.texts for name in columns] + (spec.choices or [])
    assert read == " ".join(f"{column} 0" for column in used)


@pytest.mark.parametrize("name", [name for name in TASKS if name.startswith(WRITTEN)])
def test_texts_to_write_are_read_from_a_copy(name: str, tmp_path: Path) -> None:
    loader = TASKS.get(name)
    assert isinstance(loader, HubTask)
    spec = loader.spec
    assert spec.licence
    assert spec.config
    rows = [{spec.text[0]: f"text {i}", spec.label: f"answer {i}\nmore"} for i in range(4)]
    folder = tmp_path / spec.hub.rpartition("/")[2] / spec.config
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        content: Any = rows if spec.field is None else {"Definition": ["x"], spec.field: rows}
        (folder / f"{split}.json").write_text(json.dumps(content))
    task = load_task(name, data=tmp_path, base=Path(), own={})
    assert list(task.train.first) == [f"text {i}" for i in range(4)]
    assert task.validation.targets == [f"answer {i}\nmore" for i in range(4)]
    folder.rename(folder.with_name("another"))  # with the same columns
    with pytest.raises(DataError, match=r"split 'train' has no files"):
        load_task(name, data=tmp_path, base=Path(), own={})


@pytest.mark.parametrize("folder", ["news", "news/data", "news/plain"])
def test_a_table_of_a_suite_from_a_copy_in_any_folder(folder: str, tmp_path: Path) -> None:
    write_news(tmp_path / folder, [2, 0, 2, 10])
    (tmp_path / "news" / "README.md").write_text("---\nconfigs: []\n---\n")
    task = load_news(tmp_path)
    assert task.labels == ("0", "2", "10")
    assert task.train.labels.tolist() == [1, 0, 1, 2]
    assert list(task.validation.first) == ["text 0", "text 1", "text 2", "text 3"]
    own = {"news": NEWS}
    identity = task_identity("news", data=tmp_path, base=Path(), own=own)
    assert identity["columns"]["text"] == ["text"]
    assert str(tmp_path) not in json.dumps(identity)


def test_labels_name_numbers_or_list_the_allowed_texts(tmp_path: Path) -> None:
    write_news(tmp_path / "news", [1, 0])
    names = ["world", "sports"]
    assert load_news(tmp_path, labels=names).train.labels.tolist() == [1, 0]
    write_news(tmp_path / "news", ["sports", "world"])
    assert load_news(tmp_path, labels=names).train.labels.tolist() == [1, 0]
    assert load_news(tmp_path).labels == ("sports", "world")
    write_news(tmp_path / "news", ["sports", "wrold"])
    with pytest.raises(DataError, match=r"label 'wrold' on row 1 .* Did you mean 'world'"):
        load_news(tmp_path, labels=names)


def test_a_folder_of_several_configurations(tmp_path: Path) -> None:
    for config, labels in (("small", [0, 1]), ("large", [0, 1, 2])):
        write_news(tmp_path / "news" / config, labels)
    assert len(load_news(tmp_path, config="large").train) == 3
    with pytest.raises(DataError, match=r"is in several folders .*: large, small\)"):
        load_news(tmp_path)
    with pytest.raises(DataError, match=r"split 'train' has no files .*config = 'medium'"):
        load_news(tmp_path, config="medium")
    (tmp_path / "news" / "small" / "test-00000-of-00001.parquet").unlink()
    with pytest.raises(DataError, match=r"files test-\*.parquet, or set `splits`"):
        load_news(tmp_path, config="small")


def test_without_network_the_error_names_the_folder_to_give(tmp_path: Path) -> None:
    for data, first in ((None, ""), (tmp_path, f"{tmp_path / 'glue'} does not exist, and ")):
        with pytest.raises(DataError) as caught:
            load("cola", data)
        message = str(caught.value)
        assert message.startswith(f"task 'glue/cola': {first}{HUB} could not be downloaded (")
        assert "data='DIR', as DIR/glue" in message
        assert "\n" not in message


@pytest.mark.parametrize("error", [ConnectionError("no\nroute"), KeyError(1)])
def test_whatever_the_hub_raises_becomes_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    def fail(*_: Any, **__: Any) -> None:
        raise error

    visible = datasets.is_progress_bar_enabled()
    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match=type(error).__name__) as caught:
        load("cola", None)
    assert "\n" not in str(caught.value)
    assert datasets.is_progress_bar_enabled() == visible


@pytest.mark.parametrize(
    "content", [b"", b"PAR1 and no end", b"version https://git-lfs.github.com/spec/v1\n"]
)
def test_a_broken_file_is_an_error_of_one_line(content: bytes, tmp_path: Path) -> None:
    data = write_glue(tmp_path, "rte")
    (data / "glue" / "rte" / "train-00000-of-00001.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"glue cannot be read .*Copy the files of nyu") as caught:
        load("rte", data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"label": [0, -1, 1, -1, 0, 0]},
            "the label of row 1 is -1; it must be from 0 to 1, a position in `labels`. Unlabelled "
            "test splits have -1; name another split.",
        ),
        ({"label": [0, 2, 1, 1, 0, 0]}, "the label of row 1 is 2; it must be from 0 to 1"),
        ({"label": ["yes"] * 6}, "label 'yes' on row 0 (counted from 0) is not among `labels`"),
        ({"sentence1": [None] * 6}, "column 'sentence1' is empty in 6 of 6 rows"),
        ({"sentence1": [1] * 6}, "column 'sentence1' has 1, a whole number, on row 0"),
        ({"sentence2": None}, "there is no column 'sentence2'. Did you mean 'sentence1'"),
    ],
)
def test_unusable_cells_and_columns_are_named(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    frame = frame_of(spec_of("rte"), 6)
    for column, cells in change.items():
        frame = frame.drop(columns=column) if cells is None else frame.assign(**{column: cells})
    write(tmp_path / "glue" / "rte", train=frame, validation=frame)
    with pytest.raises(DataError) as caught:
        load("rte", tmp_path)
    assert message in str(caught.value)
    assert "task 'glue/rte'" in str(caught.value)


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "validation", "share_of_class_0"),
    [("cola", 1043, 322 / 1043), ("mnli", 9815, 3479 / 9815), ("stsb", 1500, None)],
)
def test_real_rows(
    name: str, validation: int, share_of_class_0: float | None, real_data: Path
) -> None:
    task = load(name, real_data)
    assert len(task.validation) == validation
    if share_of_class_0 is not None:
        assert (task.validation.labels == 0).mean() == pytest.approx(share_of_class_0)
    small = task.limited(100)
    assert (len(small.train), len(small.validation)) == (100, 100)

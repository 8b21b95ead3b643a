from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from clbench.errors import DataError
from clbench.tasks.glue import HUB_NAME, HUB_REVISION, LOADERS, GlueTask
from clbench.tasks.load import load_task, task_identity
from clbench.tasks.registry import GLUE_NAMES
from clbench.tasks.task import Task

HUB_CARD = """---
dataset_info:
- config_name: ax
  features:
  - name: premise
    dtype: string
  splits:
  - name: test
    num_examples: 1104
- config_name: rte
  features:
  - name: sentence1
    dtype: string
  - name: sentence2
    dtype: string
  - name: label
    dtype:
      class_label:
        names:
          '0': entailment
          '1': not_entailment
  - name: idx
    dtype: int32
  splits:
  - name: train
    num_examples: 2490
  - name: validation
    num_examples: 277
  - name: test
    num_examples: 3000
configs:
- config_name: ax
  data_files:
  - split: test
    path: ax/test-*
- config_name: rte
  data_files:
  - split: train
    path: rte/train-*
  - split: validation
    path: rte/validation-*
  - split: test
    path: rte/test-*
---
"""


def rows_of(task: GlueTask, count: int) -> pd.DataFrame:
    frame = {text: [f"{text} {i}" for i in range(count)] for text in task.texts}
    labels: Any = [i % (len(task.labels) or 6) for i in range(count)]
    return pd.DataFrame({**frame, "label": labels, "idx": range(count)})


def write_mirror(folder: Path, *names: str) -> Path:
    """A hub mirror with 7 training and 6 validation rows of each task."""
    for name in names:
        task = getattr(LOADERS, name)
        (folder / "glue" / name).mkdir(parents=True)
        for split, count in (("train", 7), (task.validation, 6)):
            path = folder / "glue" / name / f"{split}-00000-of-00001.parquet"
            rows_of(task, count).to_parquet(path)
    (folder / "glue" / "README.md").write_text(HUB_CARD)
    return folder


def load(name: str, data: Path | None) -> Task:
    return load_task(f"glue/{name}", data=data, base=Path(), own={})


@pytest.fixture(autouse=True)
def _own_datasets_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets-cache")


@pytest.mark.parametrize("name", GLUE_NAMES)
def test_every_task_from_a_mirror(name: str, tmp_path: Path) -> None:
    expected = getattr(LOADERS, name)
    task = load(name, write_mirror(tmp_path, name))
    assert task.name == task.head == f"glue/{name}"
    assert (len(task.train), len(task.validation)) == (7, 6)
    assert list(task.train.first) == [f"{expected.texts[0]} {i}" for i in range(7)]
    assert task.is_pair == (len(expected.texts) == 2)
    if task.is_pair:
        assert list(task.validation.second or ())[5] == f"{expected.texts[1]} 5"
    classes = len(expected.labels) or 6
    assert task.train.labels.tolist() == [i % classes for i in range(7)]
    assert task.train.labels.dtype == (np.int64 if expected.labels else np.float32)
    assert task.metrics[0] == ("pearson" if name == "stsb" else "accuracy")
    assert json.loads(json.dumps(task.source)) == task.source


def test_the_metrics_are_those_of_glue() -> None:
    beside = {name: getattr(LOADERS, name).metrics[1:] for name in GLUE_NAMES}
    assert beside == {
        "cola": ("matthews",),
        "sst2": (),
        "mrpc": ("f1",),
        "qqp": ("f1",),
        "stsb": ("spearman",),
        "mnli": (),
        "qnli": (),
        "rte": (),
        "wnli": (),
    }


def test_identity_of_a_mirror_follows_the_files(tmp_path: Path) -> None:
    data = write_mirror(tmp_path, "rte")
    path = data / "glue" / "rte" / "train-00000-of-00001.parquet"
    first = task_identity("glue/rte", data=data, base=Path(), own={})
    digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    assert first["files"][path.name] == digest
    assert str(tmp_path) not in json.dumps(first)
    rows_of(LOADERS.rte, 8).to_parquet(path)
    assert task_identity("glue/rte", data=data, base=Path(), own={}) != first


def test_identity_of_the_hub_needs_no_network() -> None:
    found = task_identity("glue/rte", data=None, base=Path(), own={})
    expected = {"dataset": HUB_NAME, "config": "rte", "revision": HUB_REVISION}
    assert found == {"name": "glue/rte", **expected}


def test_the_hub_is_asked_for_the_pinned_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    asked = []
    files = {"train": "train-*", "validation_matched": "validation_matched-*"}
    folder = str(write_mirror(tmp_path, "mnli") / "glue" / "mnli")
    found = datasets.load_dataset(folder, data_files=files)

    def hub(*args: Any, **keys: Any) -> Any:
        asked.append((args, keys))
        names = datasets.ClassLabel(names=list(LOADERS.mnli.labels))
        return found.cast_column("label", names)

    monkeypatch.setattr(datasets, "load_dataset", hub)
    task = load("mnli", None)
    assert asked == [((HUB_NAME,), {"name": "mnli", "revision": HUB_REVISION})]
    assert task.labels == ("entailment", "neutral", "contradiction")
    assert task.train.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_classes_in_another_order_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    data = write_mirror(tmp_path, "rte")
    files = {split: f"{split}-*" for split in ("train", "validation")}
    found = datasets.load_dataset(str(data / "glue" / "rte"), data_files=files)
    names = datasets.ClassLabel(names=["not_entailment", "entailment"])
    found = found.cast_column("label", names)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: found)
    with pytest.raises(DataError, match="classes are not_entailment, entailment instead of ent"):
        load("rte", data)


def test_no_network_says_what_to_do() -> None:
    with pytest.raises(DataError) as caught:
        load("cola", None)
    message = str(caught.value)
    assert message.startswith(f"task 'glue/cola': {HUB_NAME} cannot be had from the hub")
    assert "--data DIR" in message
    assert "\n" not in message


@pytest.mark.parametrize("fault", [ConnectionError("no\nroute"), RuntimeError("odd"), KeyError(1)])
def test_whatever_the_hub_raises_is_one_line(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    def fail(*_: Any, **__: Any) -> None:
        raise fault

    shown, client = datasets.is_progress_bar_enabled(), logging.getLogger("huggingface_hub")
    level = client.level
    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match=type(fault).__name__) as caught:
        load("cola", None)
    assert "\n" not in str(caught.value)
    assert datasets.is_progress_bar_enabled() == shown
    assert client.level == level


def test_a_data_folder_that_is_no_mirror(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder; --data must name a folder whose `glue`"):
        load("rte", tmp_path / "nowhere")
    with pytest.raises(DataError, match="has no folder `glue`"):
        load("rte", tmp_path)
    data = write_mirror(tmp_path, "rte", "cola")
    with pytest.raises(DataError, match="It is itself such a mirror: give its parent"):
        load("rte", data / "glue")
    with pytest.raises(DataError, match=r"lacks the task 'mrpc' \(it has cola, rte\)"):
        load("mrpc", data)
    with pytest.raises(DataError, match="lacks the task 'mrpc'"):
        task_identity("glue/mrpc", data=data, base=Path(), own={})
    (data / "glue" / "rte" / "validation-00000-of-00001.parquet").unlink()
    with pytest.raises(DataError, match=r"has no file validation-\*\.parquet"):
        load("rte", data)


@pytest.mark.parametrize("card", [None, "# GLUE\n", HUB_CARD], ids=["none", "plain", "hub"])
def test_a_mirror_of_some_rows_of_some_tasks_with_any_card(
    card: str | None, tmp_path: Path
) -> None:
    data = write_mirror(tmp_path, "rte")
    path = data / "glue" / "README.md"
    path.unlink()
    if card:
        path.write_text(card)
    task = load("rte", data)
    assert (len(task.train), len(task.validation)) == (7, 6)
    assert task.train.labels.tolist() == [0, 1, 0, 1, 0, 1, 0]


def test_changed_rows_are_seen(tmp_path: Path) -> None:
    data = write_mirror(tmp_path, "rte")
    before = load("rte", data).train
    path = data / "glue" / "rte" / "train-00000-of-00001.parquet"
    rows_of(LOADERS.rte, 9).to_parquet(path)
    assert len(before) == 7
    assert len(load("rte", data).train) == 9


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty or cut off"),
        (b"PAR1 and no end", "empty or cut off"),
        (b"PAR1 rubbish inside PAR1", "cannot be read"),
        (b"version https://git-lfs.github.com/spec/v1\n", "pointer of Git LFS"),
    ],
)
def test_broken_files_of_a_mirror(content: bytes, message: str, tmp_path: Path) -> None:
    data = write_mirror(tmp_path, "rte")
    (data / "glue" / "rte" / "train-00000-of-00001.parquet").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        load("rte", data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": [0, -1, 1, -1, 0, 0]}, "2 of 6 rows have no label"),
        ({"label": [0, None, 1, 1, 0, 0]}, "1 of 6 rows have no label"),
        ({"label": [0, 2, 1, 1, 0, 0]}, "the label of row 1 is 2; labels must be 0 to 1"),
        ({"label": ["yes"] * 6}, "the labels are not numbers"),
        ({"sentence1": [None] * 6}, "the text of row 0 is None, nothing and no text"),
        ({"sentence1": [1] * 6}, "the text of row 0 is 1, a whole number and no text"),
    ],
)
def test_bad_cells_of_a_mirror(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    data = write_mirror(tmp_path, "rte")
    frame = rows_of(LOADERS.rte, 6).assign(**change)
    for path in (data / "glue" / "rte").iterdir():
        frame.to_parquet(path)
    with pytest.raises(DataError) as caught:
        load("rte", data)
    assert message in str(caught.value)


def test_a_folder_where_a_file_belongs(tmp_path: Path) -> None:
    data = write_mirror(tmp_path, "rte")
    path = data / "glue" / "rte" / "train-00000-of-00001.parquet"
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match=r"parquet cannot be read: Is a directory"):
        load("rte", data)


def test_a_mirror_with_other_columns(tmp_path: Path) -> None:
    data = write_mirror(tmp_path, "rte")
    for path in (data / "glue" / "rte").iterdir():
        rows_of(LOADERS.rte, 6).rename(columns={"sentence2": "text2"}).to_parquet(path)
    with pytest.raises(DataError, match="no column 'sentence2', only sentence1, text2, label, idx"):
        load("rte", data)


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "validation", "first_class_share"),
    [
        ("cola", 1043, 322 / 1043),
        ("sst2", 872, 428 / 872),
        ("mrpc", 408, 129 / 408),
        ("qqp", None, None),
        ("stsb", 1500, None),
        ("mnli", 9815, 3479 / 9815),
        ("qnli", 5463, 2702 / 5463),
        ("rte", 277, 146 / 277),
        ("wnli", 71, 40 / 71),
    ],
)
def test_real_rows(
    name: str, validation: int | None, first_class_share: float | None, real_data: Path
) -> None:
    task = load(name, real_data)
    if validation is not None:
        assert len(task.validation) == validation
    if first_class_share is not None:
        assert (task.validation.labels == 0).mean() == pytest.approx(first_class_share)
    small = task.limited(100)
    assert (len(small.train), min(100, len(task.validation))) == (100, len(small.validation))
    if not task.regression:
        whole = np.bincount(task.train.labels) / len(task.train)
        assert np.abs(np.bincount(small.train.labels) / 100 - whole).max() < 0.01

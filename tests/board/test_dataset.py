"""Cells as a dataset of the hub: `datasets` reads it offline."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from helpers.boards import make_entry, verify_entry
from helpers.commands import Call

from clbench.board import load, write_dataset
from clbench.core.errors import RunFolderError


def test_datasets_reads_all_cells(tmp_path: Path) -> None:
    import datasets

    every = tmp_path / "all"
    make_entry(every / "first")
    verify_entry(make_entry(every / "second", suite="other"), "rerun")
    files, problems = write_dataset([every], tmp_path / "out")
    assert problems == ()
    assert files == (tmp_path / "out" / "README.md", tmp_path / "out" / "data" / "cells.parquet")
    cache = str(tmp_path / "cache")
    table = datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=cache)
    frame = load(every)
    assert table.num_rows == len(frame)
    assert set(table.column_names) == {*frame.columns, "task_names", "R"}
    for name in ("submission", "method", "seed", "p_o", "grade", "keeps_rows"):
        assert list(table[name]) == frame[name].tolist()
    first = table[0]
    assert first["task_names"] == ["a", "b"]
    assert first["R"][0] == [0.9, None]
    assert first["R"][1] == [first["p_o"], first["p_s"]]
    assert first["area"] is None or isinstance(first["area"], float)


def test_the_card_has_the_front_matter_of_the_hub(tmp_path: Path) -> None:
    make_entry(tmp_path / "run")
    (card, _), _ = write_dataset([tmp_path / "run"], tmp_path / "out")
    _, front, body = card.read_text("utf-8").split("---\n", 2)
    (config,) = yaml.safe_load(front)["configs"]
    assert config["data_files"] == "data/cells.parquet"
    assert "| `run` | `mine` | unverified | 12 |" in body


def test_an_export_is_not_taken_from_the_cache_of_another(tmp_path: Path) -> None:
    import datasets

    cache = str(tmp_path / "cache")
    for number, methods in enumerate(({"vanilla": 0.5}, {"vanilla": 0.5, "ewc": 0.7})):
        out = tmp_path / str(number) / "cells"
        write_dataset([make_entry(tmp_path / f"run{number}", methods=methods)], out)
        table = datasets.load_dataset(str(out), split="train", cache_dir=cache)
        assert table.num_rows == 4 * len(methods)


def test_files_of_the_user_are_left_alone(tmp_path: Path) -> None:
    run = make_entry(tmp_path / "run")
    write_dataset([run], tmp_path / "out")
    write_dataset([run], tmp_path / "out")  # its own are replaced
    with pytest.raises(RunFolderError, match=r"suite.json is in the way"):
        write_dataset([run], run)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "README.md").write_text("about clbench")
    with pytest.raises(RunFolderError, match=r"README.md is in the way. Choose another"):
        write_dataset([run], mine)
    assert [path.name for path in mine.iterdir()] == ["README.md"]


def test_the_command_exports_runs_and_names_bad_ones(tmp_path: Path, clbench: Call) -> None:
    good, bad = make_entry(tmp_path / "good"), make_entry(tmp_path / "bad")
    code, out, err = clbench("export", str(good), "--to", "dataset")
    assert (code, err) == (0, "")
    assert out.split() == [
        str(good / "dataset" / name) for name in ("README.md", "data/cells.parquet")
    ]
    (bad / "suite.json").write_text("{")
    folders = [str(good), str(bad)]
    code, out, err = clbench("export", *folders, "--to", "dataset", "--out", str(tmp_path / "o"))
    assert code == 1
    assert err.startswith("bad is left out: ")
    code, _, err = clbench("export", *folders, "--to", "github")
    assert code == 2
    assert "takes one audit, got 2" in err
    code, _, err = clbench("export", str(good), "--to", "datset")
    assert code == 2
    assert "Did you mean 'dataset'?" in err

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from clbench.core.errors import DataError, RunFolderError
from clbench.search import SearchFolder, TrialRecord
from clbench.search.space import SearchOrigin

RECIPE = {"search": {"flat": 1e-3, "depth": 2, "division": "code", "searcher": "bayes"}}


EPOCH = {"stage": 0, "epoch": 1, "scores": [0.5], "reward": 0.5, "seconds": 1.0}


@pytest.fixture
def folder(tmp_path: Path) -> SearchFolder:
    folder = SearchFolder(tmp_path / "search")
    folder.begin(RECIPE, {"scenario": "a-b"})
    return folder


def test_trials_are_read_as_written(folder: SearchFolder) -> None:
    trials = [TrialRecord(number=n, rates=[n * 1e-5] * 3) for n in (1, 2)]
    for trial in reversed(trials):
        folder.write(trial)
    assert folder.read() == trials
    assert folder.origin() == SearchOrigin(1e-3, 2, "code")
    assert json.loads((folder.trials / "0001.json").read_text())["rates"] == [1e-5] * 3


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rates": "high"}, "0003.json is not a trial: rates: must be a list"),
        ({"rates": [1e-3, -1.0, 1e-3]}, r"0003.json is not a trial: rates item 2: must be greater"),
        (
            {"rates": [5.0] * 3, "status": "complete", "p_o": 1, "p_s": 1, "epochs": [EPOCH]},
            "rate 1 is 5: must be above 0, and at most 1",
        ),
        ({"seconds": 1e13}, "seconds: must be less than or equal to"),
        ({"status": "complete"}, "a complete trial has epochs, p_o and p_s"),
    ],
)
def test_damaged_trial_is_named(folder: SearchFolder, changes: dict[str, Any], text: str) -> None:
    folder.write(TrialRecord(number=1, rates=[1e-3] * 3))
    damaged = {"number": 3, "rates": [1e-3] * 3, **changes}
    (folder.trials / "0003.json").write_text(json.dumps(damaged))
    with pytest.raises(DataError, match=text):
        folder.read()


def test_search_resumes_only_with_the_same_recipe(folder: SearchFolder) -> None:
    folder.check(RECIPE)
    with pytest.raises(RunFolderError, match="searcher = 'bayes', now 'random'"):
        folder.check({"search": {**RECIPE["search"], "searcher": "random"}})


@pytest.mark.parametrize(
    "content",
    ["[]", "[" * 100_000, "", '{"format": "clbench-search"}',
     json.dumps({"format": "clbench-search", "schema_version": 1, "recipe": {"search": {
         "flat": 2e-5, "depth": 10**9, "division": "code"}}})],
    ids=["list", "deep", "empty", "keys missing", "depth"],
)  # fmt: skip
def test_search_file_of_other_types_is_refused(folder: SearchFolder, content: str) -> None:
    folder.file.write_text(content)
    for call in (folder.origin, lambda: folder.check(RECIPE)):
        with pytest.raises(RunFolderError, match="not written by this version of clbench"):
            call()


def test_pipes_are_never_read(folder: SearchFolder) -> None:
    folder.trials.mkdir()
    os.mkfifo(folder.trials / "0001.json")
    with pytest.raises(DataError, match="it is not a regular file"):
        folder.read()
    folder.file.unlink()
    os.mkfifo(folder.file)
    with pytest.raises(RunFolderError, match="it is not a regular file"):
        folder.origin()


def test_folder_of_something_else_is_refused(folder: SearchFolder) -> None:
    folder.file.write_text("{}")
    with pytest.raises(RunFolderError, match="not written by this version of clbench"):
        folder.check(RECIPE)
    folder.write(TrialRecord(number=1, rates=[1e-3] * 3))
    folder.file.unlink()
    with pytest.raises(RunFolderError, match=r"trials without their search\.json"):
        folder.check(RECIPE)
    with pytest.raises(DataError, match="holds no search"):
        folder.origin()

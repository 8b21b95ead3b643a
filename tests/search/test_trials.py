from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from clbench.core.errors import DataError, RunFolderError
from clbench.search import SearchFolder, TrialRecord
from clbench.search.rates import SearchOrigin
from clbench.search.trials import TrialSource, common_origin, read_source

RECIPE = {"search": {"flat": 1e-3, "depth": 2, "division": "code", "searcher": "bayes"}}


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
        ({"rates": "high"}, "0003.json cannot be read: rates: must be a list"),
        ({"seconds": 1e13}, "seconds: must be less than or equal to"),
    ],
)
def test_damaged_trial_is_named(folder: SearchFolder, changes: dict[str, Any], text: str) -> None:
    folder.write(TrialRecord(number=1, rates=[1e-3] * 3))
    damaged = {"number": 3, "rates": [1e-3] * 3, **changes}
    (folder.trials / "0003.json").write_text(json.dumps(damaged))
    with pytest.raises(RunFolderError, match=text):
        folder.read()


def test_search_resumes_only_with_the_same_recipe(folder: SearchFolder) -> None:
    folder.check(RECIPE)
    with pytest.raises(RunFolderError, match="searcher = 'bayes', now 'random'"):
        folder.check({"search": {**RECIPE["search"], "searcher": "random"}})


@pytest.mark.parametrize(
    "content",
    ["[]", "[" * 100_000, "", '{"format": "clbench-search"}', '{"format": "clbench-run"}'],
    ids=["list", "deep", "empty", "keys missing", "run"],
)
def test_search_file_of_other_types_is_refused(folder: SearchFolder, content: str) -> None:
    folder.file.write_text(content)
    for call in (folder.origin, lambda: folder.check(RECIPE)):
        with pytest.raises(RunFolderError, match=r"search\.json cannot be read: .*Choose another"):
            call()


def test_pipes_are_never_read(folder: SearchFolder) -> None:
    folder.trials.mkdir()
    os.mkfifo(folder.trials / "0001.json")
    with pytest.raises(RunFolderError, match="it is not a regular file"):
        folder.read()
    folder.file.unlink()
    os.mkfifo(folder.file)
    with pytest.raises(RunFolderError, match="it is not a regular file"):
        folder.origin()


def test_folder_of_something_else_is_refused(folder: SearchFolder) -> None:
    folder.file.write_text("{}")
    with pytest.raises(RunFolderError, match=r"search\.json cannot be read: .*Choose another"):
        folder.check(RECIPE)
    folder.write(TrialRecord(number=1, rates=[1e-3] * 3))
    folder.file.unlink()
    with pytest.raises(RunFolderError, match=r"trials without their search\.json"):
        folder.check(RECIPE)
    with pytest.raises(DataError, match="holds no search"):
        folder.origin()


def test_a_log_is_named_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "sst2-mrpc.txt"
    path.write_text(",".join(map(str, [0.91, 0.86, 0.9, *[1e-5] * 10])))
    assert read_source(path).name == "sst2-mrpc"
    with pytest.raises(DataError, match="holds no search"):
        read_source(tmp_path)


def searched(name: str, origin: SearchOrigin | None) -> TrialSource:
    return TrialSource(Path(name), (), name, origin=origin)


def test_logs_take_origin_of_searches_or_user() -> None:
    log, search = searched("log", None), searched("a", SearchOrigin(1e-4, 6, "paper"))
    assert common_origin([log]) == SearchOrigin(2e-5, 12, "code")
    assert common_origin([log], depth=4) == SearchOrigin(2e-5, 4, "code")
    assert common_origin([log, search]) == SearchOrigin(1e-4, 6, "paper")
    assert common_origin([search], flat=1e-3) == SearchOrigin(1e-3, 6, "paper")


@pytest.mark.parametrize(
    ("other", "options", "text"),
    [
        (SearchOrigin(2e-5, 6), {}, "b was run with depth = 6, now 12. Combine searches on"),
        (SearchOrigin(1e-4), {}, "b was run with flat = 0.0001, now 2e-05.*or give flat"),
        (SearchOrigin(), {"depth": 6}, "a was run with depth = 12, now 6"),
    ],
)
def test_different_searches_cannot_be_combined(
    other: SearchOrigin, options: dict[str, int], text: str
) -> None:
    with pytest.raises(DataError, match=text):
        common_origin([searched("a", SearchOrigin()), searched("b", other)], **options)  # type: ignore[arg-type]

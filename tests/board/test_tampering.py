"""A campaign: what is changed in a submission after the run, and which check finds it.

A forger who changes one file and a forger who makes everything else follow are both tried. What
follows to the last digit can be found by training again alone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.submissions import Forger, cells_of, improve, rename

from clbench.board.manifest import MANIFEST
from clbench.board.submit import submit
from clbench.board.verify import Verification, verify
from clbench.core.errors import RunFolderError
from clbench.results.archive import compress, extract, read_archive

QUICK = Path(__file__).parents[2] / "results" / "reference" / "quick"
CELL = "sentiment-acceptability--wise-ft--seed0"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A submission of a kept run, which holds."""
    folder = tmp_path_factory.mktemp("submission") / "quick"
    submit(QUICK, "Quick", folder)
    return folder


@pytest.fixture
def forger(whole: Path, tmp_path: Path) -> Forger:
    return Forger(Path(shutil.copytree(whole, tmp_path / "copy")))


def failed(found: Verification) -> list[str]:
    return [check for _, check, outcome in found.checks if outcome.wrong]


def test_a_submission_that_nobody_touched_holds(whole: Path) -> None:
    found = verify(whole)
    assert (failed(found), found.grade) == ([], "recomputed")


Forgery = Callable[[Forger], None]
FORGERIES: dict[str, tuple[str, Forgery]] = {}


def forgery(found_by: str) -> Callable[[Forgery], Forgery]:
    """Name the check that finds a forgery first."""

    def add(function: Forgery) -> Forgery:
        FORGERIES[function.__name__.replace("_", " ")] = found_by, function
        return function

    return add


# Changes to files as they lie there.


@forgery("files")
def one_flipped_bit(forger: Forger) -> None:
    path = forger.folder / "cells.tar.xz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@forgery("files")
def one_changed_digit_in_the_table(forger: Forger) -> None:
    path = forger.folder / "scores.csv"
    path.write_text(path.read_text("utf-8").replace("0.7", "0.8", 1), "utf-8")


@forgery("files")
def a_file_more(forger: Forger) -> None:
    (forger.folder / "notes.py").write_text("print('hello')\n")


@forgery("files")
def a_missing_table(forger: Forger) -> None:
    (forger.folder / "scores.csv").unlink()


@forgery("files")
def a_link_out_of_the_folder(forger: Forger) -> None:
    path = forger.folder / "scores.csv"
    path.rename(forger.folder.parent / "scores.csv")
    path.symlink_to(forger.folder.parent / "scores.csv")


@forgery("files")
def a_swapped_cell(forger: Forger) -> None:
    extract(forger.folder)
    one = forger.folder / "cells" / f"{CELL}.json"
    other = one.with_name("sentiment-acceptability--vanilla--seed0.json")
    text, changed = one.read_text("utf-8"), other.read_text("utf-8")
    one.write_text(changed, "utf-8")
    other.write_text(text, "utf-8")
    compress(forger.folder)


@forgery("files")
def another_suite_in_the_manifest(forger: Forger) -> None:
    forger.manifest(lambda m: m.update(suite="findings"))


# Cells and seeds that were chosen; everything else follows.


@forgery("whole matrix")
def a_cell_left_out(forger: Forger) -> None:
    _drop(forger, CELL)
    forger.seal()


@forgery("whole matrix")
def a_method_with_fewer_seeds(forger: Forger) -> None:
    for seed in (1, 2, 3):
        _drop(forger, f"growing-head--replay--seed{seed}")
    forger.seal()


@forgery("whole matrix")
def bad_seeds_declared_as_failed(forger: Forger) -> None:
    def fail(cell: dict[str, Any]) -> None:
        cell |= {"status": "failed", "reason": "out of memory", "R": [], "stages": []}
        cell |= {"scores": {}, "metrics": [], "correct": []}

    forger.cells(fail, CELL)
    forger.seal()


@forgery("whole matrix")
def a_cell_more(forger: Forger) -> None:
    forger.cells(lambda cell: None)
    extract(forger.folder)
    path = forger.folder / "cells" / f"{CELL}.json"
    cell = json.loads(path.read_text("utf-8"))
    rename(cell, seed=7)
    path.with_name(f"{cell['key']}.json").write_text(json.dumps(cell), "utf-8")
    compress(forger.folder)
    forger.seal()


@forgery("no seed chosen")
def the_best_of_many_seeds(forger: Forger) -> None:
    for old, new in ((3, 17), (2, 9), (1, 5)):
        forger.cells(lambda cell, new=new: rename(cell, seed=new), f"*seed{old}")  # type: ignore[misc]
    forger.suite(lambda suite: suite.update(seeds=[0, 5, 9, 17]))
    forger.seal()


@forgery("no seed chosen")
def fewer_seeds_than_looks(forger: Forger) -> None:
    forger.suite(lambda suite: suite.update(looks=[[5, 10, 20]]))
    forger.seal()


@forgery("no cell twice")
def one_training_under_two_seeds(forger: Forger) -> None:
    for path in ("sentiment-acceptability--vanilla--seed1",):
        _drop(forger, path)
    _copy(forger, "sentiment-acceptability--vanilla--seed0", seed=1)
    forger.seal()


# Recipes.


@forgery("one recipe")
def a_changed_setting_of_the_method(forger: Forger) -> None:
    forger.cells(lambda c: c["recipe"]["method"]["settings"].update(alpha=0.9), CELL)
    forger.seal()


@forgery("one recipe")
def another_rate_for_one_method(forger: Forger) -> None:
    forger.cells(lambda c: c["recipe"]["protocol"].update(lr=0.01), "*wise-ft*")
    forger.seal()


@forgery("one recipe")
def more_epochs_than_declared(forger: Forger) -> None:
    forger.suite(lambda suite: suite["protocol"].update(epochs=30))
    forger.seal()


@forgery("one recipe")
def more_training_rows_for_one_seed(forger: Forger) -> None:
    forger.cells(lambda c: c["recipe"]["protocol"].update(limit=5000), f"*{CELL}")
    forger.seal()


@forgery("one recipe")
def other_tasks_under_the_same_name(forger: Forger) -> None:
    tasks = ["synthetic/sentiment", "synthetic/entailment"]
    forger.cells(lambda c: c["recipe"]["scenario"].update(tasks=tasks), CELL)
    forger.seal()


@forgery("one recipe")
def another_method_under_the_same_name(forger: Forger) -> None:
    forger.cells(lambda c: c["recipe"]["method"].update(name="replay"), CELL)
    forger.seal()


@forgery("one recipe")
def code_that_is_not_in_the_folder(forger: Forger) -> None:
    forger.cells(lambda c: c["recipe"]["method"].update(source="0" * 32), CELL)
    forger.seal()


@forgery("one recipe")
def another_seed_in_the_recipe(forger: Forger) -> None:
    forger.cells(lambda c: c["recipe"].update(seed=4711), CELL)
    forger.seal()


@forgery("one recipe")
def shown_settings_that_were_not_used(forger: Forger) -> None:
    forger.cells(lambda c: c["settings"]["method"].update(alpha=0.1), CELL)
    forger.cells(lambda c: c["recipe"]["method"].update(settings={"alpha": 0.5}), "*wise-ft*")
    forger.suite(lambda s: s["baseline"]["wise-ft"].update(settings={"alpha": 0.5}))
    forger.seal()


@forgery("one recipe")
def cells_of_two_models(forger: Forger) -> None:
    forger.cells(_other_weights, CELL)
    forger.seal()


@forgery("one recipe")
def other_rows_for_one_cell(forger: Forger) -> None:
    forger.cells(_other_rows, CELL)
    forger.seal()


# Tuned on what is reported, rows of the test in training.


@forgery("not tuned on what is reported")
def tuned_with_the_reported_seeds(forger: Forger) -> None:
    search = {"trials": 50, "epochs": 10.0, "seconds": 1.0, "seeds": [0, 1]}
    forger.cells(lambda c: c.update(search=search), "*wise-ft*")
    forger.seal()


@forgery("not tuned on what is reported")
def scores_on_the_rows_for_tuning(forger: Forger) -> None:
    _protocol(forger, score_on="tuning")


@forgery("not tuned on what is reported")
def a_smoke_run(forger: Forger) -> None:
    _protocol(forger, smoke=True)


@forgery("not tuned on what is reported")
def rows_of_the_test_in_training(forger: Forger) -> None:
    def same(cell: dict[str, Any]) -> None:
        rows = cell["recipe"]["tasks"]["synthetic/sentiment"]["rows"]
        rows["train"] = rows["validation"]

    forger.cells(same)
    forger.manifest(
        lambda m: m["tasks"]["synthetic/sentiment"]["rows"].update(
            train=m["tasks"]["synthetic/sentiment"]["rows"]["validation"]
        )
    )
    forger.seal()


@forgery("not tuned on what is reported")
def a_packaged_task_defined_anew(forger: Forger) -> None:
    table = {"train": "mine.csv", "validation": "test.csv", "text": ["text"], "label": "label"}
    forger.suite(lambda suite: suite.update(task={"glue/sst2": table}))
    forger.seal()


@forgery("not tuned on what is reported")
def a_task_scored_on_its_training_rows(forger: Forger) -> None:
    table = {"train": "mine.csv", "validation": "mine.csv", "text": ["text"], "label": "label"}
    forger.suite(lambda suite: suite.update(task={"mine": table}))
    forger.seal()


# What the manifest says.


@forgery("manifest")
def another_model_in_the_manifest(forger: Forger) -> None:
    forger.manifest(lambda m: m["models"][0].update(name="bert-base-uncased"))
    forger.seal()


@forgery("manifest")
def another_machine_in_the_manifest(forger: Forger) -> None:
    forger.manifest(lambda m: m["hardware"][0].update(device_name="a pocket calculator"))
    forger.seal()


@forgery("manifest")
def other_versions_in_the_manifest(forger: Forger) -> None:
    forger.manifest(lambda m: m["versions"][0].update(torch="1.0"))
    forger.seal()


# Numbers that do not follow from each other.


@forgery("scores from R")
def a_better_score_in_the_table(forger: Forger) -> None:
    path = forger.folder / "scores.csv"
    lines = path.read_text("utf-8").splitlines()
    column = lines[0].split(",").index("p_o")
    parts = lines[1].split(",")
    parts[column] = "0.99"
    path.write_text("\n".join([lines[0], ",".join(parts), *lines[2:]]) + "\n", "utf-8")
    _resign(forger)


@forgery("whole matrix")
def a_better_score_in_a_cell(forger: Forger) -> None:
    forger.cells(lambda c: c["scores"].update(p_o=0.99), CELL)
    _resign(forger)


@forgery("R from rows")
def a_better_matrix_without_rows(forger: Forger) -> None:
    forger.cells(lambda c: improve(c, rows=False), CELL)
    forger.seal()


@forgery("R from rows")
def a_matrix_that_is_no_metric(forger: Forger) -> None:
    def change(cell: dict[str, Any]) -> None:
        cell["R"][-1][0] = 0.95

    forger.cells(change, CELL)
    forger.seal()


@forgery("R from rows")
def fewer_rows_after_the_last_stage(forger: Forger) -> None:
    def change(cell: dict[str, Any]) -> None:
        cell["correct"][-1][0] = "8:/w=="
        cell["metrics"][-1][0]["accuracy"] = cell["R"][-1][0] = 1.0

    forger.cells(change, CELL)
    forger.seal()


@forgery("R from rows")
def rows_that_are_no_bits(forger: Forger) -> None:
    def change(cell: dict[str, Any]) -> None:
        cell["correct"][-1][0] = "500:abc"

    forger.cells(change, CELL)
    forger.seal()


@forgery("fingerprints from recipes")
def a_recipe_with_an_old_fingerprint(forger: Forger) -> None:
    def change(cell: dict[str, Any]) -> None:
        cell["recipe"]["corpus"] = {"built-in": "0" * 32}

    forger.cells(change)
    _resign(forger)


# Other data or weights under the same name, everywhere and consistently.


@forgery("model")
def another_checkpoint_under_the_same_name(forger: Forger) -> None:
    forger.cells(_other_weights)
    forger.manifest(lambda m: m["models"][0]["files"].update({"model.safetensors": "0" * 32}))
    forger.seal()


@forgery("rows")
def other_rows_under_the_same_name(forger: Forger) -> None:
    forger.cells(_other_rows)
    forger.manifest(lambda m: m["tasks"]["synthetic/sentiment"]["rows"].update(train="0" * 32))
    forger.seal()


@forgery("rows")
def another_corpus(forger: Forger) -> None:
    forger.cells(lambda c: c["recipe"].update(corpus={"built-in": "0" * 32}))
    forger.seal()


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_found(name: str, forger: Forger) -> None:
    check, forge = FORGERIES[name]
    forge(forger)
    found = verify(forger.folder)
    assert not found.holds
    assert check in failed(found), (failed(found), [each.outcome.wrong for each in found.checks])


@pytest.mark.parametrize("more", [{"grade": "rerun"}, {"files": {"suite.json": "0"}}, {"name": ""}])
def test_a_manifest_of_another_form_is_refused(more: dict[str, Any], forger: Forger) -> None:
    forger.manifest(lambda m: m.update(more))
    with pytest.raises(RunFolderError, match=MANIFEST):
        verify(forger.folder)


def test_the_campaign_is_a_campaign() -> None:
    assert len(FORGERIES) >= 30


# What nothing but training again finds.


def better_everywhere(forger: Forger) -> None:
    forger.cells(improve)
    forger.seal()


def another_seed_in_its_place(forger: Forger) -> None:
    cells = {cell.key: cell for cell in cells_of(forger.folder)}

    def change(cell: dict[str, Any]) -> None:
        other = cells[cell["key"].replace("seed0", "seed1")]
        fields = other.model_dump(mode="json")
        for name in ("R", "correct", "metrics", "scores"):
            cell[name] = fields[name]

    forger.cells(change, "*seed0")
    forger.seal()


def another_rate_everywhere(forger: Forger) -> None:
    _protocol(forger, lr=0.0001)


@pytest.mark.slow
@pytest.mark.parametrize(
    "forge", [better_everywhere, another_seed_in_its_place, another_rate_everywhere]
)
def test_what_follows_to_the_last_digit_is_found_by_training_again(
    forge: Forgery, forger: Forger, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ["growing-head--prototypes--seed0", CELL]
    monkeypatch.setattr("clbench.board.rerun.draw", lambda *_: keys)
    forge(forger)
    assert verify(forger.folder).grade == "recomputed"
    found = verify(forger.folder, again=2)
    assert failed(found) == ["trained again"]


@pytest.mark.slow
def test_cells_of_another_machine_agree_when_trained_again(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ["growing-head--prototypes--seed0", CELL]
    monkeypatch.setattr("clbench.board.rerun.draw", lambda *_: keys)
    found = verify(whole, again=2)
    assert (failed(found), found.grade) == ([], "rerun")


def _drop(forger: Forger, key: str) -> None:
    extract(forger.folder)
    (forger.folder / "cells" / f"{key}.json").unlink()
    compress(forger.folder)


def _copy(forger: Forger, key: str, *, seed: int) -> None:
    extract(forger.folder)
    path = forger.folder / "cells" / f"{key}.json"
    cell = json.loads(path.read_text("utf-8"))
    rename(cell, seed=seed)
    path.with_name(f"{cell['key']}.json").write_text(json.dumps(cell), "utf-8")
    compress(forger.folder)


def _protocol(forger: Forger, **changes: Any) -> None:
    """Change the protocol of the suite and of all cells."""
    forger.suite(lambda suite: suite["protocol"].update(changes))

    def change(cell: dict[str, Any]) -> None:
        cell["recipe"]["protocol"].update(changes)
        cell["settings"]["protocol"].update(changes)

    forger.cells(change)
    forger.seal()


def _other_weights(cell: dict[str, Any]) -> None:
    cell["recipe"]["model"]["files"]["model.safetensors"] = "0" * 32


def _other_rows(cell: dict[str, Any]) -> None:
    tasks = cell["recipe"]["tasks"]
    tasks.get("synthetic/sentiment", {}).get("rows", {}).update(train="0" * 32)


def _resign(forger: Forger) -> None:
    """Sign the files anew, and change nothing else."""
    from clbench.board.manifest import files_of

    forger.manifest(lambda m: m.update(files=files_of(forger.folder)))


def test_packed_cells_are_read_into_memory_alone(whole: Path) -> None:
    assert len(read_archive(whole)) == 32


def test_the_page_says_how_many_forgeries_are_tried() -> None:
    page = Path(__file__).parents[2] / "docs" / "submit.md"
    assert f"The tests try {len(FORGERIES)} forgeries" in page.read_text("utf-8")

"""A campaign: forgeries of a submission, each of which a check finds.

What follows to the last digit can be found by training again alone.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.changed_records import CELL
from helpers.forgeries import FORGERIES, Forgery, protocol
from helpers.report_runs import cell
from helpers.submissions import Forger, cells_of, improve

from clbench.board.manifest import MANIFEST
from clbench.board.recomputed import matrix_follows
from clbench.board.submission import Outcome
from clbench.board.submit import submit
from clbench.board.verify import Verification, verify
from clbench.core.errors import RunFolderError
from clbench.results.archive import read_archive
from clbench.results.cell import pack_rows

QUICK = Path(__file__).parents[2] / "results" / "reference" / "quick"


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


def test_a_suite_may_choose_the_metric_that_scores_a_task(tmp_path: Path) -> None:
    submit(QUICK.with_name("recadam-tiny"), "CoLA by Matthews", tmp_path / "out")
    assert "R from rows" not in failed(verify(tmp_path / "out"))


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_found(name: str, forger: Forger) -> None:
    check, forge = FORGERIES[name]
    forge(forger)
    found = verify(forger.folder)
    assert not found.holds
    assert check in failed(found), (failed(found), [each.outcome.wrong for each in found.checks])


def test_scores_without_metrics_are_only_reported(forger: Forger) -> None:
    forger.cells(lambda c: c.update(metrics=[], correct=[]), CELL)
    forger.seal()
    found = verify(forger.folder)
    assert (found.holds, found.grade) == (True, "reported")


def test_a_single_task_reference_of_an_inner_task_needs_its_metric_and_rows() -> None:
    whole = cell("s", "vanilla", 0, 0.6)
    protocol = SimpleNamespace(task_metric={})

    def found(score: float, *rows: str) -> Outcome:
        changes: dict[str, Any] = {
            "reference_of": 1, "tasks": ["glue/sst2", "glue/mrpc", "glue/rte"],
            "R": [[None, score, None]], "stages": whole.stages[:1],
            "metrics": [[None, {"accuracy": 0.6, "f1": 0.8}, None]],
            "correct": [[None, text, None] for text in rows],
        }  # fmt: skip
        submission: Any = SimpleNamespace(
            cells=[whole.model_copy(update=changes)],
            file=SimpleNamespace(protocol=protocol, task={}),
        )
        return matrix_follows(submission)

    rows = pack_rows(np.array([1, 1, 1, 0, 0], bool))
    assert found(0.6, rows) == Outcome([], [], "1 of 1 scores from rows")
    assert found(0.8, rows).wrong == ["s--vanilla--seed0: R[0][1] = 0.8000 is not its accuracy."]
    assert found(0.6).unchecked == ["1 score without rows, such as s--vanilla--seed0: R[0][1]"]
    protocol.task_metric["glue/mrpc"] = "f1"
    assert found(0.8, rows) == Outcome([], [], "0 of 1 scores from rows")  # rows give no F1


def test_a_corpus_that_never_ends_is_not_read(forger: Forger) -> None:
    forger.suite(lambda s: s["protocol"].update(corpus="/dev/zero"))
    forger.seal()
    assert verify(forger.folder).grade == "reported"


@pytest.mark.parametrize(
    "more",
    [
        {"grade": "rerun"},
        {"files": {"suite.json": "0"}},
        {"name": ""},
        {"created": "9999-99-99"},
    ],
)
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
    protocol(forger, lr=0.0001)


@pytest.mark.slow
@pytest.mark.parametrize(
    "forge", [better_everywhere, another_seed_in_its_place, another_rate_everywhere]
)
def test_what_follows_to_the_last_digit_is_found_by_training_again(
    forge: Forgery, forger: Forger, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ["growing-head--prototypes--seed0", CELL]
    monkeypatch.setattr("clbench.board.verify.draw", lambda *_: keys)
    forge(forger)
    assert verify(forger.folder).grade == "recomputed"
    found = verify(forger.folder, again=2)
    assert failed(found) == ["trained again"]


@pytest.mark.slow
def test_cells_of_another_machine_agree_when_trained_again(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ["growing-head--prototypes--seed0", CELL]
    monkeypatch.setattr("clbench.board.verify.draw", lambda *_: keys)
    found = verify(whole, again=2)
    assert (failed(found), found.grade) == ([], "rerun")


def test_packed_cells_are_read_into_memory_alone(whole: Path) -> None:
    assert len(read_archive(whole)) == 32


def test_the_page_says_how_many_forgeries_are_tried() -> None:
    page = Path(__file__).parents[2] / "docs" / "submit.md"
    assert f"The tests try {len(FORGERIES)} forgeries" in page.read_text("utf-8")

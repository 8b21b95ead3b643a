"""Which methods share a table, and under which names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.boards import METHODS, make_entry, verify_entry
from helpers.report_runs import cell

from clbench.board.entries import read_entries
from clbench.board.tables import Table, suite_tables
from clbench.results.store import Store


def tables(*folders: Path) -> list[Table]:
    return suite_tables(read_entries(folders)[0])


def test_a_table_has_ranks_costs_and_a_reference(tmp_path: Path) -> None:
    (table,) = tables(make_entry(tmp_path / "run"))
    assert (table.title, table.note, table.is_first, table.reference) == (
        "pair",
        "",
        True,
        "vanilla",
    )
    assert table.score.name == "average"
    assert [row.label for row in table.rows] == ["replay", "ewc", "vanilla"]
    assert table.ranking.ranges == {"replay": (1, 1), "ewc": (2, 2), "vanilla": (3, 3)}
    assert table.leaders == ["replay"]
    means = table.rows[0].means
    assert means["p_o"] == pytest.approx(0.9 + 0.015 + 0.002 * 2, abs=0.003)
    assert (means["p_s"], means["train_seconds"]) == (0.8, 2.0)
    assert "search_seconds" not in means


def test_methods_that_no_test_tells_apart_tie(tmp_path: Path) -> None:
    close = {"vanilla": 0.7, "ewc": 0.7005, "replay": 0.7001}
    (table,) = tables(make_entry(tmp_path / "run", methods=close))
    assert set(table.ranking.ranges.values()) == {(1, 3)}
    assert len(table.leaders) == 3
    (table,) = tables(make_entry(tmp_path / "short", seeds=range(2)))
    assert table.leaders == []  # nothing is tested, so nobody leads


def test_other_conditions_are_another_table(tmp_path: Path) -> None:
    first = make_entry(tmp_path / "first", protocol={"model": "tiny", "epochs": 3})
    second = make_entry(tmp_path / "second", protocol={"model": "tiny", "epochs": 1})
    model = make_entry(tmp_path / "third", model="large", protocol={"model": "tiny", "epochs": 3})
    found = tables(first, second, model)
    assert [(len(table.rows), table.ranking.family) for table in found] == [(3, 3)] * 3
    notes = ["of first", "epochs = 1 instead of 3", "of third"]  # two that would be called alike
    assert [table.note for table in found] == notes
    assert {row.entry.name for table in found for row in table.rows} == {"first", "second", "third"}


def test_rows_of_several_submissions_have_names_of_their_own(tmp_path: Path) -> None:
    first = make_entry(tmp_path / "first")
    more = make_entry(tmp_path / "more", methods={"vanilla": 0.52, "mas": 0.6}, seeds=range(2, 6))
    (table,) = tables(first, more)
    labels = {row.label: row.entry.name for row in table.rows}
    assert labels == {
        "replay": "first", "ewc": "first", "mas": "more", "vanilla (more)": "more",
        "vanilla": "first",
    }  # fmt: skip
    assert {cell.baseline for cell in table.cells} == set(labels)
    assert table.ranking.comparisons["mas", "vanilla (more)"].pairs == 4
    assert table.ranking.comparisons["mas", "vanilla"].pairs == 2  # the seeds that both have


def test_cells_that_are_there_already_are_no_new_row(tmp_path: Path) -> None:
    first = make_entry(tmp_path / "first")
    again = make_entry(tmp_path / "again", methods={"vanilla": 0.5}, seeds=range(3))
    (table,) = tables(first, again)
    assert [row.label for row in table.rows] == ["replay", "ewc", "vanilla"]
    assert [[each.name for each in row.also] for row in table.rows] == [[], [], ["again"]]


def test_cells_are_shown_once_whatever_the_order_of_folders(tmp_path: Path) -> None:
    few = make_entry(tmp_path / "few", seeds=range(3), fingerprint="equal")
    many = make_entry(tmp_path / "many", seeds=range(5), fingerprint="equal")
    for folders in ((few, many), (many, few)):
        (table,) = tables(*folders)
        assert table.ranking.family == 3
        assert {(row.entry.name, len(row.cells)) for row in table.rows} == {("many", 5)}
        assert {each.name for row in table.rows for each in row.also} == {"few"}
    verify_entry(few, "rerun")  # it comes first, and others add the seeds that it lacks
    (table,) = tables(many, few)
    assert {(row.label, row.entry.name, row.seeds) for row in table.rows} >= {
        ("ewc", "few", 3), ("ewc (many)", "many", 2),
    }  # fmt: skip


def test_cells_of_one_recipe_that_do_not_agree_are_named(tmp_path: Path) -> None:
    same: dict[str, Any] = {"seeds": range(2), "fingerprint": "equal"}
    first = make_entry(tmp_path / "first", **same)
    again = make_entry(tmp_path / "again", **same)
    forged = make_entry(tmp_path / "forged", methods={"vanilla": 0.7, "ewc": 0.5}, **same)
    (table,) = tables(first, again)
    assert table.disagreements == ()
    (table,) = tables(first, again, forged)
    assert table.disagreements == (
        "first and forged do not agree on 4 cells of the same recipe: scores differ by up to "
        "0.200, more than machines do (pair--vanilla--seed0, pair--vanilla--seed1, "
        "pair--ewc--seed0, pair--ewc--seed1).",
    )
    assert [[each.name for each in row.also] for row in table.rows][-1] == ["again", "forged"]
    # As machines may differ, and with another setting shown, as other versions do.
    shown = {"settings": {"method": {"new": 1}}}
    near = make_entry(tmp_path / "near", methods={"vanilla": 0.51}, **same, **shown)
    own = make_entry(tmp_path / "own", methods={"vanilla": 0.1}, seeds=range(2))  # own recipe
    (table,) = tables(first, near, own)
    assert table.disagreements == ()


def test_a_higher_grade_comes_first(tmp_path: Path) -> None:
    first = make_entry(tmp_path / "first")
    checked = verify_entry(make_entry(tmp_path / "checked"), "recomputed")
    (table,) = tables(first, checked)
    assert {row.entry.name for row in table.rows} == {"checked"}
    assert {each.name for row in table.rows for each in row.also} == {"first"}


def test_scenarios_are_averaged_over_the_methods_that_have_all(tmp_path: Path) -> None:
    both = make_entry(tmp_path / "both", scenarios=("one", "two"))
    single = make_entry(tmp_path / "single", methods={"mas": 0.6}, scenarios=("one",))
    found = tables(both, single)
    assert [(table.title, len(table.rows), table.is_first) for table in found] == [
        ("mean over 2 scenarios", 3, True), ("one", 4, False), ("two", 3, False),
    ]  # fmt: skip
    assert found[0].ranking.family == 3


def test_scenarios_in_another_order_are_no_other_table(tmp_path: Path) -> None:
    one = make_entry(tmp_path / "one", scenarios=("a", "b"))
    two = make_entry(tmp_path / "two", methods={"mas": 0.6}, scenarios=("b", "a"))
    found = [(table.heading, len(table.rows)) for table in tables(one, two)]
    assert found == [("mean over 2 scenarios", 4), ("a", 4), ("b", 4)]


def test_single_task_references_are_no_methods_and_no_conditions(tmp_path: Path) -> None:
    folder = make_entry(tmp_path / "run", scenarios=("one", "two"))
    store, stage = Store(folder), {"rows": 9, "steps": 1, "epochs": 1.0, "examples": 9, "tokens": 9}
    alone = cell(
        "one", "vanilla", 0, 0.5, key="one--reference1--seed0", reference_of=1,
        R=[[None, 0.8]], scores={"reference": 0.8}, recipe={"tasks": {"b": {}}},
        stages=[{"task": "b", "train_seconds": 1.0, "curves": {}, **stage}],
    )  # fmt: skip
    (folder / "cells").mkdir()
    store.write_cell(alone)
    found = tables(folder)
    assert [(table.title, len(table.rows)) for table in found] == [
        ("mean over 2 scenarios", 3), ("one", 3), ("two", 3),
    ]  # fmt: skip


def test_a_question_of_one_score_ranks_by_it(tmp_path: Path) -> None:
    question = {"reference": "ewc", "scores": ["forgetting"]}
    folder = make_entry(tmp_path / "run", suite_fields={"questions": [question]})
    (table,) = tables(folder)
    assert (table.score.name, table.reference) == ("forgetting", "ewc")
    assert [row.label for row in table.rows] == ["replay", "ewc", "vanilla"]  # less is better


def test_a_question_of_intransigence_ranks_by_it(tmp_path: Path) -> None:
    question = {"reference": "vanilla", "scores": ["intransigence"]}
    fields: dict[str, Any] = {"suite_fields": {"questions": [question]}}
    methods = {"vanilla": 0.5, "ewc": 0.7}
    folder = make_entry(tmp_path / "run", methods=methods, **fields)
    store = Store(folder)
    (folder / "cells").mkdir()
    for ours in store.read().cells[:4]:
        alone = {"key": f"pair--reference1--seed{ours.seed}", "reference_of": 1, "R": [[None, 0.9]]}
        alone |= {"scores": {"reference": 0.9}, "stages": ours.stages[1:], "metrics": [[None] * 2]}
        store.write_cell(ours.model_copy(update=alone | {"correct": []}))
    (table,) = tables(folder)
    assert {name: found.mean for name, found in table.ranking.summaries.items()} == pytest.approx(
        {"vanilla": 0.1, "ewc": 0.1}
    )


def test_a_mean_needs_a_finished_cell_of_each_scenario(tmp_path: Path) -> None:
    folder = make_entry(tmp_path / "run", scenarios=("one", "two"))
    store = Store(folder)
    (folder / "cells").mkdir()
    for ours in store.read().cells:
        if ours.scenario == "two":
            lost = {"status": "failed", "R": [], "scores": {}, "stages": [], "metrics": []}
            store.write_cell(ours.model_copy(update=lost))
    assert [table.title for table in tables(folder)] == ["one"]


def test_a_submission_does_not_change_the_question_of_a_packaged_suite(tmp_path: Path) -> None:
    question = {"reference": "ewc", "scores": ["forgetting"], "margin": 0.5}
    folder = make_entry(tmp_path / "run", "quick", suite_fields={"questions": [question]})
    (table,) = tables(verify_entry(folder, "rerun"))
    assert (table.score.name, table.reference) == ("average", "vanilla")


def test_trials_and_failed_methods_have_no_rank(tmp_path: Path) -> None:
    tuning = make_entry(tmp_path / "tune", protocol={"model": "tiny", "score_on": "tuning"})
    assert tables(tuning) == []
    run = make_entry(tmp_path / "run", methods={"vanilla": METHODS["vanilla"], "ewc": 0.6})
    broken = make_entry(tmp_path / "broken", methods={"mas": 0.5}, seeds=range(1))
    (table,) = tables(run, broken)
    assert table.ranking.ranges["mas"] == (1, 3)  # a single seed


def test_a_run_with_looks_is_ranked_at_their_rate(tmp_path: Path) -> None:
    (table,) = tables(make_entry(tmp_path / "run", suite_fields={"looks": [[4, 8]]}))
    assert table.alpha == pytest.approx(0.05 / 4)
    assert {c.level for c in table.ranking.comparisons.values()} == {1 - table.alpha / 3}

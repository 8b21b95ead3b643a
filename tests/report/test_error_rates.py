"""What a page says of its error rates when a run grew, or its suite.json is damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.report_runs import make_run

from clbench.report.files import has_grown, write_report
from clbench.results.resume import merge_suites


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take most of the time of a report."""
    monkeypatch.setattr("clbench.report.files.draw_all", lambda figures, formats: [])


def page_of(run: Path) -> str:
    return (run / "report" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("looks", "methods", "scenarios", "grown"),
    [
        ([[3, 5]], ["a"], ["x"], False),
        ([[3, 5]], ["a", "b"], ["x"], True),
        ([[3, 5]], ["a"], ["x", "y"], True),
        ([], ["a", "b"], ["x", "y"], False),
    ],
)
def test_what_is_added_to_a_run_with_looks_is_noted(
    tmp_path: Path, looks: Any, methods: Any, scenarios: Any, grown: bool
) -> None:
    folder = make_run(tmp_path / "run")
    suite = json.loads((folder / "suite.json").read_text())
    first = {**suite["suite"], "methods": ["a"], "scenario": [{"name": "x"}], "looks": looks}
    more = {**first, "methods": methods, "scenario": [{"name": name} for name in scenarios]}
    later = merge_suites(merge_suites(first, more), first)
    (folder / "suite.json").write_text(json.dumps({**suite, "suite": later}))
    write_report([folder])
    assert ("were added to this run after it began" in page_of(folder)) is grown


def test_a_damaged_suite_file_leaves_the_error_rate_unknown(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    write_report([folder])
    assert "the risk of even one wrong" in page_of(folder)
    (folder / "suite.json").write_text("{")
    write_report([folder])
    replaced = '{"format": "clbench-run", "suite": {"name": "mine"}}'
    for step in ("damaged", "missing", "replaced"):
        if step == "missing":
            (folder / "suite.json").rename(tmp_path / "suite.broken.json")
        if step == "replaced":
            (tmp_path / "suite.broken.json").rename(folder / "suite.broken.json")
            (folder / "suite.json").write_text(replaced)
        write_report([folder])
        text = page_of(folder)
        assert "so its error rate is, too" in text
        assert (f"suite.json is {step}, so its question" in text) == (step == "missing")
        assert "the risk of even one wrong" not in text


@pytest.mark.parametrize(
    ("later", "looks", "more"),
    [([0, 1, 2], [], False), ([3, 4], [], True), ([3, 4], [[3, 5]], False)],
)
def test_seeds_are_compared_with_those_of_the_first_command(
    later: list[int], looks: list[list[int]], more: bool
) -> None:
    first = {"name": "mine", "seeds": [0, 1, 2], "looks": looks, "commands": [["clbench", "run"]]}
    command = ["clbench", "run", "--seeds", "0,1,2"]
    suite = merge_suites(merge_suites({}, first), {**first, "seeds": later, "commands": [command]})
    assert has_grown(suite) is more
    assert has_grown(merge_suites(suite, first)) is more


def test_seeds_added_without_looks_are_noted(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    suite = json.loads((folder / "suite.json").read_text())
    del suite["suite"]["more_seeds"]  # an earlier version did not write it
    for seeds, grown in ((["0-2", "0-2"], False), (["0-2", "0-4"], True)):
        commands = [["clbench", "run", "mine", "--seeds", value] for value in seeds]
        suite["suite"]["commands"] = commands
        (folder / "suite.json").write_text(json.dumps(suite))
        write_report([folder])
        assert ("Seeds were added to this run after it began" in page_of(folder)) is grown

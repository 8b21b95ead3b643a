"""What tests of reports share."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.report_runs import make_run

from clbench.report.files import write_report


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and its report, shared by tests that only read it."""
    folder = make_run(tmp_path_factory.mktemp("report") / "run")
    write_report([folder])
    return folder


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take most of the time of a report."""
    monkeypatch.setattr("clbench.report.files.draw_all", lambda figures, formats: [])

"""Folders for the campaign to spoil, and the table at its end."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.sandbox import command
from faults.spoil import RUN, is_campaign, make_folder
from faults.verdict import Judge, Templates, fresh


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    """A valid folder, and a copy with two equal runs."""
    folder = tmp_path_factory.mktemp("faults")
    templates = Templates(folder / "inputs", folder / "runs")
    make_folder(templates.inputs)
    fresh(templates.inputs, templates.runs)
    for out in ("out", "out2"):
        outcome = command([*RUN[:3], out, *RUN[4:]], templates.runs)
        assert outcome.code == 0, outcome
    return templates


@pytest.fixture
def judge(templates: Templates, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Judge]:
    thorough = is_campaign() or request.node.get_closest_marker("slow") is not None
    judge = Judge(templates, tmp_path / "case", thorough)
    yield judge
    request.node.user_properties.append(("tried", judge.tried))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print how many faults of each kind were tried, and how many tests of them failed."""
    if not is_campaign():
        return
    tried, lost = Counter[str](), Counter[str]()
    for reports in terminalreporter.stats.values():
        for report in (report for report in reports if isinstance(report, pytest.TestReport)):
            kind = report.location[2].partition("[")[0].removeprefix("test_").replace("_", " ")
            lost[kind] += report.failed
            if report.when == "teardown":
                tried[kind] += dict(report.user_properties).get("tried", 0)
    terminalreporter.section("faults")
    terminalreporter.write_line(f"{'tried':>7}{'lost':>7}  kind of fault")
    for kind in sorted(kind for kind in tried if tried[kind] or lost[kind]):
        terminalreporter.write_line(f"{tried[kind]:>7}{lost[kind]:>7}  {kind}")
    terminalreporter.write_line(f"{tried.total():>7}{lost.total():>7}  in all")

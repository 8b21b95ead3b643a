"""The runs behind the figures of the README and the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean

import pytest

from clbench.results.store import Store

ROOT = Path(__file__).parents[2]
RUNS = sorted(path for path in (ROOT / "results" / "reference").iterdir() if path.is_dir())


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: path.name)
def test_reference_runs_hold_only_cells_without_machine_paths(folder: Path) -> None:
    content = Store(folder).read()
    assert not content.broken
    assert content.cells
    assert all(cell.status == "ok" for cell in content.cells)
    assert Store(folder).read_suite()["name"]
    ignored = {folder / "scores.csv"}  # `clbench report` writes it; git ignores it
    for path in folder.rglob("*"):
        if path.is_file() and path not in ignored and folder / "report" not in path.parents:
            assert path.suffix == ".json"
            text = path.read_text(encoding="utf-8")
            assert len(text) < 200_000
            assert not re.search(r'"/[a-z]+/', text), path


def test_the_documentation_states_the_scores_of_recadam() -> None:
    cells = Store(ROOT / "results" / "reference" / "recadam-glue-minilm").read().cells
    text = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    for scenario, label in (("mrpc", "MRPC"), ("rte", "RTE")):
        row = [f"| {label} "]
        for method in ("vanilla", "recadam-ri", "recadam-pi"):
            some = [c for c in cells if (c.scenario, c.baseline) == (scenario, method)]
            means = [fmean(float(c.scores[name] or 0) for c in some) for name in ("p_o", "p_s")]
            row.append(" / ".join(f"{mean:.3f}".lstrip("0") for mean in means))
        assert row[0] + "| " + " | ".join(row[1:]) + " |" in text


def test_the_readme_states_the_scores_of_the_reference_run() -> None:
    cells = Store(ROOT / "results" / "reference" / "sst2-mrpc-minilm").read().cells
    mean = {
        (name, score): fmean(float(c.scores[score] or 0) for c in cells if c.baseline == name)
        for name in ("vanilla", "ewc", "bertcl-combined")
        for score in ("p_o_before", "p_o", "p_s", "forgetting")
    }
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    first = f"{mean['vanilla', 'p_o_before']:.3f} to {mean['vanilla', 'p_o']:.3f}"
    assert f"lost {mean['vanilla', 'forgetting']:.3f}".replace("0.", ".") in text
    assert first.replace("0.", ".") in text
    assert round(mean["ewc", "p_o"] - mean["vanilla", "p_o"], 2) == 0.07
    assert round(mean["vanilla", "p_s"] - mean["bertcl-combined", "p_s"], 2) == 0.1
    assert len({cell.seed for cell in cells}) == 3

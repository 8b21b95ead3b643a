"""The page of an audit fits its window, from a phone to a desk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.report_browser import BROWSER, run_script

from clbench.audit.comparison import compare
from clbench.audit.page import write_audit
from clbench.audit.result import Audit, ModelAudit, PutBack
from clbench.audit.scores import SEPARATOR, ItemScores, Part, keys_of
from clbench.audit.weights import Drift
from clbench.results.statistics import ALPHA

LONG = "our-department/support-tickets-by-urgency-and-language-2026-09-fine-grained"
MEASURES: tuple[tuple[str, Part, str, int | None], ...] = (
    ("mmlu", "knowledge", "accuracy", 4),
    (LONG, "behaviour", "accuracy", 12),
    ("ifeval", "instructions", "loose accuracy", None),
    ("ranked answers", "calibration", "Brier score", None),
    ("language", "language", "loss", None),
)
SAID = "She sells 16 - 3 - 4 = 9 eggs a day. #### 18 " * 5 + "https://" + "x" * 120


def write_page(folder: Path, alpha: float = ALPHA) -> Path:
    """Write the page of an audit with every part, long names and long answers."""
    rng = np.random.default_rng(0)
    base, tuned = [], []
    for task, part, metric, k in MEASURES:
        first = (rng.random(500) < 0.6).astype(float)
        second = np.where(rng.random(500) < 0.2, 1 - first, first)
        if part in ("language", "calibration"):
            first, second = -first - rng.random(500), -second - rng.random(500)
        keys, chance = keys_of(map(str, range(500))), None if k is None else 1 / k
        for side, values in ((base, first), (tuned, second)):
            scores = ItemScores(task, part, values, keys, metric, chance, k, metric[:5] != "loose")
            if k is not None:
                texts, answers = (f"{SAID}{SEPARATOR}{SAID}",) * 500, ("18",) * 500
                scores = replace(scores, texts=texts, answers=answers, said=(SAID,) * 500)
            side.append(scores)
    comparison = compare(base, tuned, 0.02, alpha=alpha)
    layers = tuple(Drift(f"layer.{i}", 0.1, 0.9) for i in range(3))
    restored = tuple(PutBack(f"layer.{i}", 0.1, 0.2) for i in range(3))
    model = ModelAudit(f"{LONG}-tuned", comparison, layers, restored)
    settings = {"corpus": "built-in", "rows": 500, "margin": 0.02, "alpha": alpha}
    return write_audit(Audit(LONG, (model,), (), settings), folder)


@pytest.mark.parametrize(("alpha", "level"), [(ALPHA, "95"), (0.003, "99.7")])
def test_the_level_of_exploratory_metrics_is_that_of_the_look(
    tmp_path: Path, alpha: float, level: str
) -> None:
    text = write_page(tmp_path / "audit", alpha).read_text()
    assert f"Exploratory metrics are each judged alone, at {level} %." in text


def test_the_figure_of_layers_says_whose_accuracy_it_shows(tmp_path: Path) -> None:
    page = write_page(tmp_path / "audit").read_text()  # of general tasks alone
    assert "change of the mean accuracy on general tasks if this group alone" in page


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [1200, 800, 500])  # Chromium's windows are no narrower
def test_nothing_on_the_page_is_wider_than_the_window(tmp_path: Path, width: int) -> None:
    page = write_page(tmp_path / "audit")
    script = """
    document.querySelectorAll('details').forEach(each => each.open = true);
    const boxes = [document.documentElement, ...document.querySelectorAll('.scroll, table, td')];
    const head = document.querySelector('.cards thead');
    return [innerWidth, Math.max(...boxes.map(box => box.getBoundingClientRect().right)),
            boxes.map(box => box.scrollWidth - box.clientWidth), getComputedStyle(head).display];
    """
    inner, right, hidden, head = run_script(page, script, tmp_path / "profile", width)[0]
    assert inner == width
    assert right <= width
    assert hidden == [0] * len(hidden)
    assert head == ("table-header-group" if width == 1200 else "none")

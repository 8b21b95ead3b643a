"""What the studies would say if their curves bent as much as their settings allow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clbench.results.matched import read_curve
from tools import equal_learning, findings_decoder, findings_facts, findings_glue, findings_grpo
from tools.equal_learning import changed_verdicts, read_extended

DOCS = Path(__file__).parents[2] / "docs"
WORSE = ("no difference shown", "worse")


@pytest.mark.parametrize("level", [0.1, 0.35, 0.8])
def test_a_curve_that_bends_one_way_lies_between_both_readings(level: float) -> None:
    x = np.array([0.05, 0.2, 0.5, 0.9])
    for sign, curve in ((1, lambda x: x**3), (-1, lambda x: 1 - (1 - x) ** 3)):
        points = np.stack([x, curve(x)], -1)[None].repeat(3, axis=0)
        (straight, *_), _ = read_curve(points, level)
        (extended, *_), _ = read_extended(points, level)
        assert sign * extended < sign * curve(level) < sign * straight


def test_the_line_is_the_nearer_of_both_neighbours() -> None:
    x = np.array([0.0, 1.0, 2.0, 3.0])
    points = np.stack([x, np.array([0.0, 0.0, 1.0, 4.0])], -1)[None]
    assert read_extended(points, 1.5)[0] == pytest.approx([0.0])  # by the right one -.5
    assert read_extended(points, 1.9)[0] == pytest.approx([0.7])  # by the left one 0


def test_no_verdict_at_equal_learning_needs_straight_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    glue, grpo = findings_glue, findings_grpo
    decoder, facts = findings_decoder.on_curve(), findings_facts.on_curve()
    studies = {study: grpo.on_curve(study) for study in (grpo.SELDOM, grpo.OFTEN)}
    verdict = glue.primary().verdict
    monkeypatch.setattr(equal_learning, "read_curve", read_extended)
    extended = findings_decoder.on_curve.__wrapped__()
    assert changed_verdicts(decoder, extended) == {("p_o", "ewc-strong"): WORSE}
    extended = findings_facts.on_curve.__wrapped__()
    assert changed_verdicts(facts, extended) == {"dft": WORSE, "asft": WORSE}
    assert glue.primary.__wrapped__().verdict == verdict
    for study, before in studies.items():
        assert changed_verdicts(before, grpo.on_curve.__wrapped__(study)) == {}
    text = " ".join((DOCS / "findings-decoders.md").read_text(encoding="utf-8").split())
    assert "no verdict is lost, and `ewc-strong` is shown to keep less" in text
    text = " ".join((DOCS / "findings-facts.md").read_text(encoding="utf-8").split())
    assert "no verdict is lost, and `dft` and `asft` are shown to be behind" in text

"""Capability cards: what each method gained, and what the base model lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.report_runs import cell, make_run
from scipy import stats

from clbench.report.content import cards_frame, gather
from clbench.report.files import write_report

BEFORE = {"text_loss": 3.0, "zero_shot": 0.5, "divergence": 0.0, "same_token": 1.0, "average": 0.25}


def measured(seed: int, loss: float, **more: Any) -> Any:
    after = {"text_loss": loss, "zero_shot": 0.4, "divergence": 0.25, "same_token": 0.75}
    stages = [BEFORE | {"obedience": 0.1}, BEFORE, {**after, "obedience": 0.9}]
    return cell("one", "vanilla", seed, 0.6, capabilities=stages, **more)


def test_a_card_compares_the_last_stage_with_the_base_model() -> None:
    losses = [3.2, 3.5, 3.3]
    frame = cards_frame([measured(seed, loss) for seed, loss in enumerate(losses)])
    rows = {row["score"]: row for row in frame.to_dict("records")}
    assert rows["text_loss_added"]["mean"] == pytest.approx(1 / 3)
    low, high = stats.t.interval(0.95, 2, 1 / 3, stats.sem(losses))
    assert (rows["text_loss_added"]["low"], rows["text_loss_added"]["high"]) == pytest.approx(
        (low, high)
    )
    for name, value in (
        ("gained", 0.45),
        ("zero_shot_lost", 0.1),
        ("divergence", 0.25),
        ("obedience", 0.9),
    ):
        assert rows[name]["mean"] == pytest.approx(value)
    (card,) = gather([measured(seed, loss) for seed, loss in enumerate(losses)]).cards()
    assert card["seeds"] == 3
    assert card["scores"]["same_token"]["mean"] == 0.75


def test_equal_accuracies_on_three_seeds_are_not_certain() -> None:
    """The step is 1 / 20 of zero-shot accuracy, and half of 1 / 10 of the mean of two tasks."""
    more = {
        "scenario_report": {"parts": [{"validation": 50}, {"validation": 10}]},
        "settings": {"protocol": {"capability_rows": 20}},
    }
    frame = cards_frame([measured(seed, 3.2, **more) for seed in range(3)])
    rows = {row["score"]: row for row in frame.to_dict("records")}
    half = stats.t.ppf(0.975, 2) * 0.05 / 3**0.5
    for name in ("zero_shot_lost", "gained"):
        mean, low, high = (rows[name][field] for field in ("mean", "low", "high"))
        assert (low, high) == pytest.approx((mean - half, mean + half))
    assert rows["divergence"]["low"] == rows["divergence"]["high"]  # it has no step


def test_cells_without_measures_have_no_card() -> None:
    assert cards_frame([cell("one", "vanilla", 0, 0.6)]).empty
    (card,) = gather([measured(0, 3.2)]).cards()
    score = card["scores"]["text_loss_added"]
    assert (score["mean"], score["low"]) == (pytest.approx(0.2), None)


def test_a_card_shows_what_was_lost_on_each_task_that_no_scenario_trains() -> None:
    more = {"zero_shot: copa": 0.75, "zero_shot: ifeval": 0.25}
    end = {"zero_shot: copa": 0.5, "zero_shot: ifeval": 0.375}
    stages = [BEFORE | more, BEFORE | more, BEFORE | end]
    content = gather([cell("one", "vanilla", 0, 0.6, capabilities=stages)])
    assert content.card_tasks() == {"zero_shot: copa": "copa", "zero_shot: ifeval": "ifeval"}
    scores = content.cards()[0]["scores"]
    assert scores["zero_shot: copa"]["mean"] == 0.25
    assert scores["zero_shot: ifeval"]["mean"] == -0.125
    alone = [stage | {"zero_shot: continuation": 0.5} for stage in (BEFORE, BEFORE, BEFORE)]
    assert not gather([cell("one", "vanilla", 0, 0.6, capabilities=alone)]).card_tasks()


@pytest.mark.slow
def test_the_page_shows_cards(tmp_path: Path) -> None:
    stages = [BEFORE, BEFORE, {**BEFORE, "text_loss": 3.456}]
    stages = [stage | {"zero_shot: copa": 0.5, "zero_shot: mmlu": 0.5} for stage in stages]
    write_report([make_run(tmp_path / "run", capabilities=stages)], tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "Capability cards" in page
    assert "0.456" in page
    assert ">lost: copa</th>" in page
    assert (tmp_path / "report" / "tables" / "cards.csv").exists()

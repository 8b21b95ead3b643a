"""How many rows of the first task bring its score back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.language_models import cell, run

from clbench.measure import relearning
from clbench.results.scores import scores_of
from clbench.runner import cell_runner
from clbench.training.engine import train_stage

SHORT = {"epochs = 10": "epochs = 4"}
ASKED = {**SHORT, "curve_rows = 10": "curve_rows = 10\nrelearn_rows = 20"}


def test_rows_are_counted_until_the_score_is_back_and_no_other_number_moves(folder: Path) -> None:
    plain = cell(run(folder, "no-relearning", changes=SHORT))
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    changes = {**ASKED, "relearn_rows = 20": "relearn_rows = 20\nrelearn_margin = 0.1"}
    result = run(folder, "relearning", changes=changes)
    assert torch.equal(torch.random.get_rng_state(), state)
    again = cell(result)
    assert again.R == plain.R
    assert again.notes == plain.notes
    assert plain.relearning == {}
    found = again.relearning
    before = again.R[0][0] - 0.1
    assert found["rows"] == [0, 8, 16, 20][: len(found["rows"])]
    assert found["scores"][0] == again.R[-1][0]  # nothing is trained yet
    # A stage of the protocol: four passes, in batches of 8.
    assert found["steps"] == [0, 4, 8, 12][: len(found["rows"])]
    assert all(score < before for score in found["scores"][:-1])
    assert found["recovered"] is (found["scores"][-1] >= before)
    assert found["recovered"] or found["rows"][-1] == 20
    rows = found["rows"][-1] * (1 if found["recovered"] else 2)
    assert result.frame["relearned_rows"][0] == rows


def test_rate_and_steps_are_its_own(folder: Path) -> None:
    own = "relearn_rows = 20\nrelearn_margin = 0.0\nrelearn_rate = 1e-9\nrelearn_steps = 2"
    found = cell(run(folder, "slow", changes={**ASKED, "relearn_rows = 20": own}))
    assert found.relearning["steps"] == [0, 2, 2, 2][: len(found.relearning["steps"])]
    assert set(found.relearning["scores"]) == {found.R[-1][0]}  # too slow to change anything
    assert found.R == cell(run(folder, "slow-plain", changes=SHORT)).R


def test_at_a_margin_of_minus_1_all_numbers_of_rows_are_tried(folder: Path) -> None:
    own = "relearn_rows = 20\nrelearn_margin = -1.0\nrelearn_steps = 1"
    found = cell(run(folder, "all", changes={**ASKED, "relearn_rows = 20": own}))
    rows, scores = found.relearning["rows"], found.relearning["scores"]
    assert rows == [0, 8, 16, 20]
    needed = [n for n, s in zip(rows, scores, strict=True) if s >= found.R[0][0]]
    assert found.relearning["recovered"] is bool(needed)
    assert found.relearning.get("needed") == (needed[0] if needed else None)


def test_frozen_weights_are_trained_and_put_back(folder: Path) -> None:
    changes = {**ASKED, 'methods = ["vanilla"]': 'methods = ["lora"]',
               "relearn_rows = 20": "relearn_rows = 20\nrelearn_margin = 0.0"}  # fmt: skip
    plain = {**SHORT, 'methods = ["vanilla"]': 'methods = ["lora"]'}
    found = cell(run(folder, "lora", changes=changes))
    assert found.R == cell(run(folder, "lora-plain", changes=plain)).R
    assert found.relearning["scores"][0] == found.R[-1][0]


def test_every_weight_is_trained_and_put_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, put_back = [], []

    def watched(scenario: Any, method: Any, context: Any, *others: Any) -> dict[str, Any]:
        model = context.model
        flags = [weight.requires_grad for weight in model.parameters()]
        start = {name: value.clone() for name, value in model.state_dict().items()}

        def training(stage: Any, method: Any) -> Any:
            before = [weight.clone() for weight in model.parameters()]
            record = train_stage(stage, method)
            both = zip(model.parameters(), before, strict=True)
            trained.append([not torch.equal(now, then) for now, then in both])
            return record

        monkeypatch.setattr(relearning, "train_stage", training)
        found = relearning.relearn(scenario, method, context, *others)
        assert not all(flags)
        assert flags == [weight.requires_grad for weight in model.parameters()]
        same = (torch.equal(value, start[name]) for name, value in model.state_dict().items())
        put_back.append(all(same))
        return found

    monkeypatch.setattr(cell_runner, "relearn", watched)
    changes = {**ASKED, 'methods = ["vanilla"]': 'methods = ["lora"]',
               "relearn_rows = 20": "relearn_rows = 20\nrelearn_margin = -1.0"}  # fmt: skip
    cell(run(folder, "watched", changes=changes))
    assert put_back == [True]
    assert all(map(any, trained))
    assert sum(map(sum, trained)) > len(trained) * len(trained[0]) / 2  # not the adapter alone


def test_the_fewest_rows_count_where_all_numbers_are_tried() -> None:
    found = {"rows": [0, 8, 16, 20], "scores": [0.5, 0.8, 0.7, 0.9], "recovered": True}
    scores = scores_of([[0.8, None], [0.5, 0.9]], relearning={**found, "needed": 8})
    assert scores["relearned_rows"] == 8.0


@pytest.mark.parametrize(("recovered", "rows"), [(True, 16.0), (False, 32.0)])
def test_what_does_not_come_back_counts_twice_the_rows_tried(recovered: bool, rows: float) -> None:
    found = {"rows": [0, 8, 16], "steps": [0, 1, 2], "scores": [0.5, 0.5, 0.8]}
    scores = scores_of([[0.8, None], [0.5, 0.9]], relearning={**found, "recovered": recovered})
    assert scores["relearned_rows"] == rows

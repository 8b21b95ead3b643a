from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from helpers.handmade import failed, pair, reference, stage
from pydantic import ValidationError

from clbench.core.files import plain
from clbench.results.cell import CellResult, StageRecord, summarizer


def test_a_cell_is_read_back_as_it_was_written() -> None:
    settings = {"protocol": {"epochs": 3, "lr": 1}, "precision": "bf16"}
    cell = pair(notes=["short"], scenario_report={"sizes": [3, 4]}, settings=settings)
    assert CellResult.model_validate(json.loads(cell.to_json())) == cell
    assert list(cell.settings["protocol"]) == ["epochs", "lr"]


def test_nan_and_infinity_become_null() -> None:
    first = StageRecord(
        task="a",
        rows=4,
        steps=2,
        epochs=1.0,
        examples=4,
        tokens=40,
        train_seconds=0.5,
        curves=plain({"step": [1, 2], "loss": [1.0, math.nan], "scores": {"a": [[1, math.inf]]}}),
    )
    cell = pair(
        stages=[first, first],
        R=[[0.9, math.nan], [0.8, 0.7]],
        metrics=[[{"f1": math.nan}, None], [None, None]],
        scenario_report={"severity": -math.inf},
        peak_memory_mb=math.inf,
    )

    def refuse(word: str) -> None:
        raise AssertionError(word)

    read = json.loads(cell.to_json(), parse_constant=refuse)
    assert read["stages"][0]["curves"]["loss"] == [1.0, None]
    assert read["stages"][0]["curves"]["scores"] == {"a": [[1, None]]}
    assert read["metrics"][0] == [{"f1": None}, None]
    assert read["R"] == [[0.9, None], [0.8, 0.7]]
    assert read["scenario_report"] == {"severity": None}
    assert read["peak_memory_mb"] is None


def test_numpy_values_become_plain_ones() -> None:
    converted = plain({"a": np.float32(0.5), "b": np.arange(3), "c": (np.int64(1), True), 4: None})
    assert converted == {"a": 0.5, "b": [0, 1, 2], "c": [1, True], "4": None}
    assert type(converted["a"]) is float
    assert converted["c"][1] is True


def test_a_time_that_is_not_a_number_is_rejected() -> None:
    with pytest.raises(ValidationError, match="train_seconds"):
        pair(train_seconds=math.nan)


def test_unknown_fields_are_rejected() -> None:
    with pytest.raises(ValidationError, match="p_0"):
        pair(p_0=1)


def test_summarizer_drops_curves_and_shares_settings() -> None:
    scores = {"glue/sst2": [[0, 0.5], [4, 0.7]]}
    stages = [stage("a", curves={"k": [[0, 1.0]], "scores": scores})] * 2
    cells = [pair(seed=seed, stages=stages, settings={"protocol": {"lr": 1.0}}) for seed in (0, 1)]
    summarize = summarizer(lambda cell: cell.seed == 1)
    first, second = map(summarize, cells)
    assert (first.recipe, first.stages[0].curves) == ({}, {})
    assert second.stages[0].curves == {"k": [[0, 1.0]], "scores": scores}
    assert first.scores["area"] == pytest.approx(0.6)
    assert first.settings is second.settings
    assert first.R == cells[0].R


HUGE = 1e308
BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"stages": []}, "R, stages and tasks do not fit: 2 rows, 0 stages, 2 tasks"),
    ({"tasks": ["a"]}, "R, stages and tasks do not fit: 2 rows, 2 stages, 1 task"),
    ({"tasks": []}, "R, stages and tasks do not fit"),
    ({"R": []}, "a score matrix must be square"),
    ({"R": [[0.9], [0.8, 0.7]]}, "a score matrix must be square"),
    ({"R": [[None, None], [0.8, 0.7]]}, "a score matrix must be square"),
    ({"R": [[0.9, HUGE], [0.8, 0.7]]}, "R.0.1"),
    ({"R": [[0.9, "0.5"], [0.8, 0.7]]}, "R.0.1"),
    ({"scores": {}}, "scores: must hold what R gives"),
    ({"scores": {"p_o": 0.7}}, "scores.p_o: is 0.7, but R gives 0.8"),
    ({"scores": {"p_o": None}}, "scores.p_o: is None, but R gives 0.8"),
    ({"scores": {"p_o": HUGE}}, "scores.p_o"),
    ({"train_seconds": HUGE}, "train_seconds"),
    ({"train_seconds": -1.0}, "train_seconds"),
    ({"peak_memory_mb": -1.0}, "peak_memory_mb"),
    ({"stages": [stage(rows=-1), stage()]}, "stages.0.rows"),
    ({"stages": [stage(train_seconds=HUGE), stage()]}, "stages.0.train_seconds"),
    ({"stages": [stage(curves={"scores": {"a": [1]}}), stage()]}, "stages.0.curves.scores.a.0"),
    ({"stages": [stage(curves={"step": [[1, 2]]}), stage()]}, "stages.0.curves.step.0"),
    ({"stages": [stage(curves={"k": 1}), stage()]}, "stages.0.curves.k"),
    ({"stages": [stage(curves={"k": [[1]]}), stage()]}, "stages.0.curves.k.0"),
    ({"metrics": [[]]}, "metrics: must fit R and its stages"),
    ({"metrics": [[None], [None, None]]}, "metrics: must fit R and its stages"),
    ({"correct": [[None], [None, None]]}, "correct: must fit R and its stages"),
    ({"correct": [["x", None], [None, None]]}, "correct.0.0"),
    ({"correct": [["8:A", None], [None, None]]}, "correct.0.0\n  Value error, must hold a bit for"),
    ({"correct": [["9:AA==", None], [None, None]]}, "correct.0.0\n  Value error, must hold a bit"),
    ({"floors": [0.5]}, "floors: must fit R and its stages"),
    ({"untrained": [0.5]}, "untrained: must fit R and its stages"),
    ({"seed": -1}, "seed"),
    ({"seed": 2**32}, "seed"),
    ({"seed": True}, "seed"),
    ({"schema_version": True}, "schema_version"),
    ({"schema_version": 1.0}, "schema_version"),
    ({"settings": {"protocol": []}}, "settings.protocol"),
    ({"settings": {"method": "x"}}, "settings.method"),
    ({"settings": {"protocol": {"capability_rows": "x"}}}, "settings.protocol.capability_rows"),
    ({"settings": {"protocol": {"head_loss": []}}}, "settings.protocol.head_loss"),
    ({"settings": {"protocol": {"lr": None}}}, "settings.protocol.lr"),
    ({"scenario_report": {"parts": 5}}, "scenario_report.parts"),
    ({"scenario_report": {"parts": [5]}}, "scenario_report.parts.0"),
    ({"scenario_report": {"parts": [{"validation": "x"}]}}, "scenario_report.parts.0.validation"),
    ({"search": {"trials": 3}}, "search\n  Value error, lacks epochs, seconds"),
    ({"relearning": {"rows": [], "recovered": True}}, "relearning.rows"),
    ({"relearning": {"rows": [8]}}, "relearning\n  Value error, lacks recovered"),
    ({"reference_of": 1}, "R, stages and tasks do not fit"),
    ({"status": "failed"}, "R, stages and tasks do not fit"),
]


@pytest.mark.parametrize(("changes", "message"), BROKEN)
def test_the_schema_refuses_what_no_run_writes(changes: dict[str, Any], message: str) -> None:
    text = json.dumps({**pair().model_dump(), **changes})
    with pytest.raises(ValidationError, match=re.escape(message)):
        CellResult.model_validate_json(text)


def test_a_reference_names_the_tasks_of_its_scores() -> None:
    text = json.dumps({**reference(1, 0.75).model_dump(), "tasks": []})
    with pytest.raises(ValidationError, match="R, stages and tasks do not fit"):
        CellResult.model_validate_json(text)


def test_cells_of_other_versions_and_rounded_scores_are_read() -> None:
    assert pair(scores={"p_o": 0.8}).scores == {"p_o": 0.8}  # before the other scores were added
    assert pair(scores={"p_o": 0.8, "new": 3.0}).scores["new"] == 3.0
    assert pair(scores={"p_o": 0.8 + 1e-9})
    assert pair(stages=[stage()], train_seconds=1.0).R  # the pretraining has a row and no stage
    assert reference(1, 0.75).R == [[0.75]]
    assert failed(tasks=[]).status == "failed"


def test_texts_of_a_cell_are_printable_and_cut() -> None:
    cell = failed(reason="a\x1b[2J\nb" + 9000 * "x", notes=["\u202eevil"], tasks=["t\x07"])
    assert cell.reason is not None
    assert cell.reason.startswith("a\\x1b[2J bxx")
    assert len(cell.reason) == 2000
    assert (cell.notes, cell.tasks) == (["\\u202eevil"], ["t\\x07"])
    assert len(failed(tasks=["t" * 100_000]).tasks[0]) == 200


def test_points_leave_out_what_is_not_finite() -> None:
    curves = {"step": [1, 2, 3], "loss": [0.5, None], "k": [[1, None], [2, 3.0]]}
    record = StageRecord(**stage(curves={**curves, "scores": {"a": [[0, 0.5]]}}))
    assert record.points("loss") == [(1, 0.5)]
    assert record.points("k") == [(2, 3.0)]
    assert record.points("scores", "a") == [(0, 0.5)]
    assert record.points("lr") == record.points("scores", "b") == []

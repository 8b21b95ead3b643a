from __future__ import annotations

import json
import math

import numpy as np
import pytest
from handmade import pair, stage
from pydantic import ValidationError

from clbench.results.cell import CellResult, StageRecord, plain, summarizer


def test_a_cell_is_read_back_as_it_was_written() -> None:
    cell = pair(notes=["short"], scenario_report={"sizes": [3, 4]})
    assert CellResult.model_validate(json.loads(cell.to_json())) == cell


def test_nan_and_infinity_become_null() -> None:
    first = StageRecord(
        task="a",
        rows=4,
        steps=2,
        epochs=1.0,
        examples=4,
        tokens=40,
        train_seconds=0.5,
        curves={"loss": [1.0, math.nan], "scores": {"a": [[1, math.inf]]}},
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
    assert read["stages"][0]["curves"] == {"loss": [1.0, None], "scores": {"a": [[1, None]]}}
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
    stages = [stage("a", curves={"k": [[0, 1.0]]})] * 2
    cells = [pair(seed=seed, stages=stages, settings={"protocol": {"lr": 1.0}}) for seed in (0, 1)]
    summarize = summarizer(lambda cell: cell.seed == 1)
    first, second = map(summarize, cells)
    assert (first.recipe, first.stages[0].curves) == ({}, {})
    assert second.stages[0].curves == {"k": [[0, 1.0]]}
    assert first.settings is second.settings
    assert first.R == cells[0].R

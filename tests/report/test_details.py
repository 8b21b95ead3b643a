from __future__ import annotations

from clbench.report.content import sparklines
from clbench.results.cell import StageRecord, plain


def stage(**curves: object) -> StageRecord:
    return StageRecord(
        task="b", rows=1, steps=4, epochs=1.0, examples=1, tokens=1, train_seconds=1.0,
        curves=plain(curves),
    )  # fmt: skip


def test_lines_hold_the_curves_of_a_stage() -> None:
    lines = sparklines(
        stage(
            step=[2, 4], loss=[0.5, 0.25], lr=[1e-5, 0.0],
            scores={"a": [[0, 0.9], [2, 0.6], [4, 0.7]]},
            distance=[[0, 0.0], [4, 2.0]], k=[[0, 0.1]],
        )
    )  # fmt: skip
    by_name = {line.name: (line.points, line.text) for line in lines}
    assert list(by_name) == ["score on a", "training loss", "learning rate", "distance", "k"]
    assert by_name["score on a"] == (
        "2,2 80,30 158,20.7",
        "0.9 at step 0, 0.7 at step 4; from 0.6 to 0.9",
    )
    assert by_name["training loss"] == ("2,2 158,30", "0.5 at step 2, 0.25 at step 4")
    assert by_name["distance"][0] == "2,30 158,2"
    assert by_name["k"] == ("", "0.1 at step 0")


def test_curves_without_points_are_left_out() -> None:
    assert (
        sparklines(stage(gone=[[0, float("nan")]], step=[1], loss=[None], scores={"a": []})) == []
    )
    (flat,) = sparklines(stage(same=[[0, 1.0], [4, 1.0]]))
    assert flat.points == "2,16 158,16"

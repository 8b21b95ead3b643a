"""Figures drawn in processes of their own, and the small lines of the details."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from clbench.report.curves import lines
from clbench.report.drawing import MOST_PIXELS, PAGE, draw, draw_all
from clbench.results.cell import StageRecord


def figure(height: float = 3.0) -> Figure:
    made = Figure(figsize=(4, height), layout="constrained")
    made.subplots().plot([1, 2, 1.5], label="a line")
    made.set_label("a caption")
    return made


def test_all_are_drawn_in_their_order() -> None:
    names = [f"figure {i}" for i in range(5)]
    found = list(draw_all(((name, "title", figure()) for name in names), ["png"]))
    assert [name for name, *_ in found] == names
    assert {caption for _, _, caption, _ in found} == {"a caption"}
    assert all(set(files) == {"page", "png"} for *_, files in found)


UNGUARDED = """
import os
import sys
from matplotlib.figure import Figure
from clbench.report.drawing import draw_all

figures = []
for i in range(3):
    figure = Figure(figsize=(2, 2), layout="constrained")
    figure.subplots().plot([i, 1])
    figures.append((str(i), "title", figure))
for name, *_, files in draw_all(iter(figures), ["png"]):
    open(f"{sys.argv[1]}/{name}.png", "wb").write(files["png"])
print("main module", __name__)
"""


def test_a_script_without_a_guard_draws_in_processes_what_is_drawn_here(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    pictures = {}
    for processors in ("1", "2"):
        folder = tmp_path / processors
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, str(script), str(folder)], capture_output=True, text=True,
            env={"LOKY_MAX_CPU_COUNT": processors, "PATH": ""}, check=True, timeout=120,
        )  # fmt: skip
        assert done.stdout == "main module __main__\n"
        assert done.stderr == ""
        pictures[processors] = [path.read_bytes() for path in sorted(folder.iterdir())]
    assert len(pictures["1"]) == 3
    assert pictures["1"] == pictures["2"]


@pytest.mark.parametrize(("height", "dots"), [(3.0, 200), (100.0, 122), (200.0, PAGE)])
def test_tall_figures_get_fewer_dots(tmp_path: Path, height: float, dots: int) -> None:
    target = tmp_path / "figure.png"
    target.write_bytes(draw(figure(height), ["png"])["png"])
    rows, columns = imread(target).shape[:2]
    assert columns == 4 * dots
    assert rows == pytest.approx(height * dots, abs=1)
    assert rows * columns <= MOST_PIXELS or dots == PAGE


def stage(**curves: object) -> StageRecord:
    return StageRecord(
        task="b", rows=1, steps=4, epochs=1.0, examples=1, tokens=1, train_seconds=1.0,
        curves=curves,
    )  # fmt: skip


def test_small_lines_hold_the_curves() -> None:
    found = lines(
        stage(
            step=[2, 4], loss=[0.5, 0.25], lr=[1e-5, 0.0],
            scores={"a": [[0, 0.9], [2, 0.6], [4, 0.7]]},
            distance=[[0, 0.0], [4, 2.0]], k=[[0, 0.1]],
        )
    )  # fmt: skip
    said = {line.name: (line.points, line.words) for line in found}
    assert list(said) == ["score on a", "training loss", "learning rate", "distance", "k"]
    assert said["score on a"] == (
        "2,2 80,30 158,20.7",
        "0.9 at step 0, 0.7 at step 4; from 0.6 to 0.9",
    )
    assert said["training loss"] == ("2,2 158,30", "0.5 at step 2, 0.25 at step 4")
    assert said["distance"][0] == "2,30 158,2"
    assert said["k"] == ("", "0.1 at step 0")


def test_what_holds_no_points_is_left_out() -> None:
    assert lines(stage(words=["a", "b"], none=None, gone=[[0, float("nan")]], step=[1])) == []
    (flat,) = lines(stage(same=[[0, 1.0], [4, 1.0]]))
    assert flat.points == "2,16 158,16"

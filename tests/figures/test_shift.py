"""What a shift did to the rows, as pictures."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from clbench import figures
from clbench.core.errors import ArgumentError
from clbench.figures.style import ReportData

LENGTHS = {
    "kind": "lengths",
    "task": "t",
    "unit": "tokens",
    "counts": {
        "train": {"short": [[3, 10], [4, 6]], "long": [[4, 2], [9, 14]]},
        "validation": {"short": [[3, 1]], "long": [[8, 2]]},
    },
}


def clusters(labels: list[Any]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    parts = [0] * 20 + [1] * 20
    points = rng.normal(size=(40, 5)) + 8.0 * np.array(parts)[:, None]
    return {
        "kind": "clusters", "task": "t", "rows": 400, "parts": parts, "labels": labels,
        "points": points.tolist(),
    }  # fmt: skip


def picture(content: dict[str, Any]) -> Figure:
    return figures.shift(ReportData((), {"s": content}))


def run_with(folder: Path, **pictures: Any) -> Path:
    (folder / "scenarios").mkdir()
    for name, content in pictures.items():
        (folder / "scenarios" / f"{name}.picture.json").write_text(json.dumps(content))
    return folder


def test_lengths_by_part() -> None:
    figure = picture(LENGTHS)
    train, validation = figure.axes
    assert sum(bar.get_height() for bar in train.patches) == 32
    assert sum(bar.get_height() for bar in validation.patches) == 3
    assert train.get_xlabel() == "tokens in a row"
    assert "16 short training, 16 long training, 1 short validation" in figure.get_label()
    figure.savefig(io.BytesIO())


def test_every_bin_holds_as_many_lengths() -> None:
    rows = {"short": [[length, 1] for length in range(1, 54)]}
    figure = picture({**LENGTHS, "counts": {"train": rows, "validation": rows}})
    assert {bar.get_height() for bar in figure.axes[0].patches[1:-1]} == {2}


def test_clusters_lie_apart_in_two_dimensions() -> None:
    figure = picture(clusters(["yes", "no"] * 20))
    by_cluster, by_label = figure.axes
    first, second = (np.array(line.get_data()) for line in by_cluster.get_lines())
    assert first.shape == second.shape == (2, 20)
    apart = np.linalg.norm(first.mean(1) - second.mean(1))
    assert apart > first.std(1).max() + second.std(1).max()
    assert [text.get_text() for text in by_label.get_legend().get_texts()] == ["no", "yes"]
    assert "embeddings of 40 of 400 training rows of t" in figure.get_label()
    again = picture(clusters(["yes", "no"] * 20)).axes[0].get_lines()[0].get_data()
    np.testing.assert_array_equal(first, again)
    figure.savefig(io.BytesIO())


def test_numeric_targets_are_coloured_in_thirds() -> None:
    figure = picture(clusters([i / 10 for i in range(40)]))
    names = [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    assert names == ["1.3 to 2.6", "above 2.6", "up to 1.3"]


def test_errors_name_the_scenarios_with_data(tmp_path: Path) -> None:
    folder = run_with(tmp_path, one=LENGTHS, two=LENGTHS)
    with pytest.raises(ValueError, match="choose one of the scenarios one, two"):
        figures.shift(folder)
    with pytest.raises(ValueError, match="scenario 'three' has no data for this figure"):
        figures.shift(folder, "three")
    assert figures.shift(folder, "two").get_label().startswith("two: ")
    with pytest.raises(ValueError, match=r"no scenario has data .* scenarios/NAME\.picture\.json"):
        figures.shift(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="no figure for 'maps'"):
        picture({"kind": "maps"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**LENGTHS, "counts": {"train": {}, "validation": {}}}, "are damaged"),
        ({**LENGTHS, "counts": {"train": {"a": [[math.inf, 1]]}}}, "are damaged"),
        ({**clusters(["a", "b"]), "points": [[1.0, 2.0], [3.0]]}, "are damaged"),
        ({**clusters(["a"] * 4), "points": [[1.0, 2.0]] * 4}, "all embeddings are equal"),
    ],
    ids=["no lengths", "infinite", "ragged", "equal"],
)
def test_damaged_data_are_not_drawn(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        picture(content)

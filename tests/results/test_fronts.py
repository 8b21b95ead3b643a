"""Trade-off curves and their hypervolumes, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.handmade import pair

from clbench.results.cell import CellResult, without_extra_points
from clbench.results.fronts import fronts_frame, hypervolume, points_frame, pseudo_volumes


def point(family: str, name: str, seed: int, p_o: float, p_s: float) -> CellResult:
    cell: Any = pair(name, seed, [[0.9, 0.5], [p_o, p_s]])
    return CellResult.model_validate({**cell.model_dump(), "family": family})


def test_the_hypervolume_is_the_dominated_share() -> None:
    assert hypervolume([(0.5, 0.4)]) == pytest.approx(0.2)
    assert hypervolume([(0.5, 0.4), (0.2, 0.8)]) == pytest.approx(0.2 + 0.2 * 0.4)
    assert hypervolume([(0.5, 0.4), (0.2, 0.8), (0.1, 0.1)]) == pytest.approx(0.28)
    assert hypervolume([(0.75, 0.75)], (0.5, 0.5)) == pytest.approx(0.25)
    assert hypervolume([(0.4, 0.9)], (0.5, 0.5)) == 0.0


def test_the_hypervolume_of_a_curve_is_that_of_its_mean_points() -> None:
    """By hand: H of the means is .5·.6 + .2·.2, and .6·.6 + .04 and .4·.6 + .04 without a seed."""
    curve = {"a": {0: (0.4, 0.6), 1: (0.6, 0.6)}, "b": {0: (0.2, 0.8), 1: (0.2, 0.8), 2: (0, 0)}}
    assert pseudo_volumes(curve) == pytest.approx({0: 2 * 0.34 - 0.40, 1: 2 * 0.34 - 0.28})
    # A different point wins on each seed: each seed's own front has .25, that of the means .2.
    noisy = {"a": {0: (0.5, 0.5), 1: (0.5, 0.3)}, "b": {0: (0.5, 0.3), 1: (0.5, 0.5)}}
    assert pseudo_volumes(noisy) == pytest.approx({0: 2 * 0.2 - 0.25, 1: 2 * 0.2 - 0.25})
    assert pseudo_volumes({"a": {4: (0.5, 0.4)}, "b": {4: (0.2, 0.8)}}) == pytest.approx({4: 0.28})


def test_curves_are_compared_seed_by_seed() -> None:
    cells = []
    for seed, shift in enumerate((0.0, 0.02, -0.02, 0.01, 0.0)):
        cells += [
            point("vanilla", "vanilla", seed, 0.4 + shift, 0.5),
            point("vanilla", "vanilla-0.1", seed, 0.5 + shift, 0.4),
            point("ewc", "ewc", seed, 0.6 + shift, 0.5),
            point("ewc", "ewc-10", seed, 0.1, 0.1),
            pair("alone", seed, [[0.9, 0.5], [0.9, 0.9]]),
        ]
    table = fronts_frame(cells, "vanilla").set_index("method")
    assert list(table.index) == ["vanilla", "ewc"]
    assert table.loc["vanilla", "hypervolume"] == pytest.approx(0.4 * 0.502 + 0.1 * 0.402)
    assert table.loc["ewc", "front"] == "ewc"
    assert table.loc["ewc", "difference"] == pytest.approx(0.5 * 0.602 - 0.241, abs=1e-3)
    assert (table["points"] == 2).all()
    assert (table["seeds"] == 5).all()
    assert table.loc["ewc", "verdict"] == "better"


def test_a_cell_from_before_the_sweep_is_a_point_of_the_curve() -> None:
    swept = [
        point(family, name, seed, p_o, 0.5)
        for family in ("vanilla", "ewc")
        for name, p_o in ((family, 0.6), (f"{family}-1", 0.4), (f"{family}-9", 0.3))
        for seed in range(3)
    ]
    before = [
        cell.model_copy(update={"family": ""}) if cell.baseline == cell.family else cell
        for cell in swept
    ]
    assert fronts_frame(before, "vanilla").equals(fronts_frame(swept, "vanilla"))
    assert set(fronts_frame(before, "vanilla")["points"]) == {3}
    assert fronts_frame([pair("lwf", seed) for seed in range(3)], "vanilla").empty


def test_curves_of_unequal_length_are_not_compared() -> None:
    cells = [
        point(family, f"{family}{value}", seed, value, value)
        for family, values in (("vanilla", (0.1, 0.2)), ("ewc", (0.1, 0.2, 0.3)))
        for value in values
        for seed in range(5)
    ]
    table = fronts_frame(cells, "vanilla").set_index("method")
    assert table.loc["ewc", "verdict"] == "not compared: points differ"
    assert table["difference"].isna().all()


def test_points_of_a_sweep_are_left_out_elsewhere() -> None:
    cells = [point("ewc", "ewc", 0, 0.5, 0.5), point("ewc", "ewc-10", 0, 0.4, 0.4)]
    assert without_extra_points(cells) == cells[:1]
    assert without_extra_points(cells[1:]) == cells[1:]


def test_points_are_listed_with_the_settings_that_they_change() -> None:
    cells = [point("ewc", "ewc", seed, 0.5, 0.5) for seed in range(2)]
    cells += [point("ewc", "ewc-10", seed, 0.5 + 0.1 * seed, 0.6) for seed in range(2)]
    own, changed = {"importance": 5.0, "half": True}, {"importance": 10.0, "half": True}
    cells = [
        cell.model_copy(update={"settings": {"method": own if cell.baseline == "ewc" else changed}})
        for cell in cells
    ]
    failed = {"status": "failed", "settings": {}, "family": "ewc", "seed": 2}
    cells.append(cells[-1].model_copy(update=failed))
    table = points_frame(cells)
    assert table["point"].tolist() == ["ewc-10", "ewc"]
    assert table["settings"].tolist() == ["importance 10.0", "importance 5.0"]
    assert table["p_o"].tolist() == pytest.approx([0.55, 0.5])
    assert table["on_front"].tolist() == [True, False]
    assert points_frame([]).empty
    other = {"settings": {"method": {"importance": 20.0, "half": True}}, "baseline": "ewc-20"}
    lost = {"status": "failed", "settings": {}}
    ends = [cell.model_copy(update=lost if cell.baseline == "ewc" else {}) for cell in cells]
    ends += [cell.model_copy(update=other) for cell in cells if cell.baseline == "ewc-10"]
    assert sorted(points_frame(ends)["settings"]) == ["importance 10.0", "importance 20.0"]


def test_one_row_is_no_difference_between_curves() -> None:
    cells = []
    for seed in range(3):
        for family, p_o in (("vanilla", 0.70), ("ewc", 0.72)):
            for name, p_s in ((family, 0.7), (f"{family}-1", 0.6)):
                made = point(family, name, seed, p_o if name == family else 0.71, p_s)
                parts = [{"validation": 50}, {"validation": 5000}]
                changes: Any = {"scenario_report": {"parts": parts}, "floors": [0.68, 0.5]}
                cells.append(made.model_copy(update=changes))
    table = fronts_frame(cells, "vanilla").set_index("method")
    assert table.loc["ewc", "difference"] > 0.0
    assert table.loc["ewc", "verdict"] == "no difference shown"


def test_a_floor_of_one_leaves_no_room() -> None:
    assert hypervolume([(0.9, 0.9)], (1.0, 0.5)) == 0.0

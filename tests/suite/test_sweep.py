"""Sweeps of baselines: their ranges, dials, and errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from clbench.conformance.sessions import Candidate
from clbench.core.errors import SettingsError, SuiteError
from clbench.core.registry import check_name
from clbench.suite.baselines import Range, read_baseline, read_variant, variant
from clbench.suite.options import RunOptions
from clbench.suite.schema import VariantTable
from clbench.suite.sweeps import LR_MULTIPLES, axes, count_points, dial_points, own_values
from clbench.suite.validation import check_methods
from clbench.training.protocol import Protocol


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_values_lie_at_equal_distances() -> None:
    assert Range(low=1.0, high=100.0).values(3) == [1.0, 10.0, 100.0]
    assert Range(low=0.0, high=1.0, scale="linear").values(3) == [0.0, 0.5, 1.0]
    assert Range(low=1, high=8).values(4) == [1, 2, 4, 8]
    assert Range(low=1, high=3).values(9) == [1, 2, 3]


@pytest.mark.parametrize("ends", [(1.0, 1.0), (2.0, 1.0), (0.0, 1.0)])
def test_ends_must_be_ordered_and_fit_the_scale(ends: tuple[float, float]) -> None:
    with pytest.raises(ValidationError, match="low must be below high"):
        Range(low=ends[0], high=ends[1])


def test_the_flat_rate_of_every_method_is_swept() -> None:
    assert axes(read_baseline("vanilla")) == {"lr_multiple": LR_MULTIPLES}
    assert list(axes(read_baseline("ewc"))) == ["importance", "lr_multiple"]


def test_the_dial_is_the_first_setting() -> None:
    points = dial_points(read_baseline("wise-ft"), 3)
    assert [point.name for point in points] == ["wise-ft", "wise-ft-0.05", "wise-ft-0.95"]
    assert [point.settings["alpha"] for point in points] == [0.5, 0.05, 0.95]
    assert {point.family for point in points} == {"wise-ft"}
    rates = [point.settings for point in dial_points(read_baseline("vanilla"), 5)]
    assert rates == [{}, *({"lr_multiple": multiple} for multiple in (0.1, 0.2, 0.5, 2.0))]


@pytest.mark.parametrize(("counts", "rates", "steps"), [
    ((3, 2), {0.1, 1.0, 2.0}, {1.0, 4.0}), ((5, 3), {0.1, 0.2, 0.5, 1.0, 2.0}, {1.0, 2.0, 4.0}),
])  # fmt: skip
def test_the_own_value_replaces_the_nearest_choice(
    counts: tuple[int, int], rates: set[float], steps: set[float]
) -> None:
    points = dial_points(read_baseline("rate-steps"), *counts)
    assert {point.settings["lr_multiple"] for point in points} == rates
    assert {point.settings["steps_multiple"] for point in points} == steps


def test_a_grid_has_rate_and_steps_in_all_names_but_its_own() -> None:
    points = dial_points(read_baseline("rate-steps"), 2, 3)
    assert {point.name: (point.settings["lr_multiple"], point.settings["steps_multiple"])
            for point in points} == {
        "rate-steps": (1.0, 1.0), "rate-steps-1-2": (1.0, 2.0), "rate-steps-1-4": (1.0, 4.0),
        "rate-steps-0.1-1": (0.1, 1.0), "rate-steps-0.1-2": (0.1, 2.0),
        "rate-steps-0.1-4": (0.1, 4.0),
    }  # fmt: skip
    # A baseline with one swept setting has no second one.
    assert len(dial_points(read_baseline("vanilla"), 3, 4)) == 3


@pytest.mark.parametrize("sweep", [1, 0, (5,) * 3, (2, 1), (11, 10), (), "3,2", 2.5])
def test_numbers_of_points_are_checked(sweep: Any) -> None:
    with pytest.raises(SettingsError, match=r"sweep: must be N or N,M \(in Python a tuple\)"):
        RunOptions(sweep=sweep)


def test_every_method_has_as_many_points_as_asked_for() -> None:
    for name in ("vanilla", "ewc", "wise-ft", "si", "mixout", "low-rate", "lora"):
        baseline = read_baseline(name)
        points = dial_points(baseline, 4)
        assert len({point.name for point in points}) == 4
        dial = next(iter(axes(baseline)))
        values = [own_values(point)[dial] for point in points]
        assert len({*values}) == 4
        assert values[0] == own_values(baseline)[dial]


def test_a_setting_without_a_value_is_left_out_of_the_file() -> None:
    some = replace(read_baseline("ewc"), settings={"importance": 3.0, "rows": None})
    Path("mine.toml").write_text(some.to_toml())
    assert read_baseline("mine.toml").settings == {"importance": 3.0}


def test_the_own_value_may_be_a_default_of_the_class() -> None:
    text = 'method = "ewc"\n[sweep]\nhalf = [true, false]\n'
    Path("own.toml").write_text(text)
    points = dial_points(read_baseline("./own.toml"), 2)
    assert [point.settings for point in points] == [{}, {"half": not own_values(points[0])["half"]}]


def test_no_value_lies_beyond_the_ends() -> None:
    # With three digits they would be 0.333 and 0.667.
    low, high = 1.0 / 3.0, 2.0 / 3.0
    values = Range(low=low, high=high).values(3)
    assert (values[0], values[-1]) == (low, high)


def test_a_swept_rate_replaces_its_multiples() -> None:
    Path("own.toml").write_text('method = "vanilla"\n[sweep]\nlr = [1e-5, 1e-4]\n')
    assert list(axes(read_baseline("./own.toml"))) == ["lr"]


def test_points_of_a_sweep_are_counted() -> None:
    assert count_points(read_baseline("vanilla")) == 5
    assert count_points(read_baseline("vanilla"), keep_rate=True) == 1
    assert count_points(read_baseline("lora")) == 25
    Path("own.toml").write_text('method = "vanilla"\n[settings]\nlr_multiple = 0.3\n')
    assert count_points(read_baseline("./own.toml")) == 6
    assert count_points(read_baseline("ewc")) == float("inf")


def test_points_have_names_that_files_can_have() -> None:
    text = 'method = "ewc"\n[sweep]\n{}\n'
    for number, axis in enumerate(
        (
            'mode = ["sampled", "empirical", "batched"]',
            "half = [true, false]",
            "importance = { low = 1.0, high = 1.004 }",
        )
    ):
        Path(f"own{number}.toml").write_text(text.format(axis))
        names = [point.name for point in dial_points(read_baseline(f"./own{number}.toml"), 3)]
        assert len({*names}) == len(names)
        assert all(check_name(name) == name for name in names)


def test_a_written_baseline_reads_back() -> None:
    Path("ewc.toml").write_text(read_baseline("ewc").to_toml())
    read, packaged = read_baseline("./ewc.toml"), read_baseline("ewc")
    for name in ("method", "settings", "sources", "description", "sweep", "cost"):
        assert getattr(read, name) == getattr(packaged, name)


def test_errors_of_a_sweep_are_listed() -> None:
    text = 'method = "ewc"\n[sweep]\nimportance = { low = -1.0, high = 5.0, scale = "linear" }\n'
    Path("own.toml").write_text(text + 'mode = ["sampled", "guessed"]\nstrenght = [1, 2]\n')
    own = read_baseline("./own.toml")
    with pytest.raises(SuiteError) as caught:
        check_methods([own], Protocol())
    for part in ("importance -1.0: ", 'mode "guessed": ', "strenght 1: "):
        assert part in str(caught.value)
    with pytest.raises(SuiteError, match=r"own\.toml: 3 errors"):
        dial_points(own, 2)
    with pytest.raises(SuiteError, match=r"own\.toml: 3 errors"):
        Candidate.of(own)


def test_points_and_variants_are_not_judged_by_the_sweep_of_their_file() -> None:
    text = 'method = "ewc"\n[sweep]\nmode = ["sampled", "guessed"]\n'
    Path("own.toml").write_text(text)
    own = read_baseline("./own.toml")
    table = VariantTable(of="./own.toml", settings={"importance": 1.0})
    changed = read_variant("changed", table, Path("s.toml").resolve())
    check_methods([variant(own, "point", {"importance": 1.0}), changed], Protocol())


@pytest.mark.parametrize(
    ("axis", "problem"),
    [
        (
            "3",
            r"\[sweep\] importance: must be a range { low = …, high = … } or a list of choices, "
            r"got 3\.",
        ),
        ("[1.0]", r"\[sweep\] importance: must hold at least two choices, all different\."),
        ("[1.0, 1.0]", r"\[sweep\] importance: must hold at least two choices, all different\."),
        ("{ low = 1.0 }", r"\[sweep\.importance\] high: is missing\."),
    ],
)
def test_a_mistake_in_a_sweep_is_one_error(axis: str, problem: str) -> None:
    Path("own.toml").write_text(f'method = "ewc"\n[sweep]\nimportance = {axis}\n')
    with pytest.raises(SuiteError, match=rf"own\.toml: line 3, column 1: {problem}$"):
        read_baseline("./own.toml")

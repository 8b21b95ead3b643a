"""R² of a quadratic and its interval are those of fits to the drawn cells."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from clbench.results.statistics import Floats
from tools import findings_decoder, findings_kl


def frame(x: Floats, y: Floats) -> pd.DataFrame:
    """Return nine cells of three methods on three seeds."""
    methods, seeds = np.repeat([*"abc"], 3), np.tile([0, 1, 2], 3)
    return pd.DataFrame({"method": methods, "seed": seeds, "x": x, "y": y})


def by_polyfit(x: Floats, y: Floats, groups: Floats, *, unseen: bool) -> float:
    """Return R² by a fit for each group that is left out, or by one for all."""
    errors = spread = 0.0
    for group in np.unique(groups) if unseen else [None]:
        of = groups == group if unseen else np.ones(len(y), bool)
        known = ~of if unseen else of
        errors += ((y[of] - np.polyval(np.polyfit(x[known], y[known], 2), x[of])) ** 2).sum()
        spread += ((y[of] - y[known].mean()) ** 2).sum()
    return float(1.0 - errors / spread)


def test_r_squared_of_a_quadratic_and_of_unseen_groups() -> None:
    def r_squared(x: Floats, y: Floats, *, unseen: bool) -> float:
        cells = frame(x, y)
        sums = findings_kl.sums_by_cell(x, y, cells["method"], cells["seed"]).sum(2)
        return float(findings_kl.r_squared(sums[:, None], unseen=unseen)[0])

    x = np.arange(9.0)
    assert r_squared(x, 3 - x + x**2, unseen=False) == pytest.approx(1.0)
    assert r_squared(x, 3 - x + x**2, unseen=True) == pytest.approx(1.0)
    # Each group is flat at another level: the quadratic through the other two misses it.
    y, z = np.repeat([0.0, 1.0, 0.0], 3), np.tile([0.0, 1.0, 2.0], 3)
    assert r_squared(z, y, unseen=False) == pytest.approx(0.0)
    # Predicted .5, 0 and .5, which are the means of the others: no better, no worse.
    assert r_squared(z, y, unseen=True) == pytest.approx(0.0)


def test_a_quadratic_in_the_logarithm() -> None:
    x = np.exp(np.arange(9.0))
    y = 2.0 - np.log(x) ** 2
    assert findings_kl.fit(frame(x, y), "x", "y", logarithm=True).value == pytest.approx(1.0)
    assert findings_kl.fit(frame(x, y), "x", "y").value < 0.99


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("measure", ["forward_kl", "divergence"])
def test_draws_equal_fits_to_the_drawn_cells(
    measure: str, unseen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings_kl, "DRAWS", 40)
    monkeypatch.setattr(findings_kl, "draws", findings_kl.draws.__wrapped__)  # not those kept
    cells = findings_decoder.kept()
    (methods, names), (blocks, numbers) = (
        pd.factorize(cells[key], sort=True) for key in ("method", "seed")
    )
    seeds, drawn = findings_kl.draws(len(numbers), len(names))
    assert {*seeds.sum(1)} == {len(numbers)}
    assert {*drawn.sum(1)} == {len(names)}
    x, y = (cells[name].to_numpy(np.float64) for name in (measure, "p_o"))
    expected = []
    for seed_counts, method_counts in zip(seeds, drawn, strict=True):
        times = seed_counts[blocks] * (method_counts[methods] if unseen else 1.0)
        rows = np.repeat(np.arange(len(y)), times.astype(int))
        expected.append(by_polyfit(x[rows], y[rows], methods[rows], unseen=unseen))
    found = findings_kl.fit(cells, measure, "p_o", unseen=unseen)
    assert found.value == pytest.approx(by_polyfit(x, y, methods, unseen=unseen), rel=1e-9)
    ends = np.percentile(expected, [2.5, 97.5])
    assert [found.low, found.high] == pytest.approx([*ends], rel=1e-9)
    assert found.below_zero == np.mean([value < 0.0 for value in expected])
    sums = findings_kl.sums_by_cell(x, y, cells["method"], cells["seed"])
    if not unseen:
        sums = sums.sum(1, keepdims=True)
    each = seeds @ sums.swapaxes(1, 2) * (drawn if unseen else 1.0)
    assert findings_kl.r_squared(each, unseen=unseen) == pytest.approx(expected, rel=1e-9)


def test_the_page_hides_noise_far_below_zero() -> None:
    assert str(findings_kl.Fit(-0.73, -35.2, 0.58, 0.5)) == "−.73 [< −1, .58]"
    assert str(findings_kl.Fit(0.66, 0.14, 0.8, 0.02)) == ".66 [.14, .80]"


def test_other_draws_change_the_printed_interval_by_little(monkeypatch: pytest.MonkeyPatch) -> None:
    first = findings_decoder.r2("forward_kl", unseen=True)
    monkeypatch.setattr(findings_kl, "SEED", 1)
    monkeypatch.setattr(findings_kl, "draws", findings_kl.draws.__wrapped__)
    other = findings_kl.fit(findings_decoder.kept(), "forward_kl", "p_o", unseen=True)
    assert other.value == first.value
    assert abs(other.low - first.low) < 0.025
    assert abs(other.high - first.high) < 0.005

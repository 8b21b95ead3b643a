"""Simulate how often readings at equal learning err, find a difference, or are refused.

    python benchmarks/matched.py [--draws 4000] [--tables results/verdicts]

Sweeps of a reference and of other methods are drawn from one curve of learning and forgetting, with
the same or other doses of training, and read by `clbench.results.matched.read_curve`. By kind of
curve, doses, noise, number of settings and number of seeds, the program prints the family-wise
error, the same without the term for bends, the power and the share of readings that are refused.
A family is that of a report of one scenario: every level and method in two scores of the same
cells, which a cell of two tasks always has. The noise of the two is independent here. The rule on
collapsed runs, which can only withhold verdicts, is left out.

The studies of `docs/findings.md` read a curve of plain fine-tuning where a single setting of a
method learned as much on average (`tools.equal_learning.at_equal_learning`). The same rates are
printed for that, with methods that lie on the curve as points between its settings.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from family_tests import ROWS, Floats, t_test
from machine import make_parser, write_json
from verdicts import SEEDS

from clbench.results.matched import FEWEST_SETTINGS, LEVELS, read_curve
from clbench.results.statistics import ALPHA

DOSES = {
    "same": (0.12, 1.0, "even"),
    "shifted": (0.2, 0.95, "even"),
    "logarithmic": (0.1, 1.0, "log"),
}
"""Least and most training of a sweep, and how its settings are spread."""
SETTINGS = (4, 7)
"""Settings of a sweep; sweeps of other doses have two more."""
KINDS = ("straight", "bent", "flat", "humped", "overtrained")
OTHERS = (["same"], ["shifted"], ["logarithmic"], [*DOSES, "same"])
"""Doses of the methods that are compared with one of the same doses."""
SIDE = 1e-3
"""On either side of a reading, where the slope of a curve is taken."""
POINTS = (0.3, 0.4, 0.5, 0.6)
"""Training of the methods that are single settings, within the part of each curve that is read."""
READ = 2
"""Scores that a report reads of each cell; three where the added loss on text is measured."""
GAIN_NOISES = {"rows": (0.03, 0.01, 0.02), "loud": (0.08, 0.02, 0.0), "quiet": (0.01, 0.003, 0.03)}
"""Standard deviations of each setting in what is learned and in forgetting, and that of a seed."""


def gain_curve(kind: str, dose: Floats) -> tuple[Floats, Floats]:
    """Return what is truly learned and forgotten at doses of training between 0 and 1."""
    saturated = 1.1 * (1.0 - np.exp(-2.5 * dose)) / (1.0 - np.exp(-2.5))
    match kind:
        case "straight":
            return 1.15 * dose, 0.2 * dose
        case "bent":
            return saturated, 0.25 * dose**2
        case "flat":
            return saturated, np.full_like(dose, 0.02)
        case "humped":  # forgetting rises, falls and rises
            return 1.15 * dose, 0.1 + 0.1 * np.sin(6.0 * dose)
        case _:  # too much training learns less
            x = np.where(dose <= 0.7, 1.1 * (1 - (1 - dose / 0.7) ** 2), 1.1 - 1.2 * (dose - 0.7))
            return x, 0.02 + 0.3 * dose**2.5


def read_curves(points: Floats, levels: float | Floats) -> tuple[Floats, Floats]:
    """Return what `read_curve` does for many draws: shapes (draws, seeds) and (draws,).

    `levels` is one number, or one for each draw.
    """
    x, y = points[..., 0], points[..., 1]
    beats = (x[:, :, None] >= x[..., None]) & (y[:, :, None] < y[..., None])
    kept = ~beats.all(1).any(-1)
    level = np.broadcast_to(levels, len(x))

    def pick(table: Floats, at: npt.NDArray[np.int64]) -> Floats:
        at = np.clip(at, 0, table.shape[-1] - 1)
        return np.take_along_axis(table, at[..., None], -1)[..., 0]

    def around(x: Floats, y: Floats) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
        order = x.argsort(-1, kind="stable")
        x, y = np.take_along_axis(x, order, -1), np.take_along_axis(y, order, -1)
        last = np.isfinite(x).sum(-1) - 1
        below = x <= level.reshape(-1, *[1] * (x.ndim - 1))
        return x, y, np.clip(below.sum(-1), 1, np.maximum(last, 1))

    with np.errstate(invalid="ignore", divide="ignore"):
        xs, ys, right = around(np.where(kept[:, None], x, np.inf), y)
        x0, x1, y0, y1 = pick(xs, right - 1), pick(xs, right), pick(ys, right - 1), pick(ys, right)
        own = level[:, None]
        inner = y0 + (y1 - y0) * (own - x0) / (x1 - x0)
        values = np.where((x0 <= own) & (x1 >= own), inner, np.nan)
        xs, ys, right = around(np.where(kept, x.mean(1), np.inf), y.mean(1))
        x0, x1, y0, y1 = pick(xs, right - 1), pick(xs, right), pick(ys, right - 1), pick(ys, right)
        bend = np.zeros(len(x))
        for third in (right - 2, right + 1):
            x2, y2 = pick(xs, third), pick(ys, third)
            c = ((y2 - y1) / (x2 - x1) - (y1 - y0) / (x1 - x0)) / (x2 - x0)
            inside = (third >= 0) & (third < kept.sum(-1))
            bend = np.maximum(bend, np.where(inside, np.abs(c * (level - x0) * (level - x1)), 0.0))
    return values, np.where(kept.sum(-1) >= FEWEST_SETTINGS, bend, np.inf)


def draw_gains(
    kind: str,
    doses: Sequence[str],
    noise: str,
    settings: int,
    n: int,
    *,
    draws: int,
    rng: np.random.Generator,
) -> list[Floats]:
    """Return curves of `read_curves`, the reference's first, each for every score that is read.

    Curves of one method differ in the noise of the score only.
    """
    sd_x, sd_y, sd_seed = GAIN_NOISES[noise]
    seed = sd_seed * rng.standard_normal((1 + READ, draws, n, 1))
    curves = []
    for name in doses:
        if name == "points":
            dose = np.array(POINTS)
        else:
            low, high, spread = DOSES[name]
            space = np.geomspace if spread == "log" else np.linspace
            dose = space(low, high, settings + 2 * (name != "same"))
        x, y = gain_curve(kind, dose)
        own = rng.standard_normal((1 + READ, draws, n, len(dose)))
        y = np.round((y + seed[1:] + sd_y * own[1:]) * ROWS) / ROWS
        x = x + seed[0] + sd_x * own[0]
        curves.append(np.stack([np.broadcast_to(x, y.shape), y], -1))
    return curves


def check_reading(rng: np.random.Generator) -> None:
    """Raise an AssertionError if `read_curves` does not do what `read_curve` does."""
    for curve, *_ in draw_gains("overtrained", [*DOSES], "rows", 7, 5, draws=20, rng=rng):
        for level in LEVELS:
            values, bends = read_curves(curve, level)
            for points, value, bend in zip(curve, values, bends, strict=True):
                np.testing.assert_allclose(value, read_curve(points, level)[0])
                np.testing.assert_allclose(bend, read_curve(points, level)[1])


class Rates(NamedTuple):
    """Shares of families with a false verdict, of differences found, and of readings refused."""

    error: float
    without_bends: float
    power: float
    refused: float


def rates(
    kind: str,
    others: Sequence[str],
    noise: str,
    settings: int,
    n: int,
    *,
    draws: int,
    rng: np.random.Generator,
) -> Rates:
    """Return the rates of comparisons at equal learning.

    The error is the share of families of equal curves with a false verdict; the power is that of
    methods that forget .05 less at every level, refused readings counted as not found.
    """
    doses = ["same", *others]
    reference, *curves = draw_gains(kind, doses, noise, settings, n, draws=draws, rng=rng)
    alpha = ALPHA / (READ * len(LEVELS) * len(others))
    wrong, straight = np.zeros(draws, bool), np.zeros(draws, bool)
    found, refused = [], []
    for score, level in product(range(READ), LEVELS):
        theirs, bend = read_curves(reference[score], level)
        for curve in curves:
            ours, own_bend = read_curves(curve[score], level)
            x = ours - theirs
            refused.append(~np.isfinite(x).all(1) | ~np.isfinite(bend + own_bend))
            x[refused[-1]] = 0.0
            bends = np.where(refused[-1], 0.0, np.hypot(bend, own_bend))
            plain = x.var(-1, ddof=1) + ROWS**-2.0
            error = plain + n * bends**2
            wrong |= t_test(x, error, n - 1) < alpha
            straight |= t_test(x, plain, n - 1) < alpha
            is_found = t_test(x - 0.05, error, n - 1) < alpha
            found.append(is_found & (x.mean(-1) < 0.05) & ~refused[-1])
    return Rates(*(float(np.mean(each)) for each in (wrong, straight, found, refused)))


def point_rates(
    kind: str,
    doses: str,
    noise: str,
    settings: int,
    n: int,
    *,
    draws: int,
    rng: np.random.Generator,
) -> Rates:
    """Return the rates of single settings read beside a curve, see `rates`."""
    reference, methods = draw_gains(
        kind, [doses, "points"], noise, settings, n, draws=draws, rng=rng
    )
    alpha = ALPHA / (READ * len(POINTS))
    wrong, straight = np.zeros(draws, bool), np.zeros(draws, bool)
    found, refused = [], []
    for score, point in product(range(READ), range(len(POINTS))):
        learned, lost = np.moveaxis(methods[score][:, :, point], -1, 0)
        level = learned.mean(-1)
        values, bend = read_curves(reference[score], level)
        refused.append(~np.isfinite(values).all(1) | ~np.isfinite(bend))
        sides = [read_curves(reference[score], level + side)[0] for side in (-SIDE, SIDE)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # no side of it is on the curve
            slope = np.nanmean((sides[1] - sides[0]) / (2 * SIDE), axis=-1)
        x = values - lost + slope[:, None] * (learned - level[:, None])
        refused[-1] |= ~np.isfinite(x).all(1)
        x[refused[-1]] = 0.0
        plain = x.var(-1, ddof=1) + ROWS**-2.0
        error = plain + n * np.where(refused[-1], 0.0, bend) ** 2
        wrong |= t_test(x, error, n - 1) < alpha
        straight |= t_test(x, plain, n - 1) < alpha
        is_found = t_test(x + 0.05, error, n - 1) < alpha
        found.append(is_found & (x.mean(-1) > -0.05) & ~refused[-1])
    return Rates(*(float(np.mean(each)) for each in (wrong, straight, found, refused)))


def points(draws: int, rng: np.random.Generator) -> dict[str, Rates]:
    """Print and return the rates of single settings beside all kinds of curves."""
    rows = {}
    for kind, doses, noise, settings, n in product(KINDS, DOSES, GAIN_NOISES, SETTINGS, SEEDS):
        row = point_rates(kind, doses, noise, settings, n, draws=draws, rng=rng)
        rows[f"{kind},{doses},{noise},{settings},{n}"] = row
        print(
            f"single settings beside {kind} curves, {doses} doses, {noise}, {settings} settings, "
            f"{n} seeds: family-wise error {row.error:.3f}, without the term for bends "
            f"{row.without_bends:.3f}, power {row.power:.2f}, refused {row.refused:.2f}",
            flush=True,
        )
    print(f"largest error: {max(row.error for row in rows.values()):.3f}")
    return rows


def gains(draws: int, rng: np.random.Generator) -> dict[str, Rates]:
    """Print and return the rates of all kinds of comparisons."""
    check_reading(rng)
    cases = product(KINDS, OTHERS, GAIN_NOISES, SETTINGS, SEEDS)
    rows = {}
    for kind, others, noise, settings, n in cases:
        row = rates(kind, others, noise, settings, n, draws=draws, rng=rng)
        rows[f"{kind},{' and '.join(others)},{noise},{settings},{n}"] = row
        print(
            f"equal learning, {kind} curves, {' and '.join(others)} doses, {noise}, {settings} "
            f"settings, {n} seeds: family-wise error {row.error:.3f}, without the term for bends "
            f"{row.without_bends:.3f}, power {row.power:.2f}, refused {row.refused:.2f}",
            flush=True,
        )
    print(f"largest error: {max(row.error for row in rows.values()):.3f}")
    return rows


def main() -> None:
    parser = make_parser(__doc__, turns=1, device=False)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--tables", type=Path, help="also write gain.csv and points.csv here")
    args = parser.parse_args()
    tables = {
        "gain": gains(args.draws, np.random.default_rng(6)),
        "points": points(args.draws, np.random.default_rng(7)),
    }
    header = ",".join(("curves,doses,noise,settings,seeds", *Rates._fields))
    for name, rows in tables.items() if args.tables else ():
        lines = [f"{key},{','.join(f'{x:.4f}' for x in row)}" for key, row in rows.items()]
        (args.tables / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    write_json(args, tables)


if __name__ == "__main__":
    main()

"""Simulate how often verdicts err, and how often they find a true difference.

    python benchmarks/verdicts.py [--draws 4000] [--tables results/verdicts]

Families of comparisons with a reference are drawn under several kinds of noise, without and with
true differences. The test of `clbench.results.statistics.compare` and its competitors judge them,
each with Bonferroni's correction for the family. By kind of noise and number of seeds, the program
prints the largest family-wise error over sizes of families, and the mean power. It then prints the
error and power of a run that adds seeds until every comparison is settled, the error where runs
collapse or the reference is skewed, the coverage of intervals over seeds and rows and over
scenarios, and the error of comparisons of trade-off curves; `matched.py` simulates readings at
equal learning. Noise is counted in rows of a data set, so that scores have steps:

    equal      every method and the reference have a standard deviation of 10 rows
    unequal    methods 1 to 30, evenly in the logarithm; the reference 10
    quiet      methods 3, the reference 10
    loud       one method 50, the others and the reference 10
    heavy      Student's t with 3 degrees of freedom
    1, 2, 8    that many rows flip between method and reference on average, either way
    outlier    one method 20, the others and the reference 1
    shared     methods 1.5, the reference 30: their differences are almost the same

Where runs collapse, each loses 100 of 400 rows with one probability for all methods, beside a
standard deviation of 2 or 10 rows. A skewed reference has gamma noise of 10 rows, of skewness 1
(shape 4); a very skewed one has exponential noise, of skewness 2. Errors are largest where the
methods' own noise is small beside it and few methods are compared in many scores, so that is drawn
in families of 48 and 240 comparisons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from family_tests import ROWS, TESTS, Floats, clbench, with_steps
from machine import make_parser, write_json

from clbench.results.fronts import pseudo_volumes
from clbench.results.overall import ANYWHERE
from clbench.results.statistics import ALPHA, LEVEL, Differences, compare, crossed_interval, spend

NOISES = ("equal", "unequal", "quiet", "loud", "heavy", "1", "2", "8", "outlier", "shared")
SEEDS = (3, 4, 5, 7, 10)
LOOKS = (5, 10, 20)
FAMILIES = ((1, 1), (2, 1), (4, 1), (12, 1), (2, 3), (3, 3), (12, 3), (2, 6), (3, 6))
"""Numbers of methods and of scenarios with two scores each."""
LOST = 100
"""Rows of `ROWS` that a collapsed run loses."""
COLLAPSES = {
    "0.2": (0.2, 2.0, 2.0, 0.0),
    "0.35": (0.35, 2.0, 2.0, 0.0),
    "0.5": (0.5, 2.0, 2.0, 0.0),
    "0.2 in 10 rows": (0.2, 10.0, 10.0, 0.0),
    "0.5 in 10 rows": (0.5, 10.0, 10.0, 0.0),
    "0.2 and skewed": (0.2, 10.0, 10.0, 4.0),
    "skewed": (0.0, 10.0, 10.0, 4.0),
    "very skewed": (0.0, 10.0, 10.0, 1.0),
    "very skewed beside 0 rows": (0.0, 0.0, 10.0, 1.0),
    "very skewed beside 1 row": (0.0, 1.0, 10.0, 1.0),
}
"""Rate of collapses, standard deviations in rows of the methods and of the reference, and gamma
shape of a skewed reference, or 0."""
SIZES = ((2, 2), (4, 12), (10, 12))
"""Numbers of methods and of scores."""
QUIET = ("very skewed beside 0 rows", "very skewed beside 1 row")
"""Kinds whose methods have little noise."""
QUIET_SIZES = ((1, 48), (2, 24), (1, 240), (2, 120))
PARTS = 4
"""Parts that draws of collapses are divided into, to save memory."""
SHIFTS = (10.0, 20.0, 30.0)
"""True differences in rows, of half of the methods, for power."""


def draw(
    noise: str, draws: int, methods: int, groups: int, n: int, rng: np.random.Generator
) -> Floats:
    """Return differences without effect, in rows; shape (draws, methods, groups, seeds)."""
    shape, reference = (draws, methods, groups, n), (draws, 1, groups, n)
    if noise.isdigit():

        def flips(size: tuple[int, ...]) -> Floats:
            rate = float(noise) / 4
            return rng.poisson(rate, size) - rng.poisson(rate, size).astype(float)

        return flips(shape) - flips(reference)
    scale, base = np.full((draws, methods, groups, 1), 10.0), 10.0
    if noise == "unequal":
        scale = np.exp(rng.uniform(0.0, np.log(30.0), scale.shape))
    elif noise == "quiet":
        scale[:] = 3.0
    elif noise == "shared":
        scale[:], base = 1.5, 30.0
    elif noise == "loud":
        scale[:, 0] = 50.0
    elif noise == "outlier":
        scale[:], base = 1.0, 1.0
        scale[:, 0] = 20.0
    value = (lambda size: rng.standard_t(3, size)) if noise == "heavy" else rng.standard_normal
    return np.round(scale * value(shape) - base * value(reference))


def check_same(rng: np.random.Generator) -> None:
    """Check that `clbench` computes what `compare` does."""
    for methods, groups, n in ((1, 2, 3), (4, 2, 3), (2, 2, 4), (2, 8, 3), (12, 2, 7), (2, 2, 8)):
        few = draw("unequal", 5, methods, groups, n, rng)
        for x in (few, draw_collapses("0.5", 50, methods, groups, n, rng)):
            for table, p in zip(x, clbench(x), strict=True):
                family = {
                    g: {
                        str(m): Differences(tuple(table[m, g] / ROWS), 1.0 / ROWS)
                        for m in range(methods)
                    }
                    for g in range(groups)
                }
                for (g, name), comparison in compare(family).items():
                    expected = 1.0 if comparison.why else comparison.p
                    np.testing.assert_allclose(expected, p[int(name), g], rtol=1e-9)


def judge(draws: int, rng: np.random.Generator) -> dict[str, dict[str, list[float]]]:
    """Print and return the largest error and the mean power of each test by noise and seeds."""
    results: dict[str, dict[str, list[float]]] = {}
    print(f"largest family-wise error (aim: {ALPHA:g}) | mean power")
    print(f"{'noise':8s} {'seeds':>5s}", *(f"{name:>10s}" for name in TESTS), " |", *TESTS)
    for noise in NOISES:
        for n in SEEDS:
            errors = dict.fromkeys(TESTS, 0.0)
            powers: dict[str, list[float]] = {name: [] for name in TESTS}
            for methods, scenarios in FAMILIES:
                x = draw(noise, draws, methods, 2 * scenarios, n, rng)
                level = ALPHA / (methods * 2 * scenarios)
                effect = np.zeros((methods, 1, 1))
                effect[: -(-methods // 2)] = 1.0
                for name, test in TESTS.items():
                    error = float((test(x) < level).any((1, 2)).mean())
                    errors[name] = max(errors[name], error)
                    for shift in SHIFTS:
                        found = test(x[: draws // 4] + shift * effect) < level
                        powers[name].append(float(found[:, : -(-methods // 2)].mean()))
            row = {name: [errors[name], float(np.mean(powers[name]))] for name in TESTS}
            results[f"{noise} {n}"] = dict(row.items())
            print(
                f"{noise:8s} {n:5d}",
                *(f"{error:10.3f}" for error, _ in row.values()),
                " |",
                *(f"{power:.2f}" for _, power in row.values()),
                flush=True,
            )
    worst = {name: max(row[name][0] for row in results.values()) for name in TESTS}
    print("largest error:", {name: round(x, 3) for name, x in worst.items()})
    return results


def sequential(draws: int, rng: np.random.Generator) -> dict[str, list[float]]:
    """Print and return, by noise, what looks at a growing number of seeds err and find.

    These are the largest family-wise error over sizes of families, the mean power of the last
    look, and that of a run with as many seeds and no looks. For the error every look is judged,
    which errs at least as often as a run that stops once all is settled.
    """
    rows = {}
    shares = list(zip(LOOKS, spend(LOOKS), strict=True))
    for noise in NOISES:
        error, powers = 0.0, []
        for methods, scenarios in FAMILIES:
            x = draw(noise, draws, methods, 2 * scenarios, LOOKS[-1], rng)
            size = methods * 2 * scenarios
            wrong = np.zeros(draws, bool)
            for look, alpha in shares:
                wrong |= (clbench(x[..., :look], alpha) < alpha / size).any((1, 2))
            error = max(error, float(wrong.mean()))
            half = -(-methods // 2)
            for shift in SHIFTS:
                moved = x[: draws // 4].copy()
                moved[:, :half] += shift / 2  # twice as many seeds as in `judge`
                rates = shares[-1][1], ALPHA
                found = [clbench(moved, a)[:, :half] < a / size for a in rates]
                powers.append([float(some.mean()) for some in found])
        last, fixed = np.mean(powers, axis=0)
        rows[noise] = [error, float(last), float(fixed)]
        print(
            f"looks at {LOOKS}, noise {noise}: largest family-wise error {error:.3f}, power of the "
            f"last look {last:.3f}, without looks {fixed:.3f}"
        )
    return rows


def draw_collapses(
    kind: str, draws: int, methods: int, groups: int, n: int, rng: np.random.Generator
) -> Floats:
    """Return differences of `COLLAPSES` without effect, in rows, as `draw`."""
    rate, deviation, reference_deviation, gamma = COLLAPSES[kind]
    shape, reference = (draws, methods, groups, n), (draws, 1, groups, n)

    def scores(noise: Floats) -> Floats:
        return np.round(noise - LOST * (rng.random(noise.shape) < rate))

    base = rng.standard_normal(reference)
    if gamma:
        base = (rng.gamma(gamma, size=reference) - gamma) / np.sqrt(gamma)
    own = scores(deviation * rng.standard_normal(shape))
    return own - scores(reference_deviation * base)


def collapses(
    draws: int,
    rng: np.random.Generator,
    kinds: Iterable[str],
    sizes: Sequence[tuple[int, int]],
) -> dict[str, list[float]]:
    """Print and return the family-wise errors where runs collapse, with `clbench` and without."""
    rows = {}
    for kind in kinds:
        for methods, groups in sizes:
            for n in range(3, 11):
                wrong = np.zeros(2)
                for _ in range(PARTS):
                    x = draw_collapses(kind, draws // PARTS, methods, groups, n, rng)
                    level = ALPHA / (methods * groups)
                    wrong += [
                        float((test(x) < level).any((1, 2)).mean()) / PARTS
                        for test in (clbench, with_steps)
                    ]
                rows[f"{kind},{methods},{groups},{n}"] = [float(error) for error in wrong]
                print(
                    f"collapses {kind}, {methods} × {groups} comparisons, {n} seeds: "
                    f"family-wise error {wrong[0]:.3f}, without the rule {wrong[1]:.3f}",
                    flush=True,
                )
    print(f"largest error: {max(error for error, _ in rows.values()):.3f}")
    return rows


CURVE = np.array([(0.70, 0.80), (0.72, 0.78), (0.74, 0.76), (0.76, 0.74), (0.78, 0.72)])
"""p_s and p_o of the points of a trade-off curve."""


def fronts(draws: int, rng: np.random.Generator) -> dict[str, float]:
    """Print and return how often one of two equal trade-off curves counts as better.

    The noise of a seed is shared by the points of a curve (as of averages of the same weights), or
    each point has its own; its standard deviation is a fraction of an accuracy.
    """

    def volumes(n: int, shared: float, sd: float) -> Floats:
        common = rng.normal(0.0, sd * shared**0.5, (n, 1, 2))
        points = CURVE + common + rng.normal(0.0, sd * (1.0 - shared) ** 0.5, (n, len(CURVE), 2))
        curve = {
            str(k): {s: (float(points[s, k, 0]), float(points[s, k, 1])) for s in range(n)}
            for k in range(len(CURVE))
        }
        return np.array(list(pseudo_volumes(curve, (0.5, 0.5)).values()))

    shares = {}
    for name, sides in {"shared and own": (1.0, 0.0), "own and own": (0.0, 0.0)}.items():
        for sd in (0.015, 0.03):
            for n in (3, 5, 10):
                wrong = 0
                for _ in range(draws):
                    first, second = (volumes(n, side, sd) for side in sides)
                    sample = Differences(tuple(second - first), 0.003)
                    verdict = compare({"curve": {"other": sample}})["curve", "other"].verdict
                    wrong += verdict in ("better", "worse")
                shares[f"{name}; {sd:g}; {n} seeds"] = wrong / draws
                print(f"equal curves, {name}, {sd:g}, {n} seeds: {wrong / draws:.3f}")
    return shares


def coverage(draws: int, rng: np.random.Generator) -> dict[str, float]:
    """Print and return how often the interval over seeds and rows holds the true mean."""
    shares = {}
    for name, (seeds, rows, sd_seed, sd_row) in {
        "3 seeds": (3, 400, 0.02, 0.1),
        "5 seeds": (5, 400, 0.02, 0.1),
        "10 seeds": (10, 400, 0.01, 0.2),
        "5 seeds and equal rows": (5, 400, 0.02, 0.0),
    }.items():
        inside = 0
        for _ in range(draws):
            table = sd_seed * rng.standard_normal((seeds, 1)) + sd_row * rng.standard_normal(rows)
            low, high = crossed_interval(table + 0.3 * rng.standard_normal((seeds, rows)))
            inside += low <= 0.0 <= high
        shares[name] = inside / draws
        print(f"interval over seeds and rows, {name}: covers {shares[name]:.3f}")
    return shares


def scenarios(draws: int, rng: np.random.Generator) -> dict[str, list[float]]:
    """Print and return how often the interval for scenarios like these holds the true mean.

    Once at the level of the report and once at that of other intervals. Effects of scenarios have
    a standard deviation of 1, those of seeds and of the rest .1 or .3.
    """
    shares: dict[str, list[float]] = {}
    effects = {
        "normal": rng.standard_normal,
        "exponential": lambda size: rng.exponential(size=size),
    }
    for name, effect in effects.items():
        mean = float(name == "exponential")
        for few in (5, 10):
            for n in (3, 5, 10):
                for sd in (0.1, 0.3):
                    inside = np.zeros(2)
                    for _ in range(draws):
                        table = effect((1, few)) + sd * rng.standard_normal((n, 1))
                        table = table + sd * rng.standard_normal((n, few))
                        for k, level in enumerate((ANYWHERE, LEVEL)):
                            low, high = crossed_interval(table, level)
                            inside[k] += low <= mean <= high
                    key = f"{name}; {few} scenarios; {n} seeds; {sd:g}"
                    shares[key] = [float(share) for share in inside / draws]
                    covered = f"{shares[key][0]:.3f}, at {LEVEL:g} {shares[key][1]:.3f}"
                    print(f"interval for scenarios like these, {key}: covers {covered}")
    return shares


def main() -> None:
    parser = make_parser(__doc__, turns=1, device=False)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--tables", type=Path, help="also write the tables into this folder")
    args = parser.parse_args()
    rngs = [np.random.default_rng(seed) for seed in range(7)]
    check_same(np.random.default_rng(0))
    results = judge(args.draws, rngs[0])
    looks = sequential(args.draws, rngs[1])
    rows = coverage(4 * args.draws, rngs[2])
    curves = fronts(2 * args.draws, rngs[3])
    kinds = [kind for kind in COLLAPSES if kind not in QUIET]
    collapsed = collapses(args.draws, rngs[4], kinds, SIZES)
    collapsed |= collapses(args.draws, rngs[6], QUIET, QUIET_SIZES)
    others = scenarios(2 * args.draws, rngs[5])
    if args.tables:
        write_errors(args.tables, results)
        write_table(args.tables / "looks.csv", "noise,error,power,fixed", looks)
        header = "collapses,methods,comparisons,seeds,error,without_rule"
        write_table(args.tables / "collapses.csv", header, collapsed)
        write_table(args.tables / "rows.csv", "case,coverage", rows)
        write_table(args.tables / "curves.csv", "case,error", curves)
        header = f"case,coverage,coverage_of_{100 * LEVEL:g}"
        write_table(args.tables / "scenarios.csv", header, others)
    values = {"tests": results, "looks": looks, "collapses": collapsed, "rows": rows}
    write_json(args, {**values, "curves": curves, "scenarios": others})


def write_errors(folder: Path, results: dict[str, dict[str, list[float]]]) -> None:
    """Write ``errors.csv`` into a folder."""
    errors = {
        f"{key.replace(' ', ',')},{test}": values
        for key, by_test in results.items()
        for test, values in by_test.items()
    }
    write_table(folder / "errors.csv", "noise,seeds,test,error,power", errors)


def write_table(path: Path, header: str, rows: Mapping[str, float | list[float]]) -> None:
    """Write a table of numbers with four digits; keys are the first fields."""
    lines = [header]
    for key, values in rows.items():
        lines.append(",".join((key, *(f"{x:.4f}" for x in np.atleast_1d(values)))))
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

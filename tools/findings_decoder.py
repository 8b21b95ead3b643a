"""Write the tables and figures of ``docs/findings-decoders.md`` from the cells of the study.

python -m tools.findings_decoder

The questions, scores and fits were fixed before the first cell was kept:

1. Does KL predict forgetting? One point a cell, after the last stage: the old facts that are still
   known, p_o (primary; all cells start from one model), or the loss added on held-out text, on each
   of six KL measures on the last task, by a quadratic, as Shenfeld et al. 2025 fit one. R² has a
   bootstrap interval over seeds; out of sample, R² is that of predictions for methods that the fit
   has not seen, and its interval is over seeds and methods. Controls: the score on the last task,
   and KL on unrelated text. The new task is special only if KL there predicts better than both.
2. On-policy data or just small steps? What `ON_POLICY` methods keep of the old facts where they
   learn as much of the new ones as ``vanilla`` at some rate, read on each seed's own curve over the
   strengths; means where a curve does not reach a level.
3. Real or spurious forgetting? The rows of the old facts on which a final model that lost `FORGOT`
   or more since the first stage must be trained again.

The comparisons of every baseline with plain fine-tuning at the rate at which that learns most
nearly as much, with its curve over rates and steps, and with low rates for more steps (`LATER`)
were added after the cells were seen. So was relearning at low rates (`SLOW`), which was declared
before its own cells. Its control, a base that never knew the old facts (`NEVER_KNEW`), was declared
later, before the control's first kept cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from clbench.figures import style
from clbench.results.cell import CellResult, cell_scores, steps_by_scenario
from clbench.results.matched import LEVELS, read_curve
from clbench.results.statistics import (
    Comparison,
    Differences,
    Floats,
    compare,
    summarise,
)
from clbench.results.store import Store
from tools import findings_grpo as grpo
from tools import findings_kl as kl
from tools.equal_learning import (
    against,
    complete,
    facts_on_curve,
    shown_comparison,
    shown_on_curve,
)
from tools.findings import REFERENCE, ROOT, interval, plain, table, write

PAGE = ROOT / "docs" / "findings-decoders.md"
FIGURE = ROOT / "docs" / "figures" / "findings-decoder.svg"
FOLDER, LATE = (REFERENCE / name for name in ("findings-decoder", "findings-decoder-late"))
TEACHER = REFERENCE / "findings-decoder-sdft"
"""Cells of `sdft` that tell what its teacher knows."""
SLOW = {"a tenth": "findings-decoder-relearn", "three tenths": "findings-decoder-relearn-third"}
"""Runs of plain fine-tuning that relearn at that share of the rate."""
NEVER_KNEW = "findings-decoder-relearn-others"
"""The run at a tenth whose base never knew the old facts."""
TRIED = (8, 16, 32)
"""Numbers of rows on which these runs relearn."""
ANSWERS = {"": "right answers", "_base": "base’s answers", "_own": "own answers"}
MEASURES = {
    **{f"{d}_kl{a}": f"{d} KL, {ANSWERS[a]}" for a in ANSWERS for d in ("forward", "reverse")},
    "divergence": "control: forward KL, unrelated text",
    "p_s": "control: new facts learned",
}
KEPT = {"p_o": "old facts kept", "text_loss_added": "text loss added"}
ON_POLICY = ("self-replay", "self-sft", "sdft")
COMPARED = ("p_s", "p_o")
FAST = frozenset({"vanilla-double", "self-sft-drop-double", "sdft-double", "dft-double"})
"""Strengths at double rate, on which a quadratic depends much."""
LAST = frozenset({"sdft-half", "sdft-double", "ewc-strong", "kl-anchor-light", "lora-faster",
                  "dft-double", "asft-strong"})  # fmt: skip
"""Declared strengths that were complete only after the others had been seen and published."""
LONG, STEADY = "low-rate-half-long", "low-rate-quarter-long"
"""Half the rate for twice the steps, and a quarter for four times as many."""
LATER = {"vanilla-long", "low-rate-quarter-twice", STEADY, "low-rate-quarter-eightfold"}
"""Plain fine-tuning for more steps, added after the other cells were seen."""
FORGOT = 0.1


@cache
def cells() -> list[CellResult]:
    """Return the finished cells."""
    both = (cell for folder in (FOLDER, LATE) for cell in Store(folder).read().cells)
    return [cell for cell in both if cell.status == "ok"]


@cache
def steps() -> dict[str, float]:
    """Return the smallest change of each score."""
    (found,) = steps_by_scenario(cells()).values()
    return found


@cache
def every() -> pd.DataFrame:
    """Return the scores of the finished cells of the seeds that every baseline has.

    ``relearned`` is the number of rows that brought back a loss of `FORGOT` or more, infinite if
    none did, and NaN for a smaller loss.
    """
    rows = []
    for cell in cells():
        again, rows_again = dict(cell.relearning), np.inf
        if again["recovered"]:
            rows_again = again["rows"][-1]
        lost = (cell.scores["forgetting"] or 0.0) >= FORGOT
        own = {"baseline": cell.baseline, "method": cell.method, "seed": cell.seed}
        floor = cell.floors[-1] or 0.0
        rows.append({**cell_scores(cell), **own, "floor": floor,
                     "relearned": rows_again if lost else np.nan})  # fmt: skip
    return complete(pd.DataFrame(rows))


@cache
def kept() -> pd.DataFrame:
    """Return the scores of the baselines that were declared."""
    return every()[~every()["baseline"].isin(LATER)].reset_index(drop=True)


@cache
def r2(
    measure: str,
    score: str = "p_o",
    *,
    unseen: bool = False,
    logarithm: bool = False,
    without: frozenset[str] = frozenset(),
) -> kl.Fit:
    """Return R² of a quadratic in a measure, or in its logarithm, without some strengths.

    Only fits in the measure itself, of all strengths, were declared.
    """
    some = kept()[~kept()["baseline"].isin(without)]
    return kl.fit(some, measure, score, unseen=unseen, logarithm=logarithm)


def curve(method: str) -> Floats:
    """Return shares of vanilla's gain learned, and −p_o, shape (seeds, settings, 2)."""
    frame, floor = kept(), kept()["floor"].mean()
    gain = frame[frame["baseline"] == "vanilla"]["p_s"].mean() - floor
    own = frame[frame["method"] == method].pivot(index="seed", columns="baseline")
    return np.stack([(own["p_s"].to_numpy() - floor) / gain, -own["p_o"].to_numpy()], axis=-1)


def rank_correlation(measure: str) -> float:
    """Return Spearman's correlation of a measure with the old facts kept; not declared."""
    return float(kept()[[measure, "p_o"]].rank().corr().iloc[0, 1])


def why_not(method: str, level: float) -> str:
    """Return why a method has no reading at a level."""
    learned = curve(method)[..., 0]
    if (learned.max(1) < level).any():
        return "never learns as much"
    return (
        "learns more at every strength" if (learned.min(1) > level).any() else "too few strengths"
    )


def matched(method: str, level: float) -> tuple[float, float, float] | None:
    """Return what a method keeps more than vanilla at a level, with its interval, or None."""
    (ours, bend), (theirs, other) = (read_curve(curve(m), level) for m in (method, "vanilla"))
    if not np.isfinite([*ours, *theirs, bend, other]).all():
        return None
    values = [float(value) for value in theirs - ours]
    found = summarise(values, steps()["p_o"], float(np.hypot(bend, other)))
    return found.mean, found.low, found.high


@cache
def at_rates() -> dict[str, tuple[str, Comparison, Comparison]]:
    """Return what differs from plain fine-tuning at the rate that learns most nearly as much.

    By baseline: that strength of ``vanilla``, and the comparisons of new and old facts. All
    intervals hold jointly. A rate that is too high, as another one learns and keeps more, does not
    count.
    """
    learned = kept().groupby("baseline")["p_s"].mean()
    others = kept().loc[kept()["method"] != "vanilla", "baseline"].unique()
    return from_references(
        {n: min(rates(), key=lambda p: abs(learned[p] - learned[n])) for n in others}
    )


def rates(*more: str) -> list[str]:
    """Return the strengths of plain fine-tuning, and `more`, that none beats in both means."""
    means = every().groupby("baseline")[["p_s", "p_o"]].mean()
    some = [*kept().loc[kept()["method"] == "vanilla", "baseline"].unique(), *more]
    return [p for p in some if not (means.loc[some] > means.loc[p]).all(axis=1).any()]


def from_references(
    references: Mapping[str, str],
) -> dict[str, tuple[str, Comparison, Comparison]]:
    """Return what differs from each baseline's reference, as `at_rates`: one family."""
    pairs: dict[str, list[str]] = {}
    for name, other in references.items():
        pairs.setdefault(other, []).append(name)
    found = against(every(), pairs, {score: steps()[score] for score in COMPARED}, [])
    return {
        name: (other, found["p_s", other, name], found["p_o", other, name])
        for name, other in references.items()
    }


@cache
def at_steady() -> dict[str, tuple[str, Comparison, Comparison]]:
    """Return what differs from a quarter of the rate for four times the steps."""
    return from_references(dict.fromkeys(["vanilla", *at_rates()], STEADY))


@cache
def on_curve(*later: str) -> dict[tuple[str, str], Comparison | int]:
    """Return what a baseline keeps more than plain fine-tuning that learns as much.

    By score, the old facts kept or what of them was lost since the first stage, and baseline. The
    curve is that over rates and steps, `rates` with `LONG` and `later` ones; see
    `at_equal_learning`.
    """
    others = [name for name in at_rates() if name != LONG]
    return facts_on_curve(every(), steps(), rates(LONG, *later), others)


@cache
def relearned_slowly(folder: str, baseline: str) -> pd.DataFrame:
    """Return what cells of `SLOW` ``lost``, and what each number of rows brings back, by seed."""
    rows, seeds = [], []
    for cell in Store(REFERENCE / folder).read().cells:
        if (cell.baseline, cell.status) == (baseline, "ok"):
            scores = dict(zip(cell.relearning["rows"], cell.relearning["scores"], strict=True))
            first = np.array(cell.R[0], np.float64)[0]
            back = {number: scores[number] - scores[0] for number in TRIED}
            rows.append({"lost": first - scores[0]} | back)
            seeds.append(cell.seed)
    return pd.DataFrame(rows, index=seeds).sort_index()


@cache
def remembered() -> dict[str, Comparison]:
    """Return what the most rows bring back beyond what they teach a model that never knew.

    By baseline, one family. Each is a difference of two differences of scores.
    """
    step = 2.0**0.5 * steps()["p_o"]
    samples = {}
    for name in ("vanilla", "vanilla-half"):
        knew, never = (relearned_slowly(folder, name) for folder in (SLOW["a tenth"], NEVER_KNEW))
        if not knew.index.equals(never.index):
            raise ValueError(f"{name}: both runs of relearning must have the same seeds")
        samples[name] = Differences(tuple(knew[TRIED[-1]] - never[TRIED[-1]]), step)
    return {name: each for (_, name), each in compare({"p_o": samples}).items()}


def tables() -> dict[str, str]:
    """Return the tables of the page by name."""
    shown = [(score, unseen) for score in KEPT for unseen in (False, True)]
    fits = []
    for name, label in MEASURES.items():
        texts = [str(r2(name, score, unseen=unseen)) for score, unseen in shown]
        fits.append([label, *texts, plain(rank_correlation(name), 2)])
    read = {method: [matched(method, level) for level in LEVELS] for method in ON_POLICY}
    learned = [
        [f"`{m}`", *(interval(*f) if f else why_not(m, v) for v, f in zip(LEVELS, r, strict=True))]
        for m, r in read.items()
    ]
    points = []
    for name, own in every().groupby("baseline", sort=False):
        means = [plain(own[s].mean()) for s in ("p_s", *KEPT, "forward_kl", "divergence")]
        lost = own["relearned"].dropna()
        points.append([f"`{name}`", *means, f"{np.isfinite(lost).sum()} of {len(lost)}"])
    equal = on_curve()
    nearest = [
        [
            f"`{name}`",
            f"`{other}`",
            *(t for c in both for t in shown_comparison(c)),
            *(shown_on_curve(equal.get((score, name))) for score in ("p_o", "forgetting")),
        ]
        for name, (other, *both) in at_rates().items()
    ]
    steady = [
        [f"`{name}`", *(t for c in both for t in shown_comparison(c))]
        for name, (_, *both) in at_steady().items()
    ]
    slow = []
    for label, folder in {**SLOW, "a tenth, never knew": NEVER_KNEW}.items():
        for name in ("vanilla", "vanilla-half"):
            own = relearned_slowly(folder, name)
            found = [summarise([*own[number]]) for number in TRIED]
            ends = [interval(f.mean, f.low, f.high) for f in found]
            slow.append([label, f"`{name}`", str(len(own)), plain(own["lost"].mean()), *ends])
    heads = [f"{KEPT[s]}{', unseen methods' if u else ''}" for s, u in shown]
    scores = ["new facts", "", "old facts kept", ""]
    equally = ["kept at equal learning", "not lost since the first stage"]
    marks = ["new facts", *KEPT.values(), "forward KL", "KL on text", "relearned"]
    return {
        "decoder-kl": table(["R² of", *heads, "ranks"], fits),
        "decoder-matched": table(["method", *(f"{plain(v, 2)} learned" for v in LEVELS)], learned),
        "decoder-steady": table(["baseline", *scores], steady),
        "decoder-rates": table(["baseline", "nearest rate", *scores, *equally], nearest),
        "decoder-relearned": table(
            ["relearns at", "baseline", "seeds", "lost", *(f"{n} rows" for n in TRIED)], slow
        ),
        "decoder-points": table(["baseline", *marks], points),
        **grpo.tables(),
    }


def draw() -> Figure:
    """Draw the facts kept against KL on the new task, and against KL on unrelated text."""
    figure, grid = style.panels(2, width=4.6, height=3.4, columns=2)
    looks = style.looks_of(kept()["method"].unique())
    for axes, name in zip(grid, ("forward_kl", "divergence"), strict=True):
        for method, (color, mark, scale, _) in looks.items():
            own = kept()[kept()["method"] == method]
            axes.plot(own[name], own["p_o"], mark, ls="none", ms=3 * scale, color=color, alpha=0.7)
        line = np.linspace(0.0, kept()[name].max(), 100)
        fit = np.polyfit(kept()[name], kept()["p_o"], 2)
        axes.plot(line, np.polyval(fit, line), "-", lw=1, color=style.GREY)
        axes.set_xlabel(f"{MEASURES[name].removeprefix('control: ')}, nats a token")
        axes.set_ylabel("old facts kept (p_o)")
        axes.set_ylim(0.0, 1.0)
    style.legend(figure, looks)
    return style.captioned(figure, "A mark is a cell; lines are the quadratics over all cells.")


def main() -> None:
    """Write the tables into the page, and the figure."""
    write([PAGE], tables(), FIGURE, draw())
    grpo.write_figure()


if __name__ == "__main__":
    main()

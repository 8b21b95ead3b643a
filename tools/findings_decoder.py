"""Write the tables and the figure of ``docs/findings-decoders.md`` from the cells of the study.

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
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from statistics import fmean, median
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from clbench.figures import style
from clbench.results.cell import CellResult, cell_scores
from clbench.results.matched import LEVELS, read_curve
from clbench.results.statistics import Floats, summarise
from clbench.results.store import Store
from tools.findings import REFERENCE, ROOT, filled, interval, plain, table

PAGE = ROOT / "docs" / "findings-decoders.md"
FIGURE = ROOT / "docs" / "figures" / "findings-decoder.svg"
FOLDER = REFERENCE / "findings-decoder"
MEASURES = {
    "forward_kl": "forward KL, right answers",
    "reverse_kl": "reverse KL, right answers",
    "forward_kl_base": "forward KL, base’s answers",
    "reverse_kl_base": "reverse KL, base’s answers",
    "forward_kl_own": "forward KL, own answers",
    "reverse_kl_own": "reverse KL, own answers",
    "divergence": "control: forward KL on unrelated text",
    "p_s": "control: new facts learned",
}
KEPT = {"p_o": "old facts kept", "text_loss_added": "text loss added"}
ON_POLICY = ("self-replay", "self-sft", "sdft")
FORGOT = 0.1
DRAWS, SEED = 2000, 0


@cache
def kept() -> tuple[CellResult, ...]:
    """Return the finished cells of the seeds that every baseline has."""
    cells = [cell for cell in Store(FOLDER).read().cells if cell.status == "ok"]
    sizes = Counter(cell.seed for cell in cells)
    return tuple(cell for cell in cells if sizes[cell.seed] == max(sizes.values()))


@cache
def values(name: str) -> Floats:
    """Return a score of all kept cells, shape (n,)."""
    return np.array([cell_scores(cell)[name] for cell in kept()], dtype=float)


def r_squared(x: Floats, y: Floats, groups: Floats, *, unseen: bool) -> float:
    """Return the share of the variance of `y` that a quadratic in `x` explains.

    With `unseen`, each group is predicted from the others, and below 0 is worse than their mean.
    """
    errors = spread = 0.0
    for group in np.unique(groups) if unseen else [None]:
        of = groups == group if unseen else np.ones(len(y), bool)
        fit = ~of if unseen else of
        errors += ((y[of] - np.polyval(np.polyfit(x[fit], y[fit], 2), x[of])) ** 2).sum()
        spread += ((y[of] - y[fit].mean()) ** 2).sum()
    return float(1.0 - errors / spread)


@cache
def r2(measure: str, score: str, *, unseen: bool = False) -> tuple[float, float, float]:
    """Return R² and its 95 % interval by bootstrap, of seeds, and if `unseen` of methods too."""
    x, y, rng = values(measure), values(score), np.random.default_rng(SEED)
    names, methods = np.unique([c.method for c in kept()], return_inverse=True)
    seeds, blocks = np.unique([c.seed for c in kept()], return_inverse=True)
    draws = []
    for _ in range(DRAWS):
        some = rng.integers(len(names), size=len(names)) if unseen else np.arange(len(names))
        chosen = np.bincount(rng.integers(len(seeds), size=len(seeds)), minlength=len(seeds))
        count = np.bincount(some, minlength=len(names))[methods] * chosen[blocks]
        rows = np.repeat(np.arange(len(y)), count)
        draws.append(r_squared(x[rows], y[rows], methods[rows], unseen=unseen))
    low, high = np.percentile(draws, [2.5, 97.5])
    return r_squared(x, y, methods, unseen=unseen), float(low), float(high)


def curve(method: str) -> Floats:
    """Return shares of vanilla's gain learned, and −p_o, shape (seeds, settings, 2)."""
    own = [c for c in kept() if c.baseline == "vanilla"]
    floor = own[0].floors[-1] or 0.0
    gain = fmean(c.scores["p_s"] or 0.0 for c in own) - floor
    points: dict[int, list[list[float]]] = {}
    for cell in sorted(kept(), key=lambda cell: cell.baseline):
        if cell.method == method:
            learned = ((cell.scores["p_s"] or 0.0) - floor) / gain
            points.setdefault(cell.seed, []).append([learned, -(cell.scores["p_o"] or 0.0)])
    return np.array([points[seed] for seed in sorted(points)])


def matched(method: str, level: float) -> tuple[float, float, float] | None:
    """Return what a method keeps more than vanilla at a level, with its interval, or None."""
    (ours, bend), (theirs, other) = (read_curve(curve(m), level) for m in (method, "vanilla"))
    if not np.isfinite([*ours, *theirs, bend, other]).all():
        return None
    found = summarise(
        list(map(float, theirs - ours)), float(np.hypot(bend, other)) * len(ours) ** 0.5
    )
    return found.mean, found.low, found.high


def relearned(cells: Sequence[CellResult]) -> str:
    """Return the median of the rows that bring the facts back, over cells that lost them."""
    lost: list[Any] = [c.relearning for c in cells if (c.scores["forgetting"] or 0.0) >= FORGOT]
    counts = [r["rows"][-1] if r["recovered"] else np.inf for r in lost]
    middle = median(counts) if counts else 0
    return "" if not counts else f"{middle:g}" if middle < np.inf else "more than 32"


def tables() -> dict[str, str]:
    """Return the tables of the page by name."""
    shown = [(score, unseen) for score in KEPT for unseen in (False, True)]
    fits, learned, points = [], [], []
    for name, label in MEASURES.items():
        found = [r2(name, score, unseen=unseen) for score, unseen in shown]
        fits.append([label, *("{} [{}, {}]".format(*(plain(v, 2) for v in f)) for f in found)])
    for method in ON_POLICY:
        found = [matched(method, level) for level in LEVELS]
        learned.append([f"`{method}`", *(interval(*f) if f else "not reached" for f in found)])
    for name in dict.fromkeys(c.baseline for c in kept()):
        own = [i for i, c in enumerate(kept()) if c.baseline == name]
        means = [values(s)[own].mean() for s in ("p_s", *KEPT, "forward_kl", "divergence")]
        rows = relearned([kept()[i] for i in own])
        points.append([f"`{name}`", *map(plain, means), rows])
    heads = [f"{KEPT[s]}, R² {'for unseen methods' if u else ''}".strip() for s, u in shown]
    marks = ["new facts", *KEPT.values(), "forward KL", "KL on text", "rows to relearn"]
    return {
        "decoder-kl": table(["measure", *heads], fits),
        "decoder-matched": table(["method", *(f"{plain(v, 2)} learned" for v in LEVELS)], learned),
        "decoder-points": table(["baseline", *marks], points),
    }


def draw() -> Figure:
    """Draw the facts kept against KL on the new task, and against KL on unrelated text."""
    figure, grid = style.panels(2, width=4.6, height=3.4, columns=2)
    looks = style.looks_of(dict.fromkeys(c.method for c in kept()))
    y = values("p_o")
    for axes, name in zip(grid, ("forward_kl", "divergence"), strict=True):
        x = values(name)
        for method, (color, mark, scale, _) in looks.items():
            own = [i for i, c in enumerate(kept()) if c.method == method]
            axes.plot(x[own], y[own], mark, ls="none", ms=3 * scale, color=color, alpha=0.7)
        line = np.linspace(x.min(), x.max(), 100)
        axes.plot(line, np.polyval(np.polyfit(x, y, 2), line), "-", lw=1, color=style.GREY)
        axes.set_xlabel(f"{MEASURES[name].removeprefix('control: ')}, nats a token")
        axes.set_ylabel("old facts kept (p_o)")
    style.legend(figure, looks)
    return style.captioned(figure, "A mark is a cell; lines are the quadratics over all cells.")


def main() -> None:
    """Write the tables into the page, and the figure."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")
    with matplotlib.rc_context({"svg.hashsalt": "clbench"}):
        draw().savefig(FIGURE, metadata={"Date": None})


if __name__ == "__main__":
    main()

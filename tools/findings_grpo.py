"""The tables and the figure of GRPO in ``docs/findings-decoders.md``.

`tools.findings_decoder` writes them. What is compared was fixed in the suite before the first cell
was kept.
"""

from __future__ import annotations

from functools import cache

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from clbench.results.cell import cell_scores
from clbench.results.statistics import Comparison
from clbench.results.store import Store
from tools.equal_learning import (
    against,
    at_equal_learning,
    complete,
    shown_against,
    shown_on_curve,
)
from tools.findings import REFERENCE, ROOT, plain, table
from tools.findings_figures import points_figure

FOLDER = REFERENCE / "findings-decoder-grpo"
FIGURE = ROOT / "docs" / "figures" / "findings-grpo.svg"
RATES = ("vanilla-fortieth", "vanilla-twentieth", "vanilla-tenth", "vanilla-fifth")
DFT = ("dft-tenth", "dft-quarter")
GRPO = ("grpo-tenth", "grpo-quarter", "grpo-reward-tenth")
TWINS = {"dft-tenth": ("grpo-tenth", "grpo-reward-tenth"), "dft-quarter": ("grpo-quarter",)}
"""Strengths of GRPO by the strength of DFT at the same rate."""
SCORES = {"p_s": "new facts", "p_o": "old facts kept"}
ROWS = {"p_s": 48, "p_o": 144}
"""Facts of which each score is a share."""


@cache
def kept() -> pd.DataFrame:
    """Return the scores of the finished cells of the seeds that all baselines have."""
    cells = [cell for cell in Store(FOLDER).read().cells if cell.status == "ok"]
    rows = [cell_scores(c) | {"baseline": c.baseline, "seed": c.seed} for c in cells]
    return complete(pd.DataFrame(rows))


@cache
def on_curve() -> dict[tuple[str, str], Comparison | int]:
    """Return what DFT and GRPO keep more than plain fine-tuning that learns as much.

    By score, the old facts kept or what of them was lost since the first stage, and baseline; see
    `at_equal_learning`.
    """
    new, old, lost = (
        kept().pivot(index="seed", columns="baseline", values=score)
        for score in ("p_s", "p_o", "forgetting")
    )
    step = 1 / ROWS["p_o"]
    losses = {"p_o": (-old, step), "forgetting": (lost, step)}
    return at_equal_learning(new, losses, RATES, [*DFT, *GRPO])


@cache
def beside_dft() -> dict[tuple[str, str, str], Comparison]:
    """Return what GRPO differs from DFT at its rate, by score and both baselines."""
    return against(kept(), TWINS, {name: 1 / rows for name, rows in ROWS.items()}, [])


def tables() -> dict[str, str]:
    """Return the tables by name."""
    points = []
    for name in (*RATES, *DFT, *GRPO):
        own = kept()[kept()["baseline"] == name]
        scores = (*SCORES, "text_loss_added", "forward_kl")
        equal = [
            shown_on_curve(on_curve()[s, name]) if name not in RATES else ""
            for s in ("p_o", "forgetting")
        ]
        points.append([f"`{name}`", *(plain(own[s].mean()) for s in scores), *equal])
    heads = [*SCORES.values(), "text loss added", "forward KL"]
    equally = ["kept at equal learning", "not lost since the first stage"]
    columns = [part for label in SCORES.values() for part in (label, "")]
    return {
        "decoder-grpo": table(["baseline", *heads, *equally], points),
        "decoder-grpo-dft": table(["baseline", "against", *columns], shown_against(beside_dft())),
    }


def draw() -> Figure:
    """Draw the old facts kept, and KL on the new ones, against the new facts learned."""
    series = {"plain fine-tuning": RATES, "DFT": DFT, "GRPO": GRPO[:2]}
    series["GRPO, reward alone"] = GRPO[2:]
    labels = {"p_s": "new facts learned", "p_o": "old facts kept"}
    labels["forward_kl"] = "forward KL on the new facts, nats a token"
    caption = "Large marks are means; lines join the rates of a method."
    return points_figure(kept(), (("p_s", "p_o"), ("p_s", "forward_kl")), labels, series, caption)


def write_figure() -> None:
    """Write the figure."""
    with matplotlib.rc_context({"svg.hashsalt": "clbench"}):
        draw().savefig(FIGURE, metadata={"Date": None})

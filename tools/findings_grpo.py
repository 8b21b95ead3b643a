"""The tables and the figure of GRPO in ``docs/findings-decoders.md``.

`tools.findings_decoder` writes them. What is compared was fixed in the suites before their first
cells were kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import fmean

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from clbench.results.archive import read_archive
from clbench.results.cell import CellResult, cell_scores, steps_by_scenario
from clbench.results.statistics import Comparison
from clbench.results.store import Store
from tools.equal_learning import (
    against,
    complete,
    facts_on_curve,
    shown_against,
    shown_on_curve,
)
from tools.findings import REFERENCE, ROOT, plain, table
from tools.findings_figures import points_figure

FIGURE = ROOT / "docs" / "figures" / "findings-grpo.svg"
SCORES = {"p_s": "new facts", "p_o": "old facts kept"}


@dataclass(frozen=True)
class Study:
    """A study of GRPO beside plain fine-tuning and DFT, by the name of its folder.

    Attributes
    ----------
    before
        What the model is before it learns.
    rates
        Plain fine-tuning, from the lowest rate to the highest.
    twins
        Strengths of GRPO by the strength of DFT at the same rate. The last one of GRPO has the
        reward alone.
    """

    name: str
    before: str
    rates: tuple[str, ...]
    twins: Mapping[str, tuple[str, ...]]

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def grpo(self) -> list[str]:
        """The strengths of GRPO."""
        return sorted(name for names in self.twins.values() for name in names)

    @property
    def others(self) -> list[str]:
        """All that is compared with plain fine-tuning."""
        return [*self.twins, *self.grpo]

    def finished(self) -> list[CellResult]:
        """Return the finished cells."""
        cells = Store(REFERENCE / self.name).read().cells
        return [cell for cell in cells if cell.status == "ok"]

    def cells(self) -> list[dict[str, object]]:
        """Return the records of the cells."""
        return [json.loads(data) for data in read_archive(REFERENCE / self.name).values()]


SELDOM = Study(
    "findings-decoder-grpo",
    "seldom right before",
    ("vanilla-fortieth", "vanilla-twentieth", "vanilla-tenth", "vanilla-fifth"),
    {"dft-tenth": ("grpo-tenth", "grpo-reward-tenth"), "dft-quarter": ("grpo-quarter",)},
)
OFTEN = Study(
    "findings-decoder-able",
    "often right before",
    ("vanilla-twentieth", "vanilla-tenth", "vanilla-quarter", "vanilla-half"),
    {"dft-quarter": ("grpo-quarter", "grpo-reward-quarter"), "dft-half": ("grpo-half",)},
)


@cache
def kept(study: Study) -> pd.DataFrame:
    """Return the scores of the finished cells of the seeds that all baselines have."""
    rows = [cell_scores(c) | {"baseline": c.baseline, "seed": c.seed} for c in study.finished()]
    return complete(pd.DataFrame(rows))


@cache
def steps(study: Study) -> dict[str, float]:
    """Return the smallest change of each score."""
    (found,) = steps_by_scenario(study.finished()).values()
    return found


@cache
def on_curve(study: Study) -> dict[tuple[str, str], Comparison | int]:
    """Return what DFT and GRPO keep more than plain fine-tuning that learns as much.

    By score, the old facts kept or what of them was lost since the first stage, and baseline; see
    `at_equal_learning`.
    """
    return facts_on_curve(kept(study), steps(study), study.rates, study.others)


@cache
def beside_dft(study: Study) -> dict[tuple[str, str, str], Comparison]:
    """Return what GRPO differs from DFT at its rate, by score and both baselines."""
    own = {score: steps(study)[score] for score in SCORES}
    return against(kept(study), study.twins, own, [])


def first_reward(study: Study) -> float:
    """Return the mean reward of the first answers to the new facts."""
    cells = [cell for cell in study.cells() if cell["method"] == "grpo"]
    return fmean(cell["stages"][1]["curves"]["reward"][0][1] for cell in cells)  # type: ignore[index]


def tables() -> dict[str, str]:
    """Return the tables by name."""
    found = {}
    heads = [*SCORES.values(), "text loss added", "forward KL"]
    heads += ["kept at equal learning", "not lost since the first stage"]
    columns = [part for label in SCORES.values() for part in (label, "")]
    for key, study in {"grpo": SELDOM, "able": OFTEN}.items():
        equal, points = on_curve(study), []
        means = kept(study).groupby("baseline").mean()
        for name in (*study.rates, *study.others):
            scores = [plain(means[s][name]) for s in (*SCORES, "text_loss_added", "forward_kl")]
            read = [equal.get((s, name)) for s in ("p_o", "forgetting")]
            shown = ["" if name in study.rates else shown_on_curve(each) for each in read]
            points.append([f"`{name}`", *scores, *shown])
        rows = shown_against(beside_dft(study))
        found[f"decoder-{key}"] = table(["baseline", *heads], points)
        found[f"decoder-{key}-dft"] = table(["baseline", "against", *columns], rows)
    return found


def draw() -> Figure:
    """Draw the old facts kept against the new ones learned, for both models."""
    series: dict[str, list[str]] = {
        name: [] for name in ("plain fine-tuning", "DFT", "GRPO", "GRPO, reward alone")
    }
    frames, panels, labels = [], [], dict[str, str]()
    for study in (SELDOM, OFTEN):
        own = kept(study)[["baseline", "p_s", "p_o"]]
        x, y = (f"{score} {study.name}" for score in ("p_s", "p_o"))
        frames.append(own.rename(columns={"p_s": x, "p_o": y}))
        frames[-1]["baseline"] = f"{study.name} " + own["baseline"]
        panels.append((x, y))
        labels |= {x: f"new facts learned, {study.before}", y: "old facts kept"}
        alone = [name for name in study.grpo if "reward" in name]
        groups = (study.rates, [*study.twins], [n for n in reversed(study.grpo) if n not in alone])
        for names, own_names in zip(series.values(), (*groups, alone), strict=True):
            names += [f"{study.name} {name}" for name in own_names]
    caption = "Large marks are means; lines join the rates of a method."
    return points_figure(pd.concat(frames), panels, labels, series, caption)


def write_figure() -> None:
    """Write the figure."""
    with matplotlib.rc_context({"svg.hashsalt": "clbench"}):
        draw().savefig(FIGURE, metadata={"Date": None})

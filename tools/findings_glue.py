"""Write the tables and the figure of ``docs/findings-glue.md`` from the cells of the study.

python -m tools.findings_glue

What is compared, and by which scores, was fixed in the suite before the first cell was kept.
"""

from __future__ import annotations

from functools import cache

import pandas as pd
from matplotlib.figure import Figure

from clbench.results.cell import CellResult, cell_scores, steps_by_scenario
from clbench.results.statistics import Comparison
from clbench.results.store import Store
from clbench.suite.read import read_suite
from clbench.suite.schema import Question
from tools.equal_learning import (
    against,
    at_equal_learning,
    complete,
    shown_against,
    shown_on_curve,
)
from tools.findings import REFERENCE, ROOT, plain, table, write
from tools.findings_figures import points_figure

PAGE = ROOT / "docs" / "findings-glue.md"
FIGURE = ROOT / "docs" / "figures" / "findings-glue.svg"
FOLDER = REFERENCE / "findings-glue-minilm"
RATES = {
    "vanilla-tenth": "a tenth of the rate",
    "vanilla-quarter": "a quarter",
    "vanilla-half": "half",
    "vanilla": "the full rate",
}
LORA = {"lora-shared": "LoRA at its published rate", "lora-double": "LoRA at twice that rate"}
PRIMARY = "lora-double"
TASKS = ("RTE", "MRPC", "CoLA", "SST-2")
MRPC = TASKS.index("MRPC")
SCORES = {"learned": "MRPC learned", "lost": "MRPC lost", "average": "average", "bwt": "BWT"}


@cache
def cells() -> list[CellResult]:
    """Return the finished cells."""
    return [cell for cell in Store(FOLDER).read().cells if cell.status == "ok"]


@cache
def kept() -> pd.DataFrame:
    """Return the scores of the finished cells, with each task's after it and in the end."""
    rows = []
    for cell in cells():
        own = {"baseline": cell.baseline, "seed": cell.seed}
        for task, name in enumerate(TASKS):
            own |= {f"{name} learned": cell.R[task][task], f"{name} kept": cell.R[-1][task]}
        learned = cell.R[MRPC][MRPC]
        own |= {"learned": learned, "lost": learned - cell.R[-1][MRPC]}
        rows.append(own | {score: cell_scores(cell)[score] for score in ("average", "bwt")})
    return pd.DataFrame(rows)


@cache
def compared() -> pd.DataFrame:
    """Return the scores of the seeds that all baselines have."""
    return complete(kept())


def by_seed(score: str) -> pd.DataFrame:
    """Return a score by seed (rows) and baseline (columns)."""
    return compared().pivot(index="seed", columns="baseline", values=score)


def steps() -> dict[str, float]:
    """Return the smallest change of each score."""
    (found,) = steps_by_scenario(cells()).values()
    one = 1 / cells()[0].scenario_report["parts"][MRPC]["validation"]
    return {"learned": one, "lost": one, "average": found["average"], "bwt": found["bwt"]}


@cache
def primary() -> Comparison | int:
    """Return what LoRA loses of MRPC less than plain fine-tuning that learned as much of it.

    See `at_equal_learning`.
    """
    lost = {"lost": (by_seed("lost"), steps()["lost"])}
    return at_equal_learning(by_seed("learned"), lost, [*RATES], [PRIMARY])["lost", PRIMARY]


@cache
def against_rates() -> dict[tuple[str, str, str], Comparison]:
    """Return what differs from each rate of plain fine-tuning, by score, rate and baseline.

    All intervals hold jointly.
    """
    pairs = dict.fromkeys(RATES, (*LORA,))
    return against(compared(), pairs, steps(), ["lost"], margin=Question().margin)


def tables() -> dict[str, str]:
    """Return the tables of the page by name; no differences before all declared seeds are there."""
    points, tasks = [], []
    for name in (*RATES, *LORA):
        own = compared()[compared()["baseline"] == name]
        means = own.drop(columns="baseline").mean()
        points.append([f"`{name}`", *(plain(means[s]) for s in SCORES), str(own["seed"].nunique())])
        ends = (f"{plain(means[f'{t} learned'])} → {plain(means[f'{t} kept'])}" for t in TASKS)
        tasks.append([f"`{name}`", *ends])
    least = [plain(floor or 0.0) for floor in cells()[0].floors]
    tasks.append(["the most frequent class", *least])
    found = {
        "glue-points": table(["baseline", *SCORES.values(), "seeds"], points),
        "glue-tasks": table(["baseline", *TASKS], tasks),
    }
    if {*compared()["seed"]} == {*read_suite(FOLDER.name).file.seeds}:
        columns = [part for label in SCORES.values() for part in (label, "")]
        equal = [[f"`{PRIMARY}`", shown_on_curve(primary())]]
        found["glue-equal"] = table(["baseline", "MRPC kept"], equal)
        rows = shown_against(against_rates())
        found["glue-rates"] = table(["baseline", "rate", *columns], rows)
    return found


def draw() -> Figure:
    """Draw what was lost of MRPC against what was learned of it, and both scores over all tasks."""
    series = {"plain fine-tuning": [*RATES]} | {label: [name] for name, label in LORA.items()}
    caption = "Large marks are means; the line joins a tenth, a quarter, half and all of the rate."
    panels = (("learned", "lost"), ("average", "bwt"))
    return points_figure(compared(), panels, SCORES, series, caption)


def main() -> None:
    """Write the tables into the page, and the figure."""
    write([PAGE], tables(), FIGURE, draw())


if __name__ == "__main__":
    main()

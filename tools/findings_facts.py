"""Write the tables and the figure of ``docs/findings-facts.md`` from the cells of the study.

python -m tools.findings_facts

What is compared was fixed in the suite before the first trial.
"""

from __future__ import annotations

import re
from functools import cache
from math import hypot

import pandas as pd
from matplotlib.figure import Figure

from clbench.results.cell import cell_scores, steps_by_scenario
from clbench.results.statistics import Comparison, Differences, compare
from clbench.suite.baselines import read_baseline
from clbench.suite.schema import Question
from clbench.suite.sweeps import own_values
from tools import findings_decoder as untuned
from tools.equal_learning import at_equal_learning, complete, shown_comparison, shown_on_curve
from tools.findings import REFERENCE, ROOT, Study, plain, setting, table, write
from tools.findings_figures import Mark, forest, mark
from tools.findings_trials import is_end, trials

PAGE = ROOT / "docs" / "findings-facts.md"
FIGURE = ROOT / "docs" / "figures" / "findings-facts.svg"
STUDY = Study(
    "facts", "made-up facts", REFERENCE / "findings-facts", REFERENCE / "findings-facts-tune"
)
MORE = REFERENCE / "findings-facts-tune-more"
"""Further trials of methods whose best one lay at or near an end of what was tried."""
SCORES = {"average": "mean of both", "p_o": "old facts kept", "p_s": "new facts learned"}
"""What is compared with tuned plain fine-tuning, the primary score first."""
QUESTION = list(SCORES)
REFERENCE_METHOD = "vanilla"


@cache
def kept() -> pd.DataFrame:
    """Return the scores of the finished cells of the seeds that every method has."""
    cells = [cell for cell in STUDY.read()[0] if cell.status == "ok"]
    rows = []
    for cell in cells:
        own = {"baseline": cell.baseline, "seed": cell.seed, "seconds": cell.train_seconds}
        rows.append({**cell_scores(cell), **own})
    return complete(pd.DataFrame(rows))


@cache
def steps() -> dict[str, float]:
    """Return by how much one fact changes each score; the mean, by one fact of either task."""
    (found,) = steps_by_scenario(STUDY.read()[0]).values()
    return {score: found[score] for score in SCORES} | {
        "average": hypot(found["p_o"], found["p_s"]) / 2
    }


def by_seed(score: str) -> pd.DataFrame:
    """Return a score by seed (rows) and method (columns)."""
    return kept().pivot(index="seed", columns="baseline", values=score)


def methods() -> list[str]:
    """Return the methods beside tuned plain fine-tuning."""
    return [name for name in kept()["baseline"].unique() if name != REFERENCE_METHOD]


def times() -> pd.Series:
    """Return the median over seeds of each method's training time, a multiple of `vanilla`'s."""
    seconds = by_seed("seconds")
    return seconds.div(seconds[REFERENCE_METHOD], axis=0).median()


@cache
def against_vanilla() -> dict[tuple[str, str], Comparison]:
    """Return what differs from tuned plain fine-tuning, by score and method.

    All intervals hold jointly.
    """
    groups = {}
    for score, step in steps().items():
        values = by_seed(score)
        groups[score] = {
            name: Differences(tuple(values[name] - values[REFERENCE_METHOD]), step)
            for name in methods()
        }
    return compare(groups, margin=Question().margin)


@cache
def explored() -> dict[str, Comparison]:
    """Return how replay differs from a low rate for more steps; chosen after the runs."""
    pairs = {s: tuple(by_seed(s)["replay"] - by_seed(s)["low-rate-long"]) for s in SCORES}
    groups = {s: {"replay": Differences(values, steps()[s])} for s, values in pairs.items()}
    return {score: each for (score, _), each in compare(groups).items()}


@cache
def on_curve(*later: str) -> dict[str, Comparison | int]:
    """Return what each method keeps more than plain fine-tuning that learned as much.

    The curve over rates and steps is that of `findings_decoder.on_curve`, on the same seeds.
    """
    curve = untuned.rates(untuned.LONG, *later)
    others = untuned.every()[untuned.every()["baseline"].isin(curve)]
    own = kept().assign(baseline="tuned " + kept()["baseline"])
    both = pd.concat(frame[["baseline", "seed", "p_s", "p_o"]] for frame in (others, own))
    new, old = (
        both.pivot(index="seed", columns="baseline", values=s).dropna() for s in ("p_s", "p_o")
    )
    names = [f"tuned {name}" for name in kept()["baseline"].unique()]
    found = at_equal_learning(new, {"p_o": (-old, steps()["p_o"])}, curve, names)
    return {name.removeprefix("tuned "): found["p_o", name] for name in names}


def settings_of(name: str) -> str:
    """Return the tuned settings of a method; * marks an end of what its trials had."""
    files = [folder / f"{name}.toml" for folder in (STUDY.tuning, MORE)]
    first, *_, last = [read_baseline(str(file)) for file in files if file.exists()] * 2
    values = own_values(first, last.settings)
    own = [each for each in trials(STUDY) if re.fullmatch(rf"{name}(-t\d+)?", each.baseline)]
    ends = {k: is_end(v, [each.settings["method"][k] for each in own]) for k, v in values.items()}
    return ", ".join(f"`{k}` {setting(v)}{'*' * ends[k]}" for k, v in values.items())


def tables() -> dict[str, str]:
    """Return the tables of the page by name."""
    compared = [
        [
            f"`{name}`",
            *(t for score in SCORES for t in shown_comparison(against_vanilla()[score, name])),
            shown_on_curve(on_curve()[name]),
        ]
        for name in methods()
    ]
    columns = [part for label in SCORES.values() for part in (label, "")]
    shown = ("p_o_before", "p_s", "p_o", "average", "text_loss_added")
    points = []
    for name, own in kept().groupby("baseline", sort=False):
        means = [plain(own[score].mean()) for score in shown]
        points.append([f"`{name}`", settings_of(name), *means, f"{times()[name]:.1f}"])
    heads = ["old facts, before", "new facts", "old facts", "mean of both", "text loss added"]
    return {
        "facts-compared": table(["method", *columns, "at equal learning"], compared),
        "facts-points": table(["method", "tuned settings", *heads, "time"], points),
    }


def draw() -> Figure:
    """Draw what each method changes against tuned plain fine-tuning, and at equal learning."""
    panels: dict[str, dict[str, dict[str, Mark]]] = {}
    for score, label in SCORES.items():
        marks = {name: mark(against_vanilla()[score, name]) for name in methods()}
        panels[label] = {"tuned alike": marks}
    equal = {n: mark(f) for n, f in on_curve().items() if isinstance(f, Comparison)}
    panels["at equal learning"] = {"tuned alike": equal}
    return forest(panels, "Differences from plain fine-tuning; all methods tuned alike.")


def main() -> None:
    """Write the tables into the page, and the figure."""
    write([PAGE], tables(), FIGURE, draw())


if __name__ == "__main__":
    main()

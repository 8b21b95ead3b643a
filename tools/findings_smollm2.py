"""Write the tables and the figure of ``docs/findings-smollm2.md`` from the cells of the study.

python -m tools.findings_smollm2

What is compared, and by which scores, was fixed in the suite before the first cell was kept. The
comparisons of methods with each rate of plain fine-tuning, which use the same scores, were added
while the cells ran, before one of them was read; those of the lower rates with the full one after
two seeds were seen. The baselines of `LATER` and their comparisons were declared when all other
cells were known, before their own. Five more seeds of the others were declared then, and read
once, when all ten were there. `TUNED` was declared last.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from clbench.results.cell import cell_scores, correct_after
from clbench.results.statistics import Comparison, Differences, compare, crossed_interval
from clbench.results.store import Store
from tools.equal_learning import against, at_equal_learning, complete, shown_against
from tools.findings import REFERENCE, ROOT, interval, less, more, plain, signed, table, write
from tools.findings_figures import points_figure
from tools.findings_sequences import UNTIMED

PAGE = ROOT / "docs" / "findings-smollm2.md"
FIGURE = ROOT / "docs" / "figures" / "findings-smollm2.svg"
FOLDER = REFERENCE / "findings-smollm2-short"
RATES = ("vanilla-quarter", "vanilla-half", "vanilla")
LATER = ("self-replay-tenth", "sdft")
"""Baselines declared when all other cells were known, with a family of intervals of their own."""
TUNED = ("lora-tuned",)
"""A baseline declared after `LATER`, with a rate tuned on other rows and a family of its own."""
UNTRAINED = FOLDER.with_name(f"{FOLDER.name}-untrained")
"""One cell with one step a stage, which holds the scores of the untrained model."""
ALPHA = 0.025
"""Error rate of the comparisons first declared, at ten seeds.

Earlier looks, at three seeds and at five of six and of eight baselines, had .05 each.
"""
GENERAL = "generic-replay-tenth"
LOST = {"text_loss_added": "text loss", "p_o": "topics"}
"""The primary and the secondary score, of what is lost."""
LEARNED = "p_s"
AXES = {
    "average": "both tasks in the end, mean score",
    "text_loss_added": "loss added on text, nats a token",
    "p_s": "sentiment learned (p_s)",
    "p_o": "topics right in the end (p_o)",
}
PANELS = (("average", "text_loss_added"), ("p_s", "p_o"))
"""What the figure shows: scores by axis."""
SHOWN = ("p_o_before", LEARNED, "p_o", "text_loss_before", "text_loss_added", "divergence")
"""Scores of which the page shows means."""
SCORED = 150
"""Rows of which ``p_o`` and ``p_s`` are a share."""
STEPS = {LEARNED: 1 / SCORED, "text_loss_added": 0.0, "p_o": 1 / SCORED}
"""The smallest change of each score that is compared."""
LOWER = ("text_loss_added",)
"""Scores of which less is better."""


@cache
def kept() -> pd.DataFrame:
    """Return the scores of the finished cells; `text_loss_before` is added by the first task."""
    rows = []
    for cell in (cell for cell in Store(FOLDER).read().cells if cell.status == "ok"):
        own = {"baseline": cell.baseline, "seed": cell.seed, "seconds": cell.train_seconds}
        if any(UNTIMED in note for note in cell.notes):
            own["seconds"] = np.nan
        start, middle, _ = (each["text_loss"] for each in cell.capabilities)
        own["text_loss_before"] = middle - start
        rows.append({**cell_scores(cell), **own})
    return pd.DataFrame(rows)


@cache
def compared() -> pd.DataFrame:
    """Return the scores of the seeds that all baselines first declared have."""
    return complete(kept()[~kept()["baseline"].isin((*LATER, *TUNED))])


@cache
def untrained() -> dict[str, float]:
    """Return the untrained model's scores by name, and what it has lost, 0."""
    (cell,) = Store(UNTRAINED).read().cells
    topics, sentiment = cell.untrained
    scores = {"p_o_before": topics, LEARNED: sentiment, "p_o": topics}
    return scores | dict.fromkeys(("text_loss_before", "text_loss_added", "divergence"), 0.0)


@cache
def against_untrained() -> dict[tuple[str, str, str], Comparison]:
    """Return what differs from the untrained model, like `against_rates`; chosen after the runs.

    The baselines first declared, which were looked at before, are one family, the others another.
    """
    later, found = (*LATER, *TUNED), {}
    for is_later, frame in kept().groupby(kept()["baseline"].isin(later)):
        groups = {
            (score, "untrained"): {
                name: Differences(tuple(own[score] - untrained()[score]), 1 / SCORED)
                for name, own in frame.groupby("baseline", sort=False)
            }
            for score in ("p_o_before", LEARNED, "p_o")
        }
        answers = compare(groups, **({} if is_later else {"alpha": ALPHA}))
        found |= {(*key, name): each for (key, name), each in answers.items()}
    return found


def with_other_rows(name: str, other: str) -> tuple[float, float]:
    """Return the interval of a difference in topics for other seeds and other rows; not joint."""
    cells = {(c.baseline, c.seed): c for c in Store(FOLDER).read().cells}
    seeds = sorted(seed for baseline, seed in cells if baseline == name)
    ours, theirs = (
        np.array([correct_after(cells[each, seed], 0) for seed in seeds], np.float64)
        for each in (name, other)
    )
    return crossed_interval(ours - theirs, step=1 / SCORED)


def by_seed(score: str) -> pd.DataFrame:
    """Return a score by seed (rows) and baseline (columns)."""
    return compared().pivot(index="seed", columns="baseline", values=score)


def others() -> list[str]:
    """Return the baselines first declared beside plain fine-tuning, in the order of the suite."""
    return [name for name in compared()["baseline"].unique() if name not in RATES]


@cache
def on_curve() -> dict[tuple[str, str], Comparison | int]:
    """Return what each method loses less than plain fine-tuning that learned as much.

    By score and baseline; see `at_equal_learning`.
    """
    lost = {
        "text_loss_added": (by_seed("text_loss_added"), STEPS["text_loss_added"]),
        "p_o": (-by_seed("p_o"), STEPS["p_o"]),
    }
    return at_equal_learning(by_seed(LEARNED), lost, RATES, others(), ALPHA)


@cache
def against_rates() -> dict[tuple[str, str, str], Comparison]:
    """Return what differs from each rate of plain fine-tuning, by score, rate and baseline.

    All intervals hold jointly.
    """
    rates = {rate: [*others(), *(RATES[:-1] if rate == "vanilla" else ())] for rate in RATES}
    return against(compared(), rates, STEPS, LOWER, ALPHA)


def beside(names: Sequence[str]) -> pd.DataFrame:
    """Return the scores of baselines and their references, of the seeds that all of them have."""
    return complete(kept()[kept()["baseline"].isin((*names, *RATES, GENERAL))])


@cache
def against_later() -> dict[tuple[str, str, str], Comparison]:
    """Return what differs between `LATER` and their references, like `against_rates`."""
    return against(beside(LATER), dict.fromkeys((*RATES, GENERAL), LATER), STEPS, LOWER)


@cache
def against_tuned() -> dict[tuple[str, str, str], Comparison]:
    """Return what differs between `TUNED` and each rate, like `against_rates`."""
    return against(beside(TUNED), dict.fromkeys(RATES, TUNED), STEPS, LOWER)


def tables() -> dict[str, str]:
    """Return the tables of the page by name."""
    points = [["untrained", *(plain(untrained()[score]) for score in SHOWN), "", ""]]
    for name, own in kept().groupby("baseline", sort=False):
        means = [plain(own[score].mean()) for score in SHOWN]
        seconds = own["seconds"].dropna()
        minutes = "" if seconds.empty else f"{seconds.median() / 60:.1f}"
        points.append([f"`{name}`", *means, minutes, str(own["seed"].nunique())])
    columns = [part for label in ("sentiment", *LOST.values()) for part in (label, "")]
    heads = [
        "topics, before",
        "sentiment",
        "topics",
        "text loss added, before",
        "text loss added",
        "KL on text",
        "minutes",
        "seeds",
    ]
    return {
        "smollm2-points": table(["baseline", *heads], points),
        "smollm2-rates": table(["baseline", "rate", *columns], shown_against(against_rates())),
        "smollm2-untrained": table(
            ["baseline", "against", "topics, before", "", "sentiment", "", "topics", ""],
            shown_against(against_untrained()),
        ),
        "smollm2-tuned": table(["baseline", "rate", *columns], shown_against(against_tuned())),
        "smollm2-later": table(["baseline", "against", *columns], shown_against(against_later())),
    }


@cache
def values() -> dict[str, str]:
    """Return the values of the page's sentences by name."""
    found = {}
    answers = against_rates() | against_later() | against_tuned() | against_untrained()
    for (score, other, name), answer in answers.items():
        ends = answer.difference, answer.difference_low, answer.difference_high
        found[f"{name} − {other} {score}"] = interval(*ends)
        found[f"more {name} {other} {score}"] = more(answer)
        found[f"less {name} {other} {score}"] = less(answer)
    seconds = kept().groupby("baseline")["seconds"].median()
    for name in ("replay", GENERAL):
        found[f"time {name}"] = f"{seconds[name] / seconds['vanilla']:.1f}"
    for name, other in ("replay", "vanilla"), ("replay", "vanilla-half"):
        ends = ", ".join(map(signed, with_other_rows(name, other)))
        found[f"rows {name} {other}"] = f"[{ends}]"
    (once,) = Store(UNTRAINED).read().cells
    found["start"] = f"{once.capabilities[0]['text_loss']:.2f}"
    found |= {f"untrained {score}": plain(value) for score, value in untrained().items()}
    for suffix, frame in ("", kept()), (" beside", beside(LATER)):
        for name, own in frame.groupby("baseline"):
            for score in (*SHOWN, "average"):
                found[f"{name} {score}{suffix}"] = plain(own[score].mean())
    return found


def draw() -> Figure:
    """Draw the loss added on text against both tasks' scores, and the old one's against the new."""
    average = (untrained()[LEARNED] + untrained()["p_o"]) / 2
    start = pd.DataFrame([{**untrained(), "average": average, "baseline": "untrained", "seed": -1}])
    frame = pd.concat([start, kept()], ignore_index=True)
    curve = {"plain fine-tuning": RATES}
    methods = {name: [name] for name in (*others(), *TUNED, *LATER, "untrained")}
    caption = (
        "Large marks are means; the line joins a quarter, half and the whole of the rate. The loss "
        "has a linear scale around 0 and a logarithmic one beyond."
    )
    figure = points_figure(frame, PANELS, AXES, curve | methods, caption)
    figure.axes[0].set_yscale("asinh", linear_width=0.03)
    figure.axes[0].set_yticks([-0.2, -0.05, 0.0, 0.02, 0.05, 0.1, 0.2, 0.5], minor=False)
    figure.axes[0].yaxis.set_major_formatter("{x:g}")
    figure.axes[0].minorticks_off()
    return figure


def main() -> None:
    """Write the tables into the page, and the figure."""
    write([PAGE], tables(), FIGURE, draw(), values())


if __name__ == "__main__":
    main()

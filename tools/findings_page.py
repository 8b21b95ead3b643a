"""Write the values, the figures and the table of ``docs/findings.md`` from the kept cells.

python -m tools.findings_page

The page's sentences hold their values between ``<!--=NAME-->`` and ``<!--/-->``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from clbench.figures import style
from clbench.results.statistics import summarise
from tools import findings as pairs
from tools import findings_decoder as decoder
from tools import findings_facts as facts
from tools import findings_glue as glue
from tools import findings_sequences as sequences
from tools.findings import ROOT, SCORES, TITLES
from tools.findings_answers import (
    CHANGES,
    LEADS,
    MARGIN,
    SEQUENCES,
    TRIES,
    comparisons,
    matching,
    relearned,
    strongest,
    values,
)
from tools.findings_figures import WIDTH, Mark, forest, mark
from tools.findings_studies import studies_table

PAGE = ROOT / "docs" / "findings.md"
FIGURES = ROOT / "docs" / "figures"
Panels = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Names of comparisons by panel, series and row."""


def filled(page: str) -> str:
    """Return the page with the values of now and its table."""
    return pairs.filled(page, {"studies": studies_table()}, values())


def comparison_figure(panels: Panels) -> Figure:
    """Draw comparisons."""
    marks = {
        title: {
            series: {row: mark(comparisons()[name]) for row, name in rows.items()}
            for series, rows in by_series.items()
        }
        for title, by_series in panels.items()
    }
    return forest(marks, "Differences with their intervals.", margin=MARGIN)


def kl_figure() -> Figure:
    """Draw how well KL on the new task and its controls predict what is forgotten."""
    kinds = {"methods of the fit": False, "methods that it has not seen": True}
    panels = {
        f"R² of {title}": {
            kind: {
                label: Mark(*(fit := decoder.r2(name, score, unseen=unseen)).ends, fit.low > 0.0)
                for name, label in decoder.MEASURES.items()
            }
            for kind, unseen in kinds.items()
        }
        for score, title in decoder.KEPT.items()
    }
    figure = forest(panels, "Lines that reach the left edge go on.")
    for axes in figure.axes:
        axes.set_xlim(-0.5, 1.02)
    return figure


def relearning_figure() -> Figure:
    """Draw the old facts known before and after learning, and after relearning."""
    figure, (axes,) = style.panels(1, width=WIDTH, height=2.4)
    for _, own in relearned().groupby("baseline"):
        axes.plot(TRIES, own[[*TRIES]].mean(), "-", lw=0.8, color=style.GREY, alpha=0.6)
    by_seed = relearned().groupby("seed")[[*TRIES]].mean()
    for name in TRIES:
        each = summarise([*by_seed[name]])
        axes.plot([name] * 2, [each.low, each.high], "-", lw=2, color=style.PALETTE[0])
    axes.plot(TRIES, by_seed.mean(), "o-", lw=1.5, color=style.PALETTE[0])
    axes.set_ylabel("old facts known")
    axes.set_ylim(0.0, 1.0)
    return style.captioned(figure, "A grey line is a strength of a method.")


ON_PAIRS = {
    "rates": {
        "layerwise − flat, tuned": "bertcl-combined low-rate",
        "layerwise − flat, published": "bertcl-published low-rate-published",
        "published − plain": "bertcl-published vanilla",
    },
    "recadam": {
        "RecAdam − plain": "recadam vanilla",
        "RecAdam − plain at its rate": "recadam low-rate-recadam",
    },
}
"""Rows of the figures of pairs, as the comparison of each."""
EWC = {
    "half the rate": "half-rate",
    "EWC, published strength": "ewc-mlm",
    "EWC, 100 times that": "ewc-mlm-strong",
}


def panels() -> dict[str, Panels]:
    """Return the comparisons that each figure shows, by its name."""
    found: dict[str, Panels] = {
        name: {
            TITLES[score]: {
                study.label: {row: f"{study.name} {key} {score}" for row, key in rows.items()}
                for study in pairs.STUDIES
            }
            for score in SCORES
        }
        for name, rows in ON_PAIRS.items()
    }
    found["ewc"] = {t: {"": {row: f"{t} {n}" for row, n in EWC.items()}} for t in pairs.KEPT}
    found["controls"] = {
        "p_o + p_s, difference from plain fine-tuning at half the rate": {
            study.label: matching(f"{study.name} (.+) {strongest(study)} p")
            for study in pairs.STUDIES
        }
    }
    title = "share of intents that are right, change by the stage's loss"
    found["head"] = {title: {"": matching("head (.+)")}}
    leads = {f"{n} − prototypes": key for n, key in matching("all (.+) prototypes .+").items()}
    leads |= {f"prototypes − {name}": key for name, key in matching(LEADS).items()}
    found["class-means"] = {"share of intents that are right after ten steps": {"": leads}}
    own_heads = {
        study.label: {
            " − ".join(pair.split()): key for pair, key in matching(f"{name} (.+) average").items()
        }
        | {
            " − ".join(pair.split()): key
            for pair, key in matching(f"retuned {study.name} (.+)").items()
        }
        for name, study in SEQUENCES.items()
        if study not in (sequences.ALL, sequences.STAGE)
    }
    found["own-heads"] = {"mean accuracy on the tasks after the last": own_heads}
    found["lora"] = {
        title: {
            label: {row: f"glue {name} {rate} {score}" for rate, row in glue.RATES.items()}
            for name, label in glue.LORA.items()
        }
        for score, title in glue.SCORES.items()
        if score in ("learned", "lost")
    }
    found["lower-rate"] = {
        title: {"": matching(f"tuned (.+) {score}")} for score, title in facts.SCORES.items()
    }
    found["on-policy"] = {
        title: {"": {label: f"change {name} {score}" for name, label in CHANGES.items()}}
        for score, title in zip(SCORES, ("old facts kept", "new facts learned"), strict=True)
    }
    return found


def draw_all(folder: Path) -> None:
    """Write the figures into a folder."""
    with matplotlib.rc_context({"svg.hashsalt": "clbench"}):
        figures = {name: comparison_figure(each) for name, each in panels().items()}
        figures |= {"kl": kl_figure(), "relearning": relearning_figure()}
        for name, figure in figures.items():
            figure.savefig(folder / f"findings-{name}.svg", metadata={"Date": None})


def main() -> None:
    """Write the values and the table into the page, and the figures."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    draw_all(FIGURES)


if __name__ == "__main__":
    main()

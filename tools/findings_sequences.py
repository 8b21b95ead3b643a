"""Write the tables of ``docs/findings-sequences.md`` from the cells of the studies of sequences.

python -m tools.findings_sequences
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain

import numpy as np

from clbench.results.cell import CellResult, correct_after
from clbench.results.score_tables import marks, means, score_rows
from clbench.results.statistics import Comparison, Floats, crossed_interval
from clbench.results.store import Store
from tools.equal_learning import shown_comparison
from tools.findings import (
    REFERENCE,
    ROOT,
    Claim,
    Study,
    answers,
    filled,
    plain,
    signed,
    table,
)
from tools.findings_trials import settings_table, trials_table

PAGE = ROOT / "docs" / "findings-sequences.md"
SCORE = "average"
COLUMNS = {
    "average": "average",
    "told": "task-IL",
    "elsewhere": "wrong task",
    "mean_forgetting": "forgetting",
}
UNTIMED = "its times are too long"
"""What the notes of cells say whose times are too long."""
OWN_HEADS = {"average": "average", "average_over_time": "over time", "bwt": "BWT"}
"""Columns of a table of scores, where all classes share a head and where tasks have their own."""
SIGNED = {"mean_forgetting", "bwt"}
SEEDS = 3
"""How many seeds every method has; some have more."""
ALL, STAGE = (
    Study(name, label, REFERENCE / f"findings-{name}", REFERENCE / f"findings-{name}-tune", SEEDS)
    for name, label in (("clinc150", "all classes so far"), ("clinc150-stage", "the stage's"))
)
FOUR = Study(
    "four-tasks",
    "four tasks",
    REFERENCE / "findings-sequence-4",
    REFERENCE / "findings-sequence-4-tune",
)
FIFTEEN = Study("fifteen-tasks", "fifteen tasks", REFERENCE / "findings-sequence-15", FOUR.tuning)
WRITTEN = Study(
    "four-tasks-written",
    "written answers",
    REFERENCE / "findings-sequence-4-text",
    REFERENCE / "findings-sequence-4-text-tune",
    SEEDS,
)
TUNED = (ALL, STAGE, FOUR, WRITTEN)
STUDIES = (ALL, STAGE, FOUR, FIFTEEN, WRITTEN)
CLAIMS = (
    # Wang et al. 2023, table 1: O-LoRA is ahead of these on the average over the tasks.
    Claim("o-lora", "lora-shared"),
    Claim("o-lora", "ewc"),
    Claim("o-lora", "lwf"),
    Claim("o-lora", "replay"),
    # Zheng et al. 2026 (EWC-LoRA), abstract: ahead of plain LoRA, and level with other kinds.
    Claim("ewc-lora", "lora-shared"),
    Claim("ewc-lora", "o-lora"),
    # Zheng et al. 2024 (SEQ*): level with or ahead of methods of incremental learning.
    Claim("seq-star", "vanilla"),
    Claim("seq-star", "lwf"),
    Claim("seq-star", "replay"),
    # Controls: is it the method, or that little is trained?
    Claim("seq-star", "frozen"),
    Claim("o-lora", "frozen"),
    Claim("lora-shared", "vanilla"),
    # Which part of EWC-LoRA does it: the product or the head?
    Claim("ewc-lora", "ewc-lora-head"),
    Claim("ewc-lora", "ewc-lora-delta"),
    # Leads of the first runs of this project that it had not declared.
    Claim("prototypes", "replay"),
    Claim("wise-ft", "vanilla"),
    # Class means: does more than one Gaussian with a shared covariance help (KLDA, RanPAC)?
    Claim("klda", "prototypes"),
    Claim("ranpac", "prototypes"),
    # Equal memory; and merging and projecting against plain fine-tuning.
    Claim("icarl", "replay"),
    Claim("ties", "vanilla"),
    Claim("osf", "vanilla"),
)
"""Comparisons of the average over the tasks after the last stage, fixed before the runs."""
LATER = tuple(Claim("o-lora-strong", name) for name in ("o-lora", "lora-shared"))
LATER_SEEDS = range(2, 5)
"""Comparisons of written answers, declared when two seeds of the stronger penalty had finished.

They are made on the other three, as the first seed suggested them.
"""
STRONG = tuple(
    Claim("o-lora-strong", name) for name in ("o-lora", "lora-shared", "ewc-lora", "frozen")
)
FAST = tuple(Claim("ewc-lora-fast", name) for name in ("ewc-lora", "frozen", "prototypes"))
LOW = tuple(Claim("seq-star-low", name) for name in ("seq-star", "frozen"))
LOWER = (*LOW, Claim("seq-star-low", "prototypes"))
TIES = tuple(Claim("ties-retuned", name) for name in ("ties", "vanilla"))
RETUNED = {
    FOUR: {"strong": STRONG, "fast": FAST},
    FIFTEEN: {"strong": STRONG, "fast": FAST},
    STAGE: {"low": LOW},
    ALL: {"low": LOWER, "ties": TIES},
}
"""Comparisons of baselines that were tuned further, declared when all other cells were known.

By the end of the name of the folder that has their cells; each is a family of its own.
"""
AHEAD, UNSEEN = Claim("ewc-lora", "frozen"), range(3, 10)
"""A comparison on fifteen tasks that its first three seeds suggested, and seeds to make it on."""
EXPLORED = {
    FOUR: (AHEAD, Claim("prototypes", "ewc-lora"), Claim("prototypes", "frozen")),
    FIFTEEN: (AHEAD, Claim("ewc-lora", "prototypes"), Claim("prototypes", "frozen")),
}
"""All pairs of three methods on four and on fifteen tasks, which were chosen after the runs."""
HEADS = (
    "vanilla", "frozen", "seq-star", "lora-shared", "o-lora", "ewc-lora", "ewc-lora-head",
    "ewc-lora-delta", "ewc", "ties", "osf", "replay",
)  # fmt: skip
"""Methods of which the average with `head_loss = "stage"` is compared with that of "all".

One more family of comparisons on CLINC150, seed by seed, each tuned under its own treatment. All
twelve were declared and count in it; `ewc`, `osf` and `replay` were not finished with "stage", and
`ewc-lora-delta` has two seeds there.
"""


def claims_table() -> str:
    """Return a Markdown table of the claims, with a column for each study."""
    studies = [study.read() for study in STUDIES]
    found = [answers(cells, question.margin, CLAIMS, (SCORE,)) for cells, question in studies]
    rows = [
        [
            f"`{claim.method}` − `{claim.reference}`",
            *(text(each.get((claim, SCORE))) for each in found),
        ]
        for claim in CLAIMS
        if any((claim, SCORE) in each for each in found)
    ]
    return table(["difference", *(study.label for study in STUDIES)], rows)


def text(answer: Comparison | None) -> str:
    """Return a difference with its interval and its verdict; nothing without an answer."""
    return "" if answer is None else " ".join(shown_comparison(answer)).strip()


def heads() -> dict[tuple[Claim, str], Comparison]:
    """Return what a loss over the stage's classes alone changes, by method, as one family."""
    cells, question = ALL.read()
    other = [
        cell.model_copy(update={"baseline": f"{cell.baseline} (stage)"}) for cell in STAGE.read()[0]
    ]
    claims = [Claim(f"{name} (stage)", name) for name in HEADS]
    both = [*cells, *other]
    return answers(both, question.margin, claims, (SCORE,), family=len(HEADS))


def later() -> dict[tuple[Claim, str], Comparison]:
    """Return what a stronger penalty of O-LoRA changes in written answers, as one family.

    It is read on the seeds that finished after it was declared.
    """
    cells, question = WRITTEN.read()
    cells = [cell for cell in cells if cell.seed in LATER_SEEDS]
    return answers(cells, question.margin, LATER, (SCORE,))


@cache
def further(study: Study) -> tuple[CellResult, ...]:
    """Return the cells of a study's baselines that were tuned further, if any."""
    folders = [f"{study.folder.name}-{kind}" for kind in RETUNED.get(study, ())]
    more = [Store(study.folder.with_name(name)).read().cells for name in folders]
    return tuple(chain.from_iterable(more))


def with_retuned(study: Study) -> tuple[CellResult, ...]:
    """Return the cells of a study with those of the baselines that were tuned further, if any."""
    return (*study.read()[0], *further(study))


def tuned() -> dict[Study, tuple[CellResult, ...]]:
    """Return all cells of each study that was tuned, those of few seeds, too."""
    return {study: (*Store(study.folder).read().cells, *further(study)) for study in TUNED}


def retuned(study: Study) -> dict[tuple[Claim, str], Comparison]:
    """Return the comparisons of the study's `RETUNED`."""
    cells, margin = with_retuned(study), study.read()[1].margin
    found: dict[tuple[Claim, str], Comparison] = {}
    for claims in RETUNED[study].values():
        found |= answers(cells, margin, claims, (SCORE,))
    return found


def unseen() -> dict[tuple[Claim, str], Comparison]:
    """Return `AHEAD` on the seeds that were run after it was declared."""
    cells, question = FIFTEEN.read()
    cells = [cell for cell in cells if cell.seed in UNSEEN]
    return answers(cells, question.margin, [AHEAD], (SCORE,))


def with_other_rows(
    study: Study, claim: Claim, seeds: Sequence[int] = range(10)
) -> tuple[float, float]:
    """Return the interval of a comparison for other seeds and other rows; not joint.

    `seeds` are those to use of the ones that both methods have.
    """
    cells = {(c.baseline, c.seed): c for c in study.read()[0]}
    seeds = [seed for seed in seeds if all((name, seed) in cells for name in claim)]
    tables = []
    for task in range(len(cells[claim.method, seeds[0]].tasks)):
        ours, theirs = (
            np.array([correct_after(cells[name, seed], task) for seed in seeds], np.float64)
            for name in claim
        )
        tables.append(ours - theirs)
    return over_rows(tables)


def over_rows(tables: Sequence[Floats]) -> tuple[float, float]:
    """Return the interval of a mean over tasks, of which seeds (rows) and rows (columns) vary.

    Each task counts equally, and differences between tasks do not widen the interval.
    """
    sizes = [table.shape[1] for table in tables]
    mean = np.mean([table.mean() for table in tables])
    weights = [sum(sizes) / len(tables) / size for size in sizes]
    centred = [w * (table - table.mean()) for w, table in zip(weights, tables, strict=True)]
    step = 1.0 / (len(tables) * min(sizes))  # as in `answers`: a row of the smallest task
    return crossed_interval(np.concatenate(centred, axis=1) + mean, step=step)


def explored(study: Study) -> dict[tuple[Claim, str], Comparison]:
    """Return the study's `EXPLORED`, as one family."""
    cells, question = study.read()
    return answers(cells, question.margin, EXPLORED[study], (SCORE,))


def heads_table() -> str:
    """Return a Markdown table of the averages with both treatments of the head."""
    averages = [
        {row["method"]: row[f"{SCORE}_mean"] for row in means(score_rows(study.read()[0]))}
        for study in (ALL, STAGE)
    ]
    rows = [
        [f"`{claim.reference}`", *(plain(each[claim.reference]) for each in averages), text(answer)]
        for (claim, _), answer in heads().items()
    ]
    return table(["method", ALL.label, STAGE.label, "difference"], rows)


def multiples(cells: Sequence[CellResult], reference: str) -> dict[str, tuple[float, float]]:
    """Return training time and memory of each method as multiples of a method's.

    They are means over the cells that ran on a GPU, if any did, and else over those whose notes do
    not say that their times are too long; a method without such cells has none.
    """
    on_gpu = [cell for cell in cells if cell.host["device"] == "cuda"]
    timed = on_gpu or [cell for cell in cells if not any(UNTIMED in note for note in cell.notes)]
    costs = {row["method"]: row for row in means(score_rows(timed))}
    of = costs[reference]
    return {
        name: (
            row["train_seconds_mean"] / of["train_seconds_mean"],
            row["training_memory_mb_mean"] / of["training_memory_mb_mean"],
        )
        for name, row in costs.items()
    }


def scores_table(
    cells: Sequence[CellResult],
    columns: Mapping[str, str] = OWN_HEADS,
    reference: str = "vanilla",
) -> str:
    """Return a Markdown table of mean scores and of costs as `multiples` of a method's."""
    costs = multiples(cells, reference)
    lines = []
    for row in means(score_rows(cells)):
        method = row["method"]
        flags = [flag for flag in ("keeps_rows", "needs_task_id") if row[flag]]
        shown = [(signed if name in SIGNED else plain)(row[f"{name}_mean"]) for name in columns]
        costly = [f"{cost:.2f}" for cost in costs[method]] if method in costs else ["", ""]
        seeds = str(len({cell.seed for cell in cells if cell.baseline == method}))
        lines.append([f"`{method}`{marks(flags)}", *shown, *costly, seeds])
    return table(["method", *columns.values(), "time", "memory", "seeds"], lines)


def tables() -> dict[str, str]:
    """Return the tables of the page by name."""
    return {
        "claims": claims_table(),
        "heads": heads_table(),
        "settings": settings_table(tuned()),
        "trials": trials_table(tuned(), SCORE),
        **{study.name: scores_table(with_retuned(study), COLUMNS) for study in (ALL, STAGE)},
        **{study.name: scores_table(with_retuned(study)) for study in (FOUR, FIFTEEN)},
        WRITTEN.name: scores_table(WRITTEN.read()[0], reference="lora-shared"),
    }


def main() -> None:
    """Write the tables into the page."""
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(filled(page, tables()), encoding="utf-8")


if __name__ == "__main__":
    main()

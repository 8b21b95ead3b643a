"""Write the tables of ``docs/findings-sequences.md`` from the cells of the studies of sequences.

python -m tools.findings_sequences
"""

from __future__ import annotations

from collections.abc import Sequence

from clbench.results.cell import CellResult
from clbench.results.score_tables import marks, means, score_rows
from tools.findings import (
    REFERENCE,
    ROOT,
    Claim,
    Study,
    answers,
    filled,
    interval,
    plain,
    settings_table,
    signed,
    table,
)

PAGE = ROOT / "docs" / "findings-sequences.md"
SCORE = "average"
COLUMNS = {
    "average": "average",
    "told": "task-IL",
    "elsewhere": "wrong task",
    "mean_forgetting": "forgetting",
}
TUNING = REFERENCE / "findings-sequence-4-tune"
STUDIES = (
    Study(
        "clinc150",
        "CLINC150",
        REFERENCE / "findings-clinc150",
        REFERENCE / "findings-clinc150-tune",
    ),
    Study("sequence-4", "four tasks", REFERENCE / "findings-sequence-4", TUNING),
    Study("sequence-15", "fifteen tasks", REFERENCE / "findings-sequence-15", TUNING),
)
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
HEADS = (
    "vanilla", "frozen", "seq-star", "lora-shared", "o-lora", "ewc-lora", "ewc-lora-head",
    "ewc-lora-delta", "ewc", "ties", "osf", "replay",
)  # fmt: skip
"""Methods of which the average with `head_loss = "stage"` is compared with that of "all".

One more family of comparisons on CLINC150, seed by seed, each tuned under its own treatment.
"""


def finished() -> list[Study]:
    """Return the studies that have been run."""
    return [study for study in STUDIES if study.folder.exists()]


def claims_table(studies: Sequence[Study]) -> str:
    """Return a Markdown table of the claims, with a column for each study."""
    rows = [[f"`{claim.method}` − `{claim.reference}`"] for claim in CLAIMS]
    for study in studies:
        cells, question = study.read()
        found = answers(cells, question.margin, CLAIMS, (SCORE,))
        for row, claim in zip(rows, CLAIMS, strict=True):
            answer = found.get((claim, SCORE))
            text = ""
            if answer is not None:
                ends = answer.difference_low, answer.difference_high
                verdict = "" if answer.verdict.startswith("no ") else f" {answer.verdict}"
                text = f"{interval(answer.difference, *ends)}{verdict}"
            row.append(text)
    return table(["difference", *(study.label for study in studies)], rows)


def scores_table(cells: Sequence[CellResult]) -> str:
    """Return a Markdown table of mean scores, and of time and memory as multiples of vanilla's."""
    rows = score_rows(cells)
    names = [n for n in COLUMNS if any(row.get(n) is not None for row in rows)]
    by_method: dict[str, list[dict[str, float]]] = {}
    for row in means(rows):
        by_method.setdefault(row["method"], []).append(row)

    def mean(method: str, name: str) -> float:
        some = [row[f"{name}_mean"] for row in by_method[method]]
        return float(sum(some) / len(some))

    lines = []
    for method, some in by_method.items():
        costs = (
            mean(method, cost) / mean("vanilla", cost)
            for cost in ("train_seconds", "training_memory_mb")
        )
        flags = [flag for flag in ("keeps_rows", "needs_task_id") if some[0][flag]]
        scores = [
            signed(mean(method, name)) if name == "mean_forgetting" else plain(mean(method, name))
            for name in names
        ]
        lines.append([f"`{method}`{marks(flags)}", *scores, *(f"{cost:.2f}" for cost in costs)])
    return table(["method", *(COLUMNS[name] for name in names), "time", "memory"], lines)


def tables() -> dict[str, str]:
    """Return the tables of the page by name."""
    studies = finished()
    contents = {"claims": claims_table(studies)}
    for study in studies:
        cells, _ = study.read()
        contents[study.name] = scores_table(cells)
        if study.name != "sequence-15":  # it has the settings of the four tasks
            contents[f"{study.name}-settings"] = settings_table(study)
    return contents


def main() -> None:
    """Write the tables into the page."""
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(filled(page, tables()), encoding="utf-8")


if __name__ == "__main__":
    main()

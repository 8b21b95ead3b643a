"""The studies of ``docs/findings.md``: their commands, sizes and hours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import cache

import numpy as np
import pandas as pd

from clbench.results.archive import read_archive
from tools.findings import REFERENCE, table

STUDIES = {
    "findings-minilm": ("pairs", "--data DIR --model MODEL"),
    "findings": ("pairs", "--data DIR"),
    "findings-pretraining": ("pairs", "--data DIR --corpus FILE"),
    "findings-clinc150": ("sequences", "--data DIR --model MODEL"),
    "findings-clinc150-stage": ("sequences", "--data DIR --model MODEL"),
    "findings-sequence-4": ("sequences", "--data DIR --model MODEL"),
    "findings-sequence-15": ("sequences", "--data DIR --model MODEL"),
    "findings-sequence-4-text": ("sequences", "--data DIR --model MODEL"),
    "findings-glue-minilm": ("glue", "--data DIR --model MODEL"),
    "findings-decoder": ("decoders", "--model facts-gpt"),
    "findings-decoder-grpo": ("decoders", "--model facts-gpt"),
    "findings-decoder-able": ("decoders", "--model facts-able"),
    "findings-decoder-relearn": ("decoders", "--model facts-gpt"),
    "findings-facts": ("facts", "--model facts-gpt"),
    "findings-smollm2-short": ("smollm2", "--data DIR --model MODEL --corpus FILE"),
}
"""Page and options of the command of each study, by the name of its suite and folder."""
KINDS = (
    "tune",
    "tune-more",
    "tune-frozen",
    "tune-frozen-higher",
    "tune-o-lora",
    "tune-o-lora-higher",
    "tune-seq-star",
    "tune-seq-star-fifth",
    "tune-seq-star-tenth",
    "tune-seq-star-lower",
    "tune-seq-star-lower-head",
    "tune-ewc-lora",
    "tune-ewc-lora-head",
    "tune-ewc-lora-delta",
    "tune-ties",
    "tune-ties-rate",
    "tune-ties-higher",
    "tune-ties-whole",
    "unlisted",
    "strong",
    "fast",
    "low",
    "ties",
    "costs",
    "third",
    "others",
    "late",
    "sdft",
    "pilot",
    "float32",
    "untrained",
)
"""How the names of the folders of further cells end."""


@cache
def runs(folder: str) -> pd.DataFrame:
    """Return seed, start and end in seconds, and training rows of each cell of a folder."""
    rows = []
    for cell in map(json.loads, read_archive(REFERENCE / folder).values()):
        most = max(part["train"] for part in cell["scenario_report"]["parts"])
        start, end = (datetime.fromisoformat(cell[key]) for key in ("started", "finished"))
        rows.append((cell["seed"], start.timestamp(), end.timestamp(), most))
    return pd.DataFrame(rows, columns=["seed", "start", "end", "rows"])


def hours(folders: Sequence[str]) -> float:
    """Return how long at least one cell of the folders was running."""
    frame = pd.concat(map(runs, folders)).sort_values("start")
    done = frame["end"].cummax().shift(fill_value=0.0)
    return (frame["end"] - np.maximum(frame["start"], done)).clip(lower=0.0).sum() / 3600


def studies_table() -> str:
    """Return a Markdown table of the studies with their scales, commands and hours."""
    rows = []
    for name, (page, options) in STUDIES.items():
        others = [f"{name}-{kind}" for kind in KINDS]
        others = [other for other in others if (REFERENCE / other).exists()]
        counts = [runs(name)["rows"].max(), runs(name)["seed"].nunique(), len(runs(name))]
        sizes = [f"{count:,}" for count in (*counts, sum(len(runs(other)) for other in others))]
        command = f"[`clbench run {name} {options}`](findings-{page}.md)"
        rows.append([command, *sizes, f"{hours([name, *others]):.1f}"])
    return table(["command", "rows", "seeds, at most", "cells", "further cells", "hours"], rows)

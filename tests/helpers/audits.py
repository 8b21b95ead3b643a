"""Audits made by hand without models, and what short audits are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from clbench.audit.audit import Audit, Between, ModelAudit
from clbench.audit.comparison import Comparison, compare
from clbench.audit.items import Items, load_items
from clbench.audit.page import write_audit
from clbench.audit.scores import ItemScores, Part, keys_of

HUB = {"hub": "nyu-mll/glue", "config": "cola", "split": "validation", "revision": "bcd"}
TEXT = "The film | was <b>long</b>"
"""Begins every text."""
QUICK: Any = {"tasks": ["synthetic/sentiment"], "rows": 200, "texts": 60}
"""Options of a short audit."""


def items_of(name: str = "synthetic/sentiment", count: int = 200) -> Items:
    """Return the items of a built-in task."""
    (items,) = load_items([name], data=None, rows=count)
    return items


def scores(
    right: str, task: str = "glue/cola", part: Part = "behaviour", **more: object
) -> ItemScores:
    """Return scores of items, of which 1 in `right` marks the right ones."""
    inputs = tuple(f"{TEXT} {number}" for number in range(len(right)))
    values = np.array([float(each) for each in right])
    source = HUB if task == "glue/cola" else {}
    return ItemScores(
        *(task, part, values, keys_of(inputs)),
        chance=0.5,
        choices=2,
        texts=inputs,
        answers=("yes",) * len(right),
        source=source,
        **more,  # type: ignore[arg-type]
    )


def losses(values: list[float]) -> ItemScores:
    """Return minus the losses of texts."""
    inputs = tuple(f"{TEXT} of language {number}" for number in range(len(values)))
    what = f"next-token loss on {len(values)} held-out texts of corpus.txt"
    return ItemScores(
        *("language", "language", -np.array(values), keys_of(inputs), "loss"),
        description=what,
        texts=inputs,
    )


def comparison() -> Comparison:
    """Return a comparison: 8 of 40 items lost, 1 gained; features unclear; language forgotten."""
    base = [
        scores("1" * 30 + "0" * 10),
        scores("1" * 20 + "0" * 20, "synthetic/sentiment", "features"),
        losses([1.0, 1.1, 0.9, 1.0]),
        scores("1" * 30 + "0" * 10, metric="f1", primary=False),
    ]
    tuned = [
        scores("0" * 8 + "1" * 23 + "0" * 9),
        scores("0" * 2 + "1" * 19 + "0" * 19, "synthetic/sentiment", "features"),
        losses([2.0, 2.2, 1.8, 2.1]),
        scores("1" * 29 + "0" * 11, metric="f1", primary=False),
    ]
    return compare(base, tuned, 0.02)


def make_audit(*names: str, base: str = "minilm") -> Audit:
    """Return an audit of models with these names, all with the same `comparison`."""
    changes = comparison()
    return Audit(
        base,
        tuple(ModelAudit(name, changes, (), notes=("It has *one* note.",)) for name in names),
        (Between(names[0], names[1], changes),) if len(names) > 1 else (),
        {"tasks": ["glue/cola"], "corpus": "corpus.txt", "rows": 40, "texts": 4, "margin": 0.02},
        ("glue/cola: 3 of the 40 rows are from its training set.",),
        "1a2b3c4d",
    )


def write(folder: Path, *names: str, with_texts: bool = False) -> Path:
    """Write such an audit without its page, and return its folder."""
    write_audit(make_audit(*names), folder, (), with_texts)
    return folder


def shuffle_layer(model: Any) -> None:
    """Permute the entries of every weight of the second layer."""
    generator = torch.Generator().manual_seed(0)
    for value in model.base_model.encoder.layer[1].parameters():
        order = torch.randperm(value.numel(), generator=generator)
        value.copy_(value.flatten()[order].view_as(value))


def add_noise(model: Any) -> None:
    """Move every weight a little."""
    generator = torch.Generator().manual_seed(0)
    for value in model.parameters():
        value.add_(torch.randn(value.shape, generator=generator), alpha=0.002)

"""Count how often an audit errs, with pairs of models that differ by noise alone.

    python benchmarks/audit.py [--pairs 200] [--noise 0.01]

Both models of a pair are the built-in one with independent normal noise in every weight, of a
standard deviation that is a share of the weight tensor's own: no model is better than the other by
design. Prints the share of pairs with each verdict, and the share of false alarms (forgot or
gained), which should be at most 0.05. Language is judged on the built-in corpus, features on three
built-in tasks of 300 rows.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections import Counter

import torch

from clbench.audit.audit import MARGIN, TEXTS, Auditor
from clbench.audit.items import DEFAULT_TASKS, LanguageLoss, load_items
from clbench.audit.models import AuditedModel, load_base


def noisy(base: AuditedModel, noise: float, seed: int) -> AuditedModel:
    """Return a copy of a model with noise in its weights."""
    generator = torch.Generator().manual_seed(seed)
    model = copy.deepcopy(base.model)
    with torch.no_grad():
        for value in model.parameters():
            spread = noise * float(value.std()) if value.numel() > 1 else 0.0
            value.add_(torch.randn(value.shape, generator=generator), alpha=spread)
    return AuditedModel(f"noise {seed}", model, base.tokenizer, base.head)


def main() -> None:
    """Audit the pairs and print the shares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--noise", type=float, default=0.01, help="share of a tensor's own spread")
    parser.add_argument("--rows", type=int, default=300, help="rows of each task")
    arguments = parser.parse_args()
    base, device = load_base("tiny"), torch.device("cpu")
    items = load_items(DEFAULT_TASKS[:3], data=None, rows=arguments.rows)
    loss = LanguageLoss(base, "built-in", TEXTS, 0, device)
    auditor = Auditor(base, items, loss, device, MARGIN, False, lambda text: None)
    words: Counter[str] = Counter()
    alarms, flips, start = 0, 0, time.perf_counter()
    for pair in range(arguments.pairs):
        one, two = (noisy(base, arguments.noise, 2 * pair + i) for i in range(2))
        comparison = auditor.compare(auditor.look(one), auditor.look(two))
        words.update(change.word for change in comparison.changes)
        alarms += any(change.word in ("forgot", "gained") for change in comparison.changes)
        flips += sum(task.flips.lost + task.flips.gained for task in comparison.tasks)
    print(f"{arguments.pairs} pairs, noise {arguments.noise:g}, {arguments.rows} rows")
    print(f"pairs with a false alarm  {alarms}  share {alarms / arguments.pairs:.3f}")
    print(f"words of all changes      {dict(words)}")
    print(f"flips per task            {flips / arguments.pairs / len(items):.1f}")
    print(f"seconds per pair          {(time.perf_counter() - start) / arguments.pairs:.1f}")


if __name__ == "__main__":
    main()

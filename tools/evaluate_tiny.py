"""Fine-tune a small model and its random twin on GLUE tasks, and write the model card.

``python -m tools.evaluate_tiny --model clbench/models/tiny --glue FOLDER`` writes
``evaluation.json`` and ``README.md`` beside the weights. Cells that ``evaluation.json`` already
holds for these weights are not run again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tools.pretrain_tiny.card import twin_digest, weights_digest, write_card

log = logging.getLogger("evaluate")


@dataclass(frozen=True)
class GlueTask:
    """Text columns, number of training rows, and largest number of tokens in a row."""

    columns: tuple[str, ...]
    rows: int
    longest: int


TASKS = {
    "sst2": GlueTask(("sentence",), 2000, 64),
    "mrpc": GlueTask(("sentence1", "sentence2"), 2000, 112),
    "rte": GlueTask(("sentence1", "sentence2"), 2000, 128),
    "qnli": GlueTask(("question", "sentence"), 2000, 112),
}
EPOCHS, BATCH = 3, 16
VALIDATION_ROWS = 1000


def read(glue: Path, name: str, split: str, rows: int, seed: int) -> tuple[list[Any], list[int]]:
    """Return texts (one or two columns) and labels of a random subset."""
    from datasets import load_dataset

    data = load_dataset(str(glue), name, split=split)
    data = data.shuffle(seed=seed).select(range(min(rows, len(data))))
    return [list(data[c]) for c in TASKS[name].columns], list(data["label"])


def tune(folder: Path, name: str, data: Any, rate: float, seed: int, pretrained: bool) -> float:
    """Fine-tune once; return the accuracy on the validation rows in per cent."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    task = TASKS[name]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(seed)
    config = AutoConfig.from_pretrained(folder, num_labels=2)
    model: Any = (
        AutoModelForSequenceClassification.from_pretrained(
            folder, config=config, dtype=torch.float32, attn_implementation="eager"
        )
        if pretrained
        else AutoModelForSequenceClassification.from_config(config, attn_implementation="eager")
    )
    (train_texts, train_labels), (val_texts, val_labels) = data

    longest = min(task.longest, config.max_position_embeddings)

    def encode(columns: list[list[str]], rows: list[int]) -> Any:
        texts = [[column[i] for i in rows] for column in columns]
        return tokenizer(
            *texts, padding=True, truncation=True, max_length=longest, return_tensors="pt"
        )

    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, fused=True)
    steps = EPOCHS * -(-len(train_labels) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / (0.1 * steps)) * (1 - s / steps)
    )
    rng = np.random.default_rng(seed)
    model.train()
    for _ in range(EPOCHS):
        order = rng.permutation(len(train_labels))
        for start in range(0, len(order), BATCH):
            rows = [int(i) for i in order[start : start + BATCH]]
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(**encode(train_texts, rows)).logits.float()
            loss = functional.cross_entropy(logits, torch.tensor([train_labels[i] for i in rows]))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    model.eval()
    hits = 0
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for start in range(0, len(val_labels), 64):
            rows = list(range(start, min(start + 64, len(val_labels))))
            guess = model(**encode(val_texts, rows)).logits.argmax(-1)
            hits += int((guess == torch.tensor([val_labels[i] for i in rows])).sum())
    return 100 * hits / len(val_labels)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.evaluate_tiny", description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--glue", type=Path, help="folder in the layout of the hub's glue")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rate", type=float, default=3e-4)
    arms = ["pretrained", "random"]
    parser.add_argument("--arms", nargs="+", default=arms, choices=arms)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--card-only", action="store_true")
    args = parser.parse_args()
    if args.glue is None and not args.card_only:
        parser.error("--glue is missing. Give --glue FOLDER, or --card-only.")
    return args


def main() -> None:
    """Run the missing cells, then write the card; an unusable input ends with one line."""
    args = arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(args.threads)
    try:
        if not args.card_only:
            evaluate(args)
        write_card(args.model)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")


def evaluate(args: argparse.Namespace) -> None:
    """Run the missing cells and store each in ``evaluation.json``."""
    path = args.model / "evaluation.json"
    weights = {"pretrained": weights_digest(args.model), "random": twin_digest(args.model)}
    cells: dict[str, float] = json.loads(path.read_text())["cells"] if path.exists() else {}
    for name, seed, arm in itertools.product(args.tasks, range(args.seeds), args.arms):
        key = f"{name}/{weights[arm]}/{args.rate:g}/{seed}"
        if key in cells:
            continue
        data = (
            read(args.glue, name, "train", TASKS[name].rows, seed),
            read(args.glue, name, "validation", VALIDATION_ROWS, 0),
        )
        cells[key] = tune(args.model, name, data, args.rate, seed, arm == "pretrained")
        log.info("%s: %.1f", key, cells[key])
        content = {"weights": weights["pretrained"], "cells": cells}
        path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

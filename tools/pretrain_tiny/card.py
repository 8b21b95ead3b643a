"""Facts of a pretraining run, as JSON beside the weights, for the model card."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from tools.pretrain_tiny.encode import EncodedRows
from tools.pretrain_tiny.loop import Trainer
from tools.pretrain_tiny.network import WEIGHTS, Batch, Start
from tools.pretrain_tiny.texts import Corpus


def unigram_rate(encoded: EncodedRows, held_out: list[Batch]) -> float:
    """Accuracy of always answering the training text's most frequent token."""
    common = int(np.bincount(encoded.ids).argmax())
    labels = np.concatenate([batch.labels[batch.labels >= 0].numpy() for batch in held_out])
    return float((labels == common).mean())


def write_facts(
    folder: Path,
    args: argparse.Namespace,
    corpus: Corpus,
    encoded: EncodedRows,
    held: EncodedRows,
    held_out: list[Batch],
    trainer: Trainer,
    parameters: int,
    teacher_shape: dict[str, int] | None,
    start: Start | None,
) -> None:
    """Write ``pretraining.json``: data, settings, steps, curve, held-out accuracy."""
    state = trainer.state
    before = {"layers": start.layers, **start.facts} if start and start.facts else {}
    facts = {
        "parameters": parameters,
        "segments": corpus.sources,
        "pairs": len(trainer.pairs),
        "tokens_in_corpus": len(encoded.ids),
        "words_in_corpus": int(encoded.word_start[-1]),
        "held_out": [Path(name).name for name in args.held_out],
        "held_out_tokens": len(held.ids),
        "title": args.title,
        "about": args.about,
        "licence": args.licence,
        "teacher": args.teacher_name or (Path(args.teacher).name if args.teacher else None),
        "teacher_shape": teacher_shape,
        "loss_weights": WEIGHTS if args.teacher else {"mlm": 1.0},
        "seed": args.seed,
        "peak_learning_rate": args.peak,
        "tokens_a_batch": args.tokens,
        "steps": state.step,
        "earlier": [
            *before.get("earlier", []),
            *(
                [{k: before[k] for k in ("layers", "steps", "tokens_seen", "segments", "held_out")}]
                if before
                else []
            ),
        ],
        "epochs": round(state.epoch + state.cursor / max(1, state.batches), 2),
        "tokens_seen": state.tokens,
        "processor_minutes": round(state.spent / 60 * args.threads, 1),
        "unigram_rate": unigram_rate(encoded, held_out),
        "curve": [{k: round(v, 4) for k, v in point.items()} for point in state.curve],
    }
    (folder / "pretraining.json").write_text(json.dumps(facts, indent=1) + "\n")

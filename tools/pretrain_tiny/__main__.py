"""Pretrain a small model: ``python -m tools.pretrain_tiny --text a.txt --held-out b.txt …``.

A BERT with masked tokens, or with ``--decoder`` a Llama with next tokens.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from clbench.core.errors import ClbenchError
from clbench.tasks.synthetic import SPECS, generate, unlabelled
from clbench.training.device import resolve_precision
from tools.pretrain_tiny.card import write_card
from tools.pretrain_tiny.data import MaskedText, held_out_batches, masked_accuracy
from tools.pretrain_tiny.decoder import Decoder, RunningText, held_out_scores, save_bpe, train_bpe
from tools.pretrain_tiny.encode import EncodedRows, encode, save_tokenizer, train_tokenizer
from tools.pretrain_tiny.loop import Recipe, Trainer
from tools.pretrain_tiny.network import (
    Shape,
    Student,
    export,
    parameters,
    project_embeddings,
    start_from,
)
from tools.pretrain_tiny.teacher import Teacher, precompute
from tools.pretrain_tiny.texts import Corpus, read_corpus, without_shared

log = logging.getLogger("pretrain")
WORD_WIDTH = 128
DECODER = Shape(layers=6, hidden=192, heads=3, positions=256, vocab=4096)
Evaluate = Callable[[], dict[str, float]]


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.pretrain_tiny", description=__doc__)
    add = parser.add_argument
    add("--text", nargs="+", required=True, help="text files, .parquet tables, hub:name[:config]")
    add("--held-out", nargs="+", required=True, help="texts for evaluation, in the same forms")
    add("--vocabulary", nargs="*", default=[], help="files whose words all become tokens")
    add("--decoder", action="store_true", help="a decoder, instead of an encoder")
    add("--teacher", help="encoder to learn from: a folder or a hub name")
    add("--teacher-name", help="name of the teacher in the card")
    add("--about", nargs="*", default=[], help="sentences for the card: source and terms of text")
    add("--title", help="title of the card; default: the name of --out")
    add("--licence", help="licence of the weights, for the card")
    add("--start", type=Path, help="earlier model to start from")
    add("--out", type=Path, required=True, help="folder of the finished model")
    add("--work", type=Path, required=True, help="folder for checkpoints and caches")
    add("--minutes", type=float, default=90, help="processor minutes divided by threads")
    add("--threads", type=int, default=2)
    add("--seed", type=int, default=0)
    add("--peak", type=float, default=1e-3, help="highest learning rate")
    add("--tokens", type=int, default=4096, help="tokens per batch")
    for name in ("layers", "hidden", "heads", "positions", "vocab"):
        add(f"--{name}", type=int)
    args = parser.parse_args()
    for name, value in asdict(DECODER if args.decoder else Shape()).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.decoder and (args.teacher or args.start):
        parser.error("--decoder takes neither --teacher nor --start.")
    if args.start is not None and args.start.resolve() == args.out.resolve():
        parser.error(f"--out {args.out} would overwrite --start. Choose another --out.")
    return args


def main() -> None:
    """Run the command; an unusable input ends it with one line."""
    args = arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        pretrain(args)
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, ValueError, ClbenchError) as error:
        sys.exit(f"error: {error}")


def synthetic_texts() -> list[str]:
    """Return the texts of clbench's synthetic tasks, all of whose words become tokens."""
    rows = [row for name in SPECS for row in generate(name, validation=0)["train"]]
    return unlabelled(5000) + [text for row in rows for text in row[:2] if text]


def check_same_run(args: argparse.Namespace, segments: list[str], held_out: list[str]) -> None:
    """Refuse to continue a run with other texts, shape or settings; its length may change."""

    def digest(texts: list[str]) -> str:
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]

    length_and_card = {"minutes", "threads", "out", "work", "about", "title", "licence"}
    options = {k: str(v) for k, v in vars(args).items() if k not in length_and_card}
    settings = {**options, "text": digest(segments), "held_out": digest(held_out)}
    path = args.work / "run.json"
    if path.exists():
        before = json.loads(path.read_text())
        differing = [key for key, value in settings.items() if before.get(key) != value]
        if differing:
            raise ValueError(
                f"{args.work} holds another run: {', '.join(differing)} differs. Choose another "
                "--work, or repeat the settings of that run."
            )
    args.work.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(settings, indent=1) + "\n")


def pretrain(args: argparse.Namespace) -> None:
    """Read, tokenise, ask the teacher, train and export.

    Raises
    ------
    OSError, ValueError, ClbenchError
        If a text cannot be read, no text is left to train on or to hold out, or ``--start`` or
        ``--work`` does not fit the shape or texts.
    """
    torch.set_num_threads(1)  # each thread takes a part of the batch
    torch.manual_seed(args.seed)
    corpus = read_corpus(args.text)
    held_out = without_shared(read_corpus(args.held_out).segments, corpus.segments)
    for option, texts in (("--text", corpus.segments), ("--held-out", held_out)):
        if not texts:
            raise ValueError(
                f"{option} has no usable text. Sentences that --text and --held-out share do not "
                "count as held out."
            )
    check_same_run(args, corpus.segments, held_out)
    stored = args.work / "tokenizer.json"
    if not stored.exists():
        words = [line for f in args.vocabulary for line in Path(f).read_text("utf-8").splitlines()]
        known = synthetic_texts() + words
        if args.decoder:
            trained = train_bpe([*corpus.segments, *known], args.vocab)
        else:
            trained = train_tokenizer(corpus.segments, args.vocab, known)
        trained.save(str(stored))
    tokenizer = Tokenizer.from_file(str(stored))
    encoded, held_out_rows = (encode(tokenizer, texts) for texts in (corpus.segments, held_out))
    log.info("%d segments, %d tokens: %s", len(encoded), len(encoded.ids), corpus.sources)
    make = decoder_run if args.decoder else encoder_run
    student, text, evaluate, unigram = make(args, corpus, encoded, held_out_rows, tokenizer)
    recipe = Recipe(minutes=args.minutes, threads=args.threads, peak=args.peak, seed=args.seed)
    trainer = Trainer(student, text, recipe, args.work / "checkpoint")
    if trainer.load():
        log.info("continuing from step %d", trainer.state.step)
    facts = {
        "parameters": parameters(student.net),
        "segments": corpus.sources,
        "pairs": len(corpus.pair_array()),
        "tokens_in_corpus": len(encoded.ids),
        "held_out": [Path(name).name for name in args.held_out],
        "held_out_tokens": len(held_out_rows.ids),
        "title": args.title,
        "about": args.about,
        "licence": args.licence,
        "teacher": args.teacher_name or (Path(args.teacher).name if args.teacher else None),
        "loss_weights": student.weights if args.teacher or args.decoder else {"mlm": 1.0},
        "seed": args.seed,
        "peak_learning_rate": args.peak,
        "tokens_a_batch": args.tokens,
        "precision": trainer.precision.name,
        "earlier": earlier_runs(args.start),
        "unigram_rate": unigram,
    }

    def write(folder: Path) -> None:
        if args.decoder:
            student.export(folder)
            save_bpe(tokenizer, folder, args.positions)
        else:
            export(student, folder)
            save_tokenizer(tokenizer, folder, args.positions)
        content = json.dumps({**facts, **trainer.facts()}, indent=1)
        (folder / "pretraining.json").write_text(content + "\n")
        write_card(folder)

    if not trainer.run(evaluate, lambda: write(args.work / "model")):
        log.info("stopped; the same command continues from here")
        sys.exit(128 + trainer.stopped_by)
    write(args.out)
    log.info("finished: %s", args.out)


def encoder_run(
    args: argparse.Namespace,
    corpus: Corpus,
    encoded: EncodedRows,
    held_out: EncodedRows,
    tokenizer: Tokenizer,
) -> tuple[Any, MaskedText, Evaluate, float]:
    """Return a BERT, its text, its evaluation, and the share of the most frequent token."""
    shape = Shape(args.layers, args.hidden, args.heads, args.positions, tokenizer.get_vocab_size())
    teacher = Teacher(args.teacher, args.threads) if args.teacher else None
    if teacher is None:
        student = Student(shape)
    else:
        student = Student(shape, WORD_WIDTH, int(teacher.model.config.hidden_size))
        project_embeddings(student, tokenizer, teacher)
    if args.start is not None:
        start_from(student, tokenizer, args.start)
    targets = None
    if teacher is not None:
        targets = precompute(teacher, encoded, corpus.segments, args.work / "teacher", WORD_WIDTH)
    text = MaskedText(
        encoded, corpus.pair_array(), targets, shape.vocab, args.positions, args.tokens
    )
    batches = held_out_batches(held_out, vocab=shape.vocab, limit=args.positions, seed=args.seed)
    labels = torch.cat([batch.labels[batch.labels >= 0] for batch in batches])
    unigram = float((labels == int(np.bincount(encoded.ids).argmax())).float().mean())
    precision = resolve_precision("auto", torch.device("cpu"))
    return student, text, lambda: masked_accuracy(student, batches, precision)._asdict(), unigram


def decoder_run(
    args: argparse.Namespace,
    corpus: Corpus,
    encoded: EncodedRows,
    held_out: EncodedRows,
    tokenizer: Tokenizer,
) -> tuple[Any, RunningText, Evaluate, float]:
    """Return a decoder, its text, its evaluation, and the share of the most frequent token."""
    shape = Shape(args.layers, args.hidden, args.heads, args.positions, tokenizer.get_vocab_size())
    student = Decoder(shape, tokenizer)
    sizes = {"window": args.positions, "budget": args.tokens}
    text = RunningText.of(encoded, corpus.pair_array(), tokenizer, **sizes)
    alone = np.zeros((0, 2), dtype=np.int32)  # held-out segments have lost their neighbours
    other = RunningText.of(held_out, alone, tokenizer, **sizes)
    unigram = float((other.stream == np.bincount(text.stream).argmax()).mean())
    precision = resolve_precision("auto", torch.device("cpu"))
    return student, text, lambda: held_out_scores(student, other, precision), unigram


def earlier_runs(start: Path | None) -> list[dict[str, object]]:
    """Return the facts of the runs that led to ``--start``."""
    if start is None or not (start / "pretraining.json").exists():
        return []
    last = json.loads((start / "pretraining.json").read_text())
    keys = ("steps", "tokens_seen", "segments", "held_out")
    return [*last["earlier"], {key: last[key] for key in keys}]


if __name__ == "__main__":
    main()

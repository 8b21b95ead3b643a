"""Command line: ``python -m tools.pretrain_tiny --text a.txt b.parquet --held-out c.txt …``."""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import math
import sys
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer

from clbench.tasks.synthetic import SPECS, generate, unlabelled
from tools.pretrain_tiny.card import write_facts
from tools.pretrain_tiny.data import held_out_batches
from tools.pretrain_tiny.encode import encode, save_tokenizer, train_tokenizer
from tools.pretrain_tiny.loop import Recipe, Trainer
from tools.pretrain_tiny.network import (
    Shape,
    Student,
    export,
    parameters,
    project_embeddings,
    read_start,
    start_from,
)
from tools.pretrain_tiny.readme import write_readme
from tools.pretrain_tiny.teacher import Teacher, precompute
from tools.pretrain_tiny.texts import Corpus, read_corpus, without_shared

log = logging.getLogger("pretrain")
WORD_WIDTH = 128


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.pretrain_tiny", description=__doc__)
    parser.add_argument(
        "--text", nargs="+", required=True, help="text files, .parquet tables, hub:name[:config]"
    )
    parser.add_argument("--held-out", nargs="+", required=True, help="text kept for evaluation")
    parser.add_argument(
        "--vocabulary",
        nargs="*",
        default=[],
        help="files whose words become tokens; the synthetic tasks' words always do",
    )
    parser.add_argument("--teacher", help="encoder to learn from: a folder or a hub name")
    parser.add_argument("--teacher-name", help="what the card calls the teacher")
    parser.add_argument(
        "--about", nargs="*", default=[], help="sentences for the card: what text, whose, terms"
    )
    parser.add_argument("--title", help="of the card; else the folder's name")
    parser.add_argument("--licence", help="licence of the weights, for the card")
    parser.add_argument("--start", type=Path, help="an earlier model to go on from")
    parser.add_argument("--out", type=Path, required=True, help="folder of the finished model")
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints, caches")
    parser.add_argument("--minutes", type=float, default=90, help="processor minutes / threads")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peak", type=float, default=1e-3, help="highest learning rate")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens a batch")
    shape = Shape()
    parser.add_argument("--layers", type=int, default=shape.layers)
    parser.add_argument("--hidden", type=int, default=shape.hidden)
    parser.add_argument("--heads", type=int, default=shape.heads)
    parser.add_argument("--positions", type=int, default=shape.positions)
    parser.add_argument("--vocab", type=int, default=shape.vocab)
    args = parser.parse_args()
    for name in ("minutes", "threads", "tokens", "layers", "hidden", "heads", "peak"):
        if not 0 < getattr(args, name) < math.inf:
            parser.error(f"--{name} must be above 0, not {getattr(args, name)}")
    for name in ("start", "out", "work"):
        if getattr(args, name) is not None and getattr(args, name).is_file():
            parser.error(f"--{name} {getattr(args, name)} is a file, not a folder")
    if args.start is not None and args.start.resolve() == args.out.resolve():
        parser.error(f"--out {args.out} would overwrite --start: give another folder")
    if args.hidden % args.heads:
        parser.error(f"--hidden {args.hidden} cannot be divided among {args.heads} --heads")
    if args.positions < 16 or args.vocab < 200 or args.seed < 0:
        parser.error("--positions must be 16 or more, --vocab 200 or more, --seed 0 or more")
    return args


def main() -> None:
    """Read, tokenise, ask the teacher, train, export; what cannot be used ends in one line."""
    args = arguments()
    try:
        pretrain(args)
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")


def _same_run(args: argparse.Namespace, corpus: Corpus, held_out: list[str]) -> None:
    """Refuse to go on with a run of other text, shape or settings; only its length may change."""

    def digest(texts: list[str]) -> str:
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]

    names = ("vocab", "layers", "hidden", "heads", "positions", "tokens", "peak", "seed")
    now = {"text": digest(corpus.segments), "held-out text": digest(held_out)}
    now |= {name: getattr(args, name) for name in names}
    now |= {"teacher": args.teacher, "start": str(args.start) if args.start else None}
    path = args.work / "run.json"
    if path.exists():
        before = json.loads(path.read_text())
        differing = [key for key, value in now.items() if before.get(key) != value]
        if differing:
            raise ValueError(
                f"{args.work} holds another run: {', '.join(differing)} differs. Give another "
                "--work, or the settings of that run."
            )
    args.work.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(now, indent=1) + "\n")


def _teacher(args: argparse.Namespace) -> Teacher | None:
    if not args.teacher:
        return None
    try:
        return Teacher(args.teacher, args.threads)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"--teacher {args.teacher} cannot be loaded: {reason}") from None


def pretrain(args: argparse.Namespace) -> None:
    """Do what the command line asks for.

    Raises
    ------
    OSError, ValueError
        A text cannot be read, nothing is left to train on or to hold out, or ``--start`` or
        ``--work`` hold something of another shape or text.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    torch.set_num_threads(1)  # threads take a part of the batch each
    torch.manual_seed(args.seed)
    began = time.time()
    start = read_start(args.start) if args.start is not None else None
    teacher = _teacher(args)
    corpus = read_corpus(args.text)
    held_out = read_corpus(args.held_out)
    held_texts = without_shared(held_out.segments, corpus.segments)
    for option, texts in (("--text", corpus.segments), ("--held-out", held_texts)):
        if not texts:
            shared = held_out.segments and corpus.segments
            only = ": every line of it is in --text" if shared else ""
            raise ValueError(f"no usable text in {option}{only}")
    _same_run(args, corpus, held_texts)
    extra = unlabelled(5000)
    for name in SPECS:
        extra += [t for row in generate(name, validation=0)["train"] for t in row[:2] if t]
    extra += [
        line for f in args.vocabulary for line in Path(f).read_text(encoding="utf-8").splitlines()
    ]
    stored = args.work / "tokenizer.json"
    if stored.exists():
        tokenizer = Tokenizer.from_file(str(stored))
    else:
        tokenizer = train_tokenizer(corpus.segments, args.vocab, extra)
        args.work.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(stored))
    encoded, held = encode(tokenizer, corpus.segments), encode(tokenizer, held_texts)
    log.info("sources %s", corpus.sources)
    log.info("%d segments, %d tokens, %d words", len(encoded), len(encoded.ids), encoded.word.max())

    shape = Shape(args.layers, args.hidden, args.heads, args.positions, tokenizer.get_vocab_size())
    targets = teacher_shape = None
    if teacher is not None:
        targets = precompute(teacher, encoded, corpus.segments, args.work / "teacher", WORD_WIDTH)
    student = Student(
        shape,
        WORD_WIDTH if targets is not None else 0,
        targets.sentences.shape[1] if targets is not None else 0,
    )
    if teacher is not None:
        config = teacher.model.config
        teacher_shape = {"layers": teacher.layers, "hidden": int(config.hidden_size)}
        project_embeddings(student, tokenizer, teacher)
    if start is not None:
        start_from(student, tokenizer, start)
    log.info("student: %d parameters; ready after %.0f s", parameters(student), time.time() - began)

    recipe = Recipe(
        minutes=args.minutes,
        threads=args.threads,
        peak=args.peak,
        budget=args.tokens,
        limit=args.positions,
        seed=args.seed,
    )
    trainer = Trainer(
        student, encoded, corpus.pair_array(), targets, recipe, args.work / "checkpoint"
    )
    if trainer.load():
        log.info("going on from step %d", trainer.state.step)
    fixed = held_out_batches(held, vocab=shape.vocab, limit=args.positions, seed=args.seed)

    def write(folder: Path) -> None:
        export(student, folder)
        save_tokenizer(tokenizer, folder, args.positions)
        size = parameters(student)
        write_facts(folder, args, corpus, encoded, held, fixed, trainer, size, teacher_shape, start)
        write_readme(folder)

    if trainer.run(fixed, lambda: write(args.work / "model")):
        write(args.out)
        log.info("finished: %s", args.out)
    else:
        log.info("stopped; the same command goes on from here")
        sys.exit(128 + trainer.stopped_by)


if __name__ == "__main__":
    main()

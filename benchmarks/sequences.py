"""Measure the memory of each method by the number of tasks, and the share of scoring.

    python benchmarks/sequences.py [--tasks 2 5 15] [--methods ewc,replay] [--model tiny]
        [--table results/sequences/memory.csv]

Each method learns sequences of equal tasks with own heads. The memory is that of the tensors alive
in a step of the last stage, which is exact, beyond vanilla's in the same sequence, in multiples of
the backbone's float32 weights: another copy of them would be 1. Scoring all tasks so far after each
stage, and the points of curves, are compared with the time of training.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

from machine import make_parser, write_json

import clbench
from clbench.models.checkpoint import load_backbone
from clbench.results.cell import CellResult
from clbench.suite.read import packaged_files
from clbench.tasks.registry import load_task

SUITE = """
name = "sequences"
methods = ["vanilla"]
seeds = [0]
references = false

[protocol]
model = "{model}"
epochs = {epochs}
max_length = 32
lr = 1e-4
precision = "float32"
trim_embeddings = false

"""
TASK = """
[task."{name}"]
train = "train.csv"
validation = "validation.csv"
text = "text"
label = "label"
"""
SCENARIO = """
[[scenario]]
name = "tasks-{count}"
shift = "sequence"
tasks = [{tasks}]
"""
STEADY = 0.01
"""Growth by task, in multiples of the weights, up to which memory counts as bounded."""


def write_suite(folder: Path, counts: list[int], model: str, rows: int, epochs: int) -> Path:
    """Write a suite of sequences of equal tasks; return its file."""
    source = load_task("synthetic/sentiment", data=None, base=folder, own={})
    for split, count in (("train", rows), ("validation", rows // 3)):
        some = getattr(source, split).take(range(count))
        with (folder / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["text", "label"])
            table.writerows(zip(some.texts[0], map(int, some.labels), strict=True))
    texts = source.train.take(range(2 * rows)).texts[0]
    (folder / "corpus.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    names = [f"task-{number}" for number in range(max(counts))]
    text = SUITE.format(model=model, epochs=epochs) + "".join(TASK.format(name=n) for n in names)
    for count in counts:
        tasks = ", ".join(f'"{name}"' for name in names[:count])
        text += SCENARIO.format(count=count, tasks=tasks)
    path = folder / "sequences.toml"
    path.write_text(text, encoding="utf-8")
    return path


def scoring_share(cell: CellResult) -> float:
    """Return the time of scoring over that of training."""
    return sum(stage.eval_seconds for stage in cell.stages) / cell.train_seconds


def main() -> None:
    parser = make_parser(__doc__, turns=1, device=False)
    parser.add_argument("--tasks", type=int, nargs="+", default=[2, 5, 15])
    parser.add_argument("--methods", help="comma-separated; by default all")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--table", type=Path, help="also write the memory to this CSV file")
    parser.add_argument("--rows", type=int, default=48, help="training rows of each task")
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    methods = args.methods.split(",") if args.methods else list(packaged_files("baselines"))
    methods = ["vanilla", *(name for name in methods if name != "vanilla")]
    weights = 4e-6 * sum(value.numel() for value in load_backbone(args.model).parameters())
    with tempfile.TemporaryDirectory() as name:
        suite = write_suite(Path(name), args.tasks, args.model, args.rows, args.epochs)
        corpus = Path(name) / "corpus.txt"
        run = clbench.run(suite, methods=methods, corpus=corpus, out=Path(name) / "out")
    cells = {(c.baseline, len(c.tasks)): c for c in run.cells if c.status == "ok"}
    for cell in run.cells:
        if cell.status != "ok":
            print(f"{cell.key}: {cell.reason}")
    base = {count: cells["vanilla", count].training_memory_mb or 0.0 for count in args.tasks}
    print(f"weights of the backbone: {weights:.1f} MB; vanilla: {base[args.tasks[0]]:.1f} MB\n")
    heading = "".join(f"{f'{count} tasks':>10}" for count in args.tasks)
    print(f"{'beyond vanilla, x weights':28}{heading}{'a task':>10}  scoring")
    measured = {}
    for method in methods:
        if any((method, count) not in cells for count in args.tasks):
            continue
        some = [cells[method, count] for count in args.tasks]
        extra = [
            ((cell.training_memory_mb or 0.0) - base[count]) / weights
            for cell, count in zip(some, args.tasks, strict=True)
        ]
        growth = (extra[-1] - extra[-2]) / (args.tasks[-1] - args.tasks[-2])
        share = scoring_share(some[-1])
        measured[method] = {"extra": extra, "growth": growth, "scoring": share}
        words = "bounded" if growth <= STEADY else f"{growth:.3f}"
        print(f"{method:28}{''.join(f'{x:10.2f}' for x in extra)}{words:>10}  {share:7.0%}")
    if args.table:
        columns = [f"tasks_{count}" for count in args.tasks]
        rows = [
            ",".join([method, *(f"{x:.3f}" for x in [*row["extra"], row["growth"]])])
            for method, row in measured.items()
        ]
        heading = ",".join(["method", *columns, "growth"])
        args.table.write_text("\n".join([heading, *rows]) + "\n", encoding="utf-8")
    write_json(args, measured)


if __name__ == "__main__":
    main()

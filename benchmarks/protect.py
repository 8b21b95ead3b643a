"""Time protected Trainers beside the plain Trainer.

    python benchmarks/protect.py [--model tiny] [--data DIR] [--steps 60] [--turns 3]

Each method trains the same rows of a task in the Trainer of transformers, in turns with the Trainer
alone. Prints the median time of a step as a ratio to the Trainer's.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from machine import add_task_options, compare, make_parser, start, turns, write_json
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from clbench.hf import protect
from clbench.models.checkpoint import load_tokenizer
from clbench.models.locate import local_folder
from clbench.tasks.registry import load_task

METHODS: dict[str, dict[str, Any]] = {
    "l2-sp": {},
    "ewc": {"importance": 1.0},
    "recadam": {},
    "mixout": {},
    "lwf": {},
    "bertcl-combined": {},
    "generic-replay": {},
}


class Timer(TrainerCallback):  # type: ignore[misc]
    """Keeps the milliseconds of every step."""

    def __init__(self) -> None:
        self.ms: list[float] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self._start = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Keep the time since the step began."""
        self.ms.append(1e3 * (time.perf_counter() - self._start))


def main() -> None:
    """Train in turns and print the ratios."""
    parser = make_parser(__doc__, turns=3)
    add_task_options(parser)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    start(args)
    tokenizer = load_tokenizer(args.model)
    data = None if args.data is None else Path(args.data)
    task = load_task(args.task, data=data, base=Path(), own={})
    rows = task.train.take(range(min(len(task.train), args.steps * args.batch_size)))
    encoded = tokenizer(*map(list, rows.texts), truncation=True, max_length=128)
    items = [
        {**{key: values[i] for key, values in encoded.items()}, "labels": int(label)}
        for i, label in enumerate(rows.labels)
    ]
    measured: dict[str, list[float]] = {name: [] for name in ("Trainer", *METHODS)}
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder, max_steps=args.steps, per_device_train_batch_size=args.batch_size,
            report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True,
            use_cpu=args.device == "cpu",
        )  # fmt: skip
        for _ in turns(args):
            for name in measured:
                timer = Timer()
                trainer = Trainer(
                    AutoModelForSequenceClassification.from_pretrained(local_folder(args.model)),
                    settings,
                    train_dataset=items,  # type: ignore[arg-type]
                    data_collator=DataCollatorWithPadding(tokenizer),
                    callbacks=[timer],
                )
                if name != "Trainer":
                    options = dict(METHODS[name])
                    if name == "ewc":
                        weights = trainer.model.named_parameters()
                        options["fisher"] = {key: torch.ones_like(value) for key, value in weights}
                    protect(trainer, name, **options)
                trainer.train()
                measured[name] += timer.ms[args.steps // 10 :]
    compare(measured, "Trainer", "ms a step")
    write_json(args, measured)


if __name__ == "__main__":
    main()

"""Compare training speed, memory and accuracy of the engine and the Hugging Face Trainer.

    python benchmarks/engine.py --model MODEL --data DIR [--task glue/mrpc]
    python benchmarks/engine.py --model MODEL --data DIR --accuracy --seeds 5

Contenders on the same checkpoint, rows, batch size, rate, schedule and clipping: the Trainer with
its defaults (float32), the Trainer with ``bf16=True`` where the hardware is fast at it, and the
engine with its defaults. For speed and memory the Trainer trains the model that transformers loads
by default, or the engine's if the checkpoint declares another pooling than the first token, or
with `--own-model`; for accuracy both train the engine's model, with the same
initial head. Speed: windows of steps after a warm-up, in turns in one process. The share of matrix
products counts training the whole encoder on real tokens as useful work; padding is not useful, and
skipping work that has no effect raises the share. Memory: the peak of one process each. Accuracy:
full trainings on several seeds with one rate and the Trainer's schedule (linear to 0), and paired
differences to the engine with 95 % t intervals.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import datasets
import numpy as np
import torch
from machine import (
    CLIP_NORM,
    ENGINE,
    TRAINER,
    TRAINER_BF16,
    Workload,
    add_task_options,
    add_window_options,
    compare,
    example_flops,
    make_parser,
    one_stage,
    peaks,
    print_peak,
    start,
    steps_per_second,
    turns,
    write_json,
)
from scipy import stats
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback

from clbench.methods.base import Vanilla
from clbench.models.classifier import Classifier
from clbench.models.locate import local_folder
from clbench.tasks.metrics import score
from clbench.training.device import fast_bf16, resolve_precision
from clbench.training.engine import train_stage
from clbench.training.protocol import Protocol


class ForTrainer(nn.Module):
    """The engine's model in the shape that the Trainer expects."""

    def __init__(self, model: Classifier, head: str, regression: bool) -> None:
        super().__init__()
        self.model, self.head, self.regression = model, head, regression

    def forward(self, labels: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        """Return loss and logits of a padded batch; inputs of shape (b, t)."""
        logits = self.model(inputs, self.head)
        if self.regression:
            loss = nn.functional.mse_loss(logits.squeeze(-1), labels)
        else:
            loss = nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class Bench:
    """What all contenders share."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.args, self.device = args, device
        self.work = Workload(args)
        # transformers pools BERTs by the first token only.
        pools_alike = self.work.pooling in ("auto", "first")
        self.own_model = args.accuracy or args.own_model or not pools_alike

    def train(
        self, contender: str, *, seed: int, steps: int | None, on_step: Callable[[int], None]
    ) -> Callable[[], float]:
        """Train; return a function that gives the accuracy on the validation rows."""
        if contender == ENGINE:
            return self._engine(seed, steps, on_step)
        return self._trainer(contender == TRAINER_BF16, seed, steps, on_step)

    def _engine(
        self, seed: int, steps: int | None, on_step: Callable[[int], None]
    ) -> Callable[[], float]:
        args, work = self.args, self.work
        protocol = Protocol(
            model=args.model,
            steps=steps,
            epochs=args.epochs,
            batch_size=args.batch_size,
            lr=args.lr,
            schedule="linear",
            warmup=0.0,
            curve_points=0,
            head_dropout=0.1,
            clip_norm=CLIP_NORM,
        )
        head = work.task.head
        model = work.model([head], seed, 0.1).to(self.device)
        data = work.data(0, head)
        stage = one_stage(args, self.device, protocol, model, data, seed)
        train_stage(stage, Vanilla(), progress=lambda step, _: on_step(step))

        def accuracy() -> float:
            outputs = stage.outputs(work.data(0, head, validation=True))
            return score(["accuracy"], outputs, work.validation.labels)["accuracy"]

        return accuracy

    def _trainer(
        self, bf16: bool, seed: int, steps: int | None, on_step: Callable[[int], None]
    ) -> Callable[[], float]:
        args, task, tokenizer = self.args, self.work.task, self.work.tokenizer
        parts = {}
        for name, rows in (("train", task.train), ("validation", task.validation)):
            pair = None if rows.second is None else list(rows.second)
            encoded = tokenizer(list(rows.first), pair, truncation=True, max_length=256)
            parts[name] = datasets.Dataset.from_dict({**encoded, "labels": rows.labels.tolist()})
        torch.manual_seed(seed)
        model: nn.Module
        if self.own_model:
            own = self.work.model([task.head], seed, 0.1, trimmed=False)
            model = ForTrainer(own, task.head, task.regression)
        else:
            model = AutoModelForSequenceClassification.from_pretrained(
                local_folder(args.model), num_labels=task.outputs, dtype=torch.float32
            )

        class Steps(TrainerCallback):
            def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
                on_step(state.global_step)

        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(
                model=model,
                args=TrainingArguments(
                    output_dir=folder,
                    per_device_train_batch_size=args.batch_size,
                    num_train_epochs=args.epochs,
                    max_steps=steps or -1,
                    learning_rate=args.lr,
                    max_grad_norm=CLIP_NORM,
                    bf16=bf16,
                    use_cpu=self.device.type == "cpu",
                    seed=seed,
                    save_strategy="no",
                    logging_strategy="no",
                    report_to=[],
                    disable_tqdm=True,
                    remove_unused_columns=False,
                ),
                train_dataset=parts["train"],
                data_collator=DataCollatorWithPadding(tokenizer),
                callbacks=[Steps()],
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
            if steps is not None:
                return lambda: 0.0
            outputs = trainer.predict(parts["validation"]).predictions
            labels = np.asarray(parts["validation"]["labels"])
            measured = score(["accuracy"], outputs, labels)["accuracy"]
        return lambda: measured


def window(bench: Bench, contender: str, seed: int) -> float:
    """Return the examples per second in a window of a training."""
    steps = steps_per_second(bench.args, partial(bench.train, contender, seed=seed))
    return float(steps * bench.args.batch_size)


def speed(bench: Bench, names: list[str]) -> dict[str, Any]:
    """Measure windows in turns; print medians, ratios to the Trainer, shares of matrix products."""
    measured: dict[str, list[float]] = {name: [] for name in names}
    work = bench.work
    products = work.products(bench.device, work.model([work.task.head]))
    for turn in turns(bench.args):
        products.measure()
        for name in names:
            measured[name].append(window(bench, name, turn))
            print(f"turn {turn + 1} {name:16} {measured[name][-1]:8.1f} examples/s", flush=True)
    flops = example_flops(bench.args.model, work.length)
    engine_bf16 = resolve_precision("auto", bench.device).name == "bf16"

    def share(name: str, rate: float) -> str:
        return products.share(
            rate * flops, bf16=name == TRAINER_BF16 or (name == ENGINE and engine_bf16)
        )

    base = TRAINER if TRAINER in names else names[0]
    ratios = compare(measured, base, "examples/s", share)
    return {"examples_per_second": measured, "ratios": ratios, "flops_per_example": flops}


def accuracy(bench: Bench, names: list[str]) -> dict[str, list[float]]:
    """Return accuracies after full trainings by contender, one for each seed."""
    measured: dict[str, list[float]] = {name: [] for name in names}
    bench.args.turns = bench.args.seeds
    for seed in turns(bench.args):
        for name in names:
            trained = bench.train(name, seed=seed, steps=None, on_step=lambda _: None)
            measured[name].append(trained())
            print(f"seed {seed} {name:16} accuracy {measured[name][-1]:.4f}", flush=True)
    for name, values in measured.items():
        n, spread = len(values), statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{name:16} mean {statistics.mean(values):.4f} std {spread:.4f} n {n}")
        if name != ENGINE and ENGINE in measured and n > 1:
            differences = np.subtract(measured[ENGINE], values)
            mean, error = differences.mean(), differences.std(ddof=1) / n**0.5
            half = stats.t.ppf(0.975, n - 1) * error
            interval = f"{mean - half:+.4f} to {mean + half:+.4f}"
            print(f"clbench - {name:16} mean {mean:+.4f}, 95 % interval {interval}, n {n}")
    return measured


def main() -> None:
    parser = make_parser(__doc__, turns=3)
    add_task_options(parser)
    add_window_options(parser)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--accuracy", action="store_true", help="compare accuracy after full trainings instead"
    )
    parser.add_argument(
        "--own-model", action="store_true", help="let the Trainer train the engine's model"
    )
    parser.add_argument("--contenders", nargs="+", choices=[TRAINER, TRAINER_BF16, ENGINE])
    args = parser.parse_args()
    device = start(args)
    bench = Bench(args, device)
    if args.only:
        print_peak(args, device, bench.train)
        return
    fast = [TRAINER_BF16] if fast_bf16(device) else []
    names = args.contenders or [TRAINER, *fast, ENGINE]
    print(
        f"{args.model}, {args.task}, batch {args.batch_size}, {bench.work.length} tokens a row, "
        f"pooling {bench.work.pooling}"
    )
    if args.accuracy:
        write_json(args, {"accuracy": accuracy(bench, names)})
    else:
        write_json(args, {"speed": speed(bench, names), "memory_mb": peaks(names)})


if __name__ == "__main__":
    main()

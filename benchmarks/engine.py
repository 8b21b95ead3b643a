"""Training speed, memory and accuracy of the engine beside the Hugging Face Trainer.

    python benchmarks/engine.py --model MODEL --data DIR [--task glue/mrpc]
    python benchmarks/engine.py --model MODEL --data DIR --accuracy --seeds 5

Three contenders on the same checkpoint, rows, batch size, rate, schedule and clipping: the
Trainer with its defaults (float32), the Trainer with ``bf16=True``, and the engine with its
defaults. For speed and memory the Trainer has the model that transformers loads by default
(`--own-model`: the engine's); for accuracy both train the engine's, from the same first weights
of the head. Speed: all take
turns in one process, a window of steps at a time after a warm-up, and medians over the
windows are compared. Memory: the peak resident size of one process each. Accuracy: whole
trainings on several seeds at one rate and one schedule (the Trainer's: linear to 0), and the
paired differences to the engine with their 95 % t intervals.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from clbench.methods.vanilla import Vanilla
from clbench.models.checkpoint import load_tokenizer
from clbench.models.classifier import Classifier, build_classifier
from clbench.models.encoding import encode, vocabulary_of
from clbench.models.locate import local_folder
from clbench.tasks.metrics import score
from clbench.tasks.registry import load_task
from clbench.tasks.task import IntArray, Task
from clbench.training.batches import TaskData
from clbench.training.device import (
    PeakMemory,
    keep_freed_memory,
    resolve_device,
    resolve_precision,
)
from clbench.training.dropout import install
from clbench.training.engine import train_stage
from clbench.training.protocol import Protocol
from clbench.training.scoring import outputs_of
from clbench.training.stage import Stage

CONTENDERS = ("trainer float32", "trainer bf16", "clbench")
CLIP_NORM = 1.0
"""Largest norm of a gradient: the Trainer's default."""


class ForTrainer(nn.Module):
    """The engine's model in the shape that the Trainer expects."""

    def __init__(self, model: Classifier, head: str, regression: bool) -> None:
        super().__init__()
        self.model, self.head, self.regression = model, head, regression

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        token_type_ids: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Loss and logits of a padded batch; tokens, mask and segments of shape (b, t)."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        logits = self.model(inputs, self.head)
        if self.regression:
            loss = nn.functional.mse_loss(logits.squeeze(-1), labels)
        else:
            loss = nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class Bench:
    """What all contenders share."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.own_model = args.accuracy or args.own_model
        data = Path(args.data).resolve() if args.data else None
        self.task: Task = load_task(args.task, data=data, base=Path(), own={})
        self.tokenizer = load_tokenizer(args.model)
        self.device = resolve_device(args.device)

    def train(
        self, contender: str, *, seed: int, steps: int | None, on_step: Callable[[int], None]
    ) -> Callable[[], float]:
        """Train; returns a function that measures accuracy on the validation rows."""
        if contender == "clbench":
            return self._clbench(seed, steps, on_step)
        return self._trainer(contender.endswith("bf16"), seed, steps, on_step)

    def _model(self, seed: int, vocabulary: IntArray | None = None) -> Classifier:
        return build_classifier(
            self.args.model,
            heads={self.task.head: self.task.outputs},
            head_seed=lambda _: seed,
            head_dropout=0.1,
            vocabulary=vocabulary,
        )

    def _clbench(
        self, seed: int, steps: int | None, on_step: Callable[[int], None]
    ) -> Callable[[], float]:
        task, args = self.task, self.args
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
        train, validation = (encode(r, self.tokenizer, 256) for r in (task.train, task.validation))
        special = self.tokenizer.all_special_ids
        vocabulary = vocabulary_of([train, validation], special, len(self.tokenizer))
        pad = int(np.searchsorted(vocabulary, self.tokenizer.pad_token_id))
        train, validation = train.remap(vocabulary), validation.remap(vocabulary)
        model = self._model(seed, vocabulary).to(self.device)
        keep_freed_memory()
        stage = Stage(
            model=model,
            model_name=args.model,
            revision=None,
            protocol=protocol,
            device=self.device,
            precision=resolve_precision("auto", self.device),
            seed=seed,
            scenario="benchmark",
            stages=1,
            masks=install(model, model.backbone, self.device),
            index=0,
            tasks=[TaskData(0, task.name, task.head, task.regression, train, pad)],
        )
        train_stage(stage, Vanilla(), progress=lambda step, _: on_step(step))
        scored = TaskData(0, task.name, task.head, task.regression, validation, pad)

        def accuracy() -> float:
            outputs = outputs_of(model, scored, 64, stage.precision, self.device)
            return score(["accuracy"], outputs, validation.labels)["accuracy"]

        return accuracy

    def _trainer(
        self, bf16: bool, seed: int, steps: int | None, on_step: Callable[[int], None]
    ) -> Callable[[], float]:
        import datasets

        args = self.args
        parts = {}
        for name, rows in (("train", self.task.train), ("validation", self.task.validation)):
            encoded = self.tokenizer(
                list(rows.first),
                None if rows.second is None else list(rows.second),
                truncation=True,
                max_length=256,
            )
            parts[name] = datasets.Dataset.from_dict({**encoded, "labels": rows.labels.tolist()})
        torch.manual_seed(seed)
        model: nn.Module
        if self.own_model:
            model = ForTrainer(self._model(seed), self.task.head, self.task.regression)
        else:
            model = AutoModelForSequenceClassification.from_pretrained(
                local_folder(args.model), num_labels=self.task.outputs, dtype=torch.float32
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
                ),
                train_dataset=parts["train"],
                data_collator=DataCollatorWithPadding(self.tokenizer),
                callbacks=[Steps()],
            )
            trainer.train()

            def accuracy() -> float:
                outputs = trainer.predict(parts["validation"]).predictions
                labels = np.asarray(parts["validation"]["labels"])
                return score(["accuracy"], outputs, labels)["accuracy"]

            done = accuracy() if steps is None else 0.0
        return lambda: done


def window(bench: Bench, contender: str, seed: int) -> float:
    """Examples per second of one window of steps after a warm-up."""
    args = bench.args
    marks: dict[int, float] = {}
    bench.train(
        contender,
        seed=seed,
        steps=args.warmup + args.steps,
        on_step=lambda step: marks.update({step: time.perf_counter()}),
    )
    seconds = marks[args.warmup + args.steps] - marks[args.warmup]
    return float(args.steps * args.batch_size / seconds)


def speed(bench: Bench) -> dict[str, Any]:
    """Windows in turn; medians, and the ratios of the engine to the others window by window."""
    measured: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for turn in range(bench.args.windows):
        for name in CONTENDERS:
            measured[name].append(window(bench, name, turn))
            print(f"window {turn + 1} {name:16} {measured[name][-1]:8.1f} examples/s", flush=True)
    ours = measured["clbench"]
    ratios = {
        name: [mine / theirs for mine, theirs in zip(ours, values, strict=True)]
        for name, values in measured.items()
        if name != "clbench"
    }
    print()
    for name, values in measured.items():
        low, mid, high = min(values), statistics.median(values), max(values)
        print(f"{name:16} median {mid:7.1f} examples/s (min {low:.1f}, max {high:.1f})")
    for name, values in ratios.items():
        low, mid, high = min(values), statistics.median(values), max(values)
        print(f"clbench / {name:16} median {mid:.2f}x (min {low:.2f}, max {high:.2f})")
    return {"examples_per_second": measured, "ratios": ratios}


def memory(bench: Bench) -> dict[str, float]:
    """Peak resident megabytes, a fresh process for each contender."""
    found = {}
    for name in CONTENDERS:
        command = [sys.executable, __file__, *sys.argv[1:], "--only", name]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        found[name] = float(answer.stdout.strip().splitlines()[-1])
        print(f"{name:16} peak {found[name]:8.0f} MB", flush=True)
    return found


def accuracy(bench: Bench) -> dict[str, list[float]]:
    """Accuracies after whole trainings, by contender, a seed each."""
    found: dict[str, list[float]] = {name: [] for name in bench.args.contenders}
    for seed in range(bench.args.seeds):
        for name in found:
            result = bench.train(name, seed=seed, steps=None, on_step=lambda _: None)
            found[name].append(result())
            print(f"seed {seed} {name:16} accuracy {found[name][-1]:.4f}", flush=True)
    for name, values in found.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{name:16} mean {statistics.mean(values):.4f} std {spread:.4f} n {len(values)}")
    for name in CONTENDERS[:2]:
        if len(ours := found.get("clbench", [])) > 1 and name in found:
            _print_difference(name, np.subtract(ours, found[name]))
    return found


def _print_difference(name: str, differences: np.ndarray[Any, Any]) -> None:
    n = len(differences)
    mean, error = differences.mean(), differences.std(ddof=1) / n**0.5
    half = stats.t.ppf(0.975, n - 1) * error
    print(
        f"clbench - {name:16} mean {mean:+.4f}, 95 % interval {mean - half:+.4f} to "
        f"{mean + half:+.4f}, n {n}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--data", help="folder with glue/ in the layout of the hub's repository")
    parser.add_argument("--task", default="synthetic/paraphrase")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40, help="steps of a window")
    parser.add_argument("--warmup", type=int, default=10, help="steps before a window")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--accuracy", action="store_true", help="whole trainings instead of speed")
    parser.add_argument(
        "--own-model",
        action="store_true",
        help="speed: give the Trainer the engine's model, with its attention and head",
    )
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--only", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    bench = Bench(parser.parse_args())
    args = bench.args
    if args.only:
        peak = PeakMemory(bench.device)
        bench.train(args.only, seed=0, steps=args.warmup + args.steps, on_step=lambda _: None)
        print(peak.megabytes())
        return
    print(f"{args.model}, {args.task}, batch {args.batch_size}, {torch.get_num_threads()} threads")
    if args.accuracy:
        measured: dict[str, Any] = {"accuracy": accuracy(bench)}
    else:
        measured = {"speed": speed(bench), "memory_mb": memory(bench)}
    if args.json:
        args.json.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

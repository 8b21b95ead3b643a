"""Compare the training of decoders with the Hugging Face Trainer, and the costs of its parts.

    python benchmarks/decoder.py [--model FOLDER] [--task glue/sst2 --data DIR]

Contenders on the same checkpoint, prompts, batch size and rate: the Trainer in float32 and, where
the hardware is fast at it, in bf16, with labels of -100 on the prompts and padding to the longest
row of a batch; the engine with its defaults; and the engine with packed rows. Speed: real tokens
per second in windows of steps after a warm-up, in turns in one process, and their share of what
this machine's matrix products allow in that precision, where training all layers but the output
layer on real tokens counts as useful work. A step counts as a batch of rows of the mean length of
all, and windows hold other rows: differences of some percent between short windows may be those of
their rows. Loss: the mean over the answers' tokens in the last half of a short training, for
several seeds. Memory: the peak of one process each. Methods: the speed of each baseline of
``--methods`` beside vanilla's in the engine, on padded and on packed rows, in turns; in the share
of matrix products, a base model that is read at each step counts as cost, not as work. They are
timed in the second of two stages, so that those that keep rows, weights or Fisher information act;
what a method does once a stage, such as writing texts, is printed as seconds of its own.
Scoring: the time to score four answers to each prompt, and to read the prompts alone, in turns.
Generation: tokens per second drawn in batches of several sizes with a cache of keys and values,
in turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from machine import (
    CLIP_NORM,
    ENGINE,
    TRAINER,
    TRAINER_BF16,
    MatrixProducts,
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
    wait,
    write_json,
)
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback

from clbench.methods.base import Vanilla
from clbench.models.answer_scores import AnswerScorer
from clbench.models.answering import build_answering_model
from clbench.models.checkpoint import load_tokenizer
from clbench.models.encoding import IGNORED
from clbench.models.locate import local_folder
from clbench.models.prompts import PromptEncoder
from clbench.suite.baselines import read_baseline
from clbench.tasks.registry import load_task
from clbench.training.batches import TaskData
from clbench.training.device import fast_bf16, resolve_precision
from clbench.training.engine import train_stage
from clbench.training.protocol import Protocol

PACKED = " packed"
"""End of the names of contenders whose rows are packed."""
WRITTEN_ROWS = (1, 16, 64)
ANSWERS = (" yes", " no", " in part", " not said")


class Bench:
    """What all contenders share: the rows of a task as prompts with answers."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.args, self.device = args, device
        data = Path(args.data).resolve() if args.data else None
        self.task = load_task(args.task, data=data, base=Path(), own={})
        self.task = self.task.limited(args.rows)
        self.tokenizer = load_tokenizer(args.model, plain=True)
        encoder = PromptEncoder(self.tokenizer, args.max_length)
        self.rows = encoder.encode(self.task, self.task.train, to_train=True)
        self.prompts = encoder.encode(self.task, self.task.validation, to_train=False)
        self.pad = int(self.tokenizer.pad_token_id)
        self.length = float(self.rows.lengths.mean())
        config: Any = AutoConfig.from_pretrained(local_folder(args.model))
        width = int(config.hidden_size)
        inner = int(getattr(config, "intermediate_size", None) or 4 * width)
        self.products = MatrixProducts(device, round(args.batch_size * self.length), width, inner)
        self.flops = example_flops(args.model, round(self.length)) / round(self.length)
        self.once: dict[str, list[float]] = {}
        """Seconds of each method beside its steps: setup, after one stage, before the next."""

    def share(self, name: str, tokens: float) -> str:
        """Return the tokens per second of a contender as a share of matrix products."""
        bf16 = resolve_precision("auto", self.device).name == "bf16" and name != TRAINER
        return self.products.share(tokens * self.flops, bf16=bf16)

    def train(
        self, contender: str, *, seed: int, steps: int, on_step: Callable[[int], None]
    ) -> list[float]:
        """Train; return the mean loss of each step as far as the contender reports it."""
        if contender in (TRAINER, TRAINER_BF16):
            return self._trainer(contender == TRAINER_BF16, seed, steps, on_step)
        return self._engine(contender, seed, steps, on_step)

    def _engine(
        self, contender: str, seed: int, steps: int, on_step: Callable[[int], None]
    ) -> list[float]:
        args, packed = self.args, contender.endswith(PACKED)
        name = contender.removesuffix(PACKED)
        protocol = Protocol(
            model=args.model,
            head="language-model",
            steps=steps,
            batch_size=args.batch_size,
            lr=args.lr,
            schedule="constant",
            warmup=0.0,
            curve_points=steps,
            clip_norm=CLIP_NORM,
            packing=packed,
        )
        model = build_answering_model(args.model, pad_id=self.pad, packs=packed).to(self.device)
        data = TaskData(0, "task", "task", False, self.rows, self.pad)
        stage = one_stage(args, self.device, protocol, model, data, seed)
        if name == ENGINE:
            trace = train_stage(stage, Vanilla(), progress=lambda step, _: on_step(step))
            return [float(loss) for loss in trace.curves["loss"]]
        method = read_baseline(name).build()
        marks = [time.perf_counter()]
        method.setup(stage)
        marks.append(time.perf_counter())
        first = replace(stage, stages=2, protocol=protocol.model_copy(update={"steps": 1}))
        train_stage(first, method if method.acts_in(0) else Vanilla())
        marks.append(time.perf_counter())
        method.after_stage(first)
        marks.append(time.perf_counter())
        second = replace(first, index=1, tasks=[data, data], protocol=protocol)
        second.reads_earlier_rows = method.keeps_rows

        def progress(step: int, _: int) -> None:
            if step <= 2:
                marks.append(time.perf_counter())
            if step == 2:  # the time to the first step, less that of a step
                setup, _, after, before, one = np.diff(marks)
                self.once.setdefault(contender, []).append(setup + after + max(before - one, 0.0))
            on_step(step)

        trace = train_stage(second, method if method.acts_in(1) else Vanilla(), progress=progress)
        return [float(loss) for loss in trace.curves["loss"]]

    def _trainer(
        self, bf16: bool, seed: int, steps: int, on_step: Callable[[int], None]
    ) -> list[float]:
        args, rows = self.args, self.rows
        assert rows.answers is not None
        examples: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
        for i in range(len(rows)):
            prompt = rows.ids[rows.offsets[i] : rows.offsets[i + 1]].tolist()
            answer = [token for token in rows.answers[i].tolist() if token >= 0]
            examples["input_ids"].append(prompt + answer)
            examples["labels"].append([IGNORED] * len(prompt) + answer)

        def collate(batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
            width = max(len(row["input_ids"]) for row in batch)
            filled = {
                "input_ids": [
                    r["input_ids"] + [self.pad] * (width - len(r["input_ids"])) for r in batch
                ],
                "labels": [r["labels"] + [IGNORED] * (width - len(r["labels"])) for r in batch],
                "attention_mask": [
                    [1] * len(r["input_ids"]) + [0] * (width - len(r["input_ids"])) for r in batch
                ],
            }
            return {name: torch.tensor(values) for name, values in filled.items()}

        losses: list[float] = []

        class Steps(TrainerCallback):
            def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
                on_step(state.global_step)

            def on_log(self, arguments: Any, state: Any, control: Any, **more: Any) -> None:
                if "loss" in (more.get("logs") or {}):
                    losses.append(float(more["logs"]["loss"]))

        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_pretrained(local_folder(args.model), dtype=torch.float32)
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(
                model=model,
                args=TrainingArguments(
                    output_dir=folder,
                    per_device_train_batch_size=args.batch_size,
                    max_steps=steps,
                    learning_rate=args.lr,
                    lr_scheduler_type="constant",
                    max_grad_norm=CLIP_NORM,
                    bf16=bf16,
                    use_cpu=self.device.type == "cpu",
                    seed=seed,
                    save_strategy="no",
                    logging_strategy="steps",
                    logging_steps=1,
                    report_to=[],
                    disable_tqdm=True,
                    remove_unused_columns=False,
                ),
                train_dataset=datasets.Dataset.from_dict(examples),
                data_collator=collate,
                callbacks=[Steps()],
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        return losses


def window(bench: Bench, contender: str, seed: int) -> float:
    """Return the tokens per second in a window of a training."""
    steps = steps_per_second(bench.args, partial(bench.train, contender, seed=seed))
    return float(steps * bench.args.batch_size * bench.length)


def losses(bench: Bench, names: list[str]) -> dict[str, list[float]]:
    """Return the mean loss in the last half of a training by contender, one for each seed."""
    args = bench.args
    measured: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(args.seeds):
        for name in names:
            curve = bench.train(name, seed=seed, steps=args.loss_steps, on_step=lambda _: None)
            measured[name].append(statistics.mean(curve[len(curve) // 2 :]))
            print(f"seed {seed} {name:16} loss {measured[name][-1]:.4f}", flush=True)
    for name, values in measured.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{name:16} mean loss {statistics.mean(values):.4f} std {spread:.4f}")
    return measured


def speeds_of(bench: Bench, names: list[str]) -> dict[str, list[float]]:
    """Return the tokens per second of contenders, in turns."""
    speeds: dict[str, list[float]] = {name: [] for name in names}
    for turn in turns(bench.args):
        for name in names:
            bench.products.measure()
            speeds[name].append(window(bench, name, turn))
            print(f"turn {turn + 1} {name:16} {speeds[name][-1]:8.0f} tokens/s", flush=True)
    return speeds


def scoring(bench: Bench) -> dict[str, Any]:
    """Measure the scoring of four answers beside reading the prompts alone, in turns."""
    model = build_answering_model(bench.args.model, pad_id=bench.pad).to(bench.device).eval()
    scorer = AnswerScorer(model.backbone, pad_id=bench.pad)
    tokens = [bench.tokenizer(a, add_special_tokens=False)["input_ids"] for a in ANSWERS]
    longest = max(map(len, tokens))
    answers = np.array([[t + [-1] * (longest - len(t)) for t in tokens]], dtype=np.int32)
    rows = replace(bench.prompts, candidates=answers, values=None)
    data = TaskData(0, "task", "task", False, rows, bench.pad)
    order = np.argsort(-rows.lengths, kind="stable")[: bench.args.scored_rows]
    batches = [data.batch(order[i : i + 32], bench.device).inputs for i in range(0, len(order), 32)]
    precision = resolve_precision("auto", bench.device)

    def timed(run: Callable[[dict[str, Any]], Any]) -> float:
        started = time.perf_counter()
        with torch.inference_mode(), precision.autocast():
            for batch in batches:
                run(batch)
        wait(bench.device)
        return time.perf_counter() - started

    def prompt(batch: dict[str, Any]) -> None:
        names = ("input_ids", "attention_mask")
        model.backbone(**{n: batch[n] for n in names}, use_cache=False, logits_to_keep=1)

    measured: dict[str, list[float]] = {"prompt alone": [], "four answers": []}
    timed(scorer)
    for _ in turns(bench.args):
        measured["prompt alone"].append(timed(prompt))
        measured["four answers"].append(timed(scorer))
    return {"seconds": measured, "ratios": compare(measured, "prompt alone", "s")}


def generation(bench: Bench) -> dict[str, list[float]]:
    """Measure the tokens per second drawn after the prompts, by rows in a batch, in turns."""
    args = bench.args
    model = build_answering_model(args.model, pad_id=bench.pad).to(bench.device).eval()
    precision = resolve_precision("auto", bench.device)
    data = TaskData(0, "task", "task", False, bench.prompts, bench.pad)
    speeds: dict[str, list[float]] = {}
    for turn in range(args.turns + 1):
        for rows in WRITTEN_ROWS:
            inputs = data.batch(np.arange(min(rows, len(bench.prompts))), bench.device).inputs
            size = len(inputs["input_ids"]), args.written_tokens
            draws = torch.rand(size, generator=torch.Generator().manual_seed(turn))
            started = time.perf_counter()
            with precision.autocast():
                model.write(inputs, [], args.written_tokens, draws=draws.to(bench.device))
            wait(bench.device)
            speed = size[0] * size[1] / (time.perf_counter() - started)
            if turn:  # the first one warms up
                speeds.setdefault(f"{rows} rows", []).append(speed)
    for name, values in speeds.items():
        print(f"generation, {name:9} {statistics.median(values):8.0f} tokens/s")
    return speeds


def main() -> None:
    parser = make_parser(__doc__, turns=3)
    add_task_options(parser)
    parser.set_defaults(model="tiny-gpt", task="synthetic/entailment3")
    parser.add_argument("--rows", type=int, default=1000, help="most training rows")
    parser.add_argument("--scored-rows", type=int, default=256, help="most rows to score")
    parser.add_argument("--written-tokens", type=int, default=64, help="tokens of a drawn text")
    parser.add_argument("--max-length", type=int, default=128)
    add_window_options(parser)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--loss-steps", type=int, default=60, help="steps for the loss; 0: none")
    parser.add_argument(
        "--methods", default="dft,asft,eaft,talr,ewc,replay", help="to time; '': none"
    )
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    device = start(args)
    bench = Bench(args, device)
    if args.only:
        print_peak(args, device, bench.train)
        return
    fast = [TRAINER_BF16] if fast_bf16(device) else []
    names = [TRAINER, *fast, ENGINE, ENGINE + PACKED]
    print(f"{args.model}, {args.task}, batch {args.batch_size}, {bench.length:.0f} tokens a row")
    speeds = speeds_of(bench, names)
    base = fast[0] if fast else TRAINER  # the same precision as the engine's
    ratios = compare(speeds, base, "tokens/s", bench.share)
    result: dict[str, Any] = {"tokens_per_second": speeds, "ratios": ratios}
    if args.methods:
        methods = ["vanilla", *args.methods.split(",")]
        speeds = speeds_of(bench, [*methods, *(name + PACKED for name in methods)])
        ratios = compare(speeds, "vanilla", "tokens/s", bench.share)
        for name, values in bench.once.items():
            print(f"{name:16} once a stage {statistics.median(values):8.1f} s")
        once = bench.once
        result["methods"] = {"tokens_per_second": speeds, "ratios": ratios, "once_seconds": once}
    result["scoring"] = scoring(bench)
    result["generation"] = generation(bench)
    if args.loss_steps:
        result["loss"] = losses(bench, names)
    result["memory_mb"] = peaks(names)
    write_json(args, result)


if __name__ == "__main__":
    main()

"""Shared by the benchmarks: turns within a time limit, medians, peak memory, machine speed.

Contenders take turns in one process. Each program prints ratios to a peer, and the share of the
speed of this machine's own matrix products (or memory copies), measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel

from clbench.models.checkpoint import load_tokenizer
from clbench.models.classifier import Classifier, TaskModel, build_classifier
from clbench.models.encoding import encode, vocabulary_of
from clbench.models.locate import local_folder
from clbench.models.pooling import declared_pooling
from clbench.tasks.registry import load_task
from clbench.tasks.task import IntArray
from clbench.training.batches import TaskData
from clbench.training.device import (
    fast_bf16,
    keep_freed_memory,
    precision_note,
    resolve_device,
    resolve_precision,
)
from clbench.training.dropout import install
from clbench.training.memory import PeakMemory
from clbench.training.protocol import Protocol
from clbench.training.stage import Stage

ENGINE, TRAINER, TRAINER_BF16 = "clbench", "trainer float32", "trainer bf16"
CLIP_NORM = 1.0
"""Largest norm of a gradient: the Trainer's default."""
STARTED = time.perf_counter()
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def make_parser(doc: str | None, *, turns: int, device: bool = True) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=turns, help="turns of each contender")
    parser.add_argument(
        "--minutes", type=float, default=3.0, help="start no new turn after this time"
    )
    parser.add_argument("--json", type=Path, help="also write the measurements to this file")
    if device:
        parser.add_argument("--device", default="auto")
        parser.add_argument("--threads", type=int, default=torch.get_num_threads())
        parser.add_argument("--only", help=argparse.SUPPRESS)
    return parser


def add_task_options(parser: argparse.ArgumentParser) -> None:
    """Add options for a model and a task to train it on."""
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--data", help="folder with glue/ in the layout of the hub's repository")
    parser.add_argument("--task", default="synthetic/paraphrase")
    parser.add_argument("--batch-size", type=int, default=16)


def add_window_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `steps_per_second`."""
    parser.add_argument("--steps", type=int, default=40, help="most steps in a window")
    parser.add_argument("--seconds", type=float, default=15, help="most seconds in a window")
    parser.add_argument("--warmup", type=int, default=5, help="steps before a window")


def start(args: argparse.Namespace) -> torch.device:
    """Set threads and allocator as the engine does, and return the device.

    All contenders keep freed memory then, the Trainer, too, which by itself does not.
    """
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    device = resolve_device(args.device)
    if not args.only:
        print(f"{device}, {args.threads} threads, torch {torch.__version__}")
        print(precision_note("auto", device), "\n")
    return device


def turns(args: argparse.Namespace, warmup: int = 0) -> Iterator[int]:
    """Yield the numbers of turns, negative ones for warm-up, until the time is up."""
    for turn in range(-warmup, args.turns):
        if turn > 0 and time.perf_counter() - STARTED > 60 * args.minutes:
            print(f"stopped after {turn} of {args.turns} turns, as {args.minutes:g} minutes are up")
            return
        yield turn


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compare(
    measured: Mapping[str, Sequence[float]],
    base: str,
    unit: str,
    share: Callable[[str, float], str] | None = None,
) -> dict[str, list[float]]:
    """Print medians, ratios to `base` and shares of machine speed; return the ratios by turn."""
    ratios = {
        name: [value / peer for value, peer in zip(values, measured[base], strict=True)]
        for name, values in measured.items()
    }
    print()
    for name, values in measured.items():
        mid, low, high = statistics.median(values), min(values), max(values)
        print(
            f"{name:26} median {mid:8.2f} {unit:13} ({low:.2f} to {high:.2f}) "
            f"{statistics.median(ratios[name]):6.3f} x {base}"
            + ("" if share is None else f"   {share(name, mid)}")
        )
    return ratios


class WindowDoneError(Exception):
    """Raised to end a training whose window has been measured."""


def steps_per_second(args: argparse.Namespace, train: Callable[..., object]) -> float:
    """Return the speed in a window of steps or seconds, after a warm-up.

    A window of the engine may hold up to two steps in which it measures memory, which are slower.

    `train` takes the number of `steps`, and `on_step`, to be called with the number of each.
    """
    marks: dict[int, float] = {}

    def on_step(step: int) -> None:
        marks[step] = time.perf_counter()
        if step > args.warmup and marks[step] - marks[args.warmup] > args.seconds:
            raise WindowDoneError

    with suppress(WindowDoneError):
        train(steps=args.warmup + args.steps, on_step=on_step)
    last = max(marks)
    return (last - args.warmup) / (marks[last] - marks[args.warmup])


def print_peak(
    args: argparse.Namespace, device: torch.device, train: Callable[..., object]
) -> None:
    """Print the peak memory in megabytes of the warm-up steps of ``--only``, for `peaks`.

    The longest batch decides it, and contenders draw batches of their own.
    """
    peak = PeakMemory(device)
    train(args.only, seed=0, steps=args.warmup, on_step=lambda _: None)
    print(peak.megabytes())


def one_stage(
    args: argparse.Namespace,
    device: torch.device,
    protocol: Protocol,
    model: TaskModel,
    data: TaskData,
    seed: int,
) -> Stage:
    """Return a stage of the engine on `data`, in the precision that it chooses by itself."""
    return Stage(
        model=model,
        model_name=args.model,
        revision=None,
        protocol=protocol,
        device=device,
        precision=resolve_precision("auto", device),
        seed=seed,
        scenario="benchmark",
        stages=1,
        masks=install(model, model.backbone, device),
        index=0,
        tasks=[data],
    )


def peaks(names: Iterable[str]) -> dict[str, float]:
    """Return the peak memory in megabytes of this program with ``--only NAME``, a process each."""
    measured = {}
    for name in names:
        command = [sys.executable, *sys.argv, "--only", name]
        process = subprocess.run(command, capture_output=True, text=True, check=True)
        measured[name] = float(process.stdout.strip().splitlines()[-1])
        print(f"{name:26} peak {measured[name]:8.0f} MB", flush=True)
    return measured


def write_json(args: argparse.Namespace, measured: Mapping[str, Any]) -> None:
    """Write the measurements to the file of ``--json``, if there is one."""
    if args.json:
        args.json.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


class MatrixProducts:
    """FLOP/s of this machine at the products of a transformer's dense layers.

    Parameters
    ----------
    rows, width, inner
        Tokens of a batch, hidden size and size of the feed-forward layer.
    """

    def __init__(self, device: torch.device, rows: int, width: int, inner: int) -> None:
        self._device = device
        shapes = [(rows, width, width)] * 4 + [(rows, width, inner), (rows, inner, width)]
        self._work = sum(2.0 * a * b * c for a, b, c in shapes)
        self._pairs = {
            dtype: [
                (
                    torch.randn(a, b, device=device, dtype=dtype),
                    torch.randn(c, b, device=device, dtype=dtype),
                )
                for a, b, c in shapes
            ]
            for dtype in [torch.float32, *([torch.bfloat16] if fast_bf16(device) else [])]
        }
        self._rates: dict[torch.dtype, list[float]] = {dtype: [] for dtype in self._pairs}

    def measure(self, seconds: float = 0.3) -> None:
        """Repeat the products for some seconds, after a warm-up, and add their speed."""
        for dtype, pairs in self._pairs.items():
            started, count = time.perf_counter(), -1
            while count < 1 or time.perf_counter() - started < seconds:
                for left, right in pairs:
                    torch.nn.functional.linear(left, right)
                wait(self._device)
                count += 1
                started = time.perf_counter() if count == 0 else started
            self._rates[dtype].append(count * self._work / (time.perf_counter() - started))

    def share(self, flops_per_second: float, *, bf16: bool = False) -> str:
        """Return a rate of useful work as a share of the machine's, in words."""
        rates = self._rates.get(torch.bfloat16 if bf16 else torch.float32)
        if not rates:
            return ""
        rate = statistics.median(rates)
        return f"{flops_per_second / rate:4.0%} of matrix products ({rate / 1e9:.0f} GFLOP/s)"


def flops_of(loss: Callable[[], Tensor]) -> float:
    """Return the FLOPs of the matrix products of a loss and its backward pass."""
    with FlopCounterMode(display=False) as counter:
        loss().backward()
    return float(counter.get_total_flops())


def example_flops(model: str, length: int) -> float:
    """Return the FLOPs of training a whole body on an example of `length` unpadded tokens."""
    encoder = AutoModel.from_pretrained(local_folder(model), attn_implementation="eager")
    ids = torch.full((1, length), 5)
    return flops_of(lambda: encoder(input_ids=ids).last_hidden_state[:, 0].square().sum())


class Workload:
    """Rows of a task and the engine's model, cut to the vocabulary of the rows.

    Attributes
    ----------
    train, validation
        Encoded rows.
    length
        Mean tokens of a training row.
    pooling
        That of all models: the one that the checkpoint declares, as in a run.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        data = Path(args.data).resolve() if args.data else None
        self.task = load_task(args.task, data=data, base=Path(), own={})
        self.tokenizer = load_tokenizer(args.model)
        parts = [encode(r, self.tokenizer, 256) for r in (self.task.train, self.task.validation)]
        special = self.tokenizer.all_special_ids
        self.vocabulary = vocabulary_of(parts, special, len(self.tokenizer))
        self.pad = int(np.searchsorted(self.vocabulary, self.tokenizer.pad_token_id))
        self.train, self.validation = (part.remap(self.vocabulary) for part in parts)
        self.pooling = declared_pooling(args.model) or "auto"
        self.length = round(float(self.train.lengths.mean()))

    def data(self, index: int, head: str, *, validation: bool = False) -> TaskData:
        """Return the rows as data of stage `index`."""
        rows = self.validation if validation else self.train
        return TaskData(index, head, head, self.task.regression, rows, self.pad)

    def model(
        self, heads: Sequence[str], seed: int = 0, dropout: float = 0.0, *, trimmed: bool = True
    ) -> Classifier:
        """Return the engine's model with heads for the task."""
        vocabulary: IntArray | None = self.vocabulary if trimmed else None
        return build_classifier(
            self.args.model,
            heads=dict.fromkeys(heads, self.task.outputs),
            head_seed=lambda _: seed,
            head_dropout=dropout,
            pooling=self.pooling,
            vocabulary=vocabulary,
        )

    def products(self, device: torch.device, model: Classifier) -> MatrixProducts:
        """Return the matrix products of a training step, to be measured."""
        config: Any = model.backbone.config
        width = int(config.hidden_size)
        inner = int(getattr(config, "intermediate_size", 4 * width))
        return MatrixProducts(device, self.args.batch_size * self.length, width, inner)

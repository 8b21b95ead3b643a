"""Compare time and memory of steps of RecAdam, torch's fused Adam, and a loop over tensors.

    python benchmarks/recadam.py
    python benchmarks/recadam.py --step-of recadam ewc-mlm --model MODEL [--data DIR --task TASK]

The first form steps on the 109 million weights of BERT base with fixed gradients, both terms of
RecAdam at work (λ = 1/2). Its peers are torch's fused Adam and the published step in Python, tensor
by tensor: as Algorithm 1 is printed, and leaner as in the authors' code. All contenders take turns
in one process on the same weights, each with its own moments; medians and ratios within each turn
are compared. A step multiplies no matrices, so the share is that of the speed of copying memory,
if the step reads or writes each number that it needs once. Peak memory: a fresh process each.

The second form measures whole training steps of methods relative to vanilla: real methods in the
real engine, a window of a second stage at a time, in turns. λ is 1/2 there too (``--set``), so that
RecAdam is measured while it pulls.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from machine import (
    Workload,
    add_task_options,
    compare,
    example_flops,
    make_parser,
    peaks,
    start,
    turns,
    wait,
    write_json,
)
from torch import Tensor, nn

from clbench.optim import RecAdam
from clbench.suite.baselines import read_baseline
from clbench.training.context import Context
from clbench.training.device import resolve_precision
from clbench.training.dropout import install
from clbench.training.engine import train_stage
from clbench.training.memory import PeakMemory
from clbench.training.protocol import Protocol
from clbench.training.stage import Stage

LR, GAMMA, BETAS, EPS = 2e-5, 5000.0, (0.9, 0.999), 1e-8
OURS, ADAM = "RecAdam", "fused Adam"
AUTHORS, PRINTED = "authors' code, by tensor", "Algorithm 1, by tensor"
COPY = "copying memory"
TOUCHED = {COPY: 3, ADAM: 7, "": 8}
"""Numbers moved for each weight: weight and moments both ways, gradient, anchor. Copying moves 3,
since processors also read what they overwrite."""


def shapes(layers: int) -> list[tuple[int, ...]]:
    """Return the shapes of BERT base's weights, with that number of layers."""
    h, inner = 768, 3072
    embeddings: list[tuple[int, ...]] = [(30522, h), (512, h), (2, h), (h,), (h,)]
    layer = [(h, h), (h,)] * 4 + [(inner, h), (inner,), (h, inner), (h,)] + [(h,)] * 4
    return embeddings + layer * layers


class TensorByTensor:
    """The published step in plain torch calls, a loop over the tensors, with λ = 1/2.

    As in the authors' code, the rate includes the correction of the moments.
    """

    def __init__(self, parameters: list[nn.Parameter], anchors: list[Tensor]) -> None:
        self.parameters, self.anchors = parameters, anchors
        self.first = [torch.zeros_like(p) for p in parameters]
        self.second = [torch.zeros_like(p) for p in parameters]
        self.t = 0

    @torch.no_grad()
    def step(self) -> None:
        """Take one step."""
        self.t += 1
        learning = 1 / (1 + math.exp(-0.0 * (self.t - 250)))
        for i, parameter in enumerate(self.parameters):
            assert parameter.grad is not None
            self.update(parameter, parameter.grad, i, learning)

    def moments(self, gradient: Tensor, i: int) -> tuple[Tensor, Tensor]:
        """Update and return both moments of the i-th tensor."""
        beta1, beta2 = BETAS
        m = self.first[i].mul_(beta1).add_(gradient, alpha=1 - beta1)
        v = self.second[i].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        return m, v

    def update(self, parameter: Tensor, gradient: Tensor, i: int, learning: float) -> None:
        """Update the i-th tensor."""
        beta1, beta2 = BETAS
        m, v = self.moments(gradient, i)
        scale = math.sqrt(1 - beta2**self.t) / (1 - beta1**self.t)
        parameter.addcdiv_(m, v.sqrt().add_(EPS), value=-LR * scale * learning)
        difference = parameter - self.anchors[i]
        parameter.add_(difference, alpha=-LR * (1 - learning) * GAMMA)


class Algorithm1(TensorByTensor):
    """The same, line by line as printed, with new tensors for the corrected moments."""

    def update(self, parameter: Tensor, gradient: Tensor, i: int, learning: float) -> None:
        """Update the i-th tensor."""
        beta1, beta2 = BETAS
        m, v = self.moments(gradient, i)
        corrected, squares = m / (1 - beta1**self.t), v / (1 - beta2**self.t)
        parameter.sub_(corrected / (squares.sqrt() + EPS), alpha=LR * learning)
        parameter.sub_(parameter - self.anchors[i], alpha=LR * (1 - learning) * GAMMA)


def contenders(
    parameters: list[nn.Parameter], anchors: list[Tensor]
) -> dict[str, Callable[[], Callable[[], object]]]:
    """Return functions by name, each of which prepares a contender and returns its step."""

    def adam() -> torch.optim.Adam:
        return torch.optim.Adam(parameters, lr=LR, betas=BETAS, eps=EPS, fused=True)

    def interpolated() -> Callable[[], object]:
        optimizer, weights = adam(), [p.detach() for p in parameters]

        def step() -> None:
            optimizer.step()
            torch._foreach_lerp_(weights, anchors, LR * 0.5 * GAMMA)

        return step

    def ours() -> Callable[[], object]:
        options = {"k": 0.0, "gamma": GAMMA, "anchor": anchors}
        return RecAdam(parameters, LR, BETAS, EPS, **options).step  # type: ignore[arg-type]

    def copy() -> Callable[[], object]:
        targets = [torch.empty_like(anchor) for anchor in anchors]
        return partial(torch._foreach_copy_, targets, anchors)

    return {
        COPY: copy,
        OURS: ours,
        ADAM: lambda: adam().step,
        "fused Adam + interpolation": interpolated,
        AUTHORS: lambda: TensorByTensor(parameters, anchors).step,
        PRINTED: lambda: Algorithm1(parameters, anchors).step,
    }


def material(layers: int, device: torch.device) -> tuple[list[nn.Parameter], list[Tensor]]:
    """Return weights with gradients, and anchors, on the device."""
    torch.manual_seed(0)
    parameters = []
    for shape in shapes(layers):
        parameter = nn.Parameter(torch.empty(shape, device=device).normal_(std=0.02))
        parameter.grad = torch.empty(shape, device=device).normal_(std=0.01)
        parameters.append(parameter)
    return parameters, [p.detach() + 0.01 for p in parameters]


def optimizer_steps(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Return milliseconds per step by contender and turn, ratios and peak memory."""
    parameters, anchors = material(args.layers, device)
    count = sum(p.numel() for p in parameters)
    print(f"{count / 1e6:.1f} M weights", flush=True)
    steps = {name: make() for name, make in contenders(parameters, anchors).items()}
    measured: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps.items())
    for turn in turns(args, args.warmup):
        order.append(order.pop(0))  # no contender always follows the same one
        for name, step in order:
            wait(device)
            started = time.perf_counter()
            for _ in range(args.repeat):
                step()
            wait(device)
            if turn >= 0:
                measured[name].append(1e3 * (time.perf_counter() - started) / args.repeat)
    copied = TOUCHED[COPY] / statistics.median(measured[COPY])

    def share(name: str, milliseconds: float) -> str:
        touched = TOUCHED.get(name, TOUCHED[""])
        return f"{touched / milliseconds / copied:4.0%} of copying memory"

    ratios = compare(measured, ADAM, "ms", share)
    for peer in (AUTHORS, PRINTED):
        gains = [theirs / ours for theirs, ours in zip(measured[peer], measured[OURS], strict=True)]
        print(f"{OURS} is {statistics.median(gains):.2f} x as fast as {peer}")
    memory = peaks(name for name in measured if name != COPY)
    return {"ms_per_step": measured, "ratios": ratios, "memory_mb": memory}


def print_peak(args: argparse.Namespace, device: torch.device) -> None:
    """Print the peak memory of one contender, weights and gradients included."""
    parameters, anchors = material(args.layers, device)
    if args.only == ADAM:
        anchors.clear()
    peak = PeakMemory(device)
    step = contenders(parameters, anchors)[args.only]()
    step()
    step()
    print(peak.megabytes())


class Training:
    """A method in the second of two stages, window by window."""

    def __init__(
        self, args: argparse.Namespace, work: Workload, name: str, device: torch.device
    ) -> None:
        self.args = args
        baseline = read_baseline(name)
        changes = {key: json.loads(value) for owner, key, value in args.set if owner == name}
        self.method = baseline.build(**changes)
        model = work.model(["first", "second"]).to(device)
        protocol = Protocol(
            model=args.model, steps=args.steps, batch_size=args.batch_size, curve_points=0
        )
        precision = resolve_precision("auto", device)
        self.context = Context(
            model, args.model, None, protocol, device, precision, 0, "benchmark", 2, None
        )
        self.method.setup(self.context)
        self.context.masks = install(model, model.backbone, device)
        self.tasks = [work.data(i, head) for i, head in enumerate(("first", "second"))]
        stage = self._stage(0)
        train_stage(stage, self.method)
        self.method.after_stage(stage)

    def _stage(self, index: int) -> Stage:
        context = {name: getattr(self.context, name) for name in Context.__dataclass_fields__}
        stage = Stage(**context, index=index, tasks=self.tasks)
        stage.reads_earlier_rows = self.method.keeps_rows
        stage.heads = frozenset([stage.data.head])
        return stage

    def window(self) -> float:
        """Train a window; return milliseconds per step."""
        trace = train_stage(self._stage(1), self.method)
        return 1e3 * trace.train_seconds / trace.steps


def training_steps(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Return milliseconds per training step by method and turn, and ratios."""
    names = list(dict.fromkeys(["vanilla", *args.step_of]))
    work = Workload(args)
    trainings = {name: Training(args, work, name, device) for name in names}
    measured: dict[str, list[float]] = {name: [] for name in names}
    products = work.products(device, trainings["vanilla"].context.model)
    for turn in turns(args, args.warmup):
        products.measure()
        for name in names if turn % 2 == 0 else names[::-1]:
            milliseconds = trainings[name].window()
            if turn >= 0:
                measured[name].append(milliseconds)
    flops = args.batch_size * example_flops(args.model, work.length)
    bf16 = resolve_precision("auto", device).name == "bf16"

    def share(_: str, milliseconds: float) -> str:
        return products.share(1e3 * flops / milliseconds, bf16=bf16)

    ratios = compare(measured, "vanilla", "ms a step", share)
    return {"ms_per_training_step": measured, "ratios": ratios}


def main() -> None:
    parser = make_parser(__doc__, turns=10)
    parser.add_argument("--warmup", type=int, default=2, help="turns before the measured ones")
    parser.add_argument("--repeat", type=int, default=1, help="optimizer steps in a turn")
    parser.add_argument("--layers", type=int, default=12, help="layers of the shape of BERT base's")
    parser.add_argument("--step-of", nargs="+", default=[], metavar="BASELINE")
    add_task_options(parser)
    parser.add_argument("--steps", type=int, default=20, help="steps of a window")
    parser.add_argument(
        "--set",
        nargs=3,
        action="append",
        metavar=("BASELINE", "KEY", "JSON"),
        default=[["recadam", "annealing", '"constant"']],
    )
    args = parser.parse_args()
    device = start(args)
    if args.only:
        print_peak(args, device)
    else:
        measure = training_steps if args.step_of else optimizer_steps
        write_json(args, measure(args, device))


if __name__ == "__main__":
    main()

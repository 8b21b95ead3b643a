"""Time and memory of a RecAdam step beside torch's fused Adam and a step tensor by tensor.

    python benchmarks/recadam.py [--threads 2]
    python benchmarks/recadam.py --step-of recadam ewc-mlm --model MODEL [--data DIR --task TASK]

The first form steps on the 109 million weights of BERT base with fixed gradients, both terms
of RecAdam at work (λ = 1/2), beside torch's fused Adam and the published step in Python, tensor
by tensor: as Algorithm 1 is printed, and leaner as in the authors' code. All contenders take
turns in one process on the same weights, each with moments of its own; medians are compared,
and ratios within each turn. Peak memory is that of a fresh process each.

The second form measures whole training steps of methods relative to vanilla: real methods in
the real engine, a window of a second stage at a time, in turns. λ is held at 1/2 there too
(``--set``), so that RecAdam is measured while it pulls.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clbench.methods.base import METHODS
from clbench.models.checkpoint import load_tokenizer
from clbench.models.classifier import build_classifier
from clbench.models.encoding import encode, vocabulary_of
from clbench.optim import RecAdam
from clbench.suite.baselines import read_baseline
from clbench.tasks.registry import load_task
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
from clbench.training.stage import Context, Stage

LR, GAMMA, BETAS, EPS = 2e-5, 5000.0, (0.9, 0.999), 1e-8
OURS, ADAM = "RecAdam", "fused Adam"
AUTHORS, PRINTED = "authors' code, by tensor", "Algorithm 1, by tensor"


def shapes(layers: int) -> list[tuple[int, ...]]:
    """Shapes of BERT base's weights, or of the same with another number of layers."""
    h, inner = 768, 3072
    found: list[tuple[int, ...]] = [(30522, h), (512, h), (2, h), (h,), (h,)]
    for _ in range(layers):
        found += [(h, h), (h,)] * 4 + [(inner, h), (inner,), (h, inner), (h,)] + [(h,)] * 4
    return found


class TensorByTensor:
    """The published step in plain torch calls, a loop over the tensors, with λ = 1/2.

    As the authors' code has it: the correction of the moments is part of the rate.
    """

    def __init__(self, parameters: list[nn.Parameter], anchors: list[Tensor]) -> None:
        self.parameters, self.anchors = parameters, anchors
        self.first = [torch.zeros_like(p) for p in parameters]
        self.second = [torch.zeros_like(p) for p in parameters]
        self.t = 0

    @torch.no_grad()
    def step(self) -> None:
        """One step."""
        self.t += 1
        learning = 1 / (1 + math.exp(-0.0 * (self.t - 250)))
        for i, parameter in enumerate(self.parameters):
            assert parameter.grad is not None
            self.update(parameter, parameter.grad, i, learning)

    def moments(self, gradient: Tensor, i: int) -> tuple[Tensor, Tensor]:
        """Both moments of the i-th tensor, brought up to date."""
        beta1, beta2 = BETAS
        m = self.first[i].mul_(beta1).add_(gradient, alpha=1 - beta1)
        v = self.second[i].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        return m, v

    def update(self, parameter: Tensor, gradient: Tensor, i: int, learning: float) -> None:
        """The step of the i-th tensor."""
        beta1, beta2 = BETAS
        m, v = self.moments(gradient, i)
        scale = math.sqrt(1 - beta2**self.t) / (1 - beta1**self.t)
        parameter.addcdiv_(m, v.sqrt().add_(EPS), value=-LR * scale * learning)
        difference = parameter - self.anchors[i]
        parameter.add_(difference, alpha=-LR * (1 - learning) * GAMMA)


class Algorithm1(TensorByTensor):
    """The same line by line as the paper prints it, the corrected moments tensors of their own."""

    def update(self, parameter: Tensor, gradient: Tensor, i: int, learning: float) -> None:
        """The step of the i-th tensor."""
        beta1, beta2 = BETAS
        m, v = self.moments(gradient, i)
        corrected, squares = m / (1 - beta1**self.t), v / (1 - beta2**self.t)
        parameter.sub_(corrected / (squares.sqrt() + EPS), alpha=LR * learning)
        parameter.sub_(parameter - self.anchors[i], alpha=LR * (1 - learning) * GAMMA)


def contenders(
    parameters: list[nn.Parameter], anchors: list[Tensor]
) -> dict[str, Callable[[], Callable[[], object]]]:
    """Makers of steps by name."""

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

    return {
        OURS: ours,
        ADAM: lambda: adam().step,
        "fused Adam + interpolation": interpolated,
        AUTHORS: lambda: TensorByTensor(parameters, anchors).step,
        PRINTED: lambda: Algorithm1(parameters, anchors).step,
    }


def material(args: argparse.Namespace) -> tuple[list[nn.Parameter], list[Tensor]]:
    """Weights with gradients, and anchors, on the device."""
    device = resolve_device(args.device)
    torch.manual_seed(0)
    parameters = []
    for shape in shapes(args.layers):
        parameter = nn.Parameter(torch.empty(shape, device=device).normal_(std=0.02))
        parameter.grad = torch.empty(shape, device=device).normal_(std=0.01)
        parameters.append(parameter)
    return parameters, [p.detach() + 0.01 for p in parameters]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def optimizer_steps(args: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds a step, by contender, a number each turn."""
    parameters, anchors = material(args)
    device = parameters[0].device
    count = sum(p.numel() for p in parameters)
    print(f"{count / 1e6:.1f} M weights, {device}, {torch.get_num_threads()} threads", flush=True)
    steps = {name: make() for name, make in contenders(parameters, anchors).items()}
    measured: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps.items())
    for turn in range(-args.warmup, args.turns):
        order.append(order.pop(0))  # nobody always follows the same neighbour
        for name, step in order:
            wait(device)
            started = time.perf_counter()
            for _ in range(args.repeat):
                step()
            wait(device)
            if turn >= 0:
                measured[name].append(1e3 * (time.perf_counter() - started) / args.repeat)
    return measured


def compare(measured: dict[str, list[float]], base: str, unit: str) -> dict[str, list[float]]:
    """Print medians and ratios to `base` turn by turn; the ratios."""
    ratios = {
        name: [mine / other for mine, other in zip(values, measured[base], strict=True)]
        for name, values in measured.items()
    }
    for name, values in measured.items():
        mid, low, high = statistics.median(values), min(values), max(values)
        spread = f"(min {low:.1f}, max {high:.1f})"
        ratio = statistics.median(ratios[name])
        print(f"{name:27} median {mid:8.2f} {unit} {spread:28} {ratio:6.3f} x {base}")
    return ratios


def memory(names: Iterable[str]) -> dict[str, float]:
    """Peak megabytes, a fresh process for each contender, weights and gradients included."""
    found = {}
    for name in names:
        command = [sys.executable, __file__, *sys.argv[1:], "--only", name]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        found[name] = float(answer.stdout.strip().splitlines()[-1])
        print(f"{name:27} peak {found[name]:8.0f} MB", flush=True)
    return found


class Training:
    """A method on its way through the second of two stages, window by window."""

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        self.args = args
        baseline = read_baseline(name)
        changed = {key: json.loads(value) for whose, key, value in args.set if whose == name}
        self.method = METHODS.get(baseline.method)(**{**baseline.settings, **changed})
        data = Path(args.data).resolve() if args.data else None
        task = load_task(args.task, data=data, base=Path(), own={})
        tokenizer = load_tokenizer(args.model)
        rows = encode(task.train, tokenizer, 256)
        vocabulary = vocabulary_of([rows], tokenizer.all_special_ids, len(tokenizer))
        device = resolve_device(args.device)
        model = build_classifier(
            args.model,
            heads={"first": task.outputs, "second": task.outputs},
            head_seed=lambda _: 0,
            vocabulary=vocabulary,
        ).to(device)
        protocol = Protocol(
            model=args.model,
            steps=args.warmup + args.steps,
            batch_size=args.batch_size,
            curve_points=0,
        )
        precision = resolve_precision("auto", device)
        self.context = Context(
            model, args.model, None, protocol, device, precision, 0, "benchmark", 2, None
        )
        self.method.setup(self.context)
        self.context.masks = install(model, model.backbone, device)
        pad = int(vocabulary.searchsorted(tokenizer.pad_token_id))
        rows = rows.remap(vocabulary)
        self.tasks = [
            TaskData(i, head, head, task.regression, rows, pad)
            for i, head in enumerate(("first", "second"))
        ]
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
        """Milliseconds a step after a warm-up."""
        marks: dict[int, float] = {}

        def on_step(step: int, _: int) -> None:
            if step in (self.args.warmup, self.args.warmup + self.args.steps):
                wait(self.context.device)
                marks[step] = time.perf_counter()

        train_stage(self._stage(1), self.method, progress=on_step)
        first, last = sorted(marks)
        return 1e3 * (marks[last] - marks[first]) / (last - first)


def training_steps(args: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds a training step, by method, a number each turn."""
    keep_freed_memory()
    names = list(dict.fromkeys(["vanilla", *args.step_of]))
    trainings = {name: Training(args, name) for name in names}
    measured: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(args.turns):
        order = names if turn % 2 == 0 else names[::-1]
        for name in order:
            measured[name].append(trainings[name].window())
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=3, help="turns, or steps of a window")
    parser.add_argument("--repeat", type=int, default=1, help="steps of the optimizer in a turn")
    parser.add_argument("--layers", type=int, default=12, help="of BERT base's shape")
    parser.add_argument("--step-of", nargs="+", default=[], metavar="BASELINE")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--data", help="folder with glue/ in the layout of the hub's repository")
    parser.add_argument("--task", default="synthetic/paraphrase")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=30, help="steps of a window")
    parser.add_argument(
        "--set",
        nargs=3,
        action="append",
        metavar=("BASELINE", "KEY", "JSON"),
        default=[["recadam", "annealing", '"constant"']],
    )
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.only:
        parameters, anchors = material(args)
        if args.only == ADAM:
            anchors.clear()
        peak = PeakMemory(parameters[0].device)
        step = contenders(parameters, anchors)[args.only]()
        step()
        step()
        print(peak.megabytes())
        return
    if args.step_of:
        steps = training_steps(args)
        measured: dict[str, Any] = {
            "ms_per_training_step": steps,
            "ratios": compare(steps, "vanilla", "ms"),
        }
    else:
        steps = optimizer_steps(args)
        measured = {"ms_per_step": steps, "ratios": compare(steps, ADAM, "ms")}
        for peer in (AUTHORS, PRINTED):
            gains = [its / ours for its, ours in zip(steps[peer], steps[OURS], strict=True)]
            print(f"{OURS} is {statistics.median(gains):.2f} x as fast as {peer}")
        measured["memory_mb"] = memory(steps)
    if args.json:
        args.json.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

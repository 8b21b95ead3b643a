"""Speed and memory of the per-example Fisher beside a loop of single-example backward passes.

    python benchmarks/fisher.py [--lengths 64,128] [--model MODEL]

The model is a random BERT with a masked-LM head: 6 layers, 384 wide, 30,522 tokens. All
contenders see the same texts and masks and take turns in one process; medians of the
seconds an example are compared. The loop is what one writes first: forward, backward and a
sum of squares for each example, the labels its true tokens. clbench checks itself by plain
backward passes on two examples first; that is part of its time, and a turn has as many texts
as `ewc-mlm` takes. The built-in corpus has a median of 17 tokens; the longer the texts, the
more of the time goes into products that both sides must form. Memory: the peak resident size
of a process each, less that of one which only builds the model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, PreTrainedModel

from clbench.fisher import diagonal_fisher
from clbench.fisher.losses import IGNORED
from clbench.models.language import load_language_model
from clbench.training.device import PeakMemory, keep_freed_memory, resolve_device

Batch = dict[str, Tensor]
Contender = Callable[[PreTrainedModel, list[Batch]], dict[str, Tensor]]
MASK = 103
BATCH_TOKENS = 2048


def loop(model: PreTrainedModel, batches: list[Batch]) -> dict[str, Tensor]:
    """One backward pass an example."""
    model.eval()
    fisher = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    count = 0
    for batch in batches:
        for i in range(len(batch["input_ids"])):
            model.zero_grad()
            model(**{key: value[i : i + 1] for key, value in batch.items()}).loss.backward()
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    fisher[name] += parameter.grad**2
            count += 1
    model.zero_grad()
    return {name: value / count for name, value in fisher.items()}


def loop_bf16(model: PreTrainedModel, batches: list[Batch]) -> dict[str, Tensor]:
    """The same under autocast."""
    with torch.autocast(next(model.parameters()).device.type, torch.bfloat16):
        return loop(model, batches)


def ours(mode: Literal["empirical", "sampled"], precision: Literal["float32", "bf16"]) -> Contender:
    """The package's own, which also checks itself on two examples at the start."""

    def run(model: PreTrainedModel, batches: list[Batch]) -> dict[str, Tensor]:
        return diagonal_fisher(model, batches, "mlm", mode, precision=precision)

    return run


CONTENDERS: dict[str, Contender] = {
    "loop float32": loop,
    "loop bf16": loop_bf16,
    "clbench float32": ours("empirical", "float32"),
    "clbench float32 sampled": ours("sampled", "float32"),
    "clbench bf16": ours("empirical", "bf16"),
}


def make_model(name: str | None, device: torch.device) -> PreTrainedModel:
    if name is not None:
        return load_language_model(name).model.to(device)
    config = BertConfig(
        vocab_size=30522,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
    )
    torch.manual_seed(0)
    return BertForMaskedLM(config).eval().to(device)


def make_batches(examples: int, length: int, size: int, device: torch.device) -> list[Batch]:
    """Random tokens, 15 % of them masked, as batches of 2048 tokens."""
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(min(999, size // 2), size, (examples, length), generator=rng)
    rank = torch.rand(ids.shape, generator=rng).argsort(1).argsort(1)
    masked = rank < max(1, round(0.15 * length))
    labels = ids.masked_fill(~masked, IGNORED)
    whole = {
        "input_ids": ids.masked_fill(masked, min(MASK, size - 1)),
        "attention_mask": torch.ones_like(ids),
        "labels": labels,
    }
    rows = max(1, BATCH_TOKENS // length)
    return [
        {key: value[start : start + rows].to(device) for key, value in whole.items()}
        for start in range(0, examples, rows)
    ]


def speed(args: argparse.Namespace, length: int) -> dict[str, float]:
    """Median milliseconds an example, by contender."""
    device = resolve_device(args.device)
    model = make_model(args.model, device)
    size = int(model.config.vocab_size)
    found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for turn in range(args.turns + 1):
        for name, contender in CONTENDERS.items():
            examples = args.loop_examples if name.startswith("loop") else args.examples
            batches = make_batches(examples, length, size, device)
            started = time.perf_counter()
            contender(model, batches)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if turn:  # the first one warms up
                found[name].append((time.perf_counter() - started) / examples * 1e3)
    return {name: statistics.median(values) for name, values in found.items()}


def memory(args: argparse.Namespace) -> None:
    """In a process of its own: print the peak in megabytes."""
    device = resolve_device(args.device)
    model = make_model(args.model, device)
    batches = make_batches(args.examples, args.length, int(model.config.vocab_size), device)
    peak = PeakMemory(device)
    if args.memory != "nothing":
        CONTENDERS[args.memory](model, batches)
    print(json.dumps(peak.megabytes()))


def measured_memory(args: argparse.Namespace, contender: str, examples: int) -> float:
    command = [
        sys.executable,
        __file__,
        *("--memory", contender, "--examples", str(examples)),
        *("--length", str(args.length), "--device", args.device, "--threads", str(args.threads)),
        *(("--model", args.model) if args.model else ()),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.strip().splitlines()[-1]))


def report(args: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"torch": torch.__version__, "threads": args.threads}
    for length in args.lengths:
        found = speed(args, length)
        result[f"length {length}"] = found
        print(f"\n{length} tokens, {args.turns} turns of {args.examples} examples")
        for name, value in found.items():
            ratio = found["loop float32"] / value
            print(f"  {name:24} {value:8.1f} ms an example   {ratio:5.2f}x")
    base = measured_memory(args, "nothing", 1)
    print(f"\npeak memory above the model's own {base:.0f} MB, {args.length} tokens")
    for name in ("loop float32", "clbench float32"):
        for examples in (64, 256):
            more = measured_memory(args, name, examples) - base
            result[f"memory {name} {examples}"] = more
            print(f"  {name:24} {examples:4} examples {more:8.0f} MB")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a model with a masked-LM head instead of a random one")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--lengths", default="16,32", help="tokens of a text, by commas")
    parser.add_argument("--length", type=int, default=64, help="the same, where memory is taken")
    parser.add_argument("--examples", type=int, default=1000, help="in a turn")
    parser.add_argument("--loop-examples", type=int, default=40, help="in a turn of the loop")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--json", help="also write the numbers to this file")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.lengths = [int(length) for length in args.lengths.split(",")]
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    if args.memory:
        memory(args)
        return
    result = report(args)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()

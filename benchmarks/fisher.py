"""Compare speed and memory of the per-example Fisher and a loop of backward passes.

    python benchmarks/fisher.py [--lengths 16 32] [--model MODEL]

The model is a random BERT with a masked-LM head: 6 layers, 384 wide, 30,522 tokens. All contenders
take turns in one process; medians of the milliseconds an example are compared. The loop gets the
first of the texts and masks that the others get. The loop is the obvious solution: forward,
backward and a sum of squares for each example, with its true tokens as labels. The time of clbench
includes its own check by plain backward passes on two examples. The built-in corpus has a median of
17 tokens; the longer the texts, the more time goes into products that both sides need. The share of
matrix products counts one forward and backward pass over the masked places as useful work. Memory:
the peak of one process each, and of one that only loads model and texts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from machine import (
    MatrixProducts,
    compare,
    flops_of,
    make_parser,
    peaks,
    start,
    turns,
    wait,
    write_json,
)
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, PreTrainedModel

from clbench.fisher import diagonal_fisher
from clbench.fisher.losses import IGNORED, masked_lm
from clbench.models.checkpoint import load_language_model
from clbench.training.device import fast_bf16
from clbench.training.memory import PeakMemory

Batch = dict[str, Tensor]
Contender = Callable[[PreTrainedModel, list[Batch]], object]
MASK = 103
BATCH_TOKENS = 2048
LOOP, OURS = "loop float32", "clbench float32"


def loop(model: PreTrainedModel, batches: list[Batch], *, bf16: bool = False) -> dict[str, Tensor]:
    """Return the Fisher by one backward pass for each example."""
    fisher = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    count = 0
    for batch in batches:
        for i in range(len(batch["input_ids"])):
            model.zero_grad()
            with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
                loss = model(**{key: value[i : i + 1] for key, value in batch.items()}).loss
            loss.backward()
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    fisher[name] += parameter.grad**2
            count += 1
    model.zero_grad()
    return {name: value / count for name, value in fisher.items()}


def contenders(device: torch.device) -> dict[str, Contender]:
    """Return the contenders by name, with bf16 ones only where the hardware is fast at it."""
    ours = partial(diagonal_fisher, loss="mlm")
    float32: dict[str, Contender] = {
        LOOP: loop,
        OURS: partial(ours, mode="empirical"),
        "clbench float32 sampled": partial(ours, mode="sampled"),
    }
    bf16: dict[str, Contender] = {
        "loop bf16": partial(loop, bf16=True),
        "clbench bf16": partial(ours, mode="empirical", precision="bf16"),
    }
    return float32 | bf16 if fast_bf16(device) else float32


def make_model(name: str | None, device: torch.device) -> PreTrainedModel:
    """Return the model of that name, or a random BERT."""
    if name is not None:
        return load_language_model(name).model.eval().to(device)
    config = BertConfig(
        vocab_size=30522,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
    )
    torch.manual_seed(0)
    return BertForMaskedLM(config).eval().to(device)


def draw_texts(examples: int, length: int, size: int, device: torch.device) -> Batch:
    """Return random tokens, 15 % of them masked."""
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(min(999, size // 2), size, (examples, length), generator=rng)
    rank = torch.rand(ids.shape, generator=rng).argsort(1).argsort(1)
    masked = rank < max(1, round(0.15 * length))
    whole = {
        "input_ids": ids.masked_fill(masked, min(MASK, size - 1)),
        "attention_mask": torch.ones_like(ids),
        "labels": ids.masked_fill(~masked, IGNORED),
    }
    return {key: value.to(device) for key, value in whole.items()}


def batches_of(texts: Batch, examples: int) -> list[Batch]:
    """Return batches of 2048 tokens of the first texts."""
    rows = max(1, BATCH_TOKENS // texts["input_ids"].shape[1])
    return [
        {key: value[start : min(start + rows, examples)] for key, value in texts.items()}
        for start in range(0, examples, rows)
    ]


def speed(args: argparse.Namespace, length: int, device: torch.device) -> dict[str, Any]:
    """Return milliseconds an example, by contender and turn."""
    model = make_model(args.model, device)
    size = int(model.config.vocab_size)
    measured: dict[str, list[float]] = {name: [] for name in contenders(device)}
    config: Any = model.config
    inner = int(getattr(config, "intermediate_size", 4 * config.hidden_size))
    products = MatrixProducts(device, BATCH_TOKENS, config.hidden_size, inner)
    texts = draw_texts(max(args.examples, args.loop_examples), length, size, device)
    for turn in turns(args, warmup=1):
        products.measure()
        for name, contender in contenders(device).items():
            examples = args.loop_examples if name.startswith("loop") else args.examples
            batches = batches_of(texts, examples)
            started = time.perf_counter()
            contender(model, batches)
            wait(device)
            if turn >= 0:
                measured[name].append((time.perf_counter() - started) / examples * 1e3)
    print(f"\n{length} tokens, {args.examples} examples a turn ({args.loop_examples} of the loop)")
    (batch,) = batches_of(texts, 1)
    flops = flops_of(lambda: masked_lm(model, batch).mean_loss())
    model.zero_grad()
    share = partial(_share, products, flops)
    ratios = compare(measured, LOOP, "ms an example", share)
    return {"ms_per_example": measured, "ratios": ratios, "flops_per_example": flops}


def _share(products: MatrixProducts, flops: float, name: str, milliseconds: float) -> str:
    return products.share(1e3 * flops / milliseconds, bf16="bf16" in name)


def memory(args: argparse.Namespace, device: torch.device) -> None:
    """Print the peak in megabytes of ``CONTENDER:EXAMPLES``; run in a process of its own."""
    name, examples = args.only.split(":")
    model = make_model(args.model, device)
    texts = draw_texts(int(examples), args.length, int(model.config.vocab_size), device)
    batches = batches_of(texts, int(examples))
    peak = PeakMemory(device)
    if name != "nothing":
        contenders(device)[name](model, batches)
    print(json.dumps(peak.megabytes()))


def main() -> None:
    parser = make_parser(__doc__, turns=3)
    parser.add_argument("--model", help="a model with a masked-LM head instead of a random one")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 32], help="tokens of a text")
    parser.add_argument(
        "--length", type=int, default=64, help="tokens of a text when memory is measured"
    )
    parser.add_argument("--examples", type=int, default=300, help="examples in a turn")
    parser.add_argument(
        "--loop-examples", type=int, default=20, help="examples in a turn of the loop"
    )
    args = parser.parse_args()
    device = start(args)
    if args.only:
        memory(args, device)
        return
    measured: dict[str, Any] = {
        f"length {length}": speed(args, length, device) for length in args.lengths
    }
    print(f"\npeak memory at {args.length} tokens")
    names = ["nothing:1", *(f"{name}:{n}" for name in (LOOP, OURS) for n in (16, 64))]
    measured["memory_mb"] = peaks(names)
    write_json(args, measured)


if __name__ == "__main__":
    main()

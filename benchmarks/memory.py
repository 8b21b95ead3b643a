"""Compare the memory that a dry run estimates from shapes with what training takes.

    python benchmarks/memory.py [--model tiny tiny-gpt] [--methods A,B]
    python benchmarks/memory.py --sizes [--rows 16] [--tokens 256]

The first form trains each registered method on two built-in tasks, and prints the ratio of the
estimate to the measured peak of a training step (`training_memory_mb`) and of the whole cell. The
second form prints what decoders of published shapes need with several settings, and whether that
fits GPUs of 24, 48 and 80 GB; it needs no weights and no GPU.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from clbench import RunOptions, api
from clbench.core.errors import ClbenchError
from clbench.measure.rows import PreparedScenario
from clbench.methods.base import METHODS
from clbench.models.locate import TINY_GPT
from clbench.runner.cell_runner import CellRunner
from clbench.runner.cell_stages import ComputeSettings
from clbench.runner.fit import CellMemory, cell_memory, total_mb
from clbench.runner.prepare import ScenarioPreparer
from clbench.suite.baselines import Baseline, read_baseline
from clbench.suite.plan import Cell
from clbench.training.device import Precision
from clbench.training.memory import LiveBytes
from clbench.training.writing import prompt_rows

CPU = torch.device("cpu")
FLOAT32 = Precision("float32", "cpu")
SUITE = """
name = "memory"
methods = ["vanilla"]
seeds = [0]
references = false
[protocol]
model = "{model}"
head = "{head}"
steps = {steps}
batch_size = {rows}
max_length = 96
clip_norm = 1.0
limit = {limit}
scored_limit = 16
curve_points = 0
precision = "float32"
[[scenario]]
name = "two"
shift = "dataset"
tasks = ["synthetic/sentiment", "synthetic/acceptability"]
"""
NEED_SETTINGS = {"layerwise": "bertcl-combined"}
"""Packaged baselines of methods that have no default for a setting."""
SHAPES = {
    "SmolLM2-135M": (576, 30, 1536, 9, 3, 49152, True),
    "Qwen2.5-0.5B": (896, 24, 4864, 14, 2, 151936, True),
    "Llama-3.2-1B": (2048, 16, 8192, 32, 8, 128256, True),
    "Llama-3.2-3B": (3072, 28, 8192, 24, 8, 128256, True),
    "Llama-3.1-8B": (4096, 32, 14336, 32, 8, 128256, False),
}
"""Width, layers, inner width, heads, heads of keys, tokens, and whether the output is tied."""
SAVING = {"gradient_checkpointing": True, "accumulation": 16}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "vanilla": ("vanilla", {}),
    "vanilla, saving": ("vanilla", SAVING),
    "vanilla, bf16 weights, saving": ("vanilla", {"weights": "bf16", **SAVING}),
    "lora, saving": ("lora", SAVING),
    "lora, bf16 weights, saving": ("lora", {"weights": "bf16", **SAVING}),
}
CARDS = (24, 48, 80)


def first_cell(
    model: str, folder: Path, *, steps: int = 4, rows: int = 16, limit: int = 48
) -> tuple[Cell, PreparedScenario]:
    """Return a cell of vanilla on two built-in tasks, and their rows."""
    head = "language-model" if model == "tiny-gpt" else "classification"
    suite = folder / f"{model}.toml"
    suite.write_text(SUITE.format(model=model, head=head, steps=steps, rows=rows, limit=limit))
    plan = api.plan_run(str(suite), RunOptions(out=folder / "out"))
    return plan.cells[0], ScenarioPreparer.of(plan, CPU).prepare(plan.cells[0].scenario)


def baselines(cell: Cell) -> Iterator[Baseline]:
    """Yield each registered method that can train the cell, with small settings for checks."""
    for name in sorted(METHODS):
        kind = METHODS.get(name)
        baseline = Baseline(name, name, dict(kind.check_settings))
        if name in NEED_SETTINGS:
            baseline = read_baseline(NEED_SETTINGS[name])
        if cell.protocol.head not in kind.head_kinds:
            continue
        try:
            kind(**baseline.settings).check_protocol(cell.protocol)
        except ClbenchError:
            continue
        yield baseline


def measure(cell: Cell, prepared: PreparedScenario) -> CellMemory:
    """Run a cell, and return what its tensors took."""
    method = cell.baseline.build()
    with LiveBytes() as live:
        scores = CellRunner(cell, prepared, method, ComputeSettings(CPU, FLOAT32, {})).run()
    return CellMemory(scores.stages[-1].memory_mb or 0.0, live.peak / 1e6)


def compare(model: str, only: Iterable[str], folder: Path) -> None:
    """Print the ratios of the methods."""
    cell, prepared = first_cell(model, folder)
    print(f"\n| {model} | step, measured MB | estimate / measured | cell, estimate / measured |")
    print("|---|---|---|---|")
    for baseline in baselines(cell):
        if only and baseline.method not in only:
            continue
        own = replace(cell, baseline=baseline)
        taken, estimate = measure(own, prepared), cell_memory(own, prepared, FLOAT32)
        ratios = estimate.training / taken.training, estimate.peak / taken.peak
        step, whole = (f"{ratio:.3f}" for ratio in ratios)
        print(f"| {baseline.method} | {taken.training:.1f} | {step} | {whole} |", flush=True)


def write_shape(folder: Path, shape: tuple[int, int, int, int, int, int, bool]) -> None:
    """Write a decoder's configuration, with a tokenizer, and weights that are never read."""
    from safetensors.torch import save_file

    h, layers, inner, heads, kv, words, tied = shape
    shutil.copytree(TINY_GPT, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "hidden_size": h, "num_hidden_layers": layers, "intermediate_size": inner,
        "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": words,
        "tie_word_embeddings": tied, "head_dim": h // heads, "max_position_embeddings": 4096,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"unread": torch.zeros(1)}, folder / "model.safetensors")


def sizes(folder: Path, rows: int, tokens: int, names: Iterable[str]) -> None:
    """Print what decoders need on one task, with bf16 computation."""
    cell, prepared = first_cell("tiny-gpt", folder)
    answer = tokens // 8
    data = prompt_rows([[5] * (tokens - answer)] * rows, [[5] * answer] * rows)
    task = replace(prepared.train[0], rows=data)
    prepared = replace(prepared, train=(task,), scored=(), writer=None)
    print(f"| model | {' | '.join(SETTINGS)} |\n|---|{'---|' * len(SETTINGS)}")
    for name in names:
        place = folder / name
        write_shape(place, SHAPES[name])
        print(f"| {name}", end="")
        for method, settings in SETTINGS.values():
            changes = {"model": str(place), "batch_size": rows, "max_length": tokens, "steps": 2}
            protocol = cell.protocol.model_copy(update={**changes, **settings})
            own = replace(cell, baseline=Baseline(method, method), protocol=protocol)
            whole = total_mb(cell_memory(own, prepared, Precision("bf16", "cpu")).peak) / 1e3
            card = next((str(card) for card in CARDS if whole <= card), "none")
            print(f" | {whole:.1f} ({card})", end="", flush=True)
        print(" |")


def main() -> None:
    """Read the options and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", nargs="+", default=["tiny", "tiny-gpt"])
    parser.add_argument("--methods", type=lambda text: text.split(","), default=[])
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        if options.sizes:
            sizes(Path(path), options.rows, options.tokens, options.shapes)
            return
        for model in options.model:
            compare(model, options.methods, Path(path))


if __name__ == "__main__":
    main()

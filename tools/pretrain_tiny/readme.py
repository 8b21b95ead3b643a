"""The model card, made of the facts of pretraining and of evaluation."""

from __future__ import annotations

import hashlib
import itertools
import json
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from tools.pretrain_tiny.network import spread

_TEXT = """\
---
language: en
license: {licence_tag}
tags: [bert, masked-lm]
---
# {title}

An uncased BERT of {parameters:,} parameters ({size:.2f} MB, half precision) with masked-LM head and
pooler: {layers} layers, {hidden} wide, {heads} heads, {vocab} WordPiece tokens, {positions}
positions. A small model for trying things out, none to make claims with.

```python
from transformers import AutoModelForMaskedLM, AutoTokenizer

model = AutoModelForMaskedLM.from_pretrained(folder)  # the folder of this card
tokenizer = AutoTokenizer.from_pretrained(folder)
```

## Data
{tokens_in_corpus:,} tokens in {segments:,} segments:

| source | segments added |
|---|---|
{sources}

{about}Of tables (`.parquet`) the columns of text are read, nothing else. Two columns of one row,
and neighbouring segments of one paragraph, also serve as pairs ({pairs:,}; a fifth of the second
halves is replaced by a stranger's). The WordPiece vocabulary is counted on the same text; the
few hundred words of clbench's synthetic tasks are put in first. Held out of this text:
{held_out} ({held_out_tokens:,} tokens).

## Training
- {steps:,} steps of about {tokens_a_batch:,} tokens, {epochs}; {tokens_seen:,} tokens
  in {processor_minutes} processor minutes (CPU, bf16 autocast); AdamW, peak rate
  {peak_learning_rate}, 2 % warm-up, then a cosine to zero; 15 % of the tokens masked; no dropout
  (the configuration names 0.1 for fine-tuning); seed {seed}.
{distillation}{earlier}{notes}
- Made by `python -m tools.pretrain_tiny`. The schedule follows processor time, so the exact
  weights differ from run to run.

| step | masked-LM loss | held-out loss | held-out accuracy |
|---|---|---|---|
{curve}

## Masked-LM accuracy
On the held-out text: **{accuracy:.1f} %** of the tokens chosen as in training (80 % shown as
[MASK], 10 % as another token, 10 % left){blind}.
Always the most frequent token: {unigram:.1f} %.

{evaluation}
## Licence
{licence}
"""

_DISTILLED = """\
- Distilled while it learned to fill masks, from **{teacher}**{shape}:
  the teacher's middle and last
  hidden states of every word, in 128 principal components each, are predicted from the student's
  middle and last layer (mean squared error); the teacher's sentence vectors from the pooler and
  from the mean of the last layer (cosine); and the cosine of a pair's two sentence vectors from
  the pooler. The masked input is the student's, the whole text the teacher's. Token embeddings
  started from the principal components of the teacher's; all else from random weights.
  Weights of the losses: {weights}.
  The heads that imitate the teacher are thrown away."""

_ALONE = "- Masked-language modelling alone{start}."
_EARLIER = """
- Started (`--start`) from an earlier model, itself the end of {runs}:
  {tokens:,} tokens before these. {thinned}\
Embedding rows are carried over, a new token's as the mean of
  its pieces; optimizer, schedule and the heads that imitate the teacher begin anew.{text}"""

_TUNED = """\
## Fine-tuned, against the same network from random weights
Accuracy in per cent, mean ± standard deviation over up to {seeds} seeds; {epochs} epochs,
batch {batch}, AdamW with peak rate {rate} (linear), 2,000 training rows (a fresh
subset for each seed), the same settings for both. At most 1,000 rows of the
validation split (RTE 277, MRPC 408, SST-2 872).

| task | seeds | pretrained | random | difference (paired) | largest class |
|---|---|---|---|---|---|
{rows}

Made by `python -m tools.evaluate_tiny`.
"""
_LARGEST = {"sst2": 50.9, "mrpc": 68.4, "rte": 52.7, "qnli": 50.5}


def _spread(values: list[float]) -> str:
    return (
        f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}"
        if len(values) > 1
        else f"{values[0]:.1f}"
    )


def weights_digest(folder: Path) -> str:
    """Which weights were fine-tuned."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]


def twin_digest(folder: Path) -> str:
    """Which random network they are compared with: its shape and its tokenizer."""
    config = json.loads((folder / "config.json").read_text())
    config.pop("transformers_version", None)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    digest.update((folder / "tokenizer.json").read_bytes())
    return f"random-{digest.hexdigest()[:16]}"


def _evaluation(folder: Path) -> str:
    path = folder / "evaluation.json"
    if not path.exists():
        return ""
    content = json.loads(path.read_text())
    own, twin = weights_digest(folder), twin_digest(folder)
    scores: dict[tuple[str, str], dict[tuple[str, str], float]] = defaultdict(dict)
    for key, value in content["cells"].items():
        name, weights, rate, seed = key.split("/")
        if weights in (own, twin):
            arm = "random" if weights == twin else "pretrained"
            scores[name, arm][rate, seed] = value
    rows, rates, seeds = [], set(), 0
    for name in dict.fromkeys(name for name, _ in scores):
        ours, theirs = scores[name, "pretrained"], scores[name, "random"]
        both = sorted(ours.keys() & theirs.keys())
        if not both:
            continue
        gaps = [ours[cell] - theirs[cell] for cell in both]
        rates |= {cell[0] for cell in both}
        seeds = max(seeds, len(both))
        rows.append(
            f"| {name} | {len(both)} | {_spread([ours[c] for c in both])} "
            f"| {_spread([theirs[c] for c in both])} | {_spread(gaps)} | {_LARGEST[name]} |"
        )
    if not rows:
        return ""  # what lies there was measured on other weights
    return _TUNED.format(
        seeds=seeds, epochs=3, batch=16, rate=", ".join(sorted(rates)), rows="\n".join(rows)
    )


def _wrapped(text: str, indent: str = "") -> str:
    lines = textwrap.wrap(text, 98, subsequent_indent=indent)
    return "".join(f"{line}\n" for line in lines)


def _distilled(facts: dict[str, Any]) -> str:
    shape = facts.get("teacher_shape")
    return _DISTILLED.format(
        teacher=facts["teacher"],
        shape=f" ({shape['layers']} layers, {shape['hidden']} wide)" if shape else "",
        weights=", ".join(f"{k} {v:g}" for k, v in facts["loss_weights"].items()),
    )


def _earlier(runs: list[dict[str, Any]], layers: int) -> str:
    if not runs:
        return ""
    steps = [f"{run['steps']:,}" for run in runs]
    text = (
        f"{' + '.join(steps)} steps in {len(runs)} runs" if len(runs) > 1 else f"{steps[0]} steps"
    )
    other = dict.fromkeys(name for run in runs for name in run.get("segments", ()))
    depths = [*(run["layers"] for run in runs if "layers" in run), layers]
    thinned = [
        f"Of {deep} layers {', '.join(str(at + 1) for at in spread(few, deep))} went on.\n  "
        for deep, few in itertools.pairwise(depths)
        if few < deep
    ]
    return _EARLIER.format(
        runs=text,
        tokens=sum(run["tokens_seen"] for run in runs),
        thinned="".join(thinned),
        text=f"\n  Their text: {', '.join(other)}." if other else "",
    )


def write_readme(folder: Path) -> None:
    """Write ``README.md`` from ``pretraining.json``, ``evaluation.json`` and ``config.json``."""
    facts: dict[str, Any] = json.loads((folder / "pretraining.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    licence = facts.get("licence")
    curve = facts["curve"]
    last = curve[-1]
    blind = last.get("held_out_blind_accuracy")
    points = [
        f"| {p['step']:.0f} | {p['mlm']:.3f} | {p['held_out_loss']:.3f} "
        f"| {100 * p['held_out_accuracy']:.1f} % |"
        for p in curve
        if "mlm" in p
    ]
    values = {
        **facts,
        "size": (folder / "model.safetensors").stat().st_size / 1e6,
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "vocab": config["vocab_size"],
        "positions": config["max_position_embeddings"],
        "segments": sum(facts["segments"].values()),
        "sources": "\n".join(f"| {k} | {v:,} |" for k, v in facts["segments"].items()),
        "held_out": ", ".join(facts["held_out"]),
        "title": facts.get("title") or folder.resolve().name,
        "about": _wrapped(" ".join(facts.get("about", []))),
        "licence_tag": licence.lower() if licence else "unknown",
        "licence": f"The weights: {licence}." if licence else "None was stated (`--licence`).",
        "blind": f"; **{100 * blind:.1f} %** of those shown as [MASK]" if blind else "",
        "epochs": f"{facts['epochs']:.1f} epochs",
        "distillation": _distilled(facts)
        if facts["teacher"]
        else _ALONE.format(start="" if facts["earlier"] else ", from random weights"),
        "earlier": _earlier(facts["earlier"], config["num_hidden_layers"]),
        "notes": "".join(f"\n- {_wrapped(note, '  ').rstrip()}" for note in facts.get("notes", [])),
        "curve": "\n".join(points),
        "accuracy": 100 * last["held_out_accuracy"],
        "unigram": 100 * facts["unigram_rate"],
        "evaluation": _evaluation(folder),
    }
    (folder / "README.md").write_text(_TEXT.format(**values), encoding="utf-8")

"""The model card, from a template and the facts beside the weights."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

TEMPLATE = """\
---
language: en
license: {licence_tag}
tags: [{tags}]
---
# {title}

{what} of {parameters:,} parameters ({size:.2f} MB, half precision){heads_of}: {num_hidden_layers}
layers, {hidden_size} wide, {num_attention_heads} heads, {vocab_size} {kind_of} tokens,
{max_position_embeddings} positions. A small model for trying things out.

## Data
{about}

| source | segments added |
|---|---|
{sources}

{tokens_in_corpus:,} tokens, and {pairs:,} pairs of neighbouring segments or of two columns of a
table. Held out of this text: {held_out_files} ({held_out_tokens:,} tokens).

## Training
{steps:,} steps of about {tokens_a_batch:,} tokens, {epochs:.1f} epochs, {processor_minutes}
processor minutes (CPU, {precision}). AdamW, peak learning rate {peak_learning_rate}, 2 % warm-up,
then a cosine to zero; {objective}; seed {seed}. {origin}
{notes}
| step | {loss_name} loss | held-out loss | held-out accuracy |
|---|---|---|---|
{curve_rows}

{accuracy_of} Always answering with the most frequent token gives {unigram:.1f} %. All facts are in
`pretraining.json`, made by `python -m tools.pretrain_tiny`.

{evaluation}## Licence
{licence}
"""

KINDS = {
    "bert": {
        "tags": "bert, masked-lm",
        "what": "An uncased BERT",
        "heads_of": " with masked-LM head and pooler",
        "kind_of": "WordPiece",
        "objective": "15 % of the tokens masked",
        "loss_name": "masked-LM",
        "accuracy_of": "Accuracy is over the masked tokens as BERT chooses them.",
    },
    "llama": {
        "tags": "llama, causal-lm",
        "what": "A cased decoder (Llama, tied embeddings)",
        "heads_of": "",
        "kind_of": "byte-level BPE",
        "objective": "next tokens in windows of running text",
        "loss_name": "next-token",
        "accuracy_of": "Losses are in nats per token. Accuracy is over all next tokens.",
    },
}
"""Words of the card by ``model_type``."""

EVALUATION = """\
## Fine-tuned, against the same network from random weights
Accuracy in per cent, mean ± standard deviation over the seeds, made by
`python -m tools.evaluate_tiny`.

| task | seeds | pretrained | random | difference (paired) |
|---|---|---|---|---|
{rows}

"""


def weights_digest(folder: Path) -> str:
    """Return a digest of the weights."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]


def twin_digest(folder: Path) -> str:
    """Return a digest of the random twin: of its shape and tokenizer."""
    config = json.loads((folder / "config.json").read_text())
    config.pop("transformers_version", None)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    digest.update((folder / "tokenizer.json").read_bytes())
    return f"random-{digest.hexdigest()[:16]}"


def _evaluation(folder: Path) -> str:
    """Return the table of the cells in ``evaluation.json`` that belong to these weights."""
    path = folder / "evaluation.json"
    if not path.exists():
        return ""
    arms = {weights_digest(folder): "pretrained", twin_digest(folder): "random"}
    scores: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for key, value in json.loads(path.read_text())["cells"].items():
        task, weights, cell = key.split("/", 2)
        if weights in arms:
            scores[task, arms[weights]][cell] = value
    rows = []
    for task in dict.fromkeys(task for task, _ in scores):
        ours, theirs = scores[task, "pretrained"], scores[task, "random"]
        both = sorted(ours.keys() & theirs.keys())
        columns = [[ours[c], theirs[c], ours[c] - theirs[c]] for c in both]
        cells = [
            f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")
            for values in zip(*columns, strict=True)
        ]
        if both:
            rows.append(f"| {task} | {len(both)} | {' | '.join(cells)} |")
    return EVALUATION.format(rows="\n".join(rows)) if rows else ""


def write_card(folder: Path) -> None:
    """Write ``README.md`` from ``pretraining.json``, ``evaluation.json`` and ``config.json``."""
    facts = json.loads((folder / "pretraining.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    licence = facts.get("licence")
    decoder = config["model_type"] == "llama"
    loss = "loss" if decoder else "mlm"
    curve = [
        f"| {p['step']:.0f} | {p[loss]:.3f} | {p['held_out_loss']:.3f} "
        f"| {100 * p['held_out_accuracy']:.1f} % |"
        for p in facts["curve"]
        if loss in p
    ]
    earlier = ", ".join(f"{run['steps']:,} steps" for run in facts["earlier"]) or "none"
    origin = f"Teacher: {facts.get('teacher') or 'none'}.\nEarlier runs that this one started from"
    origin += f" (`--start`): {earlier}."
    values = {
        **config,
        "precision": "bf16 autocast",
        **facts,
        **KINDS[config["model_type"]],
        "origin": "From random weights." if decoder else origin,
        "title": facts.get("title") or folder.resolve().name,
        "size": (folder / "model.safetensors").stat().st_size / 1e6,
        "about": " ".join(facts.get("about") or ["English text."]),
        "sources": "\n".join(f"| {k} | {v:,} |" for k, v in facts["segments"].items()),
        "held_out_files": ", ".join(facts["held_out"]),
        "notes": "".join(f"\n{note}\n" for note in facts.get("notes", [])),
        "curve_rows": "\n".join(curve),
        "unigram": 100 * facts["unigram_rate"],
        "evaluation": _evaluation(folder),
        "licence_tag": licence.lower() if licence else "unknown",
        "licence": f"The weights: {licence}." if licence else "Not stated (`--licence`).",
    }
    (folder / "README.md").write_text(TEMPLATE.format(**values), encoding="utf-8")

"""Teach the built-in decoder what the study findings-decoder begins with.

python -m tools.teach_facts [--others | --able] FOLDER

The folder is the study's base model. It knows the facts of ``synthetic/facts``, which can be
forgotten, and it has a first idea of ``synthetic/acceptability``, from other rows than the study's
of which a fourth have the wrong label. So it answers in the task's words, often rightly, as a base
model does where on-policy methods are used. A few texts keep it a language model. With
``--others`` it knows as many facts on other people, in the same words: a control that never knew
what the study's models forget. With ``--able`` it has also seen a few of the new facts, so that it
is often right on them before it learns them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clbench.models.checkpoint import load_generator, load_tokenizer
from clbench.tasks.facts import FACTS, OTHER_FACTS, FactsTask
from clbench.tasks.synthetic import SPECS, generate, unlabelled
from clbench.tasks.task import TaskSource

STEPS, RATE, WARMUP = 300, 2e-3, 30
ASKED, HINTS, TEXTS = 24, 8, 3
"""Rows and texts in a batch."""
NOISE = 0.25
OLD = 6
"""How often a row of the old facts is drawn for one of the new ones, where these are seen."""
LENGTH, SEED, THREADS = 64, 0, 1


def teach(folder: Path, steps: int = STEPS, *, others: bool = False, able: bool = False) -> None:
    """Write the taught model and its tokenizer.

    The same steps give the same weights on one processor; on others the last digits may differ.
    """
    torch.manual_seed(SEED)
    torch.set_num_threads(THREADS)
    model, tokenizer = load_generator("tiny-gpt"), load_tokenizer("tiny-gpt", plain=True)
    facts = _facts(tokenizer, OTHER_FACTS if others else FACTS[0])
    if able:
        facts = facts * OLD + _facts(tokenizer, FACTS[1])
    task = SPECS["acceptability"]
    template = task.template()
    hints = [
        _row(tokenizer, template.render([text]), template.answer(task.labels[label]))
        for text, _, label in generate(task.kind, train=6000, label_noise=NOISE)["train"][2000:]
    ]
    texts = [(tokenizer(text)["input_ids"][:LENGTH], 1) for text in unlabelled(4000)]
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    shape = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARMUP, (steps - step) / (steps - WARMUP))
    )
    model.train()
    for _ in range(steps):
        parts = ((facts, ASKED), (hints, HINTS), (texts, TEXTS))
        loss = torch.stack([_loss(model, _drawn(*part)) for part in parts]).sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        shape.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _facts(tokenizer: Any, task: FactsTask) -> list[tuple[list[int], int]]:
    """Return the training rows of a task of facts with their answers."""
    rows = task(TaskSource(None, Path())).train
    values, labels = zip(*rows.choices, strict=True), rows.labels.tolist()
    pairs = [(q, v[k]) for q, v, k in zip(rows.first, values, labels, strict=True)]
    return [_row(tokenizer, *pair) for pair in pairs]


def _row(tokenizer: Any, prompt: str, answer: str) -> tuple[list[int], int]:
    """Return the tokens of a prompt and its answer, and where the answer begins."""
    asked = tokenizer(prompt)["input_ids"]
    tokens = tokenizer(" " + answer, add_special_tokens=False)["input_ids"]
    return [*asked, *tokens, int(tokenizer.eos_token_id)], len(asked)


def _drawn(rows: list[tuple[list[int], int]], count: int) -> list[tuple[list[int], int]]:
    return [rows[i] for i in torch.randint(len(rows), (count,)).tolist()]


def _loss(model: Any, rows: list[tuple[list[int], int]]) -> Tensor:
    """Return the mean next-token loss of each row's tokens from a position on."""
    width = max(len(tokens) for tokens, _ in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for i, (tokens, start) in enumerate(rows):
        ids[i, : len(tokens)] = torch.tensor(tokens)
        labels[i, start : len(tokens)] = ids[i, start : len(tokens)]
    hidden = model.model(input_ids=ids, attention_mask=ids != 0).last_hidden_state[:, :-1]
    asked = labels[:, 1:] >= 0
    return nn.functional.cross_entropy(model.lm_head(hidden[asked]), labels[:, 1:][asked])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.teach_facts", description=__doc__)
    parser.add_argument("--others", action="store_true", help="teach it facts on other people")
    parser.add_argument("--able", action="store_true", help="show it some of the new facts")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    teach(arguments.folder, others=arguments.others, able=arguments.able)

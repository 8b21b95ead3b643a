"""What an audit would load and compare, and the memory that it would need; loads no weights."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from clbench.audit import ability, audit, items
from clbench.audit.gate import Gate
from clbench.audit.language import LanguageLoss
from clbench.audit.settings import AuditSettings
from clbench.audit.weights import drift
from clbench.core.shapes import on_shapes
from clbench.core.user_code import own_state
from clbench.measure.rows import embed_rows
from clbench.models.locate import titles_of
from clbench.tasks.corpus import read_corpus
from clbench.training.memory import LiveBytes


@dataclass(frozen=True)
class Preview:
    """What an audit would do; sizes in megabytes (1e6 bytes)."""

    weights_mb: dict[str, float]  # of each model, in float32 as it is loaded
    sizes: dict[str, int]  # items of each task
    texts: int
    peak_mb: float  # of all tensors, without relearning and putting layers back


@own_state()
def preview(
    base: str, tuned: Sequence[str], settings: AuditSettings, gate: Gate | None = None
) -> Preview:
    """Return what an audit would do in its first look; raise what it would raise before work."""
    settings = audit.with_tasks(settings, base)
    audit.identify(base, tuned, settings)
    device = torch.device("cpu")
    with on_shapes(), LiveBytes() as live:
        ready = audit.prepare(base, tuned, settings, device, gate)
        first, corpus, material = ready.base, ready.corpus, ready.look(ready.looks[0])
        models = [first, *ready.tuned]
        for each in material.probed:
            length = items.length_of(first)
            embed_rows(first.encoder, first.tokenizer, each.rows, length, device, "mean")
            if first.answers:
                items.answer(first, each, device)
        choices = [each for each in material.asked if each.task.choices]
        if choices:
            ability.answer(first, max(choices, key=_longest), device)
        loss = LanguageLoss(first, corpus, settings.texts, settings.seed, device)
        loss(first)
        texts = read_corpus(corpus, audit.DRIFT_TEXTS, settings.seed, held_out=True)
        drift(first, models[-1], texts, device)
    sizes = [sum(v.nbytes for v in model.model.parameters()) / 1e6 for model in models]
    own = dict(zip(titles_of((base, *tuned)), sizes, strict=True))
    return Preview(own, material.sizes, loss.texts, live.peak / 1e6)


def _longest(asked: ability.Asked) -> int:
    return max(len(prompt) for each in asked.questions for row in each.prompts for prompt in row)

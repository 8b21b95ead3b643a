"""The training loop, with a schedule by processor time, checkpoints and a clean stop."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from tools.pretrain_tiny.data import make_batch, plan_epoch
from tools.pretrain_tiny.encode import MASK, EncodedRows
from tools.pretrain_tiny.network import WEIGHTS, Batch, Student, learning_rate
from tools.pretrain_tiny.teacher import Targets

log = logging.getLogger(__name__)


@dataclass
class Recipe:
    """Settings of the loop; ``minutes`` are processor minutes divided by ``threads``."""

    minutes: float
    threads: int = 2
    peak: float = 1e-3
    budget: int = 4096
    parts: int = 2
    limit: int = 256
    decay: float = 0.01
    seed: int = 0
    save_every: float = 180.0


@dataclass
class State:
    """Progress of the run, saved with the weights."""

    step: int = 0
    epoch: int = 0
    cursor: int = 0
    batches: int = 0  # of an epoch
    tokens: int = 0
    spent: float = 0.0
    curve: list[dict[str, float]] = field(default_factory=list)


class Score(NamedTuple):
    """How well the student fills masks."""

    loss: float
    """Mean cross-entropy over the chosen tokens, in nats."""
    accuracy: float
    """Accuracy over all chosen tokens: 80 % [MASK], 10 % another token, 10 % unchanged."""
    blind_accuracy: float
    """Accuracy over the tokens that are replaced by [MASK]."""


def masked_accuracy(student: Student, batches: list[Batch]) -> Score:
    """Return the student's score at filling the masks of ``batches``."""
    losses, right, blind = [], [], []
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for batch in batches:
            _, logits, target = student.fill(batch)
            losses.append(functional.cross_entropy(logits, target, reduction="none"))
            right.append(logits.argmax(-1) == target)
            blind.append(batch.ids[batch.labels >= 0] == MASK)
    hits, at_masks = torch.cat(right).double(), torch.cat(blind)
    return Score(
        float(torch.cat(losses).double().mean()), float(hits.mean()), float(hits[at_masks].mean())
    )


class Trainer:
    """Train a student, with checkpoints in ``folder``."""

    def __init__(
        self,
        student: Student,
        encoded: EncodedRows,
        pairs: npt.NDArray[np.int32],
        targets: Targets | None,
        recipe: Recipe,
        folder: Path,
    ) -> None:
        self.student, self.encoded, self.pairs = student, encoded, pairs
        self.targets, self.recipe = targets, recipe
        self.path = folder / "checkpoint.pt"
        self.state = State()
        self.stopped_by = 0  # number of the signal that stopped the run
        self.pool = ThreadPoolExecutor(
            recipe.threads, initializer=torch.set_num_threads, initargs=(1,)
        )
        self.values = [p for p in student.parameters() if p.requires_grad]
        flat = [p for p in self.values if p.ndim < 2]
        deep = [p for p in self.values if p.ndim >= 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": deep, "weight_decay": recipe.decay}, {"params": flat, "weight_decay": 0}],
            lr=recipe.peak,
            betas=(0.9, 0.98),
            eps=1e-6,
            fused=True,
        )

    def save(self) -> None:
        """Write weights, moments and state to the checkpoint, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        torch.save(
            {
                "student": self.student.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "state": asdict(self.state),
            },
            part,
        )
        part.replace(self.path)

    def load(self) -> bool:
        """Load the checkpoint; return False if there is none."""
        if not self.path.exists():
            return False
        content = torch.load(self.path, weights_only=True)
        self.student.load_state_dict(content["student"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.state = State(**content["state"])
        return True

    def step(self, examples: npt.NDArray[np.int64]) -> dict[str, float]:
        """Update the weights once and return the losses."""
        recipe, state = self.recipe, self.state
        rate = learning_rate(self.progress(), recipe.peak)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        parts = np.array_split(examples, min(recipe.parts, len(examples)))
        work = [(i, part, len(part) / len(examples)) for i, part in enumerate(parts)]
        losses = list(self.pool.map(lambda item: self.part(*item), work))
        torch.nn.utils.clip_grad_norm_(self.values, 1.0)
        self.optimizer.step()
        state.step += 1
        n, pair = self.encoded.lengths, examples[:, 1] >= 0
        whole = n[examples[:, 0]] + np.where(pair, n[examples[:, 1]], 0)
        state.tokens += int(np.minimum(whole, recipe.limit - 2 - pair).sum())
        return {name: sum(part[name] for part in losses) for name in losses[0]}

    def part(self, number: int, examples: npt.NDArray[np.int64], share: float) -> dict[str, float]:
        """Add the gradient of a part of the batch and return its share of the losses."""
        batch = make_batch(
            self.encoded,
            examples,
            self.targets,
            vocab=self.student.net.config.vocab_size,
            limit=self.recipe.limit,
            rng=np.random.default_rng([self.recipe.seed, 1, self.state.step, number]),
        )
        with torch.autocast("cpu", torch.bfloat16):
            losses = self.student.losses(batch)
        total = share * sum(WEIGHTS[k] * loss for k, loss in losses.items() if k in WEIGHTS)
        assert isinstance(total, torch.Tensor)
        total.backward()  # type: ignore[no-untyped-call]
        return {name: share * float(loss.detach()) for name, loss in losses.items()}

    def progress(self) -> float:
        """Return the share of the processor time that is used up."""
        return self.state.spent / (60 * self.recipe.minutes)

    def run(self, held_out: list[Batch], on_save: Callable[[], None]) -> bool:
        """Train until the time is up; return False if a signal stopped the run earlier."""

        def stop(signum: int, frame: FrameType | None) -> None:
            self.stopped_by = signum

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        recipe, state = self.recipe, self.state
        before, clock = state.spent, time.process_time()
        saved = state.spent
        mean: dict[str, float] = {}
        while self.progress() < 1 and not self.stopped_by:
            sizes = {"budget": recipe.budget, "limit": recipe.limit}
            batches = plan_epoch(self.encoded, self.pairs, [recipe.seed, state.epoch], **sizes)
            state.batches = len(batches)
            while self.progress() < 1 and state.cursor < state.batches and not self.stopped_by:
                losses = self.step(batches[state.cursor])
                state.cursor += 1
                state.spent = before + (time.process_time() - clock) / recipe.threads
                for name, value in losses.items():
                    mean[name] = 0.98 * mean.get(name, value) + 0.02 * value
                if state.step % 50 == 0:
                    losses_text = " ".join(f"{name} {value:.3f}" for name, value in mean.items())
                    speed = state.tokens / max(state.spent, 1e-9)
                    percent = f"{100 * self.progress():5.1f}%"
                    log.info("%s step %d %.0f tokens/s %s", percent, state.step, speed, losses_text)
                if state.spent - saved > recipe.save_every:
                    saved = state.spent
                    self.evaluate(held_out, mean)
                    self.save()
                    on_save()
            if state.cursor >= state.batches:
                state.epoch, state.cursor = state.epoch + 1, 0
        if not state.curve or state.curve[-1]["step"] != state.step:
            self.evaluate(held_out, mean)
        self.save()
        on_save()
        return not self.stopped_by

    def facts(self) -> dict[str, object]:
        """Return the length of the run and its loss curve, for the card."""
        state = self.state
        return {
            "steps": state.step,
            "epochs": round(state.epoch + state.cursor / max(1, state.batches), 2),
            "tokens_seen": state.tokens,
            "processor_minutes": round(state.spent / 60 * self.recipe.threads, 1),
            "curve": [{k: round(v, 4) for k, v in point.items()} for point in state.curve],
        }

    def evaluate(self, held_out: list[Batch], mean: dict[str, float]) -> None:
        """Add a point to the loss curve."""
        score = masked_accuracy(self.student, held_out)
        point = {"step": self.state.step, "minutes": self.state.spent / 60, **mean}
        held_out_scores = {f"held_out_{name}": value for name, value in score._asdict().items()}
        self.state.curve.append({**point, **held_out_scores})
        log.info("held out: loss %.3f accuracy %.4f", score.loss, score.accuracy)

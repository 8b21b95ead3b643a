"""The training loop, with a schedule by processor time, checkpoints and a clean stop."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from clbench.training.device import resolve_precision
from tools.pretrain_tiny.network import learning_rate

Ints = npt.NDArray[np.int64]
log = logging.getLogger(__name__)


@dataclass
class Recipe:
    """Settings of the loop; ``minutes`` are processor minutes divided by ``threads``."""

    minutes: float
    threads: int = 2
    peak: float = 1e-3
    parts: int = 2
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


class TrainingText(Protocol):
    """Text to train on."""

    def epoch(self, seed: list[int]) -> list[Ints]:
        """Return the batches of an epoch, as numbers of examples."""

    def batch(self, examples: Ints, rng: np.random.Generator) -> Any:
        """Return some examples as what the student's ``losses`` take."""

    def tokens(self, examples: Ints) -> int:
        """Return the number of their tokens."""


class Trained(Protocol):
    """A student: ``losses`` of a batch by name, and ``weights`` of those that are trained."""

    weights: Mapping[str, float]

    def losses(self, batch: Any) -> dict[str, torch.Tensor]:
        """Return losses and other scores by name."""


class Trainer:
    """Train a student, with checkpoints in ``folder``."""

    def __init__(
        self,
        student: Any,  # a module that is `Trained`
        text: TrainingText,
        recipe: Recipe,
        folder: Path,
    ) -> None:
        self.student, self.text, self.recipe = student, text, recipe
        self.precision = resolve_precision("auto", torch.device("cpu"))
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

    def step(self, examples: Ints) -> dict[str, float]:
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
        state.tokens += self.text.tokens(examples)
        return {name: sum(part[name] for part in losses) for name in losses[0]}

    def part(self, number: int, examples: Ints, share: float) -> dict[str, float]:
        """Add the gradient of a part of the batch and return its share of the losses."""
        rng = np.random.default_rng([self.recipe.seed, 1, self.state.step, number])
        batch = self.text.batch(examples, rng)
        with self.precision.autocast():
            losses = self.student.losses(batch)
        weights = self.student.weights
        total = share * sum(weights[k] * loss for k, loss in losses.items() if k in weights)
        assert isinstance(total, torch.Tensor)
        total.backward()  # type: ignore[no-untyped-call]
        return {name: share * float(loss.detach()) for name, loss in losses.items()}

    def progress(self) -> float:
        """Return the share of the processor time that is used up."""
        return self.state.spent / (60 * self.recipe.minutes)

    def run(self, score: Callable[[], dict[str, float]], on_save: Callable[[], None]) -> bool:
        """Train until the time is up; return False if a signal stopped the run earlier.

        `score` returns scores on held-out text, for the loss curve.
        """

        def stop(signum: int, frame: FrameType | None) -> None:
            self.stopped_by = signum

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        recipe, state = self.recipe, self.state
        before, clock = state.spent, time.process_time()
        saved = state.spent
        mean: dict[str, float] = {}
        while self.progress() < 1 and not self.stopped_by:
            batches = self.text.epoch([recipe.seed, state.epoch])
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
                    self.evaluate(score(), mean)
                    self.save()
                    on_save()
            if state.cursor >= state.batches:
                state.epoch, state.cursor = state.epoch + 1, 0
        if not state.curve or state.curve[-1]["step"] != state.step:
            self.evaluate(score(), mean)
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

    def evaluate(self, scores: dict[str, float], mean: dict[str, float]) -> None:
        """Add a point to the loss curve."""
        point = {"step": self.state.step, "minutes": self.state.spent / 60, **mean}
        self.state.curve.append({**point, **{f"held_out_{k}": v for k, v in scores.items()}})
        log.info("held out: loss %.3f accuracy %.4f", scores["loss"], scores["accuracy"])

"""Watch what a model forgets while somebody's Trainer trains it."""

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from matplotlib.figure import Figure
from pydantic import Field
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from clbench.audit import ability
from clbench.audit.changes import Flips, mean_change
from clbench.audit.items import DEFAULT_TASKS, hits, load_items
from clbench.audit.language import LanguageLoss
from clbench.audit.models import AuditedModel
from clbench.audit.scores import Floats
from clbench.audit.settings import FEWEST_ROWS, FEWEST_TEXTS
from clbench.core.errors import ModelError, NonFiniteLossError, SettingsError, join_names
from clbench.core.files import digest
from clbench.core.options import checks_arguments
from clbench.core.registry import Seed
from clbench.figures import style
from clbench.hf.training import audited, callbacks_of_trainer
from clbench.models.classifier import evaluating
from clbench.results.statistics import ALPHA
from clbench.tasks.corpus import corpus_identity, resolve_corpus
from clbench.tasks.general import GENERAL
from clbench.tasks.hub import data_folder

Action = Literal["warn", "stop", "restore"]
PREFIX = "forgetting/"
LANGUAGE = "language"


@checks_arguments
class ForgettingCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Tracks during training what a model forgets, and logs it with the Trainer's logs.

    Before training, then every `every` steps as far as the `budget` allows, and at the end, it fits
    linear probes on the features for each of `tasks`, and takes the loss on held-out texts. The
    logs have ``forgetting/<task>`` (accuracy) and ``forgetting/language`` (loss in nats), and both
    again with ``_change``, the difference from the start: below 0 is worse. Checkpoints hold the
    start and what is scored, which must be the same when a training resumes. Weights, dropout and
    order of rows are as without the callback.

    Parameters
    ----------
    tasks
        Tasks to probe: names, or suite files for their own tasks; by default four built-in ones.
        General tasks and axes, such as ``knowledge``, are asked as in an audit, by at most 50
        questions each, but ``format`` and ``calibration`` are not scored. An axis in `limits`
        stands for all of its tasks.
    corpus
        ``built-in``, ``wiki40b/en``, or a file with one text per line; None leaves language out.
    every
        Steps between scorings.
    budget
        Largest share of the time that scorings between the first and the last may take: one that
        would exceed it is skipped. Those two always take place, since there is no change without
        them. A warning says so if all of them together took more.
    limits
        Lowest changes allowed, by task or ``language``, such as ``{"language": -0.5}``;
        ``features`` stands for all tasks.
    action
        What to do below a limit: ``warn``; ``stop`` training as well; or also ``restore`` the
        weights of the last scoring within the limits, of which a copy is kept on the CPU. Only a
        change whose whole interval is below its limit stops the training. The level of intervals
        is 95 % for all limits and scorings of the training together (Bonferroni).
    data, rows, texts, seed
        Folder with copies of hub repositories; maximum rows of a task; maximum texts; seed of
        their selection.

    Raises
    ------
    ClbenchError
        If an argument is out of range, or a task or text cannot be used. At the start of training,
        if the Trainer has no tokenizer, or spreads the weights over processes (FSDP, DeepSpeed).
    """

    def __init__(
        self,
        tasks: Sequence[str] | str = DEFAULT_TASKS,
        corpus: str | None = "built-in",
        every: Annotated[int, Field(ge=1)] = 100,
        budget: Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)] = 0.05,
        *,
        limits: Mapping[str, Annotated[float, Field(le=0.0, allow_inf_nan=False)]] | None = None,
        action: Action = "warn",
        data: str | Path | None = None,
        rows: Annotated[int, Field(ge=FEWEST_ROWS)] = 200,
        texts: Annotated[int, Field(ge=FEWEST_TEXTS)] = 100,
        seed: Seed = 0,
    ) -> None:
        tasks = [tasks] if isinstance(tasks, str) else list(tasks)
        if unscored := [name for name in tasks if name in ("format", "calibration")]:
            raise SettingsError(
                f"ForgettingCallback: {unscored[0]!r} is not scored during training, only whether "
                "answers are right. Name other axes, or tasks."
            )
        self.every, self.budget, self.action = every, budget, action
        self.limits = dict(limits or {})
        items = {"rows": rows, "texts": texts, "seed": seed}
        self._arguments = {
            "tasks": tasks,
            "corpus": corpus,
            "every": every,
            "budget": budget,
            **items,
            "limits": self.limits,
            "action": action,
            "data": data and str(data),
        }
        self.curve: list[dict[str, float]] = []
        """The scores of every scoring, with ``step``."""
        self.first: dict[str, list[float]] = {}
        """For each item of the first scoring whether it was right, and the loss of each text."""
        self.seconds = 0.0
        """Time that scorings between the first and the last took."""
        self._others = self._start = self._longest = 0.0
        self._corpus = None if corpus is None else resolve_corpus(corpus, Path.cwd(), "corpus")
        self._loss: LanguageLoss | None = None
        parts, others = ability.chosen(tasks)
        self._items = load_items(others, data=data, rows=rows, seed=seed)
        folder, most = data_folder(data), min(rows, ability.WRITTEN)
        self._asked = {
            name: (own, GENERAL[name].questions(folder, most, seed)) for name, own in parts.items()
        }
        self._kept: tuple[int, dict[str, torch.Tensor]] | None = None
        self._restored: dict[str, float] | None = None
        self.scored_on: dict[str, Any] = {
            "tasks": {items.name: items.rows.digest for items in self._items}
            | {name: digest(repr(questions)) for name, (_, questions) in self._asked.items()},
            "corpus": self._corpus and corpus_identity(self._corpus),
            **items,
        }
        """What decides the scores besides the model."""
        probed = [items.name for items in self._items]
        self._measures = [*probed, *self._asked, *([] if corpus is None else [LANGUAGE])]
        if not self._measures:
            raise SettingsError("ForgettingCallback: nothing to score. Name tasks, or a corpus.")
        groups = {"features": probed}
        for name in self._asked:
            groups.setdefault(GENERAL[name].axis, []).append(name)
        known = {*groups, *self._measures}
        if unknown := sorted(self.limits.keys() - known):
            raise SettingsError(
                f"ForgettingCallback: limits name {unknown[0]!r}, which is not scored. Use "
                f"{', '.join(sorted(known))}."
            )
        self._limits = dict(self.limits)
        for group, members in groups.items():
            if (limit := self._limits.pop(group, None)) is not None:
                self._limits = {**dict.fromkeys(members, limit), **self._limits}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Score the model before training, or take these scores from the logs if it resumes."""
        if getattr(args, "fsdp", None) or getattr(args, "deepspeed", None):
            raise ModelError(
                "ForgettingCallback: the weights are spread over processes (FSDP or DeepSpeed), "
                "so the model cannot be scored. Use plain DDP, with LoRA if memory is short; or "
                "remove the callback, save whole checkpoints, and compare them: clbench audit BASE "
                "CHECKPOINT."
            )
        self._start, self.seconds, self._longest = time.monotonic(), 0.0, 0.0
        self.curve, self.first, self._restored = [], {}, None
        if state.global_step:
            self._resume(state)
        if not self.curve or self.curve[-1]["step"] != state.global_step:
            self._others = self._score(args, state, control, state.global_step, **kwargs)
        elif not self._below():  # resumed from a step that was scored: keep its weights, too
            model = audited(kwargs["model"], kwargs["processing_class"]).model
            self._keep(state.global_step, model)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the callback."""
        attributes = {"curve": self.curve, "first": self.first, "scored_on": self.scored_on}
        return {"args": self._arguments, "attributes": attributes}

    def _resume(self, state: TrainerState) -> None:
        """Take curve and start from the checkpoint; refuse one scored on something else."""
        stored = state.stateful_callbacks.get(type(self).__name__, [])
        states = [each["attributes"] for each in (stored if isinstance(stored, list) else [stored])]
        states = [each for each in states if each["curve"]]
        own = next((each for each in reversed(states) if each["scored_on"] == self.scored_on), None)
        if own is not None:
            self.curve, self.first = own["curve"], own["first"]
        elif states or any(key.startswith(PREFIX) for entry in state.log_history for key in entry):
            before = states[0]["scored_on"] if states else {}
            changed = [key for key, now in self.scored_on.items() if before.get(key) != now]
            raise SettingsError(
                f"ForgettingCallback: {join_names(changed)} changed since the checkpoint, so "
                "scores cannot be compared. Give the same, or resume without the callback."
            )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Score the model every so many steps, within the budget."""
        if state.global_step % self.every or state.global_step >= state.max_steps:
            return
        elapsed = time.monotonic() - self._start + self._longest  # as it would be after a scoring
        has_time = self.seconds + self._longest <= self.budget * elapsed
        from accelerate.utils import broadcast_object_list  # every Trainer has it

        if broadcast_object_list([has_time])[0]:  # all processes score at the same steps
            self.seconds += self._score(args, state, control, state.global_step, **kwargs)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Score the trained model, unless this step was scored already.

        If the Trainer has loaded its best model, that is scored, under the step that it is of.
        """
        step = state.global_step
        if args.load_best_model_at_end and state.best_global_step is not None:
            step = state.best_global_step
        if self.curve[-1]["step"] != step:
            self._others += self._score(args, state, control, step, **kwargs)
        share = (self.seconds + self._others) / max(time.monotonic() - self._start, 1e-9)
        if share > self.budget:
            warnings.warn(
                f"ForgettingCallback: scoring took {share:.0%} of the time: {self._others:.1f} s "
                f"for the first and the last one, which the budget of {self.budget:.0%} does not "
                f"count, and {self.seconds:.1f} s between them. Fewer rows and texts take less.",
                stacklevel=2,
            )

    def _score(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        step: int,
        **kwargs: Any,
    ) -> float:
        """Score the model of a step, log, and act on limits; return the seconds that it took."""
        start = time.monotonic()
        model = audited(kwargs["model"], kwargs["processing_class"])
        with torch.random.fork_rng(), evaluating(model.model):
            items = self._score_items(model)
        scores = {name: float(np.mean(values)) for name, values in items.items()}
        self.first = self.first or {name: values.tolist() for name, values in items.items()}
        self.curve.append({**scores, "step": step})
        self._restored = None
        logs = {f"{PREFIX}{name}": value for name, value in scores.items()}
        logs |= {f"{PREFIX}{name}_change": value for name, value in self.changes().items()}
        if state.epoch is not None:
            logs["epoch"] = state.epoch
        state.log_history.append({**logs, "step": step})
        logs_own = control.should_log  # which the call below turns off
        callbacks_of_trainer().on_log(args, state, control, logs)
        control.should_log = logs_own
        scorings = state.max_steps // self.every + 2
        self._act(control, step, model.model, items, ALPHA / max(1, len(self._limits) * scorings))
        self._longest = max(self._longest, time.monotonic() - start)
        return time.monotonic() - start

    def _score_items(self, model: AuditedModel) -> dict[str, Floats]:
        """Return whether each row of each task is right, and the loss of each text."""
        device = model.model.device
        if self._asked and not model.answers:
            raise ModelError(
                f"ForgettingCallback: {join_names(self._asked)} need a decoder with a "
                "language-model head. Name classification tasks."
            )
        if self._corpus is not None and self._loss is None:
            texts, seed = self.scored_on["texts"], self.scored_on["seed"]
            self._loss = LanguageLoss(model, self._corpus, texts, seed, device)
        nothing = dict.fromkeys(self._measures, np.array([math.nan]))
        if not all(bool(torch.isfinite(p).all()) for p in model.model.parameters()):
            return nothing
        try:
            items = {n.name: hits(model, n, "features", device).astype(float) for n in self._items}
            for name, (parts, questions) in self._asked.items():
                asked = ability.Asked(GENERAL[name], questions, parts, model.tokenizer)
                items[name] = ability.answer(model, asked, device).right
            return items if self._loss is None else {**items, LANGUAGE: self._loss(model)}
        except NonFiniteLossError:  # outputs of finite weights may be infinite, too
            return nothing

    def changes(self) -> dict[str, float]:
        """Return the changes from the first to the last scoring; below 0 is worse.

        After a restoration the last one is that of the restored weights.

        Raises a SettingsError before training, as `draw` does.
        """
        if not self.curve:
            raise SettingsError(
                "ForgettingCallback: nothing has been scored yet. Call train() first."
            )
        last = self._restored or self.curve[-1]
        return {n: self._change(n, last) for n in self.curve[0] if n != "step"}

    def _change(self, name: str, point: Mapping[str, float]) -> float:
        change = point[name] - self.curve[0][name]
        return -change if name == LANGUAGE else change

    def draw(self) -> Figure:
        """Return a figure of the changes over the steps: accuracies left, language right."""
        self.changes()  # raises an error if there are none
        names = [name for name in self.curve[0] if name not in ("step", LANGUAGE)]
        parts = [(names, "change in accuracy"), ([LANGUAGE], "change in nats of loss, sign turned")]
        parts = [part for part in parts if part[0] and {*part[0]} <= self.curve[0].keys()]
        figure, grid = style.panels(len(parts), width=4.2, height=3.0, columns=2)
        looks = style.looks_of([name for part, _ in parts for name in part])
        for axes, (part, text) in zip(grid, parts, strict=True):
            for name in part:
                points = [(p["step"], self._change(name, p)) for p in self.curve]
                look = looks[name]
                axes.plot(*zip(*points, strict=True), marker=look.mark, color=look.color, lw=1.5)
            axes.axhline(0, color=style.GREY, lw=0.8)
            axes.set_xlabel("step")
            axes.set_ylabel(text)
        style.legend(figure, looks)
        return style.captioned(figure, "Changes from the start of the training; below 0 is worse.")

    def _below(self) -> dict[str, float]:
        """Return the limits that changes are below; one that is not a number is, too."""
        changes = self.changes()
        return {name: limit for name, limit in self._limits.items() if not changes[name] >= limit}

    def _keep(self, at: int, model: torch.nn.Module) -> None:
        """Copy the weights of a step, if they may have to be restored."""
        if self.action == "restore":
            weights = model.state_dict()
            self._kept = at, {name: v.detach().cpu().clone() for name, v in weights.items()}

    def _act(
        self,
        control: TrainerControl,
        at: int,
        model: torch.nn.Module,
        items: Mapping[str, Floats],
        rate: float,
    ) -> None:
        """Warn of changes below their limits; do what `action` says if one is shown to be."""
        below, changes = self._below(), self.changes()
        if not below:
            self._keep(at, model)
            return
        texts, shown = [], False
        for name, limit in below.items():
            one, two = np.asarray(self.first[name]), items[name]
            text, high = f"{name} {changes[name]:+.3f}", -math.inf
            if math.isfinite(changes[name]):
                if name == LANGUAGE:
                    sample, test = mean_change(-one, -two), "texts, paired t test"
                else:
                    flips = Flips.of(one.astype(bool), two.astype(bool))
                    sample, test = flips.sample(), "rows, McNemar's test"
                low, high = sample.interval(1.0 - rate)
                text += f" [{low:+.3f}, {high:+.3f}] of {len(one)} {test}"
            shown = shown or high < limit
            texts.append(f"{text} (limit {limit:g}{'' if high < limit else ', not shown'})")
        text = f"ForgettingCallback: step {at}: changes below their limits: {', '.join(texts)}"
        if shown and self.action != "warn":
            control.should_training_stop = True
            text += "; training stops"
            if self.action == "restore" and self._kept is not None:
                step, copies = self._kept
                model.load_state_dict(copies)
                self._restored = next(p for p in self.curve if p["step"] == step)
                text += f" and restores the weights of step {step}"
            elif self.action == "restore":
                text += " and keeps its weights, as no earlier ones within the limits were saved"
        warnings.warn(text, stacklevel=2)

"""The callback in the real Trainer, and in TRL's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from helpers.general_rows import write_hub
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from clbench.audit import ability
from clbench.audit.changes import Flips
from clbench.audit.models import load_base
from clbench.core.errors import ClbenchError
from clbench.hf import ForgettingCallback
from clbench.models.checkpoint import load_tokenizer
from clbench.models.locate import TINY, TINY_GPT
from clbench.tasks.general import GENERAL
from clbench.tasks.registry import load_task

TASK = "synthetic/sentiment"


class Logger(TrainerCallback):
    """Stands for TensorBoard and the like, which come before the user's callbacks."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.seen.append(dict(logs))


def make_trainer(folder: Path, *callbacks: TrainerCallback, **settings: Any) -> Trainer:
    task = load_task("synthetic/acceptability", data=None, base=folder, own={})
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    rows = Dataset.from_dict({"text": list(task.train.first)[:160],
                              "label": task.train.labels[:160].tolist()})  # fmt: skip
    rows = rows.map(lambda batch: tokenizer(batch["text"]), batched=True)
    torch.manual_seed(0)
    return Trainer(
        AutoModelForSequenceClassification.from_pretrained(TINY),
        TrainingArguments(
            str(folder),
            **{"max_steps": 8, "per_device_train_batch_size": 8, "learning_rate": 1e-3,
               "logging_steps": 4, "save_strategy": "no", "report_to": "none", "seed": 1,
               "disable_tqdm": True, "use_cpu": True, **settings},
        ),
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )  # fmt: skip


def watch(**options: Any) -> ForgettingCallback:
    return ForgettingCallback(
        [TASK], **{"every": 2, "rows": 100, "texts": 40, "budget": 1.0, **options}
    )


def steps(callback: ForgettingCallback) -> list[float]:
    return [point["step"] for point in callback.curve]


@pytest.mark.slow
def test_scores_reach_every_logger_and_leave_training_as_it_is(tmp_path: Path) -> None:
    plain = make_trainer(tmp_path / "plain")
    plain.train()
    logger, callback = Logger(), watch()
    watched = make_trainer(tmp_path / "watched", logger, callback)
    watched.train()
    for one, two in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(one, two)
    assert watched.model.training == plain.model.training
    assert steps(callback) == [0, 2, 4, 6, 8]
    logged = [logs for logs in logger.seen if f"forgetting/{TASK}" in logs]
    assert len(logged) == 5
    assert logged[0][f"forgetting/{TASK}_change"] == 0.0
    first, last = callback.curve[0], callback.curve[-1]
    assert logged[-1]["forgetting/language_change"] == first["language"] - last["language"]
    assert logged[-1][f"forgetting/{TASK}"] == last[TASK]
    kept = [e for e in watched.state.log_history if f"forgetting/{TASK}" in e]
    assert [entry["step"] for entry in kept] == [0, 2, 4, 6, 8]


@pytest.mark.slow
def test_the_scores_are_those_of_an_audit(tmp_path: Path) -> None:
    from clbench.audit.audit import audit

    callback = ForgettingCallback([TASK], every=100, rows=100, texts=60)
    trainer = make_trainer(tmp_path / "run", callback)
    trainer.train()
    trainer.save_model(str(tmp_path / "tuned"))
    (model,) = audit("tiny", [str(tmp_path / "tuned")], tasks=[TASK], rows=100, texts=60).models
    (task,) = model.comparison.tasks
    assert (callback.curve[0][TASK], callback.curve[-1][TASK]) == (task.base, task.tuned)
    language = model.comparison.language
    assert callback.curve[0]["language"] == pytest.approx(language.base, abs=1e-5)
    assert callback.curve[-1]["language"] == pytest.approx(language.tuned, abs=1e-5)


def test_a_budget_that_is_too_small_leaves_the_first_and_the_last_scoring(tmp_path: Path) -> None:
    callback = watch(budget=1e-6)
    make_trainer(tmp_path, callback).train()
    assert steps(callback) == [0, 8]
    assert callback.seconds == 0.0


def test_a_budget_of_all_the_time_skips_no_scoring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback = watch(budget=1.0)
    score = callback._score

    def score_slowly(*args: Any, **kwargs: Any) -> float:
        seconds = score(*args, **kwargs)
        callback._longest = 1e6
        return seconds

    monkeypatch.setattr(callback, "_score", score_slowly)
    make_trainer(tmp_path, callback).train()
    assert steps(callback) == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("action", ["warn", "stop", "restore"])
def test_limits_warn_stop_and_restore(tmp_path: Path, action: Any) -> None:
    callback = watch(limits={"language": -1e-4}, action=action)
    trainer = make_trainer(tmp_path, callback, learning_rate=5e-3)
    start = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with pytest.warns(UserWarning, match="changes below their limits: language"):
        trainer.train()
    assert trainer.state.global_step == (8 if action == "warn" else 2)
    same = all(torch.equal(v, start[name]) for name, v in trainer.model.state_dict().items())
    assert same == (action == "restore")
    assert (callback.changes()["language"] < -1e-4) == (action != "restore")


@pytest.mark.slow
def test_a_training_that_resumes_keeps_its_start(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 4}
    whole = watch()
    make_trainer(tmp_path / "whole", whole, **options).train()
    make_trainer(tmp_path / "parts", watch(limits={"language": -1e-9}), **options).train()
    again = watch()
    trainer = make_trainer(tmp_path / "parts", again, **options)
    trainer.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-4"))
    assert steps(again) == [0, 2, 4, 6, 8]
    assert again.curve == whole.curve


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"rows": 60}, "rows"),
        ({"texts": 50}, "texts"),
        ({"seed": 1}, "seed"),
        ({"corpus": None}, ""),
    ],
)
def test_what_is_scored_may_not_change_when_a_training_resumes(
    tmp_path: Path, options: dict[str, Any], changed: str
) -> None:
    first = watch(every=4)
    make_trainer(tmp_path, first, max_steps=4, save_strategy="steps", save_steps=4).train()
    resumed = TrainerState.load_from_json(str(tmp_path / "checkpoint-4" / "trainer_state.json"))
    same, other = watch(), watch(**options)
    same._resume(resumed)
    assert steps(same) == [0]  # the last scoring is after the checkpoint
    assert len(same.first[TASK]) == 100
    with pytest.raises(
        ClbenchError, match=rf"{changed or 'corpus'}.* changed since the checkpoint"
    ):
        other._resume(resumed)
    resumed.stateful_callbacks = {}  # as in checkpoints of earlier versions
    with pytest.raises(ClbenchError, match="changed since the checkpoint"):
        same._resume(resumed)


def test_the_last_state_of_several_callbacks_is_resumed() -> None:
    one, points = watch(), [{"language": 1.0, "step": step} for step in (0, 2, 4)]
    states = [
        {"attributes": {"curve": points[:n], "first": {}, "scored_on": one.scored_on}}
        for n in (1, 2, 3)  # the Trainer adds one of each callback at every checkpoint
    ]
    one._resume(TrainerState(stateful_callbacks={"ForgettingCallback": states}))
    assert steps(one) == [0, 2, 4]


@pytest.mark.parametrize(("lost", "stops"), [(4, False), (40, True)])
def test_only_a_change_that_is_shown_stops_the_training(lost: int, stops: bool) -> None:
    callback, control = watch(limits={"features": -0.02}, action="stop"), TrainerControl()
    now = np.ones(100)
    now[:lost] = 0.0
    callback.first = {TASK: [1.0] * 100}
    callback.curve = [{TASK: 1.0, "step": 0}, {TASK: now.mean(), "step": 4}]
    low, high = Flips(lost, 0, 100).interval(0.99)
    text = f"{TASK} {-lost / 100:+.3f} [{low:+.3f}, {high:+.3f}] of 100 rows, McNemar's test (limit"
    with pytest.warns(UserWarning, match=re.escape(text)) as caught:
        callback._act(control, 4, torch.nn.Linear(1, 1), {TASK: now}, 0.01)
    assert ("not shown" in str(caught[0].message)) != stops
    assert control.should_training_stop == stops


def test_scorings_that_the_budget_does_not_count_are_said(tmp_path: Path) -> None:
    text = r"took \d+% of the time: [\d.]+ s for the first and the last one, which the budget of 1%"
    with pytest.warns(UserWarning, match=text):
        make_trainer(tmp_path, watch(budget=0.01), max_steps=1).train()


@pytest.mark.slow
def test_adapters_in_trls_trainer_are_watched(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    peft = pytest.importorskip("peft")
    task = load_task(TASK, data=None, base=tmp_path, own={})
    rows = Dataset.from_dict({"text": list(task.train.first)[:64]})
    callback = watch()
    trainer = trl.SFTTrainer(
        str(TINY_GPT),
        args=trl.SFTConfig(
            str(tmp_path), max_steps=4, per_device_train_batch_size=8, learning_rate=1e-2,
            report_to="none", save_strategy="no", use_cpu=True, bf16=False, disable_tqdm=True,
        ),
        train_dataset=rows,
        peft_config=peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
        callbacks=[callback],
    )  # fmt: skip
    trainer.train()
    assert steps(callback) == [0, 2, 4]
    assert callback.curve[0]["language"] != callback.curve[-1]["language"]


def test_general_tasks_are_watched_by_name_and_axis(tmp_path: Path) -> None:
    hub = write_hub(tmp_path / "hub", times=25)
    rows = [{"input_ids": list(range(5, 25)), "labels": list(range(5, 25))}] * 16
    limits = {"reading": -0.2, "copa": -0.1}
    callback = ForgettingCallback(["copa", "boolq"], corpus=None, every=1, data=hub, limits=limits)
    assert callback._limits == {"copa": -0.1, "boolq": -0.2}
    arguments = {"max_steps": 2, "learning_rate": 1e-2, "report_to": "none", "use_cpu": True}
    trainer = Trainer(
        AutoModelForCausalLM.from_pretrained(TINY_GPT),
        TrainingArguments(str(tmp_path), **arguments, save_strategy="no", disable_tqdm=True),
        train_dataset=rows,  # type: ignore[arg-type]
        processing_class=AutoTokenizer.from_pretrained(TINY_GPT),
        callbacks=[callback],
    )
    trainer.train()
    base, plain = load_base("tiny-gpt"), load_tokenizer("tiny-gpt", plain=True)
    questions = GENERAL["copa"].questions(hub, 50, 0)
    asked = ability.Asked(GENERAL["copa"], questions, frozenset(), plain)
    right = ability.answer(base, asked, torch.device("cpu")).right
    assert callback.first["copa"] == right.tolist()
    assert {"copa", "boolq", "step"} == callback.curve[-1].keys()
    assert any("forgetting/boolq_change" in entry for entry in trainer.state.log_history)
    encoder = make_trainer(tmp_path, ForgettingCallback(["copa"], corpus=None, data=hub))
    with pytest.raises(ClbenchError, match="copa need a decoder"):
        encoder.train()


def test_wrong_settings_are_refused() -> None:
    for options, message in (
        ({"every": 0}, "every: must be greater than or equal to 1"),
        ({"every": "a"}, "every: must be a whole number"),
        ({"budget": 0}, "budget: must be greater than 0"),
        ({"rows": 40}, "rows: must be greater than or equal to 50"),
        ({"texts": 10}, "texts: must be greater than or equal to 30"),
        ({"limits": -0.1}, "limits: must be"),
        ({"limits": {"language": 0.5}}, "language: must be less than or equal to 0"),
        ({"limits": {"language": float("-inf")}}, "language: must be a finite number"),
        ({"limits": {"language": -1}, "corpus": None}, "limits name 'language'"),
        ({"every": float("nan")}, "every: must be"),
        ({"every": 2.5}, "every: must be a whole number"),
        ({"every": True}, "every: must be a whole number"),
        ({"rows": 50.5}, "rows: must be a whole number"),
        ({"seed": -1}, "seed: must be greater than or equal to 0"),
        ({"seed": 10**5000}, "seed: must be less than 4294967296, got a number of too many digits"),
        ({"budget": float("nan")}, "budget: must be a finite number"),
        ({"tasks": [1]}, "tasks item 1: must be"),
        ({"tasks": None}, "tasks: must be"),
        ({"tasks": [], "corpus": None}, "nothing to score"),
        ({"corpus": 7}, "corpus: must be"),
        ({"data": 7}, "data: must be a text in quotes or an instance of Path, got 7"),
        ({"data": "/nowhere"}, "data /nowhere: there is no such folder"),
        ({"action": "panic"}, "action: must be 'warn', 'stop' or 'restore', got 'panic'"),
        ({"limits": {"speed": -1}}, "limits name 'speed'"),
        ({"tasks": ["synthetic/nothing"]}, "Unknown task"),
        ({"tasks": ["copa", "format"]}, "'format' is not scored during training"),
        ({"tasks": "calibration"}, "'calibration' is not scored during training"),
    ):
        with pytest.raises(ClbenchError, match=message):
            ForgettingCallback(**{"tasks": [TASK], "rows": 100, **options})


def test_a_limit_of_features_is_one_for_each_task() -> None:
    other = "synthetic/acceptability"
    limits = {"features": -0.1, TASK: -0.2, "language": -1.0}
    callback = ForgettingCallback([TASK, other], rows=100, limits=limits)
    assert callback._limits == {TASK: -0.2, other: -0.1, "language": -1.0}


def test_weights_spread_over_processes_are_refused(tmp_path: Path) -> None:
    callback = watch()
    trainer = make_trainer(tmp_path, callback)
    trainer.args.fsdp = ["full_shard"]
    with pytest.raises(ClbenchError, match="spread over processes"):
        callback.on_train_begin(trainer.args, trainer.state, trainer.control)


def test_the_trainer_logs_its_loss_at_scored_steps_too(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, watch(), logging_steps=2)
    trainer.train()
    losses = [entry["step"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses == [2, 4, 6, 8]


class Spoiler(TrainerCallback):
    """Makes the weights unusable at a step."""

    def __init__(self, step: int, value: float) -> None:
        self._step, self._value = step, value

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
        if state.global_step == self._step:
            for value in model.parameters():
                value.data.mul_(self._value)


@pytest.mark.parametrize(
    ("tasks", "value"), [([TASK], float("nan")), ([], float("nan")), ([TASK], 1e25)]
)
def test_a_model_that_is_not_finite_is_below_every_limit(
    tmp_path: Path, tasks: list[str], value: float
) -> None:
    limits = {"language": -50.0}
    callback = ForgettingCallback(
        tasks, every=2, rows=100, texts=40, budget=1.0, limits=limits, action="restore"
    )
    trainer = make_trainer(tmp_path, Spoiler(3, value), callback)
    with pytest.warns(UserWarning, match="language \\+nan.*restores the weights of step 2"):
        trainer.train()
    assert steps(callback) == [0, 2, 4]
    assert all(bool(torch.isfinite(value).all()) for value in trainer.model.parameters())


@pytest.mark.slow
def test_the_last_point_is_of_the_model_that_is_left(tmp_path: Path) -> None:
    callback = watch(every=100)
    trainer = make_trainer(
        tmp_path, callback, load_best_model_at_end=True, eval_strategy="steps", eval_steps=2,
        save_strategy="steps", save_steps=2, learning_rate=5e-3, metric_for_best_model="loss",
        greater_is_better=True,  # so that the best one is likely not the last
    )  # fmt: skip
    trainer.train()
    assert callback.curve[-1]["step"] == trainer.state.best_global_step
    again = watch(every=100)
    later = make_trainer(tmp_path / "again", again)
    later.model.load_state_dict(trainer.model.state_dict())
    later.train()
    assert again.curve[0]["language"] == callback.curve[-1]["language"]


@pytest.mark.slow
def test_a_resumed_training_restores_the_weights_of_its_checkpoint(tmp_path: Path) -> None:
    first = watch(limits={"language": -50.0}, action="restore")
    make_trainer(tmp_path, first, save_strategy="steps", save_steps=4).train()
    kept = load_file(tmp_path / "checkpoint-4/model.safetensors")
    callback = watch(limits={"language": -50.0}, action="restore")
    trainer = make_trainer(tmp_path, Spoiler(5, float("nan")), callback)
    with pytest.warns(UserWarning, match="restores the weights of step 4"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, kept[name])


def test_nothing_is_drawn_before_training() -> None:
    with pytest.raises(ClbenchError, match="nothing has been scored yet"):
        watch().draw()


def test_a_figure_without_tasks_has_one_panel() -> None:
    callback = ForgettingCallback([])
    callback.curve = [{"language": 5.0, "step": 0}, {"language": 5.5, "step": 10}]
    assert len(callback.draw().axes) == 1

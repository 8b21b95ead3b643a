"""The callback in the real Trainer, and in TRL's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from clbench.errors import ClbenchError
from clbench.hf import ForgettingCallback
from clbench.models.locate import TINY, TINY_GPT
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
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )  # fmt: skip


def watch(**options: Any) -> ForgettingCallback:
    return ForgettingCallback([TASK], every=2, rows=100, texts=40, **{"budget": 1.0, **options})


def steps(callback: ForgettingCallback) -> list[float]:
    return [point["step"] for point in callback.curve]


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


def test_the_scores_are_those_of_an_audit(tmp_path: Path) -> None:
    from clbench.audit.audit import audit

    callback = ForgettingCallback([TASK], every=100, rows=100, texts=300)
    trainer = make_trainer(tmp_path / "run", callback)
    trainer.train()
    trainer.save_model(str(tmp_path / "tuned"))
    (model,) = audit("tiny", [str(tmp_path / "tuned")], tasks=[TASK], rows=100).models
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


@pytest.mark.parametrize("action", ["warn", "stop", "restore"])
def test_limits_warn_stop_and_restore(tmp_path: Path, action: Any) -> None:
    callback = watch(limits={"language": -1e-4}, action=action)
    trainer = make_trainer(tmp_path, callback, learning_rate=5e-3)
    start = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with pytest.warns(UserWarning, match="forgotten more than allowed: language"):
        trainer.train()
    assert trainer.state.global_step == (8 if action == "warn" else 2)
    same = all(torch.equal(v, start[name]) for name, v in trainer.model.state_dict().items())
    assert same == (action == "restore")


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


def test_wrong_settings_are_refused() -> None:
    for options, message in (
        ({"every": 0}, "every must be 1"),
        ({"budget": 0}, "budget"),
        ({"action": "panic"}, "action 'panic'"),
        ({"limits": {"speed": -1}}, "limits name 'speed'"),
        ({"tasks": ["synthetic/nothing"]}, "Unknown task"),
    ):
        with pytest.raises(ClbenchError, match=message):
            ForgettingCallback(**{"tasks": [TASK], "rows": 100, **options})


def test_weights_spread_over_processes_are_refused(tmp_path: Path) -> None:
    callback = watch()
    trainer = make_trainer(tmp_path, callback)
    trainer.args.fsdp = ["full_shard"]
    with pytest.raises(ClbenchError, match="spread over processes"):
        callback.on_train_begin(trainer.args, trainer.state, trainer.control)

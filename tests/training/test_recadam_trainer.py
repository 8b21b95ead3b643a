"""RecAdam as the optimizer of the Hugging Face Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkpoints import make_checkpoint

from clbench.optim import RecAdam


@pytest.mark.slow
def test_a_trainer_trains_and_resumes(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

    torch.manual_seed(0)
    folder = make_checkpoint("bert", tmp_path / "model")
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    start = [p.detach().clone() for p in model.bert.parameters()]
    rows = [{"input_ids": [2, i % 20, 3], "labels": i % 2} for i in range(16)]
    optimizer = RecAdam(
        [
            {"params": model.bert.parameters()},
            {"params": model.classifier.parameters(), "recall": False},
        ],
        lr=1e-3,
        gamma=100.0,
        t0=2,
    )

    def trainer(resumed: Any = None) -> Trainer:
        made = Trainer(
            model,
            TrainingArguments(
                str(tmp_path),
                per_device_train_batch_size=4,
                max_steps=6,
                save_steps=3,
                use_cpu=True,
                report_to=[],
                disable_tqdm=True,
                learning_rate=1e-3,
            ),
            train_dataset=rows,  # type: ignore[arg-type]
            optimizers=(optimizer, None),
        )
        made.train(resume_from_checkpoint=resumed)
        return made

    trainer()
    assert optimizer.param_groups[0]["t"] == 6
    assert optimizer.param_groups[0]["lr"] == 0.0  # the Trainer's schedule has run out
    moved = zip(model.bert.parameters(), start, strict=True)
    assert any(not torch.equal(p, s) for p, s in moved)
    finished = [p.detach().clone() for p in model.parameters()]
    trainer(str(tmp_path / "checkpoint-3"))
    assert all(torch.equal(p, f) for p, f in zip(model.parameters(), finished, strict=True))

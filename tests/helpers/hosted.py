"""A model, and rows in one order, for the engine and for a Trainer."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    BertModel,
    BertPreTrainedModel,
    Trainer,
    TrainingArguments,
)

from clbench.hf import protect
from clbench.methods.base import METHODS
from clbench.models.answering import build_answering_model
from clbench.models.checkpoint import load_backbone
from clbench.models.classifier import build_classifier
from clbench.models.prompts import PromptEncoder
from clbench.suite.baselines import read_baseline
from clbench.tasks.task import Rows, Task
from clbench.tasks.template import Template
from clbench.training.batches import TaskData, plan
from clbench.training.context import Context
from clbench.training.device import Precision
from clbench.training.engine import train_stage
from clbench.training.protocol import Protocol
from clbench.training.stage import Stage
from helpers.cell import rows as encoder_rows
from helpers.checkpoints import make_checkpoint, make_tokenizer, save_generator

CPU = torch.device("cpu")
STEPS = 6


class Tuned(BertPreTrainedModel):  # type: ignore[misc]
    """A classifier with the head of clbench: a dense layer on the first token."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.classifier = nn.Linear(config.hidden_size, 2)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        hidden = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        logits = self.classifier(hidden[:, 0])
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return Outputs(loss=loss, logits=logits)


class Outputs(dict[str, Any]):
    """A dictionary with attributes, as of transformers."""

    __getattr__ = dict.__getitem__


class Recorder(Trainer):  # type: ignore[misc]
    """Keeps the loss of every step."""

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(*args, **kwargs)
        self.losses = [*getattr(self, "losses", []), float(loss)]
        return loss


@dataclass
class Setting:
    """One model for the engine and for the Trainer, and the rows in the engine's order."""

    folder: Path
    protocol: Protocol
    data: TaskData
    engine_model: Any
    model: Any

    def items(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of all steps as the Trainer reads them."""
        stage = self.stage(name)
        size = self.protocol.batch_size
        items = []
        for source, positions in plan([self.data], [size], STEPS, stage.stream("order")):
            for position in positions:
                batch = source.batch(np.array([position]), CPU)
                real = batch.inputs["attention_mask"][0].bool()
                ids, labels = batch.inputs["input_ids"][0][real], batch.labels[0]
                if "predict" in batch.inputs:  # labels of transformers stand at the token itself
                    tokens, ids = labels, torch.cat([ids, labels[-1:]])
                    labels = torch.full_like(ids, -100)
                    labels[batch.inputs["predict"][0] + 1] = tokens
                items.append({"input_ids": ids, "labels": labels})
        return items

    def stage(self, name: str) -> Stage:
        context = Context(
            self.engine_model, str(self.folder), None, self.protocol, CPU,
            Precision("float32", "cpu"), 3, f"protect: {name!r}", 2, None,
        )  # fmt: skip
        stage = Stage(**vars(context), index=1, tasks=[self.data, self.data])
        stage.heads = frozenset([self.data.head])
        return stage

    def train_engine(self, name: str, state: dict[str, Any], **settings: Any) -> list[float]:
        """Return the losses of the engine's steps; trains `engine_model`."""
        baseline = read_baseline(name)
        method = METHODS.get(baseline.method)(**{**baseline.settings, **settings})
        stage = self.stage(method.name)
        method.setup(stage)
        method.load_state(state)
        trace = train_stage(stage, method)
        losses: list[float] = trace.curves["loss"]
        return losses

    def trainer(self, folder: Path, name: str, **settings: Any) -> Recorder:
        p = self.protocol
        arguments = {
            "per_device_train_batch_size": p.batch_size, "num_train_epochs": 1,
            "learning_rate": p.lr, "lr_scheduler_type": "constant", "max_grad_norm": p.clip_norm,
            "seed": 3, "use_cpu": True, "report_to": "none", "disable_tqdm": True,
            "save_strategy": "no", "logging_steps": 1, "train_sampling_strategy": "sequential",
            **settings,
        }  # fmt: skip
        return Recorder(
            self.model,
            TrainingArguments(str(folder), **arguments),
            train_dataset=self.items(name),  # type: ignore[arg-type]
            data_collator=collate,
        )


def collate(items: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Pad on the right, as the engine does."""
    pad = nn.utils.rnn.pad_sequence
    ids = [item["input_ids"] for item in items]
    labels = [item["labels"] for item in items]
    return {
        "input_ids": pad(ids, batch_first=True),
        "attention_mask": pad([torch.ones_like(i) for i in ids], batch_first=True),
        "labels": pad(labels, batch_first=True, padding_value=-100)
        if labels[0].dim()
        else torch.stack(labels),
    }


def make_encoder(folder: Path) -> Setting:
    """Return a classifier on a random BERT without dropout; makes its checkpoint in `folder`."""
    if not folder.exists():
        make_checkpoint("bert", folder)
    protocol = Protocol(epochs=2, batch_size=4, lr=1e-3, schedule="constant", warmup=0.0,
                        clip_norm=1.0, curve_points=STEPS, data_seed=3)  # fmt: skip
    data = TaskData(1, "t", "t", False, encoder_rows(0), 0)
    built = build_classifier(str(folder), heads={"t": 2}, head_seed=lambda head: 1)
    backbone = load_backbone(str(folder))
    model = Tuned(backbone.config)
    model.bert = backbone
    model.classifier.load_state_dict(built.head("t").state_dict())
    for module in [*built.modules(), *model.modules()]:
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    model.config._name_or_path = str(folder)
    return Setting(folder, protocol, data, built, model)


def make_for(method: str, folder: Path) -> Setting:
    """Return a decoder for methods that need a language model, else a classifier."""
    speaks = "classification" not in METHODS.get(method).head_kinds
    return make_decoder(folder / "decoder") if speaks else make_encoder(folder / "model")


def make_decoder(folder: Path) -> Setting:
    """Return a random Llama, which has no dropout; makes its checkpoint in `folder`."""
    if not folder.exists():
        save_generator("llama", folder)
    protocol = Protocol(head="language-model", epochs=3, batch_size=4, lr=1e-3, warmup=0.0,
                        schedule="constant", clip_norm=1.0, curve_points=STEPS, data_seed=3,
                        max_length=60)  # fmt: skip
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abc {}\n"), rng.integers(1, 9))) + "x" for _ in range(8)]
    some = Rows.of(texts, None, rng.integers(0, 2, 8))
    template = Template("{text}:", {"n": "not at all", "p": "quite"})
    task = Task("t", ("n", "p"), ("accuracy",), some, some, "t", template=template)
    encoded = PromptEncoder(make_tokenizer(), 60).encode(task, some, to_train=True)
    built = build_answering_model(str(folder))
    model = copy.deepcopy(built.backbone)
    model.config._name_or_path = str(folder)
    return Setting(folder, protocol, TaskData(1, "t", "t", False, encoded, 0), built, model)


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {n: v.detach().clone() for n, v in trainer.model.named_parameters()}


def assert_same(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        if not name.endswith("key.bias"):  # whose gradient is 0 but for rounding
            torch.testing.assert_close(two[name], value, rtol=1e-3, atol=2e-5)


def train(setting: Setting, folder: Path, method: str, options: Any, **settings: Any) -> Trainer:
    setting.model = copy.deepcopy(setting.model)
    trainer = setting.trainer(folder, method, **settings)
    protect(trainer, method, **options)
    trainer.train()
    return trainer


def one_batch(trainer: Any, inputs: dict[str, Tensor]) -> tuple[float, float]:
    """Return the method's loss of a batch and the Trainer's own."""
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    protected = float(trainer.training_step(trainer.model, dict(inputs)))
    with torch.no_grad():
        return protected, float(trainer.model.train()(**inputs)["loss"])


def plain_trainer(folder: Path, **settings: Any) -> Trainer:
    checkpoint = folder / "model"
    if not checkpoint.exists():
        make_checkpoint("bert", checkpoint)
    arguments = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, **settings}
    return Trainer(
        AutoModelForSequenceClassification.from_pretrained(checkpoint),
        TrainingArguments(str(folder / "run"), **arguments),
        train_dataset=[{"input_ids": [2, i % 20, 3], "labels": i % 2} for i in range(16)],  # type: ignore[arg-type]
    )

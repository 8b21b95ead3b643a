"""Models, batches and settings that are unusual or refused in protected Trainers."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import make_checkpoint, save_generator
from helpers.hosted import Outputs, Tuned, make_decoder, one_batch, plain_trainer
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    Trainer,
    TrainingArguments,
)

from clbench.core.errors import ClbenchError
from clbench.hf import protect
from clbench.hf.host import HostedStage
from clbench.models import answer_scores
from clbench.models.answer_scores import logits_at


def test_a_trainer_that_makes_its_own_optimizer_is_refused(tmp_path: Path) -> None:
    class Own(Trainer):  # type: ignore[misc]
        def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
            return self.optimizer

    trainer = plain_trainer(tmp_path)
    trainer.__class__ = Own
    protect(trainer, "recadam")
    with pytest.raises(ClbenchError, match="create_optimizer of Own replaces it"):
        trainer.train()


def test_classifiers_whose_losses_are_added_up_are_warned_of(tmp_path: Path) -> None:
    trainer = plain_trainer(tmp_path, max_steps=1, gradient_accumulation_steps=2)
    protect(trainer, "lwf")
    with pytest.warns(UserWarning, match="2 micro-batches"):
        trainer.train()


def trainer_of_outputs(folder: Path, outputs: int) -> tuple[Any, Any]:
    """Return a Trainer of a BERT with so many outputs and without dropout, and this model."""
    checkpoint = make_checkpoint("bert", folder / "model")
    model = AutoModelForSequenceClassification.from_pretrained(
        checkpoint, num_labels=outputs, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    trainer = plain_trainer(folder)
    trainer.model = trainer.model_wrapped = model
    return trainer, model


def test_regression_with_whole_numbers_is_distilled(tmp_path: Path) -> None:
    trainer, model = trainer_of_outputs(tmp_path, 1)
    protect(trainer, "lwf", weight=3.0)
    inputs = {"input_ids": torch.tensor([[2, 7, 3], [2, 9, 3]]), "labels": torch.tensor([1, 4])}
    before = model.train()(inputs["input_ids"]).logits.detach()
    try:
        model(**inputs).loss.backward()
        model.zero_grad()
    except RuntimeError as error:
        pytest.skip(f"this version of transformers has no such loss by itself: {error}")
    model.classifier.bias.data.add_(0.5)
    protected, own = one_batch(trainer, inputs)
    after = before + 0.5
    assert protected - own == pytest.approx(3.0 * float((after - before).square().mean()), rel=1e-4)


def test_several_labels_are_distilled_one_by_one(tmp_path: Path) -> None:
    trainer, model = trainer_of_outputs(tmp_path, 3)
    protect(trainer, "lwf", weight=3.0, temperature=2.0)
    labels = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    inputs = {"input_ids": torch.tensor([[2, 7, 3], [2, 9, 3]]), "labels": labels}
    before = model.train()(inputs["input_ids"]).logits.detach()
    model.classifier.bias.data.add_(0.5)
    protected, own = one_batch(trainer, inputs)
    p, q = (before / 2).sigmoid(), ((before + 0.5) / 2).sigmoid()
    divergence = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    assert protected - own == pytest.approx(3.0 * float(divergence.mean()), rel=1e-3)
    trainer.current_gradient_accumulation_steps = 2
    with pytest.warns(UserWarning, match="2 micro-batches"):
        trainer.training_step(model, dict(inputs), torch.tensor(4))


@pytest.mark.parametrize("labels", [[[3.5], [1.2]], [[1.0], [0.0]], [[3.5, 1.0], [1.2, 0.0]]])
def test_several_targets_are_distilled_as_numbers(tmp_path: Path, labels: Any) -> None:
    class Regressor(Tuned):
        def forward(self, input_ids: Any, labels: Any = None) -> Any:
            logits = self.classifier(self.bert(input_ids).last_hidden_state[:, 0])
            loss = None if labels is None else torch.nn.functional.mse_loss(logits, labels)
            return Outputs(loss=loss, logits=logits)

    trainer = plain_trainer(tmp_path, max_steps=1)
    config = trainer.model.config
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    model = Regressor(config)  # its config keeps two labels
    model.classifier = torch.nn.Linear(config.hidden_size, len(labels[0]))
    trainer.model = trainer.model_wrapped = model
    protect(trainer, "lwf", weight=3.0)
    inputs = {"input_ids": torch.tensor([[2, 7, 3], [2, 9, 3]]), "labels": torch.tensor(labels)}
    model.classifier.bias.data.add_(0.5)
    protected, own = one_batch(trainer, inputs)
    assert protected - own == pytest.approx(3.0 * 0.5**2, rel=1e-4)


def test_other_inputs_of_masked_language_models_are_read(tmp_path: Path) -> None:
    checkpoint = make_checkpoint("bert", tmp_path / "model")
    model = AutoModelForMaskedLM.from_pretrained(
        checkpoint, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    trainer = plain_trainer(tmp_path)
    trainer.model = trainer.model_wrapped = model
    protect(trainer, "lwf", temperature=1.0, weight=3.0)
    inputs = {
        "input_ids": torch.tensor([[2, 7, 3, 8], [2, 9, 3, 3]]),
        "attention_mask": torch.ones(2, 4, dtype=torch.long),
        "token_type_ids": torch.tensor([[0, 0, 1, 1]] * 2),
        "labels": torch.tensor([[-100, 7, -100, -100], [-100, -100, 5, -100]]),
    }
    texts = {name: value for name, value in inputs.items() if name != "labels"}
    before = model.train()(**texts).logits.detach()
    for value in model.parameters():
        value.data.add_(0.02 * torch.randn_like(value))
    asked = inputs["labels"] != -100
    p, q = (z[asked].log_softmax(-1) for z in (before, model(**texts).logits.detach()))
    divergence = float((p.exp() * (p - q)).sum(-1).mean())
    protected, own = one_batch(trainer, inputs)
    assert divergence > 1e-3
    assert protected - own == pytest.approx(3.0 * divergence, rel=1e-3)


def test_padding_on_the_left_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = make_decoder(tmp_path / "model")
    trainer = setting.trainer(tmp_path / "run", "kl-anchor")
    protection = protect(trainer, "kl-anchor", tokens=200)
    method: Any = protection.method
    seen = []
    monkeypatch.setattr(
        answer_scores,
        "logits_at",
        lambda model, places, **texts: (seen.append(places), logits_at(model, places, **texts))[1],
    )
    inputs = {
        "input_ids": torch.tensor([[0, 0, 0, 5, 6, 7, 8], [4, 5, 6, 7, 8, 9, 10]]),
        "attention_mask": torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7]),
        "labels": torch.tensor([[-100] * 6 + [8]] * 2),
    }
    one_batch(trainer, inputs)
    assert method.at == "prompts"
    assert sorted({*seen[0][0].tolist()}) == [3, 4]  # the last place predicts the answer
    assert sorted({*seen[0][1].tolist()}) == [0, 1, 2, 3, 4]


def test_models_with_plain_tuples_and_other_labels_are_trained(tmp_path: Path) -> None:
    trainer = plain_trainer(tmp_path, max_steps=2)
    trainer.model.config.return_dict = False
    protect(trainer, "lwf")
    trainer.train()
    folder = tmp_path / "model"
    rows = [{"input_ids": [2, 5, 6, 3], "start_positions": 1, "end_positions": 2}] * 8
    arguments = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "max_steps": 1}
    for method, message in (("mixout", None), ("lwf", "needs labels")):
        asking = Trainer(
            AutoModelForQuestionAnswering.from_pretrained(folder),
            TrainingArguments(str(tmp_path / "run"), **arguments),
            train_dataset=rows,  # type: ignore[arg-type]
        )
        protect(asking, method)
        with nullcontext() if message is None else pytest.raises(ClbenchError, match=message):
            asking.train()


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("vanilla", {}, "what the Trainer does by itself"),
        ("replay", {}, "keeps rows of earlier tasks"),
        ("self-replay", {}, "needs a model with a language-model head"),
        ("self-replay", {"prompts": "old"}, "keeps rows of earlier tasks"),
        ("self-sft", {}, "answers that it lets the model write"),
        ("sdft", {}, "answers that it lets the model write"),
        ("grpo", {}, "answers that it lets the model write"),
        ("wise-ft", {}, "Use `clbench mend`"),
        ("packnet", {}, "has weights for each task|cannot run in a Trainer"),
        ("si", {}, "cannot run in a Trainer"),
        ("nothing", {}, "nothing"),
        ("ewc", {}, "needs fisher="),
        ("l2-sp", {"fisher": {}}, "does not use fisher="),
        ("l2-sp", {"corpus": "built-in"}, "'l2-sp', as it is set, reads no corpus="),
        ("kl-anchor", {"corpus": "built-in"}, "as it is set, reads no corpus="),
        ("l2-sp", {"strength": 1.0}, "strength"),
        ("l2-sp", {"lr": 1e-3}, "no effect in a Trainer"),
        ("kl-anchor", {}, "needs a model with a language-model head"),
        ("dft", {}, "needs a model with a language-model head"),
        ("ewc", {"fisher": "nowhere.safetensors"}, "nowhere.safetensors cannot be read"),
        ("ewc", {"fisher": {"a": torch.ones(2)}}, "names no weight"),
        ("ewc", {"fisher": {"classifier.bias": torch.ones(3)}}, r"has the shape \(3,\)"),
        ("ewc", {"fisher": {"classifier.bias": torch.zeros(2)}}, "penalty is always 0"),
        (
            "ewc",
            {"fisher": {"classifier.bias": torch.tensor([1.0, torch.nan])}},
            "negative or non-finite",
        ),
        (
            "ewc",
            {"fisher": {"classifier.bias": torch.tensor([1.0, -1.0])}},
            "negative or non-finite",
        ),
        ("generic-replay", {"corpus": "nowhere.txt"}, "nowhere.txt"),
        ("recadam", {"gamma": 1e9}, "overshoot"),
    ],
)
def test_what_a_trainer_cannot_do_is_said_in_one_line(
    tmp_path: Path, method: str, options: dict[str, Any], message: str
) -> None:
    trainer = plain_trainer(tmp_path)
    with pytest.raises(ClbenchError, match=message) as caught:
        protect(trainer, method, **options)
    assert "\n" not in str(caught.value)
    assert type(trainer) is Trainer  # and it trains as before


def test_trainers_that_cannot_be_protected_are_refused(tmp_path: Path) -> None:
    trainer = plain_trainer(tmp_path)
    protect(trainer, "l2-sp")
    with pytest.raises(ClbenchError, match="protected by 'l2-sp' already"):
        protect(trainer, "l2-sp")
    with pytest.raises(ClbenchError, match="torch_compile"):
        protect(plain_trainer(tmp_path, torch_compile=True), "l2-sp")
    trainer = plain_trainer(tmp_path)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    for method, options in (("layerwise", {"multiples": [0.1, 0.5, 1.0]}), ("recadam", {})):
        with pytest.raises(ClbenchError, match="makes the optimizer, but the Trainer has one"):
            protect(trainer, method, **options)
    protect(trainer, "lwf")  # which trains what the Trainer trains
    with pytest.raises(ClbenchError, match="gradient_checkpointing"):
        protect(plain_trainer(tmp_path, gradient_checkpointing=True), "mixout")
    with pytest.raises(ClbenchError, match="LOMO"):
        protect(plain_trainer(tmp_path, optim="lomo"), "l2-sp")
    with pytest.raises(ClbenchError, match=r"arguments of the Trainer.*lr: must be"):
        protect(plain_trainer(tmp_path, learning_rate=2.0), "l2-sp")
    trainer = plain_trainer(tmp_path)
    trainer.model.bert.requires_grad_(False)
    with pytest.raises(ClbenchError, match="only the head is trained"):
        protect(trainer, "recadam")
    trainer = plain_trainer(tmp_path)
    trainer.model.to(torch.bfloat16)
    with pytest.raises(ClbenchError, match=r"load the model with dtype=torch\.float32"):
        protect(trainer, "recadam")
    protect(trainer, "l2-sp")
    trainer = plain_trainer(tmp_path)
    protect(trainer, "recadam")
    with pytest.raises(ClbenchError, match="inside train"):
        trainer.create_optimizer()
    with pytest.raises(ClbenchError, match="trainer: must be an instance of Trainer, got 3"):
        protect(3, "l2-sp")  # type: ignore[arg-type]
    trainer = plain_trainer(tmp_path, optim="adafactor", max_steps=1)
    protect(trainer, "layerwise", multiples=[0.1, 0.5, 1.0])
    trainer.train()  # any optimizer of groups will do


def test_a_loss_of_the_users_own_is_not_replaced_silently(tmp_path: Path) -> None:
    class Own(Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(*args, **kwargs)

    trainer = plain_trainer(tmp_path)
    trainer.__class__ = Own
    with pytest.raises(ClbenchError, match=r"'dft' replaces the loss that .*Own\.compute_loss"):
        protect(trainer, "dft")
    protect(trainer, "l2-sp")  # which adds to it
    trainer = plain_trainer(tmp_path)
    trainer.args.loss_type = "dft"  # as TRL's arguments have it
    with pytest.raises(ClbenchError, match="Set loss_type='nll', not 'dft'"):
        protect(trainer, "talr")


def test_a_trainer_needs_no_more_texts_than_it_reads(tmp_path: Path) -> None:
    def steps(rows: Any = None, packing: bool = False, **arguments: Any) -> int:
        trainer = plain_trainer(tmp_path, **arguments)
        trainer.train_dataset = trainer.train_dataset if rows is None else rows
        trainer.args.packing = packing
        return HostedStage.of(trainer, "test", "built-in").own_steps

    assert steps(max_steps=3) == 3
    assert steps(max_steps=3, packing=True) == 0  # a sequence holds an unknown number of rows
    ten = [{"labels": 0}] * 10  # in batches of 2 · 2 rows, 3 steps an epoch
    batches = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    assert steps(ten, max_steps=-1, num_train_epochs=1.5, **batches) == 5
    assert steps(iter(ten), max_steps=-1) == 0


def test_rows_without_prompts_have_nothing_to_compare(tmp_path: Path) -> None:
    folder = save_generator("llama", tmp_path / "model")
    rows = [{"input_ids": [5, 6, 7, 8], "labels": [5, 6, 7, 8], "attention_mask": [1] * 4}] * 8
    arguments = TrainingArguments(
        str(tmp_path / "run"), use_cpu=True, report_to="none", disable_tqdm=True, max_steps=1
    )
    model = AutoModelForCausalLM.from_pretrained(folder)
    trainer = Trainer(model, arguments, train_dataset=rows)  # type: ignore[arg-type]
    protect(trainer, "kl-anchor")
    with pytest.raises(ClbenchError, match="no prompts to compare"):
        trainer.train()


def test_names_of_the_model_and_of_its_body_both_find_their_weights(tmp_path: Path) -> None:
    for prefix in ("", "bert.", "backbone."):
        trainer = plain_trainer(tmp_path)
        body = {
            f"{prefix}{n}": torch.ones_like(v) for n, v in trainer.model.bert.named_parameters()
        }
        protection = protect(trainer, "ewc", fisher=body)
        assert len(protection.method.fisher) == len(body)
        assert "no Fisher information for 2 trained weights" in protection.notes[0]
    trainer = plain_trainer(tmp_path)
    trainer.model.bert.embeddings.requires_grad_(False)
    named = trainer.model.named_parameters()
    notes = protect(trainer, "ewc", fisher={n: np.ones(v.shape) for n, v in named}).notes
    assert "does not train is not used" in notes[0]


def test_a_model_without_a_checkpoint_has_no_pretraining(tmp_path: Path) -> None:
    trainer = plain_trainer(tmp_path)
    trainer.model.config._name_or_path = ""
    with pytest.raises(ClbenchError, match="made from a configuration"):
        protect(trainer, "ewc-mlm")


def test_a_pooler_that_the_language_model_lacks_is_not_held(tmp_path: Path) -> None:
    trainer = plain_trainer(tmp_path, max_steps=2)
    protection = protect(trainer, "ewc-mlm", examples=8, text_length=16, head_steps=3)
    trainer.train()
    assert "8 texts" in protection.notes[0]
    held = set(protection.method._fisher)
    body = {f"backbone.{name}" for name, _ in trainer.model.bert.named_parameters()}
    assert body - held == {"backbone.pooler.dense.weight", "backbone.pooler.dense.bias"}

"""Language models that answer in words: outputs, losses and gradients against plain computation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import (
    GENERATORS,
    make_checkpoint,
    make_generator,
    make_tokenizer,
    save_generator,
)
from torch import Tensor

from clbench.core.errors import ModelError
from clbench.models.answering import AnsweringModel, build_answering_model, stop_tokens, write
from clbench.models.encoding import IGNORED
from clbench.models.packing import ROWS
from clbench.models.prompts import PromptEncoder
from clbench.tasks.task import Rows, Task
from clbench.tasks.template import Template
from clbench.training.batches import Batch, TaskData
from clbench.training.dropout import install
from clbench.training.stage import Stage

TEXTS = ["dull", "a rather bright {film}", "x", "not bad\nat all"]
DECODERS = [name for name in GENERATORS if name != "t5"]
PACKING = ["gpt2", "gptj", "llama", "llama-untied", "qwen2"]


def data(*, encoder_decoder: bool = False) -> TaskData:
    rows = Rows.of(TEXTS, None, [0, 1, 1, 0])
    template = Template("{text}\nGood:", {"neg": "not at all", "pos": "yes"})
    task = Task("t", ("neg", "pos"), ("accuracy",), rows, rows, head="t", template=template)
    tokenizer = make_tokenizer(appends_end=encoder_decoder)
    encoder = PromptEncoder(tokenizer, 60, encoder_decoder=encoder_decoder)
    return TaskData(0, "t", "t", False, encoder.encode(task, rows, to_train=True), 0)


def batch_of(source: TaskData, rows: list[int] | None = None) -> Batch:
    return source.batch(np.array(rows or range(len(TEXTS))), torch.device("cpu"))


def gradients(model: AnsweringModel, batch: Batch) -> dict[str, Tensor]:
    model.zero_grad()
    Stage.criterion(model(batch.inputs, "t"), batch).backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", DECODERS)
def test_the_loss_is_that_of_the_whole_model_over_answers_only(name: str) -> None:
    model, batch = AnsweringModel(make_generator(name)), batch_of(data())
    ids, mask, predict = (batch.inputs[n] for n in ("input_ids", "attention_mask", "predict"))
    logits = model.backbone(input_ids=ids, attention_mask=mask).logits
    labels = torch.full_like(ids, IGNORED)
    real = batch.labels != IGNORED
    rows = torch.arange(len(ids))[:, None].expand_as(predict)
    labels[rows[real], predict[real]] = batch.labels[real]
    whole = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    own = Stage.criterion(model(batch.inputs, "t"), batch)
    assert torch.allclose(own, whole, atol=1e-6)
    model.zero_grad()
    whole.backward()
    wanted = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    for weight, gradient in gradients(model, batch).items():
        assert torch.allclose(gradient, wanted[weight], atol=1e-6), weight


@pytest.mark.parametrize("name", ["bloom"])
def test_packing_is_refused_where_rows_would_see_each_other(name: str) -> None:
    model = AnsweringModel(make_generator(name), packs=True).train()
    with pytest.raises(ModelError, match=r"packed rows attend to each other\. Set packing = false"):
        model(batch_of(data()).inputs, "t")


def test_packing_works_where_layers_drop_what_they_do_not_know() -> None:
    """As those of StableLM: the rows are then packed by a mask."""
    one, other = (AnsweringModel(make_generator("llama"), packs=packs) for packs in (False, True))
    install(other, other.backbone, torch.device("cpu"))
    for layer in other.backbone.model.layers:
        attend = layer.self_attn.forward

        def known_only(*states: Tensor, attend: Any = attend, **options: Any) -> Any:
            return attend(*states, **{n: v for n, v in options.items() if n != ROWS})

        layer.self_attn.forward = known_only
    inputs = batch_of(data()).inputs
    assert torch.allclose(one.train()(inputs, "t"), other.train()(inputs, "t"), atol=1e-5)


def test_packing_works_with_attention_that_adds_its_mask() -> None:
    one, other = (AnsweringModel(make_generator("llama"), packs=packs) for packs in (False, True))
    other.backbone.set_attn_implementation("eager")
    inputs = batch_of(data()).inputs
    assert torch.allclose(one.train()(inputs, "t"), other.train()(inputs, "t"), atol=1e-5)


def test_writing_is_greedy_whatever_the_checkpoint_says() -> None:
    plain, other = make_generator("llama"), make_generator("llama")
    other.generation_config.repetition_penalty = 5.0
    inputs = {n: batch_of(data()).inputs[n] for n in ("input_ids", "attention_mask")}
    own = other.generation_config
    texts = [write(model, inputs, [1], most=8, pad_id=0) for model in (plain, other)]
    assert torch.equal(*texts)
    assert other.generation_config is own
    assert AnsweringModel(other).backbone.generation_config.repetition_penalty != 5.0


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize(("room", "sequences"), [(256, 1), (30, 3)])
@pytest.mark.parametrize("name", PACKING)
def test_packed_rows_have_the_gradients_of_padded_ones(
    name: str, room: int, sequences: int, by_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with the engine's attention, which takes all rows at once unless a model has its own."""
    monkeypatch.setattr("clbench.models.answering.PACKED_LENGTH", room)
    batch = batch_of(data())
    padded = AnsweringModel(make_generator(name)).train()
    packed = AnsweringModel(make_generator(name), packs=True).train()
    for model in (padded, packed):
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    if by_rows:
        install(packed, packed.backbone, torch.device("cpu"))
        sequences = sequences if name == "gptj" else 1
    seen: list[Tensor] = []
    embedding = packed.backbone.get_input_embeddings()
    embedding.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    one, other = gradients(padded, batch), gradients(packed, batch)
    lengths = batch.inputs["attention_mask"].sum(1).tolist()
    assert lengths == [19, 29, 8, 29]
    assert seen[-1].shape == (sequences, sum(lengths) if sequences == 1 else 29)
    assert one.keys() == other.keys()
    for weight, gradient in one.items():
        assert torch.allclose(gradient, other[weight], atol=2e-6), weight


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_row_does_not_depend_on_those_beside_it(name: str) -> None:
    source = data(encoder_decoder=name == "t5")
    model = AnsweringModel(make_generator(name))
    together = model(batch_of(source).inputs, "t")
    for row in range(len(TEXTS)):
        alone = model(batch_of(source, [row]).inputs, "t")[0]
        assert torch.allclose(together[row, : len(alone)], alone, atol=1e-5)


def test_an_encoder_decoder_has_the_loss_of_its_own_labels() -> None:
    model, batch = AnsweringModel(make_generator("t5")), batch_of(data(encoder_decoder=True))
    inputs = {name: batch.inputs[name] for name in ("input_ids", "attention_mask")}
    wanted = model.backbone(**inputs, labels=batch.labels).loss
    assert torch.allclose(Stage.criterion(model(batch.inputs, "t"), batch), wanted, atol=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_what_is_written_under_padding_is_what_is_written_alone(name: str) -> None:
    model = AnsweringModel(make_generator(name))
    source, stops = data(encoder_decoder=name == "t5"), stop_tokens(make_tokenizer())
    inputs = {n: batch_of(source).inputs[n] for n in ("input_ids", "attention_mask")}
    if name != "t5":  # prompts alone
        keep = (
            torch.arange(inputs["input_ids"].shape[1]) <= batch_of(source).inputs["predict"][:, :1]
        )
        inputs = {n: value * keep for n, value in inputs.items()}
    together = model.write(inputs, stops, most=8)
    for row in range(len(TEXTS)):
        length = int(inputs["attention_mask"][row].sum())
        alone = {n: value[row : row + 1, :length] for n, value in inputs.items()}
        (text,) = model.write(alone, stops, most=8)
        assert together[row][: len(text)].tolist() == text.tolist()
        assert together[row][len(text) :].eq(0).all()


def test_line_breaks_and_the_end_stop_a_text() -> None:
    tokenizer = make_tokenizer()
    (line,) = tokenizer("\n")["input_ids"]
    assert stop_tokens(tokenizer) == sorted([tokenizer.eos_token_id, line])


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama-untied", "t5"])
def test_every_weight_is_in_one_group_by_depth(name: str) -> None:
    model = AnsweringModel(make_generator(name))
    groups = model.layer_groups()
    names = [parameter for group in groups for parameter in group.parameters]
    assert sorted(names) == sorted(n for n, _ in model.named_parameters())
    sizes = {group.name: len(group.parameters) for group in groups}
    assert [group.name for group in groups] == ["embeddings", "layer.0", "layer.1", "head"]
    assert min(sizes[n] for n in ("embeddings", "layer.0", "layer.1")) > 0
    assert ("backbone.lm_head.weight" in groups[-1].parameters) == (name == "llama-untied")


def test_regression_is_the_mean_of_values_weighted_by_probability() -> None:
    model = AnsweringModel(make_generator("llama"))
    inputs: dict[str, Any] = {
        "input_ids": torch.tensor([[5, 6]]),
        "attention_mask": torch.ones(1, 2, dtype=torch.long),
        "candidates": torch.tensor([[[7], [8], [9]]]),
    }
    scores = model(inputs, "t")
    value = model({**inputs, "values": torch.tensor([[0.0, 2.0, 5.0]])}, "t")
    assert torch.allclose(value, (scores.softmax(-1) * torch.tensor([0.0, 2.0, 5.0])).sum(-1, True))
    model.shown["t"] = 2
    assert model(inputs, "t").shape == (1, 2)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bert", {}, "has no language-model head that writes text. Use a decoder"),
        ("bloom", {"packs": True}, "takes no positions. Set packing = false"),
    ],
)
def test_an_unsuitable_model_is_refused(
    tmp_path: Path, name: str, options: dict[str, Any], message: str
) -> None:
    if name == "bert":
        folder = make_checkpoint("bert", tmp_path / "model")
    else:
        folder = save_generator(name, tmp_path / "model")
    with pytest.raises(ModelError, match=message.replace(".", r"\.")):
        build_answering_model(str(folder), **options)


def test_a_checkpoint_without_a_head_is_refused(tmp_path: Path) -> None:
    make_generator("llama-untied").model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="checkpoint has no language-model head"):
        build_answering_model(str(tmp_path))

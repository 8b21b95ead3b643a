"""Rows that a Trainer packs into one sequence, for methods that count or compare rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.hosted import collate, make_decoder, one_batch
from torch import Tensor
from transformers import AutoModelForCausalLM

from clbench.hf import protect

ROWS = [([4, 5, 6, 7, 8, 9], 4), ([10, 11, 12], 1), ([9, 8, 7, 6], 2)]  # tokens, prompt


def padded_and_packed() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return a batch of `ROWS`, padded and packed."""
    ids = [torch.tensor(tokens) for tokens, _ in ROWS]
    labels = [
        torch.tensor([-100] * length + tokens[length:], dtype=torch.long) for tokens, length in ROWS
    ]
    padded = collate([{"input_ids": i, "labels": n} for i, n in zip(ids, labels, strict=True)])
    packed = {
        "input_ids": torch.cat(ids)[None],
        "labels": torch.cat(labels)[None],
        "position_ids": torch.cat([torch.arange(len(tokens)) for tokens in ids])[None],
    }
    return padded, packed


def pack(items: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return items, which may be packed already, in one sequence."""
    places = [item.get("position_ids", torch.arange(len(item["labels"]))) for item in items]
    packed = {n: torch.cat([item[n] for item in items])[None] for n in ("input_ids", "labels")}
    return {**packed, "position_ids": torch.cat(places)[None]}


@pytest.mark.parametrize("parts", [1, 2])
def test_texts_are_the_same_share_of_packed_rows_and_of_padded_ones(
    tmp_path: Path, parts: int
) -> None:
    size = 4 // parts  # rows of a part

    def trained(packing: str, resume: str | None = None) -> Any:
        setting = make_decoder(tmp_path / "model")
        trainer = setting.trainer(
            tmp_path / packing,
            "generic-replay",
            per_device_train_batch_size=1 if packing == "sequences" else size,
            gradient_accumulation_steps=parts,
            save_strategy="steps",
            save_steps=2,
        )
        if packing != "padded":
            trainer.data_collator = pack
        if packing == "sequences":
            items = [pack(trainer.train_dataset[i : i + size]) for i in range(0, 24, size)]
            trainer.train_dataset = [{n: v[0] for n, v in item.items()} for item in items]
        options = {"share": 1 / 9, "text_length": 16, "texts": 40}  # half a text a step
        method: Any = protect(trainer, "generic-replay", **options).method
        trainer.rows, trainer.texts, loss, text_loss = 0, 0, method.loss, method.text_loss

        def counted(stage: Any, batch: Any) -> Tensor:
            trainer.rows += len(batch)
            return loss(stage, batch)

        def counted_texts(stage: Any, texts: Any) -> Tensor:
            trainer.texts += len(texts["input_ids"])
            return text_loss(stage, texts)

        method.loss, method.text_loss = counted, counted_texts
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    runs = [trained(packing) for packing in ("padded", "flat", "sequences")]
    assert [(run.rows, run.texts) for run in runs] == [(24, 3)] * 3
    padded = runs[0].losses
    for run in runs[1:]:
        assert run.losses == pytest.approx(padded, rel=1e-4)
    resumed = trained("sequences", str(tmp_path / "sequences/checkpoint-2"))
    assert resumed.losses == pytest.approx(padded[2 * parts :], rel=1e-4)
    beyond = 24 / parts - 6  # batches beyond the nominal rows
    assert resumed.protection.method._packed.value == beyond
    resumed.train()
    assert resumed.protection.method._packed.value == beyond  # counted anew


def test_rows_packed_without_padding_are_counted(tmp_path: Path) -> None:
    setting = make_decoder(tmp_path / "model")
    trainer = setting.trainer(tmp_path / "run", "generic-replay")
    stage = protect(trainer, "generic-replay", texts=4).stage
    packed = padded_and_packed()[1]
    for start in (0, 2):  # models such as XGLM have positions from 2 on
        inputs = {**packed, "position_ids": packed["position_ids"] + start}
        batch = stage.begin(inputs, lambda: torch.zeros(()), 1.0)
        assert len(batch) == 3
        assert [places.tolist() for places in batch.prompts()] == [[0, 6, 9], [3, 6, 10]]


def test_padding_behind_packed_rows_is_no_row(tmp_path: Path) -> None:
    setting = make_decoder(tmp_path / "model")
    stage = protect(setting.trainer(tmp_path / "run", "kl-anchor"), "kl-anchor").stage
    inputs = {
        name: torch.nn.functional.pad(value, (0, 3), value=-100 if name == "labels" else 0)
        for name, value in padded_and_packed()[1].items()
    }
    batch = stage.begin(inputs, lambda: torch.zeros(()), 1.0)
    assert [places.tolist() for places in batch.prompts()] == [[0, 6, 9], [3, 6, 10]]
    assert batch.token_rows().tolist() == [[0, 0, 1, 1, 2, 2]]


@pytest.mark.parametrize(
    ("method", "options"),
    [("lwf", {"weight": 2.0}), ("kl-anchor", {}), ("kl-anchor", {"at": "text"})],
)
def test_rows_packed_without_padding_are_compared_as_padded_ones(
    tmp_path: Path, method: str, options: dict[str, Any]
) -> None:
    setting = make_decoder(tmp_path / "model")
    found = []
    for inputs in padded_and_packed():
        setting.model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
        trainer = setting.trainer(tmp_path / "run", method)
        protection = protect(trainer, method, **options)
        generator = torch.Generator().manual_seed(0)
        for value in trainer.model.parameters():
            noise = torch.randn(value.shape, generator=generator)
            value.data.add_(noise, alpha=0.05)
        protected, own = one_batch(trainer, inputs)
        gradients = [p.grad.clone() for p in trainer.model.parameters()]
        found.append((protected, own, protection.stage.log, gradients))
    one, two = found
    assert one[0] - one[1] > 1e-3
    assert one[:2] == pytest.approx(two[:2], rel=1e-5)
    assert one[2].keys() == two[2].keys()
    for a, b in zip(one[3], two[3], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)

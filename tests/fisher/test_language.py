"""The task that a model was pretrained on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers as hf
from helpers.checkpoints import make_checkpoint
from torch import Tensor

from clbench.core.errors import ModelError
from clbench.fisher.language import LanguageTask
from clbench.models.checkpoint import load_backbone
from clbench.training.device import Precision

CPU = torch.device("cpu")
TEXTS = ["the film was good", "a dull plot is not a very good story", "it was bad"]


def task_of(name: str) -> LanguageTask:
    return LanguageTask(name, seed=0, length=16, masking="mask")


def test_a_tokenizer_without_a_mask_is_an_error_in_one_line(tmp_path: Path) -> None:
    folder = make_checkpoint("bert", tmp_path / "bert")
    for path in folder.glob("*token*"):
        path.unlink()
    shutil.copy(make_checkpoint("gpt2", tmp_path / "gpt2") / "tokenizer.json", folder)
    tokenizer = hf.PreTrainedTokenizerFast.from_pretrained(folder, eos_token="<|endoftext|>")
    tokenizer.save_pretrained(folder)
    with pytest.raises(ModelError, match="its tokenizer has no mask token"):
        task_of(str(folder))


def test_another_backbone_gets_the_head_and_shares_its_own_table() -> None:
    task, backbone = task_of("tiny"), load_backbone("tiny")
    whole = task_of("tiny").language.model
    with torch.no_grad():
        for network in (backbone, whole.base_model):
            network.get_input_embeddings().weight.mul_(1.5)
    (batch,) = task.batches(TEXTS, torch.Generator().manual_seed(0))
    with torch.no_grad(), task.around(backbone, CPU) as model:
        found = task.loss(model, batch).losses()
        assert model is not whole
    assert torch.equal(found, task.loss(whole, batch).losses())
    names = [name for name, _ in task.language.model.named_parameters()]
    assert not [name for name in names if name.startswith("bert.")]  # its own backbone is freed
    with task.around(whole, CPU) as same:
        assert same is whole


@pytest.mark.parametrize(("kind", "fits"), [("bert", True), ("gpt2", False), ("llama", True)])
def test_only_a_missing_head_is_fitted(kind: str, fits: bool, tmp_path: Path) -> None:
    task = task_of(str(make_checkpoint(kind, tmp_path / kind)))
    before = {name: p.clone() for name, p in task.language.model.named_parameters()}
    losses = task.fit_head(
        lambda: task.batches(TEXTS, torch.Generator().manual_seed(0)),
        {"test": kind},
        steps=30,
        device=CPU,
        precision=Precision("float32", "cpu"),
    )
    backbone = task.language.backbone_names()
    changed = {
        name for name, p in task.language.model.named_parameters() if not p.equal(before[name])
    }
    assert not changed & backbone.keys()
    assert bool(changed) is fits
    assert (losses is not None) is fits
    assert losses is None or losses[1] < losses[0]
    assert all(p.requires_grad for p in task.language.model.parameters())


def test_a_head_is_fitted_once_for_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLBENCH_CACHE", str(tmp_path / "cache"))
    folder, fitted = str(make_checkpoint("bert", tmp_path / "bert")), []

    def fit(corpus: str, texts: list[str]) -> Tensor:
        task = task_of(folder)

        def batches() -> Iterator[dict[str, Tensor]]:
            fitted.append(corpus)
            return task.batches(texts, torch.Generator().manual_seed(0))

        precision = Precision("float32", "cpu")
        task.fit_head(batches, {"corpus": corpus}, steps=3, device=CPU, precision=precision)
        return torch.cat([p.flatten() for p in task.language.model.cls.parameters()])

    first, again, other = fit("one", TEXTS), fit("one", TEXTS), fit("other", TEXTS[:1])
    assert fitted == ["one", "other"]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)

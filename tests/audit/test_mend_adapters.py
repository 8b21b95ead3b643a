"""Mending adapters: what is scaled is the mixture of merged weights, and stays an adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

from clbench.audit.models import load_base, load_tuned
from clbench.audit.weights import Mixer, Mixture, is_scalable, write_scaled
from clbench.cli.app import main
from clbench.core.errors import ModelError
from clbench.models.locate import TINY

peft = pytest.importorskip("peft")
TASKS = ["--keep", "synthetic/sentiment", "--learn", "synthetic/acceptability", "--rows", "100"]
FILE = "adapter_model.safetensors"


def save_damage(folder: Path, model: Any, std: float = 0.5, **options: Any) -> str:
    """Save a LoRA that does nothing but harm."""
    options = {"target_modules": ["query", "value", "dense"], **options}
    torch.manual_seed(0)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, lora_alpha=4, **options))
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            if "lora_B" in name or "lora_embedding_B" in name:
                value.normal_(std=std)
    adapted.save_pretrained(folder)
    return str(folder)


def test_a_scaled_adapter_is_the_mixture_and_stays_an_adapter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = save_damage(tmp_path / "tuned", AutoModelForMaskedLM.from_pretrained(TINY))
    out = tmp_path / "mended"
    assert main(["mend", "tiny", tuned, *TASKS, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "A merged model (α = 1, largest" in shown
    found = json.loads((out / "mend.json").read_text())
    chosen = found["chosen"]
    assert found["adapter"]
    assert chosen["largest"] == 1.0
    assert chosen["alpha"] < 1 or chosen["groups"]
    assert found["merged"]["largest"] < 1
    assert found["merged"]["changes"].keys() == found["unseen"].keys()
    assert "An adapter of `tiny`" in (out / "README.md").read_text()
    assert not (out / "model.safetensors").exists()
    base = load_base("tiny")
    mixed = load_tuned(tuned, base)
    groups = tuple(chosen["groups"].items())
    Mixer(base, mixed).apply(Mixture(chosen["alpha"], groups))
    again = load_tuned(str(out), base)
    for name, value in mixed.model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_merged_adapter_is_a_whole_model(tmp_path: Path) -> None:
    tuned = save_damage(tmp_path / "tuned", AutoModelForMaskedLM.from_pretrained(TINY))
    out = tmp_path / "mended"
    words = ["mend", "tiny", tuned, *TASKS, "--alpha", "0.1", "--merge", "--force"]
    assert main([*words, "--out", str(out)]) == 0
    assert (out / "model.safetensors").is_file()
    assert not json.loads((out / "mend.json").read_text())["adapter"]


def write(folder: Path, mixture: Mixture, tuned: str, base: Any) -> dict[str, torch.Tensor]:
    model = load_tuned(tuned, base)
    mixer = Mixer(base, model)
    mixer.apply(mixture)
    folder.mkdir()
    write_scaled(tuned, base, mixer, mixture, model, folder)
    return load_file(folder / FILE)


def test_products_are_scaled_by_depth_and_heads_are_kept(tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(TINY, num_labels=2)
    targets = ["query", "word_embeddings"]
    tuned = save_damage(tmp_path / "tuned", model, target_modules=targets, task_type="SEQ_CLS")
    before, base = load_file(Path(tuned) / FILE), load_base("tiny")
    mixture = Mixture(0.5, (("upper layers", 0.25), ("embeddings", 0.0)))
    after = write(tmp_path / "scaled", mixture, tuned, base)
    assert after.keys() == before.keys()
    for key, value in before.items():
        share = 1.0  # the first factors, and the head, which the base model lacks
        if key.endswith(("lora_B.weight", "lora_embedding_B")):
            share = 0.25 if "layer.3" in key else 0.0 if "embeddings" in key else 0.5
        torch.testing.assert_close(after[key], value * share)


def test_adapters_of_other_kinds_are_merged(tmp_path: Path) -> None:
    base = load_base("tiny")
    model = AutoModelForMaskedLM.from_pretrained(TINY)
    dora = save_damage(tmp_path / "dora", model, use_dora=True)
    assert not is_scalable(Path(dora), load_tuned(dora, base))
    model = AutoModelForMaskedLM.from_pretrained(TINY)
    config = peft.IA3Config(target_modules=["query"], feedforward_modules=[])
    peft.get_peft_model(model, config).save_pretrained(tmp_path / "ia3")
    other = str(tmp_path / "ia3")
    assert not is_scalable(Path(other), load_tuned(other, base))
    lora = save_damage(tmp_path / "lora", AutoModelForMaskedLM.from_pretrained(TINY))
    model = load_tuned(lora, base)
    assert is_scalable(Path(lora), model)
    with pytest.raises(ModelError, match="is not the mixture that was scored"):  # but merged whole
        write_scaled(lora, base, Mixer(base, model), Mixture(0.5), model, tmp_path / "dora")

"""The per-example Fisher against a loop of single-example backward passes."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from helpers.checkpoints import COMMON, make_checkpoint
from torch import Tensor, nn

from clbench.core.errors import DataError, PluginError, SettingsError
from clbench.fisher import diagonal, diagonal_fisher, mask_tokens, text_batches
from clbench.fisher.losses import take
from clbench.models.checkpoint import load_tokenizer
from clbench.models.classifier import build_classifier
from clbench.models.encoding import EncodedRows
from clbench.training.batches import Batch, TaskData


def language_model(kind: str, folder: Path) -> tuple[Any, dict[str, Tensor], str]:
    """Return a random model with a head, seven texts of up to nine tokens, and the loss."""
    make_checkpoint(kind, folder)
    causal = kind == "gpt2"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = (hf.AutoModelForCausalLM if causal else hf.AutoModelForMaskedLM).from_pretrained(
            folder
        )
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape))
    tokenizer = load_tokenizer(str(folder))
    rng = torch.Generator().manual_seed(1)
    ids = torch.randint(6, 20, (7, 9), generator=rng)
    mask = torch.ones_like(ids)
    mask[1, 5:] = mask[4, 7:] = 0
    ids[mask == 0] = tokenizer.pad_token_id
    inputs = {"input_ids": ids, "attention_mask": mask}
    if causal:
        return model, inputs, "clm"
    return model, mask_tokens(inputs, tokenizer, rng, share=0.4), "mlm"


def fisher_by_loop(model: Any, batch: dict[str, Tensor], loss: str) -> dict[str, Tensor]:
    """Return the Fisher information by transformers' own loss, example by example, in float64."""
    model.eval().double()
    names = dict(model.named_parameters())
    total = {name: torch.zeros_like(value) for name, value in names.items()}
    for i in range(len(batch["input_ids"])):
        model.zero_grad()
        one = {key: value[i : i + 1] for key, value in batch.items()}
        if loss == "clm":
            one["labels"] = one["input_ids"].masked_fill(one["attention_mask"] == 0, -100)
        model(**one).loss.backward()
        for name, parameter in names.items():
            if parameter.grad is not None:
                total[name] += parameter.grad.square()
    model.zero_grad()
    model.float()
    return {name: value / len(batch["input_ids"]) for name, value in total.items()}


def assert_close(fisher: dict[str, Tensor], exact: dict[str, Tensor]) -> None:
    assert fisher.keys() == exact.keys()
    noise = 1e-12 * max(float(value.max()) for value in exact.values())
    for name, value in exact.items():
        # Relative to the weight's largest: rounding errors of a gradient grow when squared.
        slack = 1e-6 * float(value.max()) + noise
        torch.testing.assert_close(fisher[name].double(), value, rtol=1e-4, atol=slack, msg=name)


@pytest.mark.parametrize("kind", COMMON)
def test_equals_a_loop_of_single_examples(kind: str, tmp_path: Path) -> None:
    model, batch, loss = language_model(kind, tmp_path)
    exact = fisher_by_loop(model, batch, loss)
    first, rest = ({k: v[a:b] for k, v in batch.items()} for a, b in ((0, 3), (3, 7)))
    model.train()
    model.base_model.get_input_embeddings().weight.requires_grad_(False)
    names = list(exact)
    assert_close(diagonal_fisher(model, [first, rest], loss, "empirical", names=names), exact)  # type: ignore[arg-type]
    assert model.training
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    assert len(frozen) == 1
    assert all(parameter.grad is None for parameter in model.parameters())


def test_only_weights_without_a_rule_get_a_pass_per_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow: list[set[str]] = []
    own = diagonal._Sums._try_rules

    def spy(sums: Any, batch: Any) -> Any:
        result = own(sums, batch)
        slow.append(set(sums._slow))
        return result

    monkeypatch.setattr(diagonal._Sums, "_try_rules", spy)
    for kind in ("bert", "gpt2", "albert"):
        model, batch, loss = language_model(kind, tmp_path / kind)
        diagonal_fisher(model, [batch], loss, "empirical")  # type: ignore[arg-type]
        assert slow.pop() == set(), kind
    model, batch, _ = language_model("deberta-v2", tmp_path / "deberta-v2")
    diagonal_fisher(model, [batch], "mlm", "empirical")
    assert any("rel_embeddings" in name for name in slow[0])  # read without being called
    assert not any("output.dense" in name for name in slow[0])


class Odd(nn.Module):
    """A layer called twice, a weight that no layer owns, an embedding read directly."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.twice = nn.Linear(4, 4)
        self.loose = nn.Parameter(torch.randn(4))
        self.norm = nn.LayerNorm(4)
        self.unused = nn.Linear(2, 2)

    def forward(self, ids: Tensor) -> Tensor:
        values = self.twice(torch.tanh(self.twice(self.table(ids)))) * self.loose
        return self.norm(values).mean(1) @ self.table.weight.T


def odd_losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch["ids"]), batch["labels"], reduction="none")


def test_unusual_modules_with_a_custom_loss() -> None:
    torch.manual_seed(0)
    model = Odd()
    batch = {"ids": torch.randint(0, 7, (5, 6)), "labels": torch.randint(0, 7, (5,))}
    fisher = diagonal_fisher(model, [batch], odd_losses, "empirical")
    model.double()
    exact = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for i in range(5):
        one = {key: value[i : i + 1] for key, value in batch.items()}
        gradients = torch.autograd.grad(
            odd_losses(model, one)[0], list(model.parameters()), allow_unused=True
        )
        for total, gradient in zip(exact.values(), gradients, strict=True):
            if gradient is not None:
                total += gradient.square() / 5
    assert_close(fisher, exact)
    assert float(fisher["unused.weight"].max()) == 0.0
    assert float(fisher["loose"].max()) > 0.0
    with pytest.raises(SettingsError, match="mode='empirical'"):
        diagonal_fisher(model.float(), [batch], odd_losses)
    with pytest.raises(PluginError, match="one loss for each example"):
        diagonal_fisher(model, [batch], lambda m, b: odd_losses(m, b).mean(), "empirical")


@pytest.fixture
def classifier(tmp_path: Path) -> tuple[Any, Any]:
    make_checkpoint("bert", tmp_path)
    model = build_classifier(str(tmp_path), heads={"t": 2}, head_seed=lambda _: 0)
    ids = np.random.default_rng(0).integers(5, 20, 36).astype(np.int32)
    offsets = np.asarray([0, 4, 10, 18, 23, 29, 36])
    rows = EncodedRows(ids, None, offsets, np.asarray([0, 0, 1, 1, 1, 0]))
    data = TaskData(0, "t", "t", False, rows, 0)
    return model, data.batch(np.arange(6), torch.device("cpu"))


def gradients_of(model: Any, loss: Tensor) -> list[Tensor]:
    return [
        torch.zeros_like(p) if g is None else g.detach()
        for p, g in zip(
            model.parameters(),
            torch.autograd.grad(loss, list(model.parameters()), allow_unused=True),
            strict=True,
        )
    ]


def test_sampled_converges_to_the_sum_over_labels(classifier: tuple[Any, Any]) -> None:
    model, batch = classifier
    model.eval()
    exact = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(len(batch)):
        one = {key: value[i : i + 1] for key, value in batch.inputs.items()}
        for label in range(2):
            logs = torch.log_softmax(model(one, "t"), -1)[0]
            weight = float(logs[label].detach().exp()) / len(batch)
            for total, gradient in zip(exact, gradients_of(model, -logs[label]), strict=True):
                total += weight * gradient.square()

    def error(draws: int) -> float:
        repeated = take(batch, list(range(len(batch))) * draws)
        fisher = diagonal_fisher(model, [repeated], "task", "sampled", seed=3)
        off = sum(float((f - e).abs().sum()) for f, e in zip(fisher.values(), exact, strict=True))
        return off / sum(float(e.sum()) for e in exact)

    few, many = error(4), error(400)
    assert many < 0.05
    assert many < few


def test_batched_is_the_square_of_the_mean_gradient(classifier: tuple[Any, Any]) -> None:
    model, batch = classifier
    model.eval()
    loss = nn.functional.cross_entropy(model(batch.inputs, "t"), batch.labels)
    fisher = diagonal_fisher(model, [batch, batch], "task", "batched")
    for value, gradient in zip(fisher.values(), gradients_of(model, loss), strict=True):
        torch.testing.assert_close(value, gradient.square(), rtol=1e-4, atol=1e-9)


def test_fisher_depends_on_the_seed_and_covers_the_names(classifier: tuple[Any, Any]) -> None:
    model, batch = classifier
    names = ["heads.t.weight", "backbone.encoder.layer.1.output.LayerNorm.bias"]
    first = diagonal_fisher(model, [batch], "task", seed=1, names=names)
    again = diagonal_fisher(model, [batch], "task", seed=1, names=names)
    other = diagonal_fisher(model, [batch], "task", seed=5, names=names)
    assert list(first) == names
    assert all(torch.equal(first[name], again[name]) for name in names)
    assert any(not torch.equal(first[name], other[name]) for name in names)


def test_errors_name_what_is_wrong(classifier: tuple[Any, Any], tmp_path: Path) -> None:
    model, batch = classifier
    with pytest.raises(SettingsError, match=r"mode: must be 'sampled', .*got 'exact'"):
        diagonal_fisher(model, [batch], "task", "exact")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"loss: must be .*got 'nsp'"):
        diagonal_fisher(model, [batch], "nsp")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no batch"):
        diagonal_fisher(model, [], "task")
    chosen: list[tuple[Any, str]] = [
        (["x"], "no weight 'x'"),
        (["heads.t.wieght"], "Did you mean 'heads.t.weight'"),
        ([], r"names is \[\]"),
        ("heads.t.weight", "names is 'heads.t.weight'. Give a list"),
    ]
    for names, message in chosen:
        with pytest.raises(PluginError, match=message):
            diagonal_fisher(model, [batch], "task", names=names)
    ids = torch.zeros(1, 2, dtype=torch.long)
    with pytest.raises(DataError, match="mask_tokens"):
        diagonal_fisher(model, [{"input_ids": ids}], "mlm")
    wrong: list[tuple[Any, str]] = [
        ({"input_ids": ids, "labels": ids}, r"such as \[batch\]"),
        ([(ids, ids)], "batch 1 must be a dictionary .* not a tuple"),
        ([{"input_ids": ids, "labels": [[1, 2]]}], "batch 1 .* rows are .*'labels': None"),
        ([{"input_ids": ids, "labels": ids[:, 0]}], "a label for each token"),
        ([{"input_ids": ids, "labels": torch.zeros(3, 2)}], "'input_ids': 1, 'labels': 3"),
        ([{"input_ids": ids[:0], "labels": ids[:0]}], "'input_ids': 0"),
    ]
    for batches, message in wrong:
        with pytest.raises(DataError, match=message):
            diagonal_fisher(model, batches, "mlm")
    with pytest.raises(SettingsError, match="batches: must be iterable, got nothing"):
        diagonal_fisher(model, None, "mlm")  # type: ignore[arg-type]
    language, texts, _ = language_model("bert", tmp_path / "language")
    with pytest.raises(DataError, match=r"shape \(9,\), outputs \(9, .* use loss='mlm'"):
        diagonal_fisher(language, [texts], "task")
    twice = "cls.predictions.decoder.weight"
    with pytest.raises(PluginError, match=r"same tensor as 'bert\.embeddings\.word_emb"):
        diagonal_fisher(language, [texts], "mlm", names=[twice])
    with pytest.raises(SettingsError, match="precision: must be"):
        diagonal_fisher(model, [batch], "task", precision="fp16")  # type: ignore[arg-type]
    with pytest.raises(PluginError, match="not float"):
        diagonal_fisher(model, [batch], lambda m, b: 0.5, "empirical")  # type: ignore[arg-type]
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(PluginError, match="not finite numbers"):
        diagonal_fisher(model, [batch], "task")


def test_masks_follow_bert_or_cover_any_position(tmp_path: Path) -> None:
    make_checkpoint("bert", tmp_path)
    tokenizer = load_tokenizer(str(tmp_path))
    words = [w for w in tokenizer.get_vocab() if w not in tokenizer.all_special_tokens][:12]
    texts = [" ".join(words[i % 12] for i in range(n)) for n in (1, 5, 20, 33)]
    batches = list(
        text_batches(texts, tokenizer, max_length=30, generator=torch.Generator().manual_seed(0))
    )
    assert len(batches) == 1
    chosen = batches[0]["labels"] != -100
    assert chosen.sum(1).tolist() == [1, 1, 3, 4]  # 15 % of 1, 5, 20 and 28 real tokens
    special = torch.tensor(tokenizer.all_special_ids)
    assert not torch.isin(batches[0]["labels"][chosen], special).any()
    assert not chosen[batches[0]["attention_mask"] == 0].any()
    rng = torch.Generator().manual_seed(0)
    ids = torch.full((40, 30), tokenizer.convert_tokens_to_ids(words[3]))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    bert = mask_tokens(inputs, tokenizer, rng, share=0.5)
    fate = bert["input_ids"][bert["labels"] != -100]
    assert float((fate == tokenizer.mask_token_id).float().mean()) == pytest.approx(0.8, abs=0.06)
    inputs["attention_mask"][:, 10:] = 0
    anywhere = mask_tokens(inputs, tokenizer, rng, masking="any-position")
    assert (anywhere["labels"][:, 10:] != -100).any()
    masked = anywhere["labels"] != -100
    assert (anywhere["input_ids"][masked] == tokenizer.mask_token_id).all()


@pytest.mark.parametrize("mode", ["sampled", "batched"])
def test_memory_does_not_grow_with_the_batches(classifier: tuple[Any, Batch], mode: Any) -> None:
    """Two batches may exist, as one is held while the next is made."""
    model, batch = classifier
    made: list[weakref.ref[Tensor]] = []
    numbers: list[int] = []

    def batches() -> Iterator[Batch]:
        for _ in range(6):
            gc.collect()
            assert sum(ids() is not None for ids in made) <= 2
            numbers.append(sum(x.numel() for x in gc.get_objects() if type(x) is Tensor))
            new = copy.deepcopy(batch)
            made.append(weakref.ref(new.inputs["input_ids"]))
            yield new

    diagonal_fisher(model, batches(), "task", mode)
    assert len(numbers) == 6
    assert numbers[5] <= numbers[2]


def test_bf16_is_close_to_float32(classifier: tuple[Any, Any]) -> None:
    model, batch = classifier
    exact = diagonal_fisher(model, [batch], "task", "empirical")
    near = diagonal_fisher(model, [batch], "task", "empirical", precision="bf16")
    off = sum(float((near[name] - value).abs().sum()) for name, value in exact.items())
    assert 0 < off < 0.1 * sum(float(value.sum()) for value in exact.values())

"""What a language model loses, measured before and after every stage."""

from __future__ import annotations

import json
import pickle
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import save_generator
from helpers.general_rows import write_hub
from helpers.language_models import SUITE, cell, run

from clbench.audit.ability import Asked, answer
from clbench.audit.models import load_base
from clbench.core.errors import ClbenchError, DataError
from clbench.core.seeds import numpy_stream
from clbench.measure.capabilities import (
    PLACES,
    Capabilities,
    CapabilityData,
    check_not_trained,
)
from clbench.measure.rows import RowScorer
from clbench.measure.writer import Writer
from clbench.models.answering import AnsweringModel, build_answering_model
from clbench.models.checkpoint import load_tokenizer
from clbench.tasks.general import GENERAL
from clbench.tasks.registry import task_identity
from clbench.tasks.task import Rows, Task
from clbench.training.context import Context
from clbench.training.device import Precision
from clbench.training.protocol import Protocol

TEXTS = [
    "the old film was very dull and not so good",
    "a bright story is told in a new and short plot",
    "nobody heard of it before the long film was seen",
    "it was bad and it was old and it was long",
    "a film",
]


@pytest.fixture
def capabilities(tmp_path: Path) -> Capabilities:
    model_folder = save_generator("llama", tmp_path / "model")
    tokenizer = load_tokenizer(str(model_folder), plain=True)
    data = CapabilityData.of(TEXTS, [], tokenizer, seed=0)
    context = Context(
        build_answering_model(str(model_folder)),
        str(model_folder),
        None,
        Protocol(head="language-model"),
        torch.device("cpu"),
        Precision("float32", "cpu"),
        *(0, "s", 1, None),
    )
    return Capabilities(
        data, context, [], Writer(tokenizer, (1,), 4, "likelihood"), lambda task: nullcontext()
    )


def distributions(capabilities: Capabilities) -> list[torch.Tensor]:
    """Return the next-token log-probabilities of every text, without batch or padding."""
    model, tokenizer = capabilities.context.model, capabilities.data.tokenizer
    assert isinstance(model, AnsweringModel)
    results = []
    with torch.no_grad():
        for text in TEXTS:
            ids = torch.tensor([tokenizer(text)["input_ids"][:64]])
            results.append(model.backbone(input_ids=ids).logits[0].double().log_softmax(-1))
    return results


def test_loss_divergence_and_agreement_are_those_of_plain_passes(
    capabilities: Capabilities,
) -> None:
    tokenizer = capabilities.data.tokenizer
    first = capabilities.measure(1)
    base = distributions(capabilities)
    assert (first["divergence"], first["same_token"]) == (0.0, 1.0)
    losses = [
        -rows[at, token]
        for rows, text in zip(base, TEXTS, strict=True)
        for at, token in enumerate(tokenizer(text)["input_ids"][1:])
    ]
    assert first["text_loss"] == pytest.approx(float(torch.stack(losses).mean()), abs=1e-5)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in capabilities.context.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    second = capabilities.measure(1)
    draws = numpy_stream("capability places", 0).random((len(TEXTS), PLACES))
    gaps, agree = [], []
    for old, new, draw in zip(base, distributions(capabilities), draws, strict=True):
        places = (draw * (len(old) - 1)).astype(int)
        gaps.append((old[places].exp() * (old[places] - new[places])).sum(-1))
        agree.append(old[places].argmax(-1) == new[places].argmax(-1))
    assert second["divergence"] == pytest.approx(float(torch.cat(gaps).mean()), rel=5e-3)
    assert second["same_token"] == pytest.approx(float(torch.cat(agree).double().mean()))
    assert second["divergence"] > 0.01


def test_no_float64_is_put_on_the_device(
    capabilities: Capabilities, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[torch.dtype] = []
    original = torch.Tensor.to

    def to(tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        moved.append(tensor.dtype)
        return original(tensor, *args, **options)

    monkeypatch.setattr(torch.Tensor, "to", to)
    capabilities.measure(1)
    assert torch.int64 in moved
    assert torch.float64 not in moved  # MPS has none


def test_a_true_continuation_is_told_from_those_of_other_texts(capabilities: Capabilities) -> None:
    data = capabilities.data
    assert data.prompts == tuple(" ".join(t.split()[: len(t.split()) // 2]) for t in TEXTS[:4])
    for prompt, choices, right in zip(data.prompts, data.continuations, data.right, strict=True):
        assert len(set(choices)) == 4
        assert prompt + choices[right] in TEXTS
    assert capabilities.measure(1)["zero_shot"] in (0.0, 0.25, 0.5, 0.75, 1.0)
    with pytest.raises(
        DataError, match="4 held-out texts of 8 words or more; only 1 of the 1 texts"
    ):
        CapabilityData.of(TEXTS[:1], [], data.tokenizer, seed=0)


def test_a_task_that_is_trained_is_no_capability() -> None:
    rows = Rows.of(["a", "b"], None, [0, 1])
    part = Task("mood[long]", ("n", "p"), ("accuracy",), rows, rows, head="mood")
    with pytest.raises(DataError, match="the scenario trains 'mood'"):
        check_not_trained(["mood"], [part])
    check_not_trained(["thing"], [part])
    reading = replace(part, name="super_glue/boolq")
    with pytest.raises(DataError, match="the scenario trains 'super_glue/boolq'"):
        check_not_trained(["boolq"], [reading])
    with pytest.raises(DataError, match="'copa' and 'super_glue/copa' have the same rows"):
        check_not_trained(["super_glue/copa", "copa"], [reading])


CHANGES = {"curve_rows = 10": "curve_rows = 10\ncapability_rows = 30", "epochs = 10": "epochs = 4"}


def corpus(folder: Path) -> str:
    words = ["good", "bad", "film", "story", "was", "is", "the", "a", "of", "it", "and", "very"]
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(words, 10)) for _ in range(400)]
    (folder / "corpus.txt").write_text("\n".join(lines) + "\n")
    return str(folder / "corpus.txt")


def test_a_run_keeps_the_measures_of_every_stage(folder: Path) -> None:
    options: dict[str, Any] = {"corpus": corpus(folder)}
    result = cell(run(folder, "measured", changes=CHANGES, **options))
    assert all(m.keys() >= {"text_loss", "zero_shot", "obedience"} for m in result.capabilities)
    assert len(result.capabilities) == 3
    before, *_, after = result.capabilities
    frame = run(folder, "measured", changes=CHANGES, **options).frame
    assert frame["text_loss_added"][0] == pytest.approx(after["text_loss"] - before["text_loss"])
    assert frame["zero_shot_lost"][0] == pytest.approx(before["zero_shot"] - after["zero_shot"])
    final = np.mean(result.R[-1])
    assert frame["gained"][0] == pytest.approx(final - before["average"])
    assert frame["zero_shot_transfer"][0] == result.capabilities[1]["ahead"]
    assert ["ahead" in measures for measures in result.capabilities] == [False, True, False]
    assert 0.1 < before["average"] < 0.9 < final
    assert after["divergence"] > 0
    assert after["obedience"] > before["obedience"]


def test_cells_share_the_measures_of_the_base_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    measure = Capabilities.measure

    def counted(self: Capabilities, tasks: int) -> dict[str, float]:
        measured.append(tasks)
        return measure(self, tasks)

    monkeypatch.setattr(Capabilities, "measure", counted)
    options: dict[str, Any] = {"corpus": corpus(folder)}
    both = run(folder, "shared", changes=CHANGES, seeds=[0, 1], **options).cells
    assert measured == [1, 1, 2, 1, 2]  # the base model, and two stages of each cell
    alone = cell(run(folder, "alone", changes=CHANGES, seeds=[1], **options))
    assert both[1].capabilities == alone.capabilities
    assert both[0].capabilities[0] == both[1].capabilities[0]
    assert both[0].capabilities[1]["divergence"] != both[1].capabilities[1]["divergence"]


def test_a_copy_of_the_data_as_workers_get_it_is_not_measured_again(
    capabilities: Capabilities,
) -> None:
    calls: list[CapabilityData] = []

    def measured(data: CapabilityData) -> dict[str, float]:
        def scores() -> tuple[list[float], float]:
            calls.append(data)
            return [0.5], 0.5

        return replace(capabilities, data=data, _base=[]).of_base(scores)[0]

    own = capabilities.data
    found = [measured(data) for data in (own, pickle.loads(pickle.dumps(own)))]
    assert calls == [own]
    assert found[0] == found[1]
    measured(CapabilityData.of(TEXTS, [], own.tokenizer, seed=1))
    assert len(calls) == 2


def test_general_tasks_are_answered_as_in_an_audit(folder: Path) -> None:
    hub = write_hub(folder / "hub", "super_glue", "mmlu", "IFEval", times=3)
    names = ["mmlu", "copa", "ifeval"]
    asks = f"max_length = 24\ncapability_tasks = {json.dumps(names)}"
    changes = {**CHANGES, "max_length = 24": asks}
    result = cell(run(folder, "general", changes=changes, corpus=corpus(folder), data=hub))
    base, device = load_base(str(folder / "model")), torch.device("cpu")
    for name in names:
        questions = GENERAL[name].questions(hub, 30, 0)
        asked = Asked(GENERAL[name], questions, frozenset(), load_tokenizer(base.name, plain=True))
        right = answer(base, asked, device).right.mean()
        assert result.capabilities[0][f"zero_shot: {name}"] == right
    before = result.capabilities[0]
    parts = [value for name, value in before.items() if name.startswith("zero_shot: ")]
    assert len(parts) == 4
    assert before["zero_shot"] == pytest.approx(np.mean(parts))
    rows = {name: identity for name, (identity, _) in result.recipe["capability_tasks"].items()}
    own = {"data": hub, "base": folder, "own": {}}
    assert rows == {name: task_identity(name, **own) for name in names}  # as verified later


def test_a_task_whose_answers_the_tokenizer_cannot_end_is_refused_before_training(
    folder: Path,
) -> None:
    hub = write_hub(folder / "arithmetic", "gsm8k", times=5)
    changes = {**CHANGES, "max_length = 24": 'max_length = 24\ncapability_tasks = ["gsm8k"]'}
    with pytest.raises(ClbenchError, match="task 'gsm8k' cannot be asked: the tokenizer does not"):
        run(folder, "unended", changes=changes, corpus=corpus(folder), data=hub)


def test_a_later_task_is_measured_among_the_classes_that_a_growing_head_then_has(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, dict[str, int], float]] = []

    def main_score(self: RowScorer, task: int) -> float:
        score = plain(self, task)
        calls.append((task, self.context.model.shown, score))
        return score

    plain = RowScorer.main_score
    monkeypatch.setattr(RowScorer, "main_score", main_score)
    steps = (
        '[[scenario]]\nname = "steps"\nshift = "class-incremental"\ntasks = ["mood", "thing"]\n'
        'classes = [["up", "down"], ["film", "story"]]\n\n[[scenario]]\nname = "write"'
    )
    changes = {**CHANGES, '[[scenario]]\nname = "write"': steps}
    options: dict[str, Any] = {"scenarios": ["steps"], "corpus": corpus(folder)}
    result = cell(run(folder, "growing", changes=changes, **options))
    assert [task for task, *_ in calls] == [0, 1, 0, 1, 1]
    first, both = {"shared": 2}, {"shared": 4}
    assert [shown for _, shown, _ in calls] == [first, both, {}, {}, both]
    scores = [score for *_, score in calls]
    before, middle, _ = result.capabilities
    assert before["average"] == np.mean(scores[2:4])
    assert result.untrained == scores[:2]
    assert scores[0] > scores[2]  # a choice of two is easier than one of four
    assert middle["ahead"] == scores[4] - scores[1]
    assert "told" in result.metrics[0][0]


@pytest.mark.parametrize("key", ["capability_rows", "kl_rows"])
def test_measures_need_a_language_model(folder: Path, key: str) -> None:
    text = SUITE.replace('head = "language-model"\n', "").replace("answer_length = 8", f"{key} = 9")
    (folder / "classes.toml").write_text(text)
    import clbench

    place, words = r"line \d+, column 1: \[protocol\]", "needs head = 'language-model'"
    with pytest.raises(ClbenchError, match=f"{place} {key} {words}"):
        clbench.run(folder / "classes.toml", out=folder / "classes", scenarios=["two"])


def test_encoder_decoders_are_not_measured(folder: Path) -> None:
    save_generator("t5", folder / "t5-measured", appends_end=True)
    changes = {**CHANGES, 'model = "model"': 'model = "t5-measured"'}
    with pytest.raises(
        ClbenchError, match="capability_rows needs a decoder, but this is an encoder-decoder"
    ):
        run(folder, "t5-bad", changes={**changes, "max_length = 24": "max_length = 80"})

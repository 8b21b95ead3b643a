"""Details of measure that no other test notices."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import make_checkpoint
from helpers.language_models import cell, run
from measure.test_capabilities import CHANGES, TEXTS, corpus, distributions
from measure.test_capabilities import capabilities as capabilities
from measure.test_divergence import divergence as divergence
from measure.test_divergence import move
from measure.test_pretraining_scorer import CPU, PRECISION, scored
from measure.test_relearning import ASKED

from clbench.core.seeds import numpy_stream
from clbench.measure import capabilities as module
from clbench.measure import relearning
from clbench.measure.capabilities import PLACES, Capabilities, CapabilityData
from clbench.measure.divergence import Divergence
from clbench.models.prompts import PromptEncoder
from clbench.tasks.task import Rows, Task
from clbench.training.batches import TaskData


def answers(data: Any) -> list[list[int]]:
    return [row[row >= 0].tolist() for row in data.rows.answers]


def test_the_base_models_answers_are_its_own(divergence: Divergence) -> None:
    """They are drawn when the task is first measured, after it was trained."""
    move(divergence.context.model)
    divergence.measure(0)
    drawn = answers(divergence._drawn[0])
    assert drawn == answers(divergence._draw(divergence._base, 0, "base"))
    assert drawn != answers(divergence._draw(divergence._model, 0, "base"))


def test_each_seed_draws_other_answers(divergence: Divergence) -> None:
    move(divergence.context.model)
    first = divergence.measure(0)
    other = replace(divergence, context=replace(divergence.context, seed=1), _drawn={})
    other._base = divergence._base
    assert {n: v == first[n] for n, v in other.measure(0).items()} == {
        name: not name.endswith(("_base", "_own")) for name in first
    }


def test_a_task_is_measured_with_the_weights_that_the_method_has_for_it(
    divergence: Divergence,
) -> None:
    seen: list[int] = []
    divergence.scoring = lambda task: seen.append(task) or nullcontext()  # type: ignore
    divergence.gold = [divergence.gold[0], replace(divergence.gold[0], task=1)]
    divergence.measure(1)
    assert seen == [1]


def relearned(
    folder: Path, name: str, own: str, scores: list[float], monkeypatch: pytest.MonkeyPatch,
    seed: int = 0,
) -> tuple[dict[str, Any], list[Any]]:  # fmt: skip
    """Return what relearning finds if the model scores `scores`, and its trainings."""
    left, trained = iter(scores), []
    scorer = SimpleNamespace(main_score=lambda task: next(left))
    monkeypatch.setattr(relearning, "RowScorer", lambda *_: scorer)

    def training(stage: Any, method: Any) -> Any:
        rows = stage.data.rows
        ids = {tuple(part) for part in np.split(rows.ids, rows.offsets[1:-1])}
        weights = [value.detach().clone() for value in stage.model.parameters()]
        trained.append((stage.protocol.lr, stage.own_steps, ids, weights))
        with torch.no_grad():
            for value in stage.model.parameters():
                value.add_(1.0)
        return SimpleNamespace(steps=stage.own_steps)

    monkeypatch.setattr(relearning, "train_stage", training)
    changes = {**ASKED, "relearn_rows = 20": f"relearn_rows = 20\n{own}"}
    return cell(run(folder, name, changes=changes, seeds=[seed])).relearning, trained


def test_a_lost_task_is_relearned_on_ever_more_rows(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "relearn_margin = 0.1\nrelearn_rate = 0.25\nrelearn_steps = 3"
    found, trained = relearned(folder, "rl", own, [0.5, 0.6, 0.95, 1.0], monkeypatch)
    assert found == {
        "rows": [0, 8, 16], "steps": [0, 3, 3], "scores": [0.5, 0.6, 0.95],
        "recovered": True, "needed": 16,
    }  # fmt: skip
    (lr, _, first, start), (again, _, second, restart) = trained
    plain = cell(run(folder, "rl-plain", changes=ASKED)).settings["protocol"]["lr"]
    assert lr == again == pytest.approx(0.25 * plain)
    assert first < second
    assert all(map(torch.equal, start, restart))
    _, other = relearned(folder, "rl-1", own, [0.5, 0.6, 0.95], monkeypatch, seed=1)
    assert other[0][2] == first  # the rows are the same for all cells


def test_what_does_not_come_back_is_tried_on_all_rows(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = relearned(folder, "rl-all", "relearn_margin = 0.1", [0.5] * 4, monkeypatch)
    assert (found["rows"], found["recovered"]) == ([0, 8, 16, 20], False)
    assert "needed" not in found
    own = "relearn_margin = -1.0"
    found, _ = relearned(folder, "rl-more", own, [0.5, 0.99, 1.0, 0.2], monkeypatch)
    assert (found["rows"], found["needed"]) == ([0, 8, 16, 20], 16)


def test_choices_are_ranked_by_their_mean_log_probability_of_a_word(
    capabilities: Capabilities, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right end of the last text has six words, the others have five."""
    data = capabilities.data
    words = np.array([[len(text.split()) for text in row] for row in data.continuations])
    assert words[3, data.right[3]] == 6
    scores = -2.1 * words
    for i, right in enumerate(data.right):
        scores[i, right] = -(2.2 if i == 0 else 2.0) * words[i, right]  # the first one is missed
    monkeypatch.setattr(module, "likelihood", lambda *_: scores)
    outputs = np.array([[2.0, 1.0], [0.0, 1.0], [3.0, 1.0]])
    task: Any = SimpleNamespace(name="own", rows=SimpleNamespace(labels=np.array([0, 1, 1])))
    context: Any = SimpleNamespace(outputs=lambda task: outputs, model=capabilities.context.model)
    capabilities = replace(capabilities, data=replace(data, tasks=(task,)), context=context)
    found = capabilities._zero_shot(context.model)
    assert found == {"continuation": 0.75, "own": pytest.approx(2 / 3)}


def test_the_divergence_is_from_the_base_model(capabilities: Capabilities) -> None:
    capabilities.measure(1)
    base = distributions(capabilities)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in capabilities.context.model.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))
    draws = numpy_stream("capability places", 0).random((len(TEXTS), PLACES))
    gaps = []
    for old, new, draw in zip(base, distributions(capabilities), draws, strict=True):
        at = (draw * (len(old) - 1)).astype(int)
        gap = old[at] - new[at]
        gaps.append(torch.stack([(old[at].exp() * gap).sum(-1), -(new[at].exp() * gap).sum(-1)]))
    forward, reverse = torch.cat(gaps, 1).mean(1).tolist()
    assert abs(forward - reverse) > 0.1 * forward
    assert capabilities.measure(1)["divergence"] == pytest.approx(forward, rel=1e-2)


def test_a_few_answers_to_each_task_are_checked_with_its_own_weights(
    capabilities: Capabilities,
) -> None:
    rows = Rows.of(["one", "two", "three", "four"], None, [0, 1, 0, 1])
    task = Task("mood", ("good new", "bad"), ("accuracy",), rows, rows, head="mood")
    encoded = PromptEncoder(capabilities.data.tokenizer, 24).encode(task, rows, to_train=False)
    seen: list[Any] = []

    def texts(context: Any, data: TaskData) -> list[str]:
        seen.append(len(data.rows))
        return ["bad", "good new", "good"][: len(data.rows)]

    capabilities.writer = SimpleNamespace(texts=texts)  # type: ignore[assignment]
    capabilities.scoring = lambda task: seen.append(f"task {task}") or nullcontext()  # type: ignore
    capabilities.scored = [TaskData(j, "mood", "mood", False, encoded, 0) for j in range(3)]
    protocol = capabilities.context.protocol.model_copy(update={"capability_rows": 3})
    capabilities.context = replace(capabilities.context, protocol=protocol)
    found = capabilities._obedience(2, is_base=False)
    assert found == {"obedience": pytest.approx(2 / 3)}
    assert seen == ["task 0", 3, "task 1", 3]
    seen.clear()
    capabilities._obedience(1, is_base=True)
    assert seen == [3]


def test_the_right_choice_may_stand_anywhere(capabilities: Capabilities) -> None:
    words = " ".join("abcdefghij")
    texts = [f"{number} {words} {number}" for number in range(40)]
    found = CapabilityData.of(texts, [], capabilities.data.tokenizer, seed=0)
    assert {*found.right} == {0, 1, 2, 3}
    assert CapabilityData.of(texts, [], capabilities.data.tokenizer, seed=1).right != found.right


def test_what_is_measured_on_scored_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TaskData] = []
    own = CapabilityData.of.__func__  # type: ignore[attr-defined]

    def of(cls: Any, texts: Any, tasks: Any, *others: Any) -> Any:
        asked.extend(tasks)
        return own(cls, texts, tasks, *others)

    monkeypatch.setattr(CapabilityData, "of", classmethod(of))
    asked_of = {"max_length = 24": 'max_length = 24\ncapability_tasks = ["thing"]'}
    changes = {n: own for n, own in {**CHANGES, **asked_of}.items() if n != "epochs = 4"}
    options: dict[str, Any] = {"corpus": corpus(folder), "scenarios": ["write"]}
    cell(run(folder, "held", changes={**changes, "epochs = 10": "epochs = 1"}, **options))
    (data,) = asked
    from clbench.models.checkpoint import load_tokenizer

    tokenizer = load_tokenizer(str(folder / "model"), plain=True)
    rows = data.rows
    texts = tokenizer.batch_decode(np.split(rows.ids, rows.offsets[1:-1]), skip_special_tokens=True)
    held, trained = (
        {line.rpartition(",")[0].strip('"') for line in (folder / f).read_text().splitlines()[1:]}
        for f in ("thing-dev.csv", "thing.csv")
    )
    found = [text.removesuffix(" of").strip() for text in texts]
    assert {*found} <= held
    assert not {*found} <= trained


def test_probes_read_the_weights_of_their_task_and_all_tasks_so_far() -> None:
    from contextlib import contextmanager

    from clbench.measure.rows import LinearProbes

    now: list[int] = []
    seen: list[tuple[str, tuple[int, ...]]] = []

    @contextmanager
    def scoring(task: int) -> Any:
        now.append(task)
        yield
        now.pop()

    x = np.array([[-1.0], [-2.0], [1.0], [2.0]], np.float32)

    def rows(name: str, *labels: int) -> Any:
        return SimpleNamespace(
            name=name, rows=SimpleNamespace(labels=np.array(labels), groups=None)
        )

    one: Any = SimpleNamespace(
        free_text=False, train=SimpleNamespace(choices=0), head="a", regression=False, outputs=2,
        metrics=("accuracy",),
    )  # fmt: skip
    scenario: Any = SimpleNamespace(
        scenario=SimpleNamespace(tasks=[one, one]), scorers=(),
        probed=[rows("p0", 0, 0, 1, 1), rows("p1", 1, 1, 0, 0)],
        scored=[rows("s0", 0, 0, 1, 1), rows("s1", 1, 1, 0, 0)],
    )  # fmt: skip
    context: Any = SimpleNamespace(features=lambda data: seen.append((data.name, tuple(now))) or x)
    probes = LinearProbes(scenario, SimpleNamespace(scoring=scoring), context)  # type: ignore
    assert probes.row(0) == [1.0, 0.5]  # that of the second task contradicts the first
    assert seen == [("p0", (0,)), ("s0", (0,)), ("p1", ()), ("s1", ())]
    seen.clear()
    assert probes.row(1) == [0.5, 0.5]
    assert {*seen} == {("p0", (0,)), ("p1", (1,)), ("s0", (0,)), ("s1", (1,))}


def test_padding_is_no_hit_and_the_most_frequent_token_is_told(tmp_path: Path) -> None:
    from transformers import BertForMaskedLM

    folder = make_checkpoint("bert", tmp_path / "bert")
    BertForMaskedLM.from_pretrained(folder).save_pretrained(folder)
    texts = (*tuple(" ".join(["film"] * n) for n in (5, 40, 60)), "good story")
    scorer, backbone = scored(str(folder), texts)
    labels = torch.cat([batch["labels"][batch["labels"] != -100] for batch in scorer._batches])
    share = int(labels.bincount().max()) / len(labels)
    assert f"(always the most frequent token: {share:.3f})" in scorer.describe()
    assert 1 / len(labels.unique()) < share
    with torch.no_grad():
        scorer._task.language.model.cls.predictions.bias[0] = 1e4  # always the padding token
    found = scorer.score(backbone, precision=PRECISION, device=CPU)
    assert 0 not in labels
    assert found["accuracy"] == 0.0

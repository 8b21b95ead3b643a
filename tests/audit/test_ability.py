"""General tasks: what a language model answers, and what it scores."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import config
from helpers.checkpoints import save_generator
from helpers.general_rows import write_hub
from scipy.stats import norm
from tokenizers.processors import TemplateProcessing
from torch.nn.functional import cross_entropy

from clbench.audit import ability
from clbench.audit.ability import Answers, Asked
from clbench.audit.changes import mean_change
from clbench.audit.comparison import compare
from clbench.audit.items import DEFAULT_TASKS, default_tasks
from clbench.audit.material import Material
from clbench.audit.models import AuditedModel, load_base
from clbench.audit.relearn import general_lesson, trained
from clbench.audit.settings import AuditSettings
from clbench.core.errors import (
    ClbenchError,
    DataError,
    SettingsError,
    UnknownNameError,
)
from clbench.measure import questions
from clbench.models.answering import AnsweringModel
from clbench.models.checkpoint import load_tokenizer
from clbench.tasks.general import GENERAL, GeneralTask, Question

CPU = torch.device("cpu")
TOKENIZER = load_tokenizer("tiny-gpt", plain=True)


@pytest.fixture(scope="module")
def model() -> AuditedModel:
    return load_base("tiny-gpt")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hub(tmp_path_factory.mktemp("hub"), times=25)


def asked(name: str, hub: Path, count: int = 2, wordings: int = 1) -> Asked:
    questions = GENERAL[name].questions(hub, count, 0)
    return Asked(GENERAL[name], questions, frozenset(), TOKENIZER, wordings)


def log_probability(model: AuditedModel, prompt: str, answer: str) -> float:
    """Return that of an answer behind a prompt, in one plain pass."""
    start = TOKENIZER(prompt)["input_ids"]
    end = TOKENIZER(answer)["input_ids"]
    with torch.inference_mode():
        logits = model.model(torch.tensor([start + end])).logits[0].log_softmax(-1)
    return sum(float(logits[len(start) + i - 1, token]) for i, token in enumerate(end))


@pytest.mark.parametrize(
    "name", [name for name, task in GENERAL.items() if task.choices and name != "mmlu"]
)
def test_choices_are_ranked_by_the_likelihood_behind_their_prompt(
    name: str, model: AuditedModel, hub: Path
) -> None:
    one = asked(name, hub)
    found = ability.answer(model, one, CPU)
    for i, question in enumerate(one.questions):
        prompts = question.prompts[0]
        pairs = [(p, a) for p in prompts for a in question.answers]
        plain = np.array([log_probability(model, *pair) for pair in pairs])
        shares = np.exp(plain) / np.exp(plain).sum()
        np.testing.assert_allclose(found.shares[i], shares, atol=2e-4)
        sizes = [len(c) for c in question.choices] if one.task.by_length else 1
        best = int((plain / sizes).argmax())
        assert found.said[i] == question.choices[best]
        assert found.right[i] == (best == question.right)


def test_texts_are_written_greedily_up_to_a_stop(model: AuditedModel, hub: Path) -> None:
    one = asked("gsm8k", hub)
    task = replace(one.task, length=12, stops=("the",))
    texts = questions._write((model.model, TOKENIZER), ["The man", "A dog and"], task)
    for prompt, text in zip(["The man", "A dog and"], texts, strict=True):
        ids = TOKENIZER(prompt)["input_ids"]
        start = len(ids)
        for _ in range(12):
            with torch.inference_mode():
                ids.append(int(model.model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == TOKENIZER.eos_token_id:
                break
        plain = TOKENIZER.decode(ids[start:], skip_special_tokens=True)
        assert text == plain.partition("the")[0]


def test_texts_do_not_follow_an_end_token(model: AuditedModel) -> None:
    task, prompts = replace(GENERAL["gsm8k"], length=8, stops=()), ["The man", "A dog and"]
    ending = load_tokenizer("tiny-gpt", plain=True)
    end = ending.eos_token, ending.eos_token_id
    ending.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {end[0]}", special_tokens=[end]
    )
    one, other = (questions._write((model.model, t), prompts, task) for t in (TOKENIZER, ending))
    assert one == other


def test_prompts_lose_their_beginning_if_they_are_too_long(model: AuditedModel, hub: Path) -> None:
    one = asked("boolq", hub)
    long = tuple((("word " * 400) + prompt[0],) for prompt in one.questions[0].prompts)
    one = replace(one, questions=[replace(one.questions[0], prompts=long)])
    found = ability.answer(model, one, CPU)
    assert np.isfinite(found.shares[0]).all()
    whole = long[0][0]
    (cut,) = questions._fitted((model.model, TOKENIZER), [whole], 8)
    assert cut != whole
    assert whole.endswith(cut)
    # 256 positions, and 8 tokens of an answer, of which the last one is not read
    assert 249 - questions.SPARE - 1 <= len(TOKENIZER(cut)["input_ids"]) <= 249


def test_an_item_in_several_wordings_scores_the_mean(model: AuditedModel, hub: Path) -> None:
    one = asked("bbh", hub, count=20)
    apart = []
    for wording in range(3):
        questions = [replace(q, prompts=q.prompts[wording:]) for q in one.questions]
        apart.append(ability.answer(model, replace(one, questions=questions), CPU).right)
    found = ability.answer(model, replace(one, wordings=3), CPU)
    np.testing.assert_allclose(found.right, np.mean(apart, 0))
    differ = np.mean([apart[i] != apart[j] for i in range(3) for j in range(i)])
    np.testing.assert_allclose(found.unstable.mean(), differ)


def answers(right: list[float], **more: Any) -> Answers:
    marks = np.array([right, more.pop("formed", right), right]).T
    return Answers(marks, ["a"] * len(right), more.get("shares", ()), np.zeros(len(right)))


def test_scores_by_hand(hub: Path) -> None:
    every = frozenset({"reading", "arithmetic", "format", "calibration"})
    ranked, written = (replace(asked(n, hub), parts=every) for n in ("boolq", "gsm8k"))
    rights = [question.right for question in ranked.questions]
    shares = [np.array([0.3, 0.7]), np.array([0.9, 0.1])]
    both = [
        answers([1.0, 0.0], shares=shares),
        answers([0.0, 1.0], formed=[1.0, 0.0]),
    ]
    found = {each.what: each for each in ability.scores([ranked, written], both)}
    reading = found["boolq", "reading", "accuracy"]
    assert (reading.chance, reading.choices) == (0.5, 2)
    assert reading.scores.tolist() == [1.0, 0.0]
    assert found["gsm8k", "arithmetic", "accuracy"].chance is None
    form = found["written answers", "format", "in form"]
    assert form.scores.tolist() == [1.0, 0.0]
    brier = found["ranked answers", "calibration", "Brier score"]
    by_hand = [-2 * (1 - share[right]) ** 2 for share, right in zip(shares, rights, strict=True)]
    np.testing.assert_allclose(brier.scores, by_hand)
    error = found["ranked answers", "calibration", "calibration error"]
    hits = [share.argmax() == right for share, right in zip(shares, rights, strict=True)]
    gaps = [abs(hits[0] - 0.7), abs(hits[1] - 0.9)]  # each in a bin of its own
    np.testing.assert_allclose(error.scores.mean(), -np.mean(gaps))
    assert (brier.primary, error.primary) == (True, False)


def test_the_calibration_error_is_the_mean_gap_of_the_bins() -> None:
    sure = np.array([0.55, 0.58, 0.51, 0.95, 0.99, 1.0])
    hit = np.array([True, False, False, True, True, False])
    low, high = abs(1 / 3 - sure[:3].mean()), abs(2 / 3 - sure[3:].mean())
    np.testing.assert_allclose(ability.signed_gaps(sure, hit).mean(), (low + high) / 2)


@pytest.mark.parametrize(("sharp", "sharper"), [(1.0, 1.0), (1.0, 1.5), (2.0, 2.0), (0.6, 1.5)])
def test_the_interval_of_a_change_in_calibration_covers_it(sharp: float, sharper: float) -> None:
    """Two models of the same items, whose confidence is the honest one, sharpened or flattened."""
    rng, n, times = np.random.default_rng(0), 300, 300

    def draw(size: int) -> Any:
        ability_, luck = rng.normal(0.3, 0.8, size), rng.random(size)
        for power in (sharp, sharper):
            logit = np.abs(ability_ + 0.5 * rng.normal(size=size))
            own = np.where(rng.random(size) < 0.7, luck, rng.random(size))
            yield 1 / (1 + np.exp(-power * logit)), own < 1 / (1 + np.exp(-logit))

    one, two = (ability.signed_gaps(*each).mean() for each in draw(1_000_000))
    covered = 0
    for _ in range(times):
        base, tuned = (ability.signed_gaps(*each) for each in draw(n))
        low, high = mean_change(base, tuned).interval(0.95)
        covered += low <= two - one <= high
    # The error of a calibrated model is too large by chance, so the second pair is covered less.
    assert covered / times > 0.91 - norm.ppf(0.99) * (0.91 * 0.09 / times) ** 0.5


def test_names_stand_for_tasks_and_what_is_reported_of_them() -> None:
    parts, rest = ability.chosen(["arithmetic", "glue/sst2", "mine.toml", "language"])
    assert parts == {"gsm8k": {"arithmetic"}, "bbh-counting": {"arithmetic"}}
    assert rest == ["glue/sst2", "mine.toml"]
    with pytest.raises(UnknownNameError, match="Did you mean 'general'"):
        ability.chosen(["generel"])
    assert ability.chosen(["copa"])[0] == {"copa": {"reasoning", "calibration"}}
    assert {*ability.chosen(["general"])[0]} == {*GENERAL}
    written = ["gsm8k", "bbh-counting"]
    assert ability.chosen(["format"])[0] == {name: {"format"} for name in written}
    assert ability.chosen(["calibration", "boolq"])[0]["boolq"] == {"reading", "calibration"}


def test_what_cannot_be_had_is_named(tmp_path: Path) -> None:
    write_hub(tmp_path, "super_glue", "bbh", times=30)
    found, notes = ability.load(["general"], base="tiny-gpt", data=tmp_path)
    names = ["bbh", "copa", "boolq", "multirc", "bbh-counting"]
    assert [each.task.name for each in found] == names
    assert "mmlu, mmlu-cloze, arc-easy" in notes[0]
    with pytest.raises(DataError, match="'gsm8k'"):
        ability.load(["gsm8k", "copa"], base="tiny-gpt", data=tmp_path)
    with pytest.raises(DataError, match="'ifeval'"):
        ability.load(["instructions"], base="tiny-gpt", data=tmp_path)
    with pytest.raises(SettingsError, match="questions=3: must be 20 or more"):
        ability.load(["copa"], base="tiny-gpt", data=tmp_path, count=3)
    with pytest.raises(SettingsError, match="must be 1 to 3"):
        ability.load(["copa"], base="tiny-gpt", data=tmp_path, wordings=4)
    write_hub(tmp_path, "hellaswag", times=5)
    with pytest.raises(DataError, match="'hellaswag': 5 rows are too few"):
        ability.load(["general"], base="tiny-gpt", data=tmp_path)


def test_only_what_cannot_be_downloaded_is_left_out(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, tried, in_cache = GeneralTask.questions, list[str](), {"copa"}
    lacking = {"Rowan/hellaswag"}

    def questions(task: GeneralTask, data: Any, count: int, seed: int) -> list[Question]:
        tried.extend([] if config.HF_HUB_OFFLINE else [task.name])
        if task.hub in lacking and not (config.HF_HUB_OFFLINE and task.name in in_cache):
            raise DataError(f"task {task.name!r}: could not be downloaded") from TimeoutError("503")
        return plain(task, hub, count, seed)

    monkeypatch.setattr(config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(GeneralTask, "questions", questions)
    load: Any = partial(ability.load, ["general"], base="tiny-gpt", data=None, count=20)
    found, (note,) = load()
    assert {each.task.name for each in found} == {*GENERAL} - {"hellaswag"}
    assert note.endswith("the download failed (TimeoutError): hellaswag.")
    # Without a network, two repositories are waited for, and the cache is read.
    lacking |= {task.hub for task in GENERAL.values()}
    tried.clear()
    (only,), (first, second) = load()
    assert first.endswith("(TimeoutError): mmlu, mmlu-cloze, arc-easy, arc-challenge.")
    assert "2 downloads in a row failed: truthfulqa, bbh, hellaswag" in second
    assert only.task.name == "copa"
    assert tried == ["mmlu", "arc-easy"]
    in_cache.clear()
    with pytest.raises(DataError, match="'mmlu'"):
        load()
    assert not config.HF_HUB_OFFLINE


def test_default_tasks_follow_the_model_and_the_data(tmp_path: Path) -> None:
    assert default_tasks("tiny-gpt") == DEFAULT_TASKS
    assert default_tasks("tiny", tmp_path) == DEFAULT_TASKS
    write_hub(tmp_path, "super_glue")
    assert default_tasks("tiny-gpt", tmp_path) == ("general",)
    assert default_tasks("tiny", tmp_path) == DEFAULT_TASKS
    for split in ("train", "validation"):
        for task in ("sst2", "cola"):
            file = tmp_path / "glue" / task / f"{split}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            rows = [{"sentence": f"A {n}.", "label": n % 2, "idx": n} for n in range(4)]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert default_tasks("tiny", tmp_path) == ("glue/sst2", "glue/cola")
    shutil.rmtree(tmp_path / "glue" / "sst2")
    (tmp_path / "glue" / "rte").mkdir()
    assert default_tasks("tiny", tmp_path) == ("glue/cola",)


def test_a_further_look_asks_new_questions_only(
    model: AuditedModel, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, sizes, known = ability.answer, [], dict[str, Any]()

    def counted(model: AuditedModel, asked: Asked, device: torch.device) -> Answers:
        sizes.append(len(asked.questions))
        return plain(model, asked, device)

    monkeypatch.setattr(ability, "answer", counted)
    for name, first, second in (("bbh", 10, 20), ("gsm8k", 2, 3)):  # ranked, and written
        known.clear()
        ability.answer_new(model, asked(name, hub, first), CPU, known)
        both = asked(name, hub, second)
        found, whole = ability.answer_new(model, both, CPU, known), plain(model, both, CPU)
        assert list(found.said) == list(whole.said)
        np.testing.assert_array_equal(found.marks, whole.marks)
        for one, two in zip(found.shares, whole.shares, strict=bool(whole.shares)):
            np.testing.assert_allclose(one, two, atol=1e-5)
    assert sizes == [10, 10, 2, 1]


def test_every_measure_is_a_test(hub: Path) -> None:
    one = replace(asked("boolq", hub), parts=frozenset({"reading", "calibration"}))
    assert ability.tests([one]) == 2
    assert ability.tests([replace(one, parts=frozenset({"calibration"}))]) == 1


def test_flipped_questions_are_shown(hub: Path) -> None:
    one = replace(asked("boolq", hub), parts=frozenset({"reading"}))
    base, tuned = answers([1.0, 0.0]), answers([0.0, 1.0])
    tuned = replace(tuned, said=["b", "c"])
    (before,), (after,) = ([*ability.scores([one], [each])] for each in (base, tuned))
    (change,) = compare([before], [after], 0.02).changes
    lost, gained = change.items
    assert (lost.lost, gained.lost) == (True, False)
    assert lost.texts == (one.questions[0].text,)
    assert (lost.label, lost.base, lost.tuned) == (one.questions[0].target, "a", "b")
    assert re.search(r"; settled by about [\d,]+ questions", str(change))
    table = change.item_table(with_texts=True)
    assert table["inputs"] == [question.text for question in one.questions]
    assert table["answers"] == [question.target for question in one.questions]


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("copa", lambda q: q.text + q.answers[q.right]),
        ("winogrande", lambda q: q.prompts[0][q.right] + q.answers[0]),
        ("gsm8k", lambda q: f"{q.prompts[0][0]} {GENERAL['gsm8k'].solution(q.row)}"),
    ],
)
def test_questions_to_relearn_are_answered_right(
    model: AuditedModel, hub: Path, name: str, ends: Any
) -> None:
    none = replace(asked(name, hub), questions=[])
    rows, order = general_lesson([none], 1, hub, 0, CPU).rows(model)
    inputs, labels = rows.collate(np.array([0]), 0)
    (question,) = GENERAL[name].questions(hub, 1, 0)
    answer = labels[0][labels[0] >= 0]
    whole = TOKENIZER.decode(TOKENIZER(ends(question))["input_ids"])
    read = TOKENIZER.decode([*inputs["input_ids"][0], answer[-1]])
    assert order is None
    assert whole.endswith(TOKENIZER.decode(answer))
    assert whole.endswith(read[-60:])
    with pytest.raises(ClbenchError, match="0 questions that are not asked"):
        general_lesson([asked(name, hub, 50)], 1, hub, 0, CPU)


def test_the_form_of_all_written_answers_is_relearned_together(
    model: AuditedModel, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = [replace(asked(name, hub), questions=[]) for name in ("gsm8k", "bbh-counting")]
    lesson = general_lesson(written, 3, hub, 0, CPU, form=True)
    rows, _ = lesson.rows(model)
    assert len(rows) == 3  # two of the first task
    marks = np.array([[0.0, 1.0, np.nan], [1.0, 0.0, np.nan]])
    monkeypatch.setattr(ability, "answer", lambda *_: Answers(marks, (), (), marks[:, 0]))
    assert lesson.score(model).tolist() == [1, 0, 1, 0]
    assert general_lesson(written, 3, hub, 0, CPU).score(model).tolist() == [0, 1, 0, 1]
    parts = frozenset({"arithmetic", "format"})
    material = Material((), [replace(each, parts=parts) for each in written])
    found = material.lessons(AuditSettings(data=hub, relearn=1), CPU)
    assert [*found] == [
        ("gsm8k", "arithmetic"), ("bbh-counting", "arithmetic"), ("written answers", "format")
    ]  # fmt: skip


def test_encoder_decoders_relearn_questions(hub: Path, tmp_path: Path) -> None:
    base = load_base(str(save_generator("t5", tmp_path / "t5", appends_end=True)))
    none = replace(
        asked("copa", hub), questions=[], tokenizer=load_tokenizer(base.name, plain=True)
    )
    rows, _ = general_lesson([none], 8, hub, 0, CPU).rows(base)
    inputs, labels = rows.collate(np.arange(8), 0)

    def loss(model: AuditedModel) -> float:
        with torch.no_grad():
            logits = AnsweringModel(model.model)(inputs, "")
        return float(cross_entropy(logits.flatten(0, -2), labels.flatten()))

    assert loss(trained(base, rows, None, 1e-3)) < 0.9 * loss(base)

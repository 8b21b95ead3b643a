"""Tasks of the LM Evaluation Harness after the last stage."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import make_generator, make_tokenizer
from helpers.language_models import cell, run

from clbench.core.errors import ClbenchError
from clbench.measure.pretraining_scorer import harness_scores
from clbench.models.answering import AnsweringModel
from clbench.models.likelihood import likelihood

QUICK = {"epochs = 10": "epochs = 1"}


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A stand-in for the harness, which keeps what it is called with."""
    calls: list[Any] = []

    def simple_evaluate(*, model: Any, tasks: list[str], bootstrap_iters: int) -> dict[str, Any]:
        calls.append({"model": model, "tasks": tasks, "bootstrap_iters": bootstrap_iters})
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)
        scores = {"alias": "easy", "acc,none": 0.25, "acc_stderr,none": "N/A", "sample_len": 9}
        return {"results": dict.fromkeys(tasks, scores)}

    def hflm(*, pretrained: Any, tokenizer: Any, batch_size: int) -> dict[str, Any]:
        return {"pretrained": pretrained, "tokenizer": tokenizer, "batch_size": batch_size}

    contents: dict[str, dict[str, Any]] = {
        "lm_eval": {"simple_evaluate": simple_evaluate, "__spec__": object()},
        "lm_eval.tasks": {"TaskManager": lambda: type("Tasks", (), {"all_tasks": ["easy"]})()},
        "lm_eval.models": {},
        "lm_eval.models.huggingface": {"HFLM": hflm},
    }
    for name, members in contents.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return calls


def draws() -> tuple[float, float, float]:
    return random.random(), np.random.random(), float(torch.rand(()))  # noqa: NPY002


def seed_all() -> None:
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    torch.manual_seed(7)


def test_scores_are_kept_in_the_cell(folder: Path, harness: list[Any]) -> None:
    changes = {**QUICK, "batch_size = 8": "batch_size = 8\neval_batch_size = 7"}
    result = cell(run(folder, "harness", changes=changes, lm_eval=["easy"]))
    assert result.lm_eval == {"easy": {"acc": 0.25}}
    (call,) = harness
    assert call["tasks"] == ["easy"]
    assert call["bootstrap_iters"] == 0  # no standard errors
    assert call["model"]["pretrained"].config.model_type == "llama"
    assert call["model"]["tokenizer"].is_fast
    assert call["model"]["batch_size"] == 7


def test_the_harness_leaves_random_numbers_alone(harness: list[Any]) -> None:
    seed_all()
    wanted = draws()
    seed_all()
    harness_scores(
        AnsweringModel(make_generator("llama")), make_tokenizer(), ["easy"], batch_size=1
    )
    assert draws() == wanted


def test_unknown_tasks_are_refused(folder: Path, harness: list[Any]) -> None:
    with pytest.raises(
        ClbenchError, match=r"lm_eval: there is no task 'esy'\. Did you mean 'easy'"
    ):
        run(folder, "harness-bad", changes=QUICK, lm_eval=["esy"])


def test_a_missing_harness_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ClbenchError, match="pip install lm-eval"):
        run(folder, "harness-none", changes=QUICK, lm_eval=["easy"])


def test_likelihoods_equal_those_of_the_harness() -> None:
    huggingface = pytest.importorskip("lm_eval.models.huggingface")
    from lm_eval.api.instance import Instance

    model, tokenizer = make_generator("llama"), make_tokenizer()
    prompts, answers = ["The film was", "Not {bad} at all:"], [" good", " bad or long"]
    requests = [
        Instance("loglikelihood", {}, (prompt, answer), 0)
        for prompt in prompts
        for answer in answers
    ]
    theirs = huggingface.HFLM(pretrained=model, tokenizer=tokenizer).loglikelihood(requests)
    ours = likelihood(AnsweringModel(model).backbone, tokenizer, prompts, answers)
    np.testing.assert_allclose(ours.ravel(), [value for value, _ in theirs], atol=1e-4)

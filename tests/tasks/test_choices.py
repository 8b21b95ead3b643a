"""Multiple choice, joined columns and groups of rows, from the file to the score."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.workspace import Workspace, make_toy_scenario, write_jsonl

from clbench import RunOptions
from clbench.api import plan_run
from clbench.core.errors import DataError
from clbench.models.classifier import build_classifier
from clbench.models.encoding import encode
from clbench.runner.prepare import ScenarioPreparer
from clbench.tasks.metrics import score
from clbench.tasks.registry import load_task
from clbench.tasks.spec import FileTaskSpec
from clbench.tasks.task import Rows, Task

WORDS = ["the", "film", "story", "was", "is", "very"]
CHOICES: dict[str, Any] = {
    "train": "choice.jsonl",
    "validation": "choice-dev.jsonl",
    "text": [["about", "more"]],
    "label": "label",
    "choices": ["one", "two"],
    "group": ["about"],
    "metrics": ["accuracy", "exact-match"],
}


def write_choices(folder: Path) -> None:
    """Write a task whose right choice is the one with good in it."""
    rng = random.Random(0)
    for name, count in (("choice", 60), ("choice-dev", 20)):
        lines = []
        for row in range(count):
            right = row % 2
            words = [f"the {word} {rng.choice(WORDS)}" for word in ("good", "bad")]
            one, two = words if right == 0 else words[::-1]
            about = f"{rng.choice(WORDS)} {WORDS[row % 5]}"
            lines.append({"about": about, "more": None, "one": one, "two": two, "label": right})
        write_jsonl(folder / f"{name}.jsonl", lines)


def load(folder: Path, **changes: Any) -> Task:
    write_choices(folder)
    own = {"choice": FileTaskSpec(**{**CHOICES, **changes})}
    return load_task("choice", data=None, base=folder, own=own)


@pytest.fixture
def world(tmp_path: Path) -> Workspace:
    world = make_toy_scenario(tmp_path)
    write_choices(tmp_path)
    table = "\n".join(f"{key} = {json.dumps(value)}" for key, value in CHOICES.items())
    scenario = '[[scenario]]\nname = "choices"\nshift = "dataset"\ntasks = ["mood", "choice"]\n'
    more = f"\n[task.choice]\n{table}\n\n{scenario}"
    more += scenario.replace("choices", "choices-first").replace(
        '"mood", "choice"', '"choice", "mood"'
    )
    world.suite.write_text(world.suite.read_text() + more)
    return world


def test_a_row_has_a_sequence_for_each_choice(world: Workspace) -> None:
    from clbench.models.checkpoint import load_tokenizer

    rows = load(world.folder).train
    tokenizer = load_tokenizer(str(world.folder / "model"))
    encoded = encode(rows, tokenizer, 24)
    assert (len(encoded), encoded.choices, len(encoded.offsets)) == (60, 2, 121)
    one, two = (tokenizer(rows.first[3], choices[3])["input_ids"] for choices in rows.choices)
    assert encoded.lengths[3] == len(one) + len(two)
    for some, at in ((encoded, [5, 3]), (encoded.take([5, 3]).lock(), [0, 1])):
        inputs, labels = some.collate(at, pad_id=0)
        assert inputs["input_ids"].shape == inputs["attention_mask"].shape
        assert inputs["input_ids"].shape[:2] == (2, 2)
        assert inputs["input_ids"][1, 0][: len(one)].tolist() == one
        assert inputs["input_ids"][1, 1][: len(two)].tolist() == two
        assert labels.tolist() == rows.labels[[5, 3]].tolist()


def test_one_head_scores_each_choice_by_itself(world: Workspace) -> None:
    from clbench.models.checkpoint import load_tokenizer

    folder = str(world.folder / "model")
    encoded = encode(load(world.folder).train, load_tokenizer(folder), 24)
    model = build_classifier(folder, heads={"choice": 1, "mood": 2}, head_seed=lambda name: 0)
    model.eval()
    inputs, _ = encoded.collate([0, 1, 2], pad_id=0)
    logits = model(inputs, "choice")
    assert logits.shape == (3, 2)
    alone = {name: value[1, 1][None] for name, value in inputs.items()}
    torch.testing.assert_close(model(alone, "choice")[0, 0], logits[1, 1])
    embedded = model(inputs, "choice", model.embed(inputs["input_ids"]))
    torch.testing.assert_close(embedded, logits)
    assert model(inputs, "mood").shape == (3, 2, 2)


METHODS = [
    *("ewc", "mas", "si", "replay", "der++", "a-gem", "smart", "packnet"),
    *("recadam", "mixout", "wise-ft", "lp-ft", "sam", "mofo", "migu", "ties", "dare"),
    *("prototypes", "seq-star", "r-ewc"),
]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["choices", "choices-first"])
def test_methods_train_on_choices_and_keep_them(world: Workspace, scenario: str) -> None:
    rest = world.run("rest", scenario=scenario, methods=METHODS, epochs=1, limit=24)
    assert [cell.reason for cell in rest.failed] == []
    run = world.run(scenario=scenario, methods=["vanilla", "lwf"], epochs=3)
    assert [cell.reason for cell in run.failed] == []
    vanilla, lwf = run.cells
    task = vanilla.tasks.index("choice")
    assert vanilla.R[task][task] == 1.0
    assert vanilla.metrics[task][task] == {"accuracy": 1.0, "exact-match": 1.0}
    assert vanilla.floors[task] == 0.5
    assert max(value for _, value in lwf.stages[1].curves["distillation"]) > 0.0


def test_all_rows_of_a_group_must_be_right() -> None:
    labels, groups = np.array([0, 1, 0, 1, 1]), np.array([7, 7, 3, 3, 5])
    outputs = np.eye(2)[[0, 1, 0, 0, 1]]
    assert score(["exact-match"], outputs, labels, groups) == {"exact-match": pytest.approx(2 / 3)}
    with pytest.raises(DataError, match="scores groups of rows, and the task has none"):
        score(["exact-match"], outputs, labels)


def test_points_of_curves_are_scored_on_whole_groups(world: Workspace) -> None:
    metric = '[protocol.task_metric]\nchoice = "exact-match"\n\n[task.mood]'
    world.suite.write_text(world.suite.read_text().replace("[task.mood]", metric, 1))
    plan = plan_run(world.suite, RunOptions(scenarios=["choices"], plugins=[world.plugin]))
    data = ScenarioPreparer.of(plan, torch.device("cpu")).prepare(plan.scenarios[0])
    scored, curve = data.scored[1].rows.groups, data.curve[1].rows.groups
    assert scored is not None
    assert curve is not None
    assert 0 < len(curve) <= 10 < len(scored)
    assert len(curve) == np.isin(scored, curve).sum()


def test_groups_follow_the_rows(tmp_path: Path) -> None:
    rows = load(tmp_path).train
    assert rows.groups is not None
    texts = [text.split() for text in rows.first]
    part = rows.take([4, 9, 2])
    assert part.groups is not None
    assert part.groups.tolist() == rows.groups[[4, 9, 2]].tolist()
    assert [part.choices[1][0], part.first[2]] == [rows.choices[1][4], rows.first[2]]
    same = [i for i, text in enumerate(texts) if text == texts[0]]
    assert {int(rows.groups[i]) for i in same} == {int(rows.groups[0])}


def test_the_digest_follows_choices_and_groups() -> None:
    rows = Rows.of(["a", "b"], None, [0, 1])
    variants: list[dict[str, Any]] = [
        {},
        {"choices": (["c", "d"], ["e", "f"])},
        {"choices": (["e", "f"], ["c", "d"])},
        {"groups": np.array([0, 1])},
        {"groups": np.array([0, 0])},
    ]
    digests = {Rows(rows.first, None, rows.labels, rows.index, **v).digest for v in variants}
    assert len(digests) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": ["exact-match"], "group": None}, "columns that tell groups apart in its key"),
        ({"text": "about", "choices": ["one", "more"]}, "column 'more' is empty in 60 of 60 rows"),
        ({"text": [["more", "label2"]]}, "there is no column 'label2'"),
    ],
)
def test_tables_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load(tmp_path, **changes)


def test_joined_columns_leave_out_empty_cells(tmp_path: Path) -> None:
    lines = [{"a": "x", "b": None, "label": 0}, {"a": "y", "b": "z", "label": 1}]
    path = tmp_path / "t.jsonl"
    spec = FileTaskSpec(train="t.jsonl", validation="v.jsonl", text=[["a", "b"]], label="label")
    for name in ("t.jsonl", "v.jsonl"):
        write_jsonl(tmp_path / name, lines)
    task = load_task("t", data=None, base=tmp_path, own={"t": spec})
    assert task.train.first == ["x", "y z"]
    path.write_text(json.dumps({"a": None, "b": "", "label": 0}) + "\n" + path.read_text())
    with pytest.raises(DataError, match="columns a, b are all empty in 1 of 3 rows"):
        load_task("t", data=None, base=tmp_path, own={"t": spec})
    skipping = spec.model_copy(update={"skip_blank": True})
    task = load_task("t", data=None, base=tmp_path, own={"t": skipping})
    assert task.train.index.tolist() == [1, 2]


def test_the_fisher_information_of_choices_is_that_of_single_examples(world: Workspace) -> None:
    from clbench.fisher import diagonal_fisher
    from clbench.models.checkpoint import load_tokenizer
    from clbench.training.batches import TaskData

    folder = str(world.folder / "model")
    encoded = encode(load(world.folder).train.take(range(6)), load_tokenizer(folder), 24)
    model = build_classifier(folder, heads={"choice": 1}, head_seed=lambda name: 0).eval()
    data = TaskData(0, "choice", "choice", False, encoded, 0)
    batch = data.batch(np.arange(6), torch.device("cpu"))
    parameters = dict(model.named_parameters())
    expected = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for row in range(6):
        single = data.batch(np.array([row]), torch.device("cpu"))
        loss = torch.nn.functional.cross_entropy(model(single.inputs, "choice"), single.labels)
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        for name, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                expected[name] += gradient.square() / 6
    found = diagonal_fisher(model, [batch], loss="task", mode="empirical")
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-9)

"""Classes in steps with a growing head, from the suite to the scores."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fake_context import FakeContext
from helpers.workspace import Workspace, make_toy_scenario, write_jsonl

import clbench
from clbench.api import plan_run
from clbench.core.errors import ClbenchError, SettingsError, ShiftError, SuiteError
from clbench.shifts.incremental import ClassIncremental
from clbench.suite.read import packaged_files, read_suite, read_toml
from clbench.tasks.metrics import told_scores
from clbench.tasks.task import Rows, Task
from clbench.tasks.template import Template

NAMES = ("ant", "bee", "cat", "dog", "elk")


def animals() -> Task:
    """A task of five classes with four training rows and two validation rows each."""
    rows = [
        Rows.of([f"{NAMES[i % 5]} {i}" for i in range(n)], None, [i % 5 for i in range(n)])
        for n in (20, 10)
    ]
    return Task("animals", NAMES, ("accuracy",), rows[0], rows[1], head="animals")


def steps(task: Task | None = None, **settings: Any) -> tuple[Task, ...]:
    task = task or animals()
    return ClassIncremental(task=task.name, **settings).build(FakeContext({task.name: task})).tasks


def test_classes_arrive_in_steps_and_are_numbered_by_arrival() -> None:
    first, second = steps(classes=[["dog", "ant"], ["cat", "elk", "bee"]])
    assert first.labels == second.labels == ("dog", "ant", "cat", "elk", "bee")
    assert (first.own, second.own) == ((0, 1), (2, 3, 4))
    assert (first.seen, second.seen) == (2, 5)
    assert first.head == second.head == "animals"
    assert [first.name, second.name] == ["animals[1]", "animals[2]"]
    for part in (first, second):
        for rows in (part.train, part.validation):
            words = [text.split()[0] for text in rows.first]
            assert words == [part.labels[number] for number in rows.labels]
            assert set(rows.labels.tolist()) == set(part.own)
    assert sorted([*first.train.index, *second.train.index]) == list(range(20))


def test_classes_of_several_tasks_arrive_in_steps_and_some_are_left_out() -> None:
    pets = Task("pets", ("cat", "dog"), ("f1", "accuracy"), *two("cat", "dog"), head="pets")
    farm = Task(
        "farm", ("cow", "cat", "hen"), ("accuracy",), *two("cow", "cat", "hen"), head="farm"
    )
    world = FakeContext({"pets": pets, "farm": farm})
    how = {"tasks": ["pets", "farm"], "without": ["farm: cat"]}
    names = ["pets: cat", "dog", "cow", "hen"]
    parts = ClassIncremental(**how, classes=[names[::-1][:2], names[:2]]).build(world).tasks
    assert parts[0].labels == ("hen", "cow", "pets: cat", "dog")
    assert [part.name for part in parts] == ["pets+farm[1]", "pets+farm[2]"]
    assert {part.metrics for part in parts} == {("accuracy",)}
    for part, kinds in zip(parts, ({"hen", "cow"}, {"cat", "dog"}), strict=True):
        assert {text.split()[0] for text in part.train.first} == kinds
        for text, number in zip(part.validation.first, part.validation.labels, strict=True):
            assert part.labels[number].endswith(text.split()[0])
    with pytest.raises(ShiftError, match=r"no class 'farm: cats'\. Did you mean 'farm: cat'"):
        ClassIncremental(tasks=["pets", "farm"], without=["farm: cats"], steps=2).build(world)
    with pytest.raises(ShiftError, match="give either task or tasks"):
        ClassIncremental(task="pets", tasks=["pets", "farm"], steps=2).build(world)
    with pytest.raises(ShiftError, match="'pets' is there twice"):
        ClassIncremental(tasks=["pets", "farm", "pets"], steps=2).build(world)


@pytest.mark.parametrize(
    ("prompts", "read"),
    [
        (("{text} is", "{body} is"), "cow 0 is"),
        (("Pet: {text}", "Farm: {body}"), "cow 0\nAnswer:"),
    ],
)
def test_rows_of_several_tasks_have_a_prompt_that_fits_them_all(
    prompts: tuple[str, str], read: str
) -> None:
    templates = [
        Template(prompts[0], {"cat": "mew"}),
        Template(prompts[1], {"cow": "moo"}, columns=("body",)),
    ]
    tasks = {
        name: Task(name, kinds, ("accuracy",), *two(*kinds), head=name, template=template)
        for name, kinds, template in zip(
            ("pets", "farm"), (("cat", "dog"), ("cow", "hen")), templates, strict=True
        )
    }
    steps = [["cat", "cow"], ["dog", "hen"]]
    parts = ClassIncremental(tasks=[*tasks], classes=steps).build(FakeContext(tasks)).tasks
    for part in parts:
        assert part.template is not None
        assert part.template.render(["cow 0"]) == read
        assert [*map(part.template.answer, part.labels)] == ["mew", "moo", "dog", "hen"]


def two(*names: str) -> list[Rows]:
    """Twelve training and six validation rows with a class in each text."""
    k = len(names)
    return [
        Rows.of([f"{names[i % k]} {i}" for i in range(n)], None, [i % k for i in range(n)])
        for n in (12, 6)
    ]


def test_steps_divide_the_classes_evenly_in_a_drawn_order() -> None:
    parts = steps(steps=2)
    assert [len(part.own) for part in parts] == [3, 2]
    assert sorted(parts[0].labels) == sorted(NAMES)
    assert steps(steps=2)[0].labels == parts[0].labels
    orders = {steps(steps=2, order_seed=seed)[0].labels for seed in range(6)}
    assert len(orders) > 1
    assert [len(part.own) for part in steps(steps=5)] == [1] * 5


def test_named_steps_may_come_in_another_order() -> None:
    groups = {"wings": ["ant", "bee"], "paws": ["cat", "dog"], "hooves": ["elk"]}
    names = [part.name for part in steps(classes=groups)]
    assert names == ["animals[wings]", "animals[paws]", "animals[hooves]"]
    orders = {tuple(p.name for p in steps(classes=groups, order_seed=seed)) for seed in range(8)}
    assert len(orders) > 1
    assert all(sorted(order) == sorted(names) for order in orders)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 6}, "6 steps, but the task has 5 classes. Lower steps."),
        ({}, "give either steps, or classes or a partition."),
        ({"steps": 2, "classes": [["ant"], ["bee"]]}, "give either steps, or classes"),
        ({"classes": [["ant", "bee"], ["cat"]]}, "2 of 5 classes are in no step: dog, elk."),
        ({"classes": [["ant", "bee", "cta"], ["cat"]]}, "no class 'cta'. Did you mean 'cat'?"),
        ({"classes": [[*NAMES], ["ant"]]}, "class 'ant' is twice in `classes`, in '1' and '2'."),
    ],
)
def test_steps_that_do_not_divide_the_classes_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShiftError) as raised:
        steps(**settings)
    assert str(raised.value).startswith("class-incremental steps of 'animals': ")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["ant", "bee"], "classes item 1: must be a list in [brackets], got 'ant'"),
        ([["ant"], []], "classes item 2: must have at least 1 item"),
        ({"wings": ["ant"], "paws": []}, "[classes] paws: must have at least 1 item"),
        ([["ant"]], "classes: must have at least 2 items"),
    ],
)
def test_each_step_is_a_list_of_classes(classes: Any, message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        ClassIncremental(task="animals", classes=classes)
    assert str(raised.value).startswith(f"shift 'class-incremental': {message}")


def test_a_class_without_rows_is_refused() -> None:
    task = animals()
    few = task.validation.take([0, 1, 2])
    with pytest.raises(ShiftError, match=r"'animals\[2\]' has no validation rows of dog, elk"):
        steps(replace(task, validation=few), classes=[["ant", "bee", "cat"], ["dog", "elk"]])
    numbers = replace(task, labels=())
    with pytest.raises(ShiftError, match="has no classes"):
        steps(numbers, steps=2)


def test_scores_tell_two_kinds_of_errors_apart() -> None:
    outputs = np.array([[3.0, 1, 0, 0], [0, 3, 9, 0], [1, 3, 0, 2], [0, 1, 5, 0]])
    scores = told_scores(outputs, np.array([0, 1, 0, 0]), np.array([0, 1]))
    assert scores == {"told": 0.5, "elsewhere": 0.5}


SUITE = """
[task.animals]
train = "animals.jsonl"
validation = "animals-dev.jsonl"
text = "text"
label = "label"

[[scenario]]
name = "steps"
shift = "class-incremental"
task = "animals"
{how}
"""
WORDS = ("good", "bad", "film", "story")


@pytest.fixture
def world(tmp_path: Path) -> Workspace:
    rng = random.Random(0)
    for name, count in (("animals", 120), ("animals-dev", 40)):
        lines = []
        for row in range(count):
            word = WORDS[row % 4]
            words = [rng.choice(["the", "a", "was", "is"]) for _ in range(4)] + [word]
            rng.shuffle(words)
            lines.append({"text": " ".join(words), "label": word})
        write_jsonl(tmp_path / f"{name}.jsonl", lines)
    return make_toy_scenario(tmp_path)


def write(world: Workspace, how: str) -> None:
    world.suite.write_text(world.suite.read_text() + SUITE.format(how=how))


LEARN = ["vanilla", "replay", "multitask", "icarl"]
METHODS = [
    *("ewc", "mas", "si", "lwf", "der++", "a-gem", "smart", "packnet", "frozen", "wise-ft"),
    *("lp-ft", "sam", "mofo", "migu", "ties", "dare", "prototypes", "seq-star", "r-ewc"),
]


@pytest.mark.slow
def test_old_classes_compete_with_new_ones(world: Workspace) -> None:
    write(world, 'classes = [["bad", "film"], ["good", "story"]]')
    rest = world.run("rest", scenario="steps", methods=METHODS, epochs=1, limit=40)
    assert [cell.reason for cell in rest.failed] == []
    run = world.run(scenario="steps", methods=LEARN, epochs=10)
    assert [cell.reason for cell in run.failed] == []
    by_method = {cell.baseline: cell for cell in run.cells}
    vanilla = by_method["vanilla"]
    assert vanilla.R[0][0] == vanilla.R[1][1] == 1.0
    assert vanilla.R[1][0] < 0.2  # the new classes win
    assert list(vanilla.floors) == [None, None]  # so there is no share of a gain above a floor
    old = vanilla.metrics[1][0]
    assert old["accuracy"] <= old["told"] <= 1.0
    assert old["elsewhere"] == pytest.approx(1.0 - old["accuracy"], abs=0.2)
    assert vanilla.metrics[0][0]["elsewhere"] == 0.0
    for method in ("replay", "multitask", "icarl"):
        assert by_method[method].R[1][0] > 0.8, method


def test_a_growing_head_resumes_with_equal_scores(world: Workspace) -> None:
    write(world, "steps = 2\norder_seed = 3")
    whole = world.run("whole", scenario="steps", methods=["lwf", "der++"], epochs=2)
    both = world.run("both", scenario="steps", methods=["vanilla", "lwf", "der++"], epochs=2)
    shared = {cell.key: cell.R for cell in both.cells}
    assert {cell.key: cell.R for cell in whole.cells}.items() <= shared.items()


def test_a_partition_is_read_into_the_suite(world: Workspace) -> None:
    (world.folder / "parts.toml").write_text('two = ["bad", "film"]\none = ["good", "story"]\n')
    write(world, 'partition = "parts.toml"')
    spec = read_suite(world.suite).file.scenario[-1]
    assert spec.settings["classes"] == {"two": ["bad", "film"], "one": ["good", "story"]}
    run = world.run(scenario="steps", epochs=1, references=True)
    assert run.cells[0].tasks == ["animals[two]", "animals[one]"]
    assert run.cells[-1].reference_of == 1
    (world.folder / "parts.toml").write_text('two = ["bad", "story"]\none = ["good", "film"]\n')
    with pytest.raises(ClbenchError, match="classes"):
        world.run(scenario="steps", epochs=1, references=True)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ('partition = "clinc150-domain"', "no partition 'clinc150-domain'. Did you mean"),
        ('partition = "none.toml"', "none.toml: there is no such file"),
        (
            'partition = "wrong.toml"',
            "wrong.toml: line 1, column 1: two: must be a list of class names",
        ),
        ("steps = 1", "steps: must be"),
    ],
)
def test_partitions_that_cannot_be_read_are_refused(
    world: Workspace, how: str, message: str
) -> None:
    (world.folder / "wrong.toml").write_text('two = "bad"\n')
    write(world, how)
    with pytest.raises(SuiteError, match=message):
        world.run(scenario="steps", references=True)


def test_the_packaged_partition_has_the_classes_of_its_task() -> None:
    from clbench.tasks.registry import TASKS

    loader: Any = TASKS.get("clinc150")
    domains = read_toml(packaged_files("scenarios/partitions")["clinc150-domains"])
    assert [len(names) for names in domains.values()] == [15] * 10
    assert sorted(chain(*domains.values())) == sorted(loader.spec.labels)


def test_names_of_orders_and_scenarios(tmp_path: Path) -> None:
    suite = tmp_path / "s.toml"
    suite.write_text(
        'methods = ["vanilla"]\n[[scenario]]\nname = "four"\nshift = "sequence"\n'
        'orders = { a = ["glue/rte", "glue/mrpc"], b = ["glue/mrpc", "glue/rte"] }\n'
    )
    specs = read_suite(suite).file.scenario
    assert [spec.name for spec in specs] == ["four-a", "four-b"]
    assert [spec.settings["order"] for spec in specs] == ["a", "b"]
    assert specs[1].task_names == ("glue/mrpc", "glue/rte")
    both = 'tasks = ["glue/rte", "glue/mrpc"]\norders = { a = ["glue/mrpc", "glue/rte"] }'
    shape = "must be a table of lists of tasks, such as"
    for wrong, problem in (
        ("orders = {}", shape),
        ('orders = { a = "x" }', shape),
        ('orders = { a = ["x", "y"], b = ["x", "y"] }', "'a' and 'b' are equal"),
        ("orders = 3", shape),
        (both, "give either tasks, for a single order, or orders"),
    ):
        suite.write_text(
            f'methods = ["vanilla"]\n[[scenario]]\nname = "four"\nshift = "sequence"\n{wrong}\n'
        )
        with pytest.raises(SuiteError, match=rf"\[\[scenario\]\] 1 orders: {problem}"):
            plan_run(suite, clbench.RunOptions(references=True))

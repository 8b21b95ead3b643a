"""One list of classes in one domain after another, by a column or by task."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fake_context import FakeContext
from helpers.workspace import Workspace, make_toy_scenario, write_jsonl

from clbench.core.errors import ClbenchError, DataError, ShiftError
from clbench.shifts.incremental import DomainIncremental
from clbench.tasks.registry import load_column, load_task
from clbench.tasks.spec import FileTaskSpec, SyntheticTaskSpec
from clbench.tasks.task import Rows, Task
from clbench.tasks.template import Template

SUITE = """
[task.review]
train = "review.jsonl"
{held_out}
text = "text"
label = "label"

[[scenario]]
name = "domains"
shift = "domain-incremental"
{how}
"""
HELD_OUT = 'validation = "review-dev.jsonl"'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = random.Random(0)
    for name, count in (("review", 120), ("review-dev", 60)):
        lines = []
        for row in range(count):
            words = [rng.choice(["the", "a", "was"]), ("good", "bad")[row % 2]]
            domain = ("film", "story", "play")[row % 3]
            line = {"text": " ".join([*words, domain]), "label": row % 2, "kind": domain}
            lines.append({**line, "same": "x", "hole": None if row else "x"})
        write_jsonl(tmp_path / f"{name}.jsonl", lines)
    return tmp_path


def make(folder: Path, how: str, held_out: str = HELD_OUT) -> Workspace:
    world = make_toy_scenario(folder)
    world.suite.write_text(world.suite.read_text() + SUITE.format(how=how, held_out=held_out))
    return world


@pytest.mark.slow
@pytest.mark.parametrize(
    ("held_out", "parts"), [(HELD_OUT, [40, 40, 40]), ("validation_fraction = 0.3", [28, 32, 24])]
)
def test_rows_are_divided_by_a_column(folder: Path, held_out: str, parts: list[int]) -> None:
    how = 'task = "review"\nby = "kind"\ndomains = ["film", "play", "story"]'
    world = make(folder, how, held_out)
    run = world.run(scenario="domains", epochs=6, methods=["vanilla", "replay"])
    assert not run.failed
    cell = run.cells[0]
    assert cell.tasks == ["review[film]", "review[play]", "review[story]"]
    assert cell.R[-1] == [1.0, 1.0, 1.0]  # what is good does not depend on the domain
    assert [part["train"] for part in cell.scenario_report["parts"]] == parts


def test_domains_are_chosen_and_ordered(folder: Path) -> None:
    world = make(folder, 'task = "review"\nby = "kind"\ndomains = ["story", "film"]')
    run = world.run(scenario="domains", epochs=1, references=True)
    assert run.cells[0].tasks == ["review[story]", "review[film]"]
    assert run.cells[-1].reference_of == 1
    assert "60 rows of other domains left out: play" in run.cells[0].notes  # of both splits


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            'task = "review"\nby = "same"',
            r"by 'same': give the domains in training order, as `domains`. There are 1: x\.",
        ),
        ('task = "review"\nby = "kin"', "there is no column 'kin'. Did you mean 'kind'?"),
        ('task = "review"\nby = "text"', "`domains`. There are 18: a bad film"),
        ('task = "review"\nby = "kind"', "`domains`. There are 3: film, play, story."),
        (
            'task = "review"\nby = "kind"\ndomains = ["film", "plai"]',
            "no training row has 'plai'. Did you mean 'play'?",
        ),
        (
            'task = "review"\nby = "kind"\ndomains = ["film", "film"]',
            "film, film are not all different",
        ),
        ('task = "review"', "give task, by and domains; or tasks"),
        ('task = "review"\ntasks = ["mood", "thing"]', "give task, by and domains"),
        ('tasks = ["mood", "thing"]', "Map them in `classes`"),
    ],
)
def test_columns_that_give_no_domains_are_refused(folder: Path, how: str, message: str) -> None:
    world = make(folder, how)
    with pytest.raises(ClbenchError, match=message):
        world.run(scenario="domains", epochs=1)
    assert not list((folder / "out" / "cells").glob("*.json"))


def task(name: str, labels: tuple[str, ...]) -> Task:
    rows = Rows.of([f"{name} {label}" for label in labels * 3], None, [*range(len(labels))] * 3)
    return Task(name, labels, ("accuracy",), rows, rows, head=name)


def build(*tasks: Task, **settings: Any) -> tuple[Task, ...]:
    context = FakeContext({task.name: task for task in tasks})
    names = [task.name for task in tasks]
    return DomainIncremental(tasks=names, **settings).build(context).tasks


def test_classes_of_tasks_are_mapped_by_name() -> None:
    stars = task("yelp", ("1 star", "3 stars", "5 stars"))
    films, more = task("imdb", ("pos", "neg")), task("sst2", ("neg", "pos"))
    mapping = {"bad": ["1 star", "neg"], "good": ["5 stars", "pos"]}
    for part in build(stars, films, more, classes=mapping):
        assert part.labels == ("bad", "good")
        assert part.head == "shared"
        assert part.own == ()
        assert len(part.train) == 6
        for text, number in zip(part.train.first, part.train.labels, strict=True):
            assert text.partition(" ")[2] in mapping[part.labels[number]]
    films = replace(films, template=Template("Film: {text}", {"pos": "good", "neg": "bad"}))
    both = build(films, more)
    assert [[*map(p.template.answer, p.labels)] for p in both] == [["good", "bad"]] * 2  # type: ignore[union-attr]
    assert [p.template.render(["x"]) for p in both] == ["Film: x", "x\nAnswer:"]  # type: ignore[union-attr]
    assert both[0].labels == both[1].labels == ("pos", "neg")
    assert both[1].train.labels.tolist() == [1, 0] * 3


def test_a_task_that_lacks_a_class_is_refused() -> None:
    with pytest.raises(ShiftError, match="'b' has no class for good; its classes are x, y"):
        build(
            task("a", ("neg", "pos")), task("b", ("x", "y")),
            classes={"bad": ["neg", "x"], "good": ["pos"]},
        )  # fmt: skip


def test_only_files_and_datasets_have_columns(folder: Path) -> None:
    own = {"made": SyntheticTaskSpec(synthetic="qa")}
    with pytest.raises(DataError, match="neither in files nor on the hub"):
        load_column("made", "kind", data=None, base=folder, own=own)
    spec = FileTaskSpec(train="review.jsonl", validation_fraction=0.3, text=["text"], label="label")
    cells = load_column("review", "kind", data=None, base=folder, own={"review": spec})
    rows = load_task("review", data=None, base=folder, own={"review": spec}).validation
    for text, index in zip(rows.first, rows.index, strict=True):
        assert cells["validation"][int(index)] == text.split()[-1]


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({"bad": ["neg", "negg"], "good": ["pos"]}, "there is no class 'negg'.*'neg'"),
        ({"bad": ["neg"], "good": ["pos", "neg"]}, "class 'neg' is twice.*'bad' and 'good'"),
        ({"bad": ["neg", "neg"], "good": ["pos"]}, "class 'neg' is twice.*in 'bad'"),
    ],
)
def test_a_wrong_map_of_classes_is_refused(classes: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ShiftError, match=message):
        build(task("a", ("neg", "pos")), task("b", ("neg", "pos")), classes=classes)


def test_domains_are_different_tasks_with_classes() -> None:
    one = task("a", ("neg", "pos"))
    with pytest.raises(ShiftError, match="'a' is there twice"):
        build(one, one)
    rows = Rows(["x", "y"], None, np.array([0, 1]), np.arange(2), (["p", "q"], ["r", "s"]))
    choice = Task("c", ("neg", "pos"), ("accuracy",), rows, rows, head="c")
    with pytest.raises(ShiftError, match="'c' has no classes that tasks can share"):
        build(one, choice)


def test_rows_without_a_domain_are_left_out_and_counted(folder: Path) -> None:
    lines = (folder / "review.jsonl").read_text().splitlines()
    lines[4] = (
        lines[4]
        .replace('"kind": "story"', '"kind": ""')
        .replace('"kind": "play"', '"kind": ""')
        .replace('"kind": "film"', '"kind": null')
    )
    (folder / "review.jsonl").write_text("\n".join(lines) + "\n")
    world = make(folder, 'task = "review"\nby = "kind"\ndomains = ["film", "play", "story"]')
    cell = world.run(scenario="domains", epochs=1).cells[0]
    parts = [part["train"] for part in cell.scenario_report["parts"]]
    assert sum(parts) == 119
    assert cell.scenario_report["numbers"]["rows_without_domain"] == 1


def test_a_domain_without_a_class_is_refused(folder: Path) -> None:
    lines = (folder / "review.jsonl").read_text().splitlines()
    kept = [line for line in lines if '"play"' not in line or '"label": 0' not in line]
    (folder / "review.jsonl").write_text("\n".join(kept) + "\n")
    world = make(folder, 'task = "review"\nby = "kind"\ndomains = ["film", "play"]')
    with pytest.raises(ClbenchError, match="'play' has no training row of the class 0"):
        world.run(scenario="domains", epochs=1)
    one, two = task("a", ("neg", "pos")), task("b", ("neg", "pos"))
    rows = two.train.take(np.flatnonzero(two.train.labels == 1))
    with pytest.raises(ShiftError, match="'b' has no training row of the class neg"):
        build(one, replace(two, train=rows))

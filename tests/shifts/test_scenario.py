"""Scenarios: what they check and report, and how severe their shifts are."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fake_context import FakeContext, Spec, build, make_task, text

from clbench.core.errors import PluginError, SettingsError, ShiftError, UnknownNameError
from clbench.shifts.base import SHIFTS, ScenarioTasks, Shift, shift
from clbench.shifts.dataset import DatasetShift
from clbench.shifts.scenario import MOST_ROWS, separability, severities, uncertainties
from clbench.tasks.task import Rows, Task


def task_named(name: str, x: float = 0.0) -> Task:
    return make_task(
        [text(x + i) for i in range(8)],
        [text(x + i) for i in range(4)],
        name=name,
        labels=([0, 0, 0, 0, 0, 0, 1, 1], [0, 1, 1, 1]),
    )


@pytest.fixture
def context() -> FakeContext:
    numbers = Task(
        "numbers",
        (),
        ("pearson",),
        Rows.of([text(500 + i) for i in range(4)], None, [1.0, 2.0, 3.0, 6.0], regression=True),
        Rows.of([text(), text()], None, [2.0, 2.0], regression=True),
        head="numbers",
    )
    tasks = {"a": task_named("a"), "b": replace(task_named("b", 100), head="x"), "numbers": numbers}
    return FakeContext(tasks)


@pytest.fixture
def register() -> Iterator[Any]:
    added = []

    def add(name: str, build: Any) -> type[Shift]:
        kind = type("Own", (Shift,), {"build": build, "__module__": __name__})
        shift(name)(kind)
        added.append(name)
        return kind

    yield add
    for name in added:
        del SHIFTS._entries[name]


def test_listing_shifts_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from clbench.shifts.base import SHIFTS\n"
        "names = ['class-incremental', 'dataset', 'domain-incremental', 'embedding-cluster']\n"
        "assert SHIFTS.names() == [*names, 'pretraining', 'sentence-length', 'sequence']\n"
        "shifts = [SHIFTS.get(name) for name in SHIFTS]\n"
        "assert [s.name for s in shifts] == SHIFTS.names()\n"
        "import clbench.shifts.scenario\n"
        "heavy = {'torch', 'transformers', 'datasets', 'sklearn', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_report_has_sizes_balance_and_severity(context: FakeContext) -> None:
    scenario = build(Spec("dataset", {"tasks": ["a", "b", "numbers"]}), context)
    assert (scenario.name, scenario.shift) == ("pair", "dataset")
    assert scenario.settings == {"tasks": ["a", "b", "numbers"]}
    assert [task.name for task in scenario.tasks] == ["a", "b", "numbers"]
    assert [task.head for task in scenario.tasks] == ["a", "b", "numbers"]
    assert scenario.split is None
    assert scenario.report.to_json() == json.loads(json.dumps(scenario.report.to_json()))
    first, _, last = scenario.report.parts
    assert (first["task"], first["train"], first["validation"]) == ("a", 8, 4)
    assert first["train_labels"] == {"no": 0.75, "yes": 0.25}
    assert first["validation_labels"] == {"no": 0.25, "yes": 0.75}
    # Targets 1 2 3 6: mean 3, variance (4 + 1 + 0 + 9) / 4.
    assert last["train_labels"] == {"mean": 3.0, "std": 3.5**0.5, "min": 1.0, "max": 6.0}
    assert scenario.report.severities == (1.0, 1.0)
    assert scenario.report.severity == 1.0


def test_a_task_with_few_validation_rows_is_noted() -> None:
    tasks = {n: make_task([text()] * 2, [text()] * n, name=f"t{n}") for n in (36, 100)}
    context = FakeContext({task.name: task for task in tasks.values()})
    spec = Spec("dataset", {"tasks": ["t36", "t100"]})
    # sqrt(0.9 * 0.1 / 36) = 0.3 / 6
    notes = build(spec, context, severity=False).report.notes
    assert [note for note in notes if "standard error" in note] == [
        "t36: 36 validation rows, so a score of 0.9 (accuracy) has a standard error of 0.050",
    ]


def test_shared_texts_of_training_and_validation_are_noted() -> None:
    texts = [f"text number {i}" for i in range(100)]
    for shared, notes in ((2, ()), (3, ("t: 3 of 100 validation texts are also training texts",))):
        task = make_task(["other", *texts[:shared]], texts, name="t")
        assert tuple(uncertainties([task])) == notes


def test_groups_that_a_limit_tears_are_noted_where_a_metric_scores_groups() -> None:
    rows = Rows.of([f"text {i}" for i in range(500)], None, [0, 1] * 250)
    rows = replace(rows, groups=np.arange(500) // 2)
    few = rows.take([*range(198), 200, 202])
    task = Task("t", ("no", "yes"), ("accuracy", "exact-match"), rows.take([499]), few, "t")
    assert list(uncertainties([task])) == [
        "t: 2 groups of validation rows lack some rows (limits, or the shift), which can only "
        "raise exact-match"
    ]
    assert not list(uncertainties([replace(task, validation=few.take(range(198)))]))
    assert not list(uncertainties([replace(task, metrics=("accuracy",))]))


def test_the_note_on_few_rows_states_the_error_of_a_correlation() -> None:
    task = replace(make_task([text()] * 2, [text()] * 26, name="t"), metrics=("pearson",))
    # (1 - 0.9²) / sqrt(25) = 0.19 / 5
    assert next(uncertainties([task])) == (
        "t: 26 validation rows, so a score of 0.9 (pearson) has a standard error of 0.038"
    )


def test_severity_false_embeds_nothing(context: FakeContext) -> None:
    spec = Spec("dataset", {"tasks": ["a", "b"]})
    scenario = build(spec, context, severity=False)
    assert scenario.report.severity is None
    assert scenario.report.severities == ()
    assert context.embedded == []


def test_a_task_named_twice_keeps_its_head(context: FakeContext) -> None:
    scenario = build(Spec("dataset", {"tasks": ["a", "b", "a"]}), context)
    assert [task.head for task in scenario.tasks] == ["a", "b", "a"]
    assert scenario.tasks[0].train.digest == scenario.tasks[2].train.digest


@pytest.mark.parametrize(
    ("spec", "kind", "message"),
    [
        (
            Spec("datasets", {}),
            UnknownNameError,
            "Unknown shift 'datasets'. Did you mean",
        ),
        (Spec("dataset", {}), SettingsError, "shift 'dataset': tasks: is missing"),
        (Spec("dataset", {"tasks": ["a"]}), SettingsError, "tasks: must have at least 2 items"),
        (Spec("dataset", {"task": "a", "tasks": ["a", "b"]}), SettingsError, "task: unknown key"),
        (Spec("dataset", {"tasks": ["a", "c"]}), UnknownNameError, "Unknown task 'c'"),
        (Spec("sentence-length", {"task": 3}), SettingsError, "task: must be a text"),
    ],
    ids=lambda value: value.shift if isinstance(value, Spec) else None,
)
def test_wrong_settings_are_named(
    spec: Spec, kind: type[Exception], message: str, context: FakeContext
) -> None:
    with pytest.raises(kind) as caught:
        build(spec, context)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("split", "rows", "message"),
    [
        ("train", [0, 1, 2], "the train rows of 'a' (3) would all be of class 'no'"),
        ("validation", [1, 2], "the validation rows of 'a' (2) would all be of class 'yes'"),
        ("validation", [], "the validation rows of 'a' would be empty"),
    ],
)
def test_empty_and_one_class_parts_are_refused(
    split: str, rows: list[int], message: str, context: FakeContext
) -> None:
    task = context.tasks["a"]
    cut = replace(task, **{split: getattr(task, split).take(rows)})
    context = FakeContext({**context.tasks, "a": cut})
    with pytest.raises(ShiftError) as caught:
        build(Spec("dataset", {"tasks": ["b", "a"]}), context)
    assert message in str(caught.value)
    assert str(caught.value).startswith("scenario 'pair'")


def test_a_plug_in_shift_may_return_a_list(context: FakeContext, register: Any) -> None:
    kind = register("mine", lambda self, context: [context.task("b"), context.task("a")])
    scenario = build(Spec("mine", {}), context)
    assert [task.name for task in scenario.tasks] == ["b", "a"]
    assert kind.name == "mine"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "build must return a list with at least one Task, not nothing."),
        ([], "at least one Task, not []."),
        (["a"], "at least one Task, not ['a']."),
        (ScenarioTasks(()), "not ScenarioTasks(tasks=()"),
    ],
)
def test_build_must_return_tasks(
    result: Any, message: str, context: FakeContext, register: Any
) -> None:
    register("mine", lambda self, context: result)
    with pytest.raises(PluginError) as caught:
        build(Spec("mine", {}), context)
    assert message in str(caught.value)


def test_numbers_of_a_plug_in_become_plain_json(context: FakeContext, register: Any) -> None:
    numbers = {
        "mean": np.float32(0.5), "sizes": np.array([1, 2]), "path": Path("x"), "of none": np.nan
    }  # fmt: skip
    tasks = (context.task("a"), context.task("b"))
    register("mine", lambda self, context: ScenarioTasks(tasks, numbers=numbers))
    report = build(Spec("mine", {}), context, severity=False).report.to_json()
    assert report["numbers"] == {"mean": 0.5, "sizes": [1, 2], "path": "x", "of none": None}


def test_only_subclasses_with_build_can_be_registered() -> None:
    with pytest.raises(PluginError, match=r"must be a subclass of clbench\.Shift"):
        shift("mine")(dict)  # type: ignore[type-var]
    with pytest.raises(PluginError, match="does not define build"):
        shift("mine")(type("Empty", (Shift,), {}))
    with pytest.raises(PluginError, match="registered twice"):
        shift("dataset")(type("Other", (DatasetShift,), {}))


def test_equal_targets_and_blank_rows_are_noted() -> None:
    texts = [f"text number {i}" for i in range(100)]
    task = make_task(["other"] * 2, texts, name="t[short]")
    targets = Rows.of(texts, None, [2.5] * 100, regression=True)
    task = replace(
        task, labels=(), metrics=("pearson",), validation=targets, source={"blank": {"train": 3}}
    )
    assert list(uncertainties([task])) == [
        "t: 3 train rows without text left out (skip_blank)",
        "t[short]: all 100 validation targets are equal, so every correlation with them counts "
        "as 0",
    ]


def cloud(mean: float, count: int, seed: int, width: int = 8) -> np.ndarray:
    points = np.random.default_rng(seed).normal(size=(count, width))
    points[:, 0] += mean
    return points.astype(np.float32)


def test_distant_sets_have_one_and_equal_sets_a_half() -> None:
    assert separability(cloud(0, 200, 0), cloud(20, 200, 1), 0) == 1.0
    assert separability(cloud(0, 500, 0), cloud(0, 500, 1), 0) == pytest.approx(0.5, abs=0.06)


def test_severity_is_the_accuracy_of_the_best_linear_rule() -> None:
    # Normal clouds two standard deviations apart: the best rule is right in Phi(1) = 0.8413.
    value = separability(cloud(0, 1000, 0), cloud(2, 1000, 1), 0)
    assert value == pytest.approx(0.8413, abs=0.02)


def test_the_sizes_of_the_sets_do_not_matter() -> None:
    value = separability(cloud(0, 1000, 0), cloud(2, 50, 1), 0)
    assert value == pytest.approx(0.84, abs=0.06)
    assert separability(cloud(0, 1000, 0), cloud(0, 50, 1), 0) == pytest.approx(0.5, abs=0.12)


def test_fewer_rows_than_dimensions_suffice() -> None:
    assert separability(cloud(0, 10, 0, 200), cloud(30, 10, 1, 200), 0) == 1.0


def test_a_set_of_fewer_than_three_different_points_has_no_severity() -> None:
    same, other = np.ones((6, 3), np.float32), cloud(0, 6, 0, 3)
    assert separability(same, other, 0) is None
    assert separability(other[:2], other[2:], 0) is None
    assert separability(other[:3], other[3:], 0) is not None


@pytest.mark.parametrize("shared", [1, 150, 300])
def test_shared_points_are_only_guessed(shared: int) -> None:
    first, second = cloud(0, 300, 0), cloud(0, 300, 1)
    second[:shared] = first[:shared]
    assert separability(first, second, 0) == pytest.approx(0.5, abs=0.07)


def test_the_same_seed_gives_the_same_number() -> None:
    first, second = cloud(0, 60, 0), cloud(1, 60, 1)
    assert separability(first, second, 3) == separability(first, second, 3)


def test_each_pair_of_neighbours_has_a_severity() -> None:
    def task(name: str, x: float) -> object:
        return make_task([text(x + i % 3, i % 2) for i in range(12)], [text()] * 2, name=name)

    near, far = task("near", 0), task("far", 50)
    context = FakeContext({})
    assert severities((near, near, far), context) == (0.5, 1.0)  # type: ignore[arg-type]


def test_equal_texts_have_a_half_whatever_their_labels() -> None:
    texts = [text(i % 7, i % 5) for i in range(40)]
    labels = [i % 2 for i in range(40)]
    task = make_task(texts, texts, labels=(labels, labels), name="task")
    flipped = [1 - label for label in labels]
    other = make_task(texts[::-1], texts, labels=(flipped, flipped), name="other")
    assert severities((task, other), FakeContext({})) == (0.5,)


def test_large_tasks_are_sampled_evenly_over_classes() -> None:
    task = make_task([text(i) for i in range(3 * MOST_ROWS)], [text()] * 2, name="many")
    few = make_task([text(i) for i in range(10)], [text()] * 2, name="few")
    context = FakeContext({})
    severities((task, few), context)
    assert [len(rows) for rows in context.embedded] == [MOST_ROWS, 10]
    assert np.bincount(context.embedded[0].labels).tolist() == [MOST_ROWS // 2] * 2

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_context import FakeContext, Spec, make_task, text
from hypothesis import given, settings
from hypothesis import strategies as st

from clbench.errors import SettingsError, ShiftError
from clbench.shifts.scenario import build_scenario
from clbench.shifts.sentence_length import LONG, SHORT, SentenceLength, divide, equal_halves
from clbench.tasks.registry import load_task
from clbench.tasks.task import Task


def words(task: Task, split: str = "train") -> list[int]:
    return [len(row.split()) - 2 for row in getattr(task, split).first]


def test_the_shorter_half_comes_first(by_length: Task) -> None:
    built = SentenceLength(task="base").build(FakeContext({"base": by_length}))
    short, long = built.tasks
    assert (short.name, long.name) == ("base[short]", "base[long]")
    assert short.head == long.head == "base"
    # Training lengths 8 1 5 4 2 7 3 6: the lower four are 1 to 4, in the source's order.
    assert words(short) == [1, 4, 2, 3]
    assert words(long) == [8, 5, 7, 6]
    assert short.train.index.tolist() == [1, 3, 4, 6]
    assert short.train.labels.tolist() == [0, 1, 1, 0]
    # The threshold 4 belongs to the short half, so a validation row of length 4 is short.
    assert words(short, "validation") == [1, 4, 3, 2]
    assert words(long, "validation") == [5, 6]
    assert built.numbers == {
        "unit": "tokens",
        "threshold": 4,
        "ties": "short",
        "tied_training_rows": 1,
        "mean_length": {
            "train": {"short": 2.5, "long": 6.5},
            "validation": {"short": 2.5, "long": 5.5},
        },
    }
    assert short.source == {"origin": "here", "part": "short", "shift": "sentence-length"}


def test_ties_keep_the_halves_equal_and_send_validation_rows_one_way() -> None:
    train = [text(i, words=n) for i, n in enumerate([2, 3, 3, 3, 3, 9])]
    validation = [text(words=n) for n in (3, 1, 3, 4)]
    task = make_task(train, validation)
    built = SentenceLength(task="base").build(FakeContext({"base": task}))
    short, long = built.tasks
    # Three short rows: the one of 2 words and two of the four of 3 words.
    assert sorted(words(short)) == [2, 3, 3]
    assert sorted(words(long)) == [3, 3, 9]
    assert built.numbers["ties"] == "short"
    assert words(short, "validation") == [3, 1, 3]
    assert words(long, "validation") == [4]
    again = SentenceLength(task="base").build(FakeContext({"base": task}))
    assert again.tasks[0].train.index.tolist() == short.train.index.tolist()
    drawn = {
        tuple(
            SentenceLength(task="base")
            .build(FakeContext({"base": task}, seed=seed))
            .tasks[0]
            .train.index
        )
        for seed in range(10)
    }
    assert len(drawn) > 1


def test_ties_go_to_the_long_side_when_most_of_them_are_there() -> None:
    task = make_task([text(i, words=n) for i, n in enumerate([1, 2, 2, 2])], [text(words=2)] * 2)
    built = SentenceLength(task="base").build(FakeContext({"base": task}))
    assert built.numbers["ties"] == "long"
    assert words(built.tasks[1], "validation") == [2, 2]


def test_an_odd_row_goes_to_the_long_half() -> None:
    threshold, halves = equal_halves(np.array([5, 1, 3]), np.random.default_rng(0))
    assert threshold == 1
    assert halves.tolist() == [LONG, SHORT, LONG]


@given(st.lists(st.integers(0, 12), min_size=2, max_size=60), st.integers(0, 3))
@settings(deadline=None)
def test_halves_are_equal_and_ordered(lengths: list[int], seed: int) -> None:
    values = np.array(lengths)
    threshold, halves = equal_halves(values, np.random.default_rng(seed))
    short, long = values[halves == SHORT], values[halves == LONG]
    assert 0 <= len(long) - len(short) <= 1
    assert short.max() == threshold <= long.min()
    clear = values != threshold
    for side in (SHORT, LONG):
        assert divide(values, threshold, side)[clear].tolist() == halves[clear].tolist()
        assert (divide(values, threshold, side)[~clear] == side).all()


@pytest.mark.parametrize(
    ("unit", "short"),
    [("tokens", [0, 1]), ("words", [0, 1]), ("characters", [1, 2])],
)
def test_each_unit_counts_both_texts_of_a_pair(unit: str, short: list[int]) -> None:
    # Beside two numbers: tokens and words 0+3, 1+0, 2+2, 0+6; characters differ.
    first = ["0 0", "0 0 w", "0 0 w w", "0 0"]
    second = ["extraordinarily long words", "", "a b", "incomprehensibilities a b c d e"]
    task = make_task(first, first, second=(second, second), labels=([0, 1, 0, 1], [0, 1, 0, 1]))
    built = SentenceLength(task="base", unit=unit).build(FakeContext({"base": task}))
    assert built.tasks[0].train.index.tolist() == short
    assert built.tasks[0].train.second == [second[i] for i in short]


def test_equally_long_rows_are_refused() -> None:
    task = make_task([text(words=3)] * 4, [text(words=3)] * 4)
    with pytest.raises(ShiftError, match="all 4 training rows have 3 tokens"):
        SentenceLength(task="base").build(FakeContext({"base": task}))


def test_an_empty_validation_half_is_refused(by_length: Task) -> None:
    task = replace(by_length, validation=by_length.validation.take([0, 5, 4, 1]))
    with pytest.raises(ShiftError) as caught:
        build_scenario(
            Spec("sentence-length", {"task": "base"}), FakeContext({"base": task}), severity=False
        )
    message = "scenario 'pair': the validation rows of 'base[long]' would be empty."
    assert str(caught.value).startswith(message)


def test_a_half_of_one_class_is_refused(by_length: Task) -> None:
    labels = np.array([1, 0, 1, 0, 0, 1, 0, 1])
    task = replace(by_length, train=replace(by_length.train, labels=labels))
    with pytest.raises(
        ShiftError, match=r"train rows of 'base\[short\]' \(4\) would all be of cla"
    ):
        build_scenario(
            Spec("sentence-length", {"task": "base"}), FakeContext({"base": task}), severity=False
        )


def test_tuning_rows_are_divided_too(by_length: Task) -> None:
    task = replace(by_length, tuning=by_length.validation.take([0, 3]))
    built = SentenceLength(task="base").build(FakeContext({"base": task}))
    assert [words(part, "tuning") for part in built.tasks] == [[1], [6]]


def test_wrong_settings_are_named() -> None:
    with pytest.raises(SettingsError, match=r"unit: must be 'tokens', 'words' or 'charac"):
        SentenceLength(task="base", unit="letters")
    with pytest.raises(SettingsError, match="task: is missing"):
        SentenceLength()
    with pytest.raises(SettingsError, match=r"unti: unknown key.* Did you mean 'unit'"):
        SentenceLength(task="base", unti="words")


@pytest.mark.real
@pytest.mark.parametrize("name", ["sst2", "rte"])
def test_halves_of_real_tasks_are_equal_and_ordered(name: str, real_data: Path) -> None:
    task = load_task(f"glue/{name}", data=real_data, base=Path(), own={})

    def count(rows: object) -> np.ndarray:
        second = rows.second or [""] * len(rows)  # type: ignore[attr-defined]
        both = zip(rows.first, second, strict=True)  # type: ignore[attr-defined]
        return np.array([len(a.split()) + len(b.split()) for a, b in both])

    context = FakeContext({task.name: task})
    built = SentenceLength(task=task.name, unit="words").build(context)
    short, long = built.tasks
    assert abs(len(short.train) - len(long.train)) <= 1
    assert count(short.train).max() <= count(long.train).min()
    assert count(short.validation).max() <= count(long.validation).min()
    assert count(long.train).mean() > 1.5 * count(short.train).mean()
    both = np.sort(np.concatenate([short.validation.index, long.validation.index]))
    assert both.tolist() == list(range(len(task.validation)))

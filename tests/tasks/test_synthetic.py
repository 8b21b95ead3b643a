"""The generator's promises: determinism, disjoint splits, balance, lengths, topics, noise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from clbench.tasks.synthetic import SPECS, generate, unlabelled

NAMES = sorted(SPECS)


def words(row: tuple[str, str | None, int]) -> int:
    return len(f"{row[0]} {row[1] or ''}".split())


def test_the_six_shapes_of_glue_are_there() -> None:
    assert set(SPECS) == {
        "sentiment", "acceptability", "paraphrase", "qa", "entailment", "entailment3"
    }  # fmt: skip
    assert {name for name in NAMES if not SPECS[name].pair} == {"sentiment", "acceptability"}
    assert [len(SPECS[name].labels) for name in NAMES] == [2, 2, 3, 2, 2, 2]


@pytest.mark.parametrize("name", NAMES)
def test_rows_have_the_shape_that_the_spec_names(name: str) -> None:
    for first, second, label in generate(name, train=200, validation=50)["train"]:
        assert first
        assert bool(second) is SPECS[name].pair
        assert 0 <= label < len(SPECS[name].labels)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_rows_and_another_seed_others(name: str) -> None:
    once = generate(name, train=300, validation=100, seed=3)
    assert once == generate(name, train=300, validation=100, seed=3)
    other = generate(name, train=300, validation=100, seed=4)
    same = {row[:2] for row in once["train"]} & {row[:2] for row in other["train"]}
    assert len(same) < 100


def test_rows_do_not_depend_on_the_hash_seed_of_the_process() -> None:
    code = (
        "from clbench.tasks.synthetic import generate, unlabelled, SPECS;"
        "print([generate(n, train=20, validation=5) for n in sorted(SPECS)], unlabelled(5))"
    )
    out = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(out) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_smaller_split_is_the_beginning_of_a_larger_one(name: str) -> None:
    small = generate(name, train=100, validation=10, label_noise=0.2)
    large = generate(name, train=150, validation=60, label_noise=0.2)
    assert large["train"][:100] == small["train"]
    assert large["validation"][:10] == small["validation"]


@pytest.mark.parametrize("name", NAMES)
def test_no_text_twice_and_none_in_both_splits(name: str) -> None:
    data = generate(name, train=5000, validation=1000)
    rows = [row[:2] for row in (*data["train"], *data["validation"])]
    assert len(set(rows)) == 6000
    firsts = [{row[0] for row in data[split]} for split in ("train", "validation")]
    assert not firsts[0] & firsts[1]
    later = generate(name, train=500, validation=0, seed=9)
    assert not {row[0] for row in later["train"]} & firsts[1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [997, 2000])
def test_classes_are_balanced(name: str, size: int) -> None:
    for rows in generate(name, train=size, validation=size).values():
        counts = Counter(label for *_, label in rows)
        assert len(counts) == len(SPECS[name].labels)
        assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("name", NAMES)
def test_lengths_spread_widely_and_say_nothing_of_the_label(name: str) -> None:
    rows = generate(name, train=3000, validation=0)["train"]
    lengths = np.array([words(row) for row in rows])
    labels = np.array([label for *_, label in rows])
    low, high = np.percentile(lengths, [10, 90])
    assert high >= 1.9 * low
    for label in np.unique(labels):
        rest = lengths[labels != label]
        gap = abs(lengths[labels == label].mean() - rest.mean())
        assert gap < 0.35 * lengths.std()


@pytest.mark.parametrize("name", NAMES)
def test_both_topics_come_in_every_class(name: str) -> None:
    from clbench.tasks.synthetic.lexicon import TOPICS

    sea = TOPICS["harbor"]
    words = {*sea.people, *sea.things, *sea.aspects, *sea.places}
    share = {
        label: np.mean([any(f" {word}" in text.lower() for word in words) for text in texts])
        for label in range(len(SPECS[name].labels))
        for texts in [[row[0] for row in generate(name)["train"] if row[2] == label]]
    }
    assert all(0.3 < value < 0.7 for value in share.values()), share


def test_noise_changes_labels_of_training_rows_only() -> None:
    clean = generate("entailment3", train=2000, validation=300)
    noisy = generate("entailment3", train=2000, validation=300, label_noise=0.25)
    assert noisy["validation"] == clean["validation"]
    assert [row[:2] for row in noisy["train"]] == [row[:2] for row in clean["train"]]
    changed = np.mean([a[2] != b[2] for a, b in zip(noisy["train"], clean["train"], strict=True)])
    assert 0.21 < changed < 0.29
    every = generate("sentiment", train=50, validation=0, label_noise=1.0)["train"]
    assert all(a[2] != b[2] for a, b in zip(every, generate("sentiment")["train"], strict=False))


def test_vocabulary_is_varied() -> None:
    texts = " ".join(unlabelled(3000)).lower().replace(".", " ").replace(",", " ").split()
    assert len(set(texts)) > 350


def test_unlabelled_texts_are_distinct_deterministic_and_in_no_validation_split() -> None:
    texts = unlabelled(2000, seed=1)
    assert texts == unlabelled(2000, seed=1)
    assert len(set(texts)) == 2000
    assert unlabelled(50, seed=1) == texts[:50]
    for name in NAMES:
        held_out = generate(name, train=0, validation=500)["validation"]
        assert not {row[0] for row in held_out} & set(texts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train": -1}, "train must be a whole number of 0 or more, not -1"),
        ({"train": "5"}, "train must be a whole number of 0 or more, not '5'"),
        ({"seed": None}, "seed must be a whole number"),
        ({"label_noise": 1.5}, "label_noise 1.5"),
    ],
)
def test_impossible_wishes_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate("sentiment", **arguments)  # type: ignore[arg-type]


def test_an_unknown_task_is_named_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown synthetic task 'sentimant'.*'sentiment'"):
        generate("sentimant")


def test_no_text_first_or_second_is_in_both_splits() -> None:
    for name in NAMES:
        data = generate(name, train=3000, validation=500)
        other = generate(name, train=3000, validation=0, seed=5)
        held = {text for row in data["validation"] for text in row[:2] if text}
        trained = {text for d in (data, other) for row in d["train"] for text in row[:2] if text}
        assert not held & trained
        assert not held & set(unlabelled(3000))


@pytest.mark.parametrize("name", ["acceptability", "entailment", "entailment3"])
def test_no_single_word_gives_the_label_away(name: str) -> None:
    rows = generate(name, train=6000, validation=0)["train"]
    labels: dict[str, Counter[int]] = {}
    for first, second, label in rows:
        for word in set(re.findall(r"\w+|[^\w\s]", (second or first).lower())):
            labels.setdefault(word, Counter())[label] += 1
    common = {word: count for word, count in labels.items() if count.total() >= 150}
    assert len(common) > 30
    share = {word: max(count.values()) / count.total() for word, count in common.items()}
    assert max(share.values()) < 0.92, max(share, key=lambda word: share[word])


def test_an_exhausted_grammar_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from clbench.tasks.synthetic import generate as module  # noqa: F401
    from clbench.tasks.synthetic.single import SINGLE

    monkeypatch.setitem(SINGLE, "sentiment", lambda rng, label: ("One text.", None))
    with pytest.raises(ValueError, match="fewer than"):
        generate("sentiment", train=10, validation=10)

"""Details of audit that no other test notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit.test_gate import CELLS, compared, gate_of, scores
from scipy import stats

from clbench.audit.changes import Flips, items_needed, judge, mean_change
from clbench.audit.comparison import compare
from clbench.audit.scores import ItemScores
from clbench.results.statistics import POWER


@pytest.mark.parametrize("shift", [0.3, -0.3])
def test_bounds_are_those_of_t_tests_with_an_item_more(shift: float) -> None:
    rng = np.random.default_rng(1)
    base = rng.uniform(0.3, 0.7, 40)
    tuned = base + shift * rng.uniform(0, 1, 40)
    found, differences = mean_change(base, tuned, 1.0), tuned - base
    down, up = (stats.ttest_1samp([*differences, far], 0.0) for far in (-1.0, 1.0))
    low, high = found.interval(0.9)
    assert low == pytest.approx(down.confidence_interval(0.9).low)
    assert high == pytest.approx(up.confidence_interval(0.9).high)
    assert found.difference == pytest.approx(differences.mean())
    assert found.p == pytest.approx((down if shift > 0 else up).pvalue)


@pytest.mark.parametrize(
    ("lost", "gained", "distance"), [(60, 58, 0.02 - 2 / 1000), (75, 55, 0.02)]
)
def test_the_items_that_settle_a_change_are_those_of_its_nearest_verdict(
    lost: int, gained: int, distance: float
) -> None:
    (change,) = judge({0: Flips(lost, gained, 1000).sample()}, 0.02).values()
    assert change.verdict == "no difference shown"
    wanted = items_needed((lost + gained) / 1000, distance, 0.05, (1 + POWER) / 2)
    assert change.items_needed == wanted


def test_what_was_not_measured_takes_no_share_of_the_error_rate() -> None:
    found = compared(mine=("behaviour", (90, 12, 2, 6)))
    first, absent = (
        gate_of(("mine", "not_worse_by", -0.02), ("format", "at_least", 0.9)).decide(found).findings
    )
    assert first.high == pytest.approx(Flips(12, 2, 110).interval(0.9)[1])
    assert absent.value is None


def guessed(task: str, counts: tuple[int, int, int, int], chance: float) -> list[ItemScores]:
    cells = np.repeat(CELLS, counts, axis=0)
    keys = tuple(map(str, range(len(cells))))
    return [ItemScores(task, "reading", cells[:, i], keys, chance=chance) for i in (0, 1)]


def test_tasks_that_cannot_show_forgetting_do_not_dilute_a_loss() -> None:
    """One task lost a tenth; the base model only guesses the other one, which has no flips."""
    able, blind = guessed("able", (170, 20, 0, 10), 0.5), guessed("blind", (50, 0, 0, 150), 0.25)
    found = compare(*zip(able, blind, strict=True), 0.02)  # type: ignore[arg-type]
    assert [each.cannot_show_forgetting for each in found.changes] == [False, True]
    (finding,) = gate_of(("reading", "not_worse_by", -0.06)).decide(found).findings
    assert (finding.n, finding.value, finding.blind) == (200, pytest.approx(-0.1), False)
    # A gain may be shown on both.
    (finding,) = gate_of(("reading", "better_by", 0.0)).decide(found).findings
    assert (finding.n, finding.value) == (400, pytest.approx(-0.05))
    (finding,) = gate_of(("blind", "not_worse_by", -0.5)).decide(found).findings
    assert (finding.word, finding.blind) == ("open", True)


def test_scores_between_0_and_1_may_differ_by_1() -> None:
    from clbench.audit.scores import Paired

    keys, base, tuned = ("a", "b"), np.array([0.5, 0.6]), np.array([0.55, 0.4])
    assert Paired(keys, base, tuned).largest == 1.0
    assert Paired(keys, base, tuned + 2.0).largest == pytest.approx(2.05)
    assert Paired(keys, base - 1.0, tuned - 1.0).largest == pytest.approx(0.2)


def test_equal_weights_that_read_otherwise_are_compared() -> None:
    from dataclasses import replace

    from clbench.audit.audit import Auditor, Observation

    auditor: Any = Auditor(None, None, None, None, 0.02, True, print)  # type: ignore[arg-type]
    values = np.repeat([1.0, 0.0], [80, 20])
    before = Observation(
        (scores("a", "features", values),), {"features": "w"}, {"features": "right"}, None
    )
    after = replace(before, scores=(scores("a", "features", np.repeat([1.0, 0.0], [50, 50])),))
    same, other = (
        auditor.compare(before, each)
        for each in (after, replace(after, reading={"features": "left"}))
    )
    assert (same.identical, same.changes[0].change.word) == (True, "kept")
    assert (other.identical, other.changes[0].change.word) == (False, "forgot")


def test_a_better_task_pays_for_a_loss_of_the_learned_one_alone() -> None:
    from types import SimpleNamespace

    from clbench.audit.mend import losses

    def found(**verdicts: str) -> list[str]:
        changes: Any = {name: SimpleNamespace(verdict=v) for name, v in verdicts.items()}
        return losses(changes, "learn")

    assert found(keep="better", learn="worse") == []
    assert found(keep="equivalent", learn="worse") == ["learn"]
    assert found(keep="better", other="worse", learn="worse") == ["other", "learn"]
    assert found(keep="better", other="worse", learn="better") == ["other"]


def test_the_word_is_that_of_the_first_part_and_a_loss_comes_first() -> None:
    found = compared(
        text=("language", (80, 0, 0, 20)),
        fine=("behaviour", (300, 0, 0, 100)),
        few=("knowledge", (30, 5, 4, 11)),
        lost=("knowledge", (600, 200, 50, 150)),
    )
    assert found.word == "kept"
    assert found.words["knowledge"] == "forgot"
    assert [each.task for each in found.measures] == ["fine", "lost", "few", "text"]


def test_the_bounds_of_a_loss_are_corrected_for_its_skew() -> None:
    from clbench.audit.gate import mean_of

    rng, keys = np.random.default_rng(0), tuple(map(str, range(60)))
    both = [np.zeros(60), -rng.exponential(0.1, 60)]
    one, two = (ItemScores("l", "language", values, keys, "loss") for values in both)
    found = compare([one], [two], 0.02)
    (finding,) = gate_of(("language", "not_worse_by", -0.05)).decide(found).findings
    own, plain = mean_of(both[1]).interval(0.9), mean_change(*both).interval(0.9)
    assert (finding.low, finding.high) == pytest.approx(own)
    assert abs(own[0] - plain[0]) > 1e-3


def test_the_interval_beyond_chance_is_as_wide_as_the_estimate_varies() -> None:
    from audit.test_chance import table

    from clbench.audit.chance import beyond_chance

    counts = 200, 400, 50, 350
    lost, _ = beyond_chance(table(*counts), 2)
    drawn = np.random.default_rng(0).multinomial(1000, np.array(counts) / 1000, 20_000) / 1000
    wrong, after = drawn[:, 2] + drawn[:, 3], drawn[:, 1] + drawn[:, 3]
    spread = (drawn[:, 1] - wrong * after).std()
    assert lost.low > 0.0
    assert (lost.high - lost.low) / (2 * 1.96) == pytest.approx(spread, rel=0.03)


def test_only_what_beats_the_tuned_model_takes_its_place() -> None:
    from clbench.audit.mend import Point, _Sweep
    from clbench.audit.weights import BASE, TUNED, Mixture

    sweep = _Sweep(lambda mixture: {}, print, keeps_adapter=False)
    half, third = Mixture(0.5), Mixture(0.3)
    sweep.points = [Point(TUNED, 0.5, 0.5), Point(half, 0.6, 0.4), Point(third, 0.6, 0.5)]
    sweep.points.append(Point(BASE, 0.9, 0.9))
    assert sweep.single() == [third]


@pytest.mark.parametrize("keeps_adapter", [False, True])
def test_an_adapter_that_stays_one_is_not_trimmed(keeps_adapter: bool) -> None:
    from clbench.audit.mend import Point, _Sweep
    from clbench.audit.weights import TUNED, Mixture

    sweep = _Sweep(lambda mixture: {}, print, keeps_adapter)
    trimmed = Mixture(1.0, largest=0.2)
    sweep.points = [Point(TUNED, 0.5, 0.5), Point(trimmed, 0.6, 0.6)]
    assert sweep.best().mixture == (TUNED if keeps_adapter else trimmed)
    if keeps_adapter:
        assert sweep.best(trimmed=True).mixture == trimmed


@pytest.mark.parametrize("wordings", [2, 3])
def test_the_unstable_share_is_that_of_pairs_of_wordings(
    wordings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from itertools import combinations
    from types import SimpleNamespace

    from clbench.audit import ability

    right = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], float)[:wordings]
    answered = iter(
        SimpleNamespace(marks=[(r, np.nan, np.nan) for r in row], scores=[], said=["a"] * 4)
        for row in right
    )
    monkeypatch.setattr(ability, "ask", lambda *_: next(answered))
    model: Any = SimpleNamespace(model=SimpleNamespace(to=lambda device: None))
    asked: Any = SimpleNamespace(questions=[0] * 4, tokenizer=None, task=None, wordings=wordings)
    found = ability.answer(model, asked, None)  # type: ignore[arg-type]
    pairs = [a != b for a, b in combinations(right, 2)]
    assert found.unstable.tolist() == pytest.approx(np.mean(pairs, axis=0).tolist())


def test_every_class_is_spread_evenly_over_the_folds() -> None:
    from helpers.audits import items_of

    from clbench.audit.items import FOLDS, load_items

    for items in (items_of(), *load_items(["synthetic/entailment3"], data=None, rows=97)):
        for label in np.unique(items.rows.labels):
            counts = np.bincount(items.folds[items.rows.labels == label], minlength=FOLDS)
            assert counts.max() - counts.min() <= 1


def test_language_is_measured_on_held_out_texts() -> None:
    import torch

    from clbench.audit.language import LanguageLoss
    from clbench.audit.models import load_base
    from clbench.tasks.corpus import read_corpus, resolve_corpus

    corpus = resolve_corpus("built-in", Path.cwd(), "corpus")
    loss = LanguageLoss(load_base("tiny"), corpus, 40, 0, torch.device("cpu"))
    assert loss._inputs == tuple(read_corpus(corpus, 40, 0, held_out=True))
    assert not {*loss._inputs} & {*read_corpus(corpus, 10**6, 0)}

"""Gates: what a file requires of a tuned model, and how often a decision is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from clbench.audit.changes import Flips
from clbench.audit.comparison import Comparison, compare
from clbench.audit.gate import TEMPLATE, Gate, Requirement, mean_of, read_gate
from clbench.audit.scores import ItemScores, Part
from clbench.cli.app import main
from clbench.core.errors import SuiteError

Counts = tuple[int, int, int, int]
CELLS = [[1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
"""Right in both models, lost, gained, and wrong in both."""


def scores(task: str, part: Part, values: np.ndarray, metric: str = "accuracy") -> ItemScores:
    return ItemScores(task, part, values, tuple(map(str, range(len(values)))), metric)


def compared(**tasks: tuple[Part, Counts]) -> Comparison:
    """Return a comparison of tasks by how many items are right in both, lost, gained, and wrong."""
    both: tuple[list[ItemScores], list[ItemScores]] = ([], [])
    for task, (part, counts) in tasks.items():
        cells = np.repeat(CELLS, counts, axis=0)
        for side, own in enumerate(both):
            own.append(scores(task, part, cells[:, side]))
    return compare(*both, 0.02)


def gate_of(*requirements: tuple[str, str, float]) -> Gate:
    return Gate(Path("gate.toml"), tuple(Requirement(*each) for each in requirements))


def read(tmp_path: Path, text: str) -> Gate:
    path = tmp_path / "gate.toml"
    path.write_text(text)
    return read_gate(path)


def test_a_file_says_what_must_hold(tmp_path: Path) -> None:
    gate = read(
        tmp_path,
        '[knowledge]\nnot_worse_by = 0.02\n["a/b"]\nbetter_by = 0.05\nat_least = 0.9\n'
        "[language]\nnot_worse_by = 0.05\n",
    )
    assert (
        gate.requirements
        == gate_of(
            ("knowledge", "not_worse_by", -0.02),
            ("a/b", "better_by", 0.05),
            ("a/b", "at_least", 0.9),
            ("language", "not_worse_by", -0.05),
        ).requirements
    )
    gate.check(["a/b"])
    # The template is a file that works as it is.
    assert [r.name for r in read(tmp_path, TEMPLATE).requirements] == ["features", "language"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[mine]\nbeter_by = 0.1\n", "line 2, column 1: [mine] beter_by: unknown key. Did you me"),
        ("[mine]\nat_least = 1.5\n", "line 2, column 1: [mine] at_least: must be a number from 0"),
        ("[mine]\nnot_worse_by = true\n", "must be a number from 0 to 100, got true"),
        ("[mine]\nnot_worse_by = -0.02\n", "must be a number from 0 to 100, got -0.02"),
        ("[mine]\n", "mine: must be a table with not_worse_by or better_by or at_least"),
        ("mine = 0.02\n", "line 1, column 1: mine: must be a table with not_worse_by"),
        ("[language]\nat_least = 0.9\n", "a loss has no score; use not_worse_by"),
        ("[calibration]\nat_least = 0.9\n", "an error has no score; use not_worse_by"),
        ("# nothing\n", "has no requirement; clbench audit --gate-template prints some"),
        ('["a/c"]\nbetter_by = 0.1\n', 'line 1, column 1: ["a/c"]: is neither an axis nor'),
        ("[knowlege]\nbetter_by = 0.1\n", "of this audit. Did you mean 'knowledge'?"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SuiteError) as error:
        read(tmp_path, text).check(["a/b", "mine"])
    assert message in str(error.value)
    assert "gate.toml: " in str(error.value)
    assert "\n" not in str(error.value)


def test_one_violation_fails_and_an_open_requirement_leaves_it_open() -> None:
    found = compared(
        fine=("knowledge", (900, 20, 60, 20)),
        lost=("reasoning", (600, 200, 50, 150)),
        few=("reading", (30, 5, 4, 11)),
    )
    fine, lost, few = (
        (name, "not_worse_by", -0.02) for name in ("knowledge", "reasoning", "reading")
    )
    assert gate_of(fine).decide(found).word == "pass"
    assert gate_of(fine, few).decide(found).word == "not enough evidence"
    decision = gate_of(fine, few, lost).decide(found)
    assert decision.word == "fail"
    assert decision.headline("m").startswith(
        "fail: m: reasoning -0.150, must be -0.020 or more: 0.130 too low, shown to be -0.1"
    )
    assert "reading" not in decision.headline("m")
    line = gate_of(fine).decide(found).headline("m")
    assert line == "pass: m: meets all requirements of gate.toml (1)"
    assert json.loads(json.dumps(decision.to_json("m"), allow_nan=False))["verdict"] == "fail"


def test_what_was_not_measured_is_not_passed() -> None:
    found = compared(mine=("behaviour", (90, 2, 2, 6)))
    decision = gate_of(("format", "at_least", 0.98)).decide(found)
    assert decision.headline("m") == (
        "not enough evidence: m: format must be 0.980 or more, but was not measured"
    )


def test_an_axis_pools_items_and_a_task_is_judged_by_its_behaviour() -> None:
    one, two = (80, 10, 0, 10), (250, 0, 10, 40)
    found = compared(a=("knowledge", one), b=("knowledge", two))
    (finding,) = gate_of(("knowledge", "better_by", 0.05)).decide(found).findings
    assert (finding.n, finding.value) == (400, 0.0)
    first, second = (
        scores("a", part, np.repeat([1.0, 0.0], [right, 100 - right]))
        for part, right in (("features", 90), ("behaviour", 60))
    )
    (finding,) = (
        gate_of(("a", "at_least", 0.5))
        .decide(compare([first, second], [first, second], 0.02))
        .findings
    )
    assert finding.value == 0.6


def test_the_same_weights_are_not_worse() -> None:
    same = scores("a", "features", np.repeat([1.0, 0.0], 30))
    found = compare([same], [same], 0.02, unchanged=["features"])
    assert gate_of(("features", "not_worse_by", -0.0)).decide(found).word == "pass"
    # Other weights with equal answers may differ on other items.
    found = compare([same], [same], 0.02)
    assert gate_of(("features", "not_worse_by", -0.02)).decide(found).word == "not enough evidence"


def test_the_items_that_would_do_decide_four_times_of_five() -> None:
    (finding,) = (
        gate_of(("a", "not_worse_by", -0.05))
        .decide(compared(a=("reading", (120, 20, 20, 40))))
        .findings
    )
    assert finding.more is not None
    n, rng = finding.n + finding.more, np.random.default_rng(0)
    words = [
        gate_of(("a", "not_worse_by", -0.05))
        .decide(compared(a=("reading", tuple(rng.multinomial(n, [0.6, 0.1, 0.1, 0.2])))))
        .word
        for _ in range(200)
    ]
    assert 0.7 < words.count("pass") / 200 < 0.9


@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_wrong_decisions_are_rare(alpha: float) -> None:
    """At the limits: one requirement is just violated; then all are just met."""
    gate = gate_of(("a", "not_worse_by", -0.05), ("b", "better_by", 0.0), ("c", "at_least", 0.9))
    rng, draws, passed, failed = np.random.default_rng(0), 300, 0, 0

    def drawn(*changes: tuple[float, float]) -> Comparison:
        both: tuple[list[ItemScores], list[ItemScores]] = ([], [])
        for task, (change, accuracy) in zip("abc", changes, strict=True):
            lost, gained = (0.06 - change) / 2, (0.06 + change) / 2
            shares = [accuracy - gained, lost, gained, 1.0 - accuracy - lost]
            hits = np.repeat(CELLS, rng.multinomial(300, shares), axis=0)
            for side, own in enumerate(both):
                own.append(scores(task, "reading", hits[:, side]))
        return compare(*both, 0.02, alpha=alpha)

    for _ in range(draws):
        passed += gate.decide(drawn((-0.05, 0.7), (0.06, 0.7), (0.0, 0.97))).word == "pass"
        failed += gate.decide(drawn((-0.05, 0.7), (0.0, 0.7), (0.0, 0.9))).word == "fail"
    slack = 3 * (alpha * (1 - alpha) / draws) ** 0.5
    assert passed / draws <= alpha + slack
    assert failed / draws <= alpha + slack


def test_bounds_of_skewed_losses_hold() -> None:
    """Student's t misses the mean from below in .018 of these draws, and from above in .006."""
    rng = np.random.default_rng(0)
    values = rng.exponential(size=(4000, 300)) - 1.0
    bounds = np.array([mean_of(each).interval(0.98) for each in values])
    for misses in ((bounds[:, 0] > 0).mean(), (bounds[:, 1] < 0).mean()):
        assert misses < 0.01 + 3 * (0.01 * 0.99 / 4000) ** 0.5
    low, high = mean_of(np.tile([-1.0, 1.0], 200) + 0.5).interval(0.95)  # symmetric: Student's t
    half = stats.t.ppf(0.975, 399) * np.tile([-1.0, 1.0], 200).std(ddof=1) / 20
    assert (low, high) == (pytest.approx(0.5 - half, rel=1e-4), pytest.approx(0.5 + half, rel=1e-4))


def test_an_axis_of_one_task_has_that_tasks_bounds() -> None:
    found = compared(a=("reading", (200, 20, 10, 70)))
    (axis,), (task,) = (
        gate_of((name, "not_worse_by", -0.02)).decide(found).findings for name in ("reading", "a")
    )
    assert (axis.low, axis.high) == pytest.approx((task.low, task.high))
    assert (axis.low, axis.high) == pytest.approx(Flips(20, 10, 300).interval(0.9))


def test_the_template_is_printed_without_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--gate-template"]) == 0
    assert capsys.readouterr().out == TEMPLATE


def test_a_gate_decides_on_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, right in (("base", 90), ("tuned", 60)):
        rows = [{"task": "gsm8k", "item": i, "correct": i < right} for i in range(100)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (gate := tmp_path / "gate.toml").write_text("[gsm8k]\nnot_worse_by = 0.02\n")
    words = ["audit", "--logs", *(str(tmp_path / f"{name}.jsonl") for name in ("base", "tuned"))]
    words += ["--out", str(tmp_path / "out"), "--gate", str(gate)]
    assert main(words) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert re.match(
        r"fail: .*tuned.*: gsm8k -0\.300, must be -0\.020 or more: 0\.280 too low", first
    )
    gate.write_text("[gsm9k]\nnot_worse_by = 0.02\n")
    assert main(words) == 2
    assert "Did you mean 'gsm8k'?" in capsys.readouterr().err

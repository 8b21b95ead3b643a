"""Audits of the logs of other harnesses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.logs import (
    BASE,
    TIME,
    TUNED,
    WRITERS,
    every_eval_ever,
    inspect_eval,
    inspect_json,
    lines,
    lm_eval,
    runs_of,
    table_csv,
    table_jsonl,
)
from scipy.special import stdtrit

from clbench.audit.changes import mean_change, widened
from clbench.audit.gate import mean_of, read_gate
from clbench.audit.logs.audit import NO_NOISE, audit_logs
from clbench.audit.logs.formats import FORMATS, Entry, Metric
from clbench.audit.logs.noise import RunNoise
from clbench.audit.logs.scores import LoggedScores, part_of, read_logs
from clbench.cli.app import main


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_every_format_yields_the_same_flips(write: Callable[..., Path], tmp_path: Path) -> None:
    task, part, metric, chance = WRITERS[write]
    found = audit_logs(str(write(tmp_path / "base", BASE)), [str(write(tmp_path / "tuned", TUNED))])
    (model,) = found.models
    (change,) = model.comparison.changes
    assert (change.task, change.part, change.measure.metric) == (task, part, metric)
    assert change.measure.chance == chance
    assert change.flips is not None
    assert (change.flips.lost, change.flips.gained, change.flips.n) == (10, 2, 50)
    assert change.change.p == pytest.approx(158 / 4096)  # 2 · (1 + 12 + 66) / 2^12
    assert change.change.word == "forgot"
    assert NO_NOISE in model.notes
    saved = found.to_json()["models"][0][part][task]
    assert [saved[key] for key in ("flips_lost", "flips_gained", "n")] == [10, 2, 50]


def test_metrics_that_do_not_decide_are_exploratory(tmp_path: Path) -> None:
    folders = [str(every_eval_ever(tmp_path / name, BASE)) for name in ("base", "tuned")]
    (model,) = audit_logs(folders[0], folders[1:]).models
    assert [c.measure.metric for c in model.comparison.exploratory] == ["task/time, sign turned"]
    assert model.comparison.exploratory[0].base == -3.0
    assert "1 further metric in the page's table: exploratory, each judged alone." in model.notes


def test_a_named_metric_of_a_table_is_correct_else_score(tmp_path: Path) -> None:
    rows = ["task,item,metric,correct,score", "mine,1,acc,1,0.2", "mine,2,acc,0,0.3"]
    rows += ["mine,1,f1,,0.4", "mine,2,f1,,0.5"]
    (tmp_path / "log.csv").write_text("\n".join(rows))
    found = read_logs(str(tmp_path / "log.csv")).scores
    assert {s.metric: s.scores.tolist() for s in found} == {"acc": [1.0, 0.0], "f1": [0.4, 0.5]}
    (tmp_path / "log.csv").write_text("task,item,correct,score\nmine,1,1,0.2\nmine,2,0,0.3\n")
    found = read_logs(str(tmp_path / "log.csv")).scores
    assert [(s.metric, s.scores.tolist(), s.primary) for s in found] == [
        ("accuracy", [1.0, 0.0], True),
        ("score", [0.2, 0.3], False),
    ]


@pytest.mark.parametrize("last", [0, 1], ids=["no item", "one item"])
def test_further_metrics_of_too_few_common_items_are_left_out(last: int, tmp_path: Path) -> None:
    for name, scored in (("base", {0, 1, 2}), ("tuned", {2 + (not last), 5})):
        rows = [
            {"task": "mine", "item": i, "correct": hit, "score": 0.5 if i in scored else None}
            for i, hit in enumerate(BASE)
        ]
        lines(tmp_path / f"{name}.jsonl", rows)
    found = audit_logs(str(tmp_path / "base.jsonl"), [str(tmp_path / "tuned.jsonl")])
    (model,) = found.models
    assert [each.measure.metric for each in model.comparison.changes] == ["accuracy"]
    assert model.comparison.exploratory == ()
    assert "mine: no two items in common have score, so it is left out." in model.notes
    json.dumps(found.to_json(), allow_nan=False)


def test_the_direction_of_every_metric_counts(tmp_path: Path) -> None:
    folder = every_eval_ever(tmp_path / "log", BASE)
    about = json.loads((folder / "ab.json").read_text())
    about["evaluation_results"][0]["metric_config"]["lower_is_better"] = True
    (folder / "ab.json").write_text(json.dumps(about))
    metrics = [each.metric for each in read_logs(str(folder)).scores]
    assert metrics == ["accuracy, sign turned", "task/time, sign turned"]


def test_inspects_archives_are_read_if_zstandard_compresses_them(tmp_path: Path) -> None:
    plain = read_logs(str(inspect_eval(tmp_path / "plain", BASE)))
    packed = read_logs(str(inspect_eval(tmp_path / "packed", BASE, zstandard=True)))
    assert plain.scores[0].keys == packed.scores[0].keys
    assert [s.metric for s in packed.scores] == ["match", "judge/style", "judge/tone"]
    assert [s.scores[0] for s in packed.scores] == [1.0, 0.5, 0.0]


def test_epochs_are_runs(tmp_path: Path) -> None:
    (first, *_) = read_logs(str(inspect_eval(tmp_path / "log", BASE, epochs=3))).scores
    assert first.runs.shape == (3, 50)


def test_lm_eval_divides_log_likelihoods(tmp_path: Path) -> None:
    row = {"doc_id": 0, "metrics": ["word_perplexity", "mcc"], "resps": [], "prompt_hash": "p"}
    path = lines(
        tmp_path / f"samples_wiki_{TIME}.jsonl",
        [row | {"word_perplexity": [-6.0, 3], "mcc": [1, 0]}],
    )
    logs = read_logs(str(path))
    assert [(s.metric, s.scores.tolist()) for s in logs.scores] == [("word_perplexity", [-2.0])]
    assert logs.notes == ("wiki: mcc is not a score of single items, so it is left out.",)


def test_unpaired_items_are_counted(tmp_path: Path) -> None:
    base, tuned = table_jsonl(tmp_path / "a", BASE), table_jsonl(tmp_path / "b", BASE[:45])
    (model,) = audit_logs(str(base), [str(tuned)]).models
    assert len(model.comparison.changes[0].paired) == 45
    assert any(note.startswith("mine: 5 items that only one model has") for note in model.notes)


def test_tuned_models_are_compared_with_each_other(tmp_path: Path) -> None:
    base, one, two = (
        str(table_csv(tmp_path / n, h)) for n, h in zip("abc", (BASE, TUNED, BASE), strict=True)
    )
    found = audit_logs(base, [one, two])
    assert [model.comparison.word for model in found.models] == ["forgot", "unclear"]
    assert [(b.first, b.second) for b in found.between] == [("b", "c")]
    assert found.between[0].comparison.changes[0].change.difference == pytest.approx(8 / 50)


@pytest.mark.parametrize(
    ("task", "part"),
    [
        ("mmlu_anatomy", "knowledge"),
        ("leaderboard|arc:challenge", "knowledge"),
        ("inspect_evals/gsm8k", "arithmetic"),
        ("IFEval", "instructions"),
        ("archery", "behaviour"),
    ],
)
def test_known_tasks_have_an_axis(task: str, part: str) -> None:
    assert part_of(task) == part


def test_another_format_is_one_registered_function(tmp_path: Path) -> None:
    @FORMATS.register("*.mine")
    def read(path: Path) -> Any:
        yield Entry("t", "1", "0", "x", {Metric("acc"): 1.0})

    try:
        (tmp_path / "log.mine").touch()
        assert read_logs(str(tmp_path)).scores[0].metric == "acc"
    finally:
        FORMATS._entries.pop("*.mine")


def test_paths_are_as_good_as_texts(tmp_path: Path) -> None:
    base, tuned = (table_csv(tmp_path / n, h) for n, h in (("a", BASE), ("b", TUNED)))
    assert audit_logs(base, [tuned]).to_json() == audit_logs(str(base), [str(tuned)]).to_json()


def test_tables_that_are_no_logs_are_passed_over(tmp_path: Path) -> None:
    folder = lm_eval(tmp_path / "log", BASE)
    (folder / "costs.csv").write_text("day;cost, in €\n1;2,5\n")
    lines(folder / "notes.jsonl", [{"note": "all well"}])
    assert [each.task for each in read_logs(str(folder)).scores if each.primary] == ["gsm8k"]


# Noise from run to run


def test_runs_give_a_floor_that_widens_the_interval(tmp_path: Path) -> None:
    first = [1.0] * 30 + [0.0] * 20
    second = [1.0] * 26 + [0.0] * 24  # 4 items lower
    base = runs_of(tmp_path, "base", [first, second])
    tuned = runs_of(tmp_path, "tuned", [TUNED])
    (model,) = audit_logs(base, [tuned]).models
    (change,) = model.comparison.changes
    pair = tuple(read_logs(name).scores[0] for name in (base, tuned))
    noise = RunNoise.of([pair])  # type: ignore[list-item]
    # Four of 50 items flip: w = 4 · ½ / 50 = .04; the means are .6 and .52: S² = .0032.
    assert (noise.freedom, noise.shift) == (1, pytest.approx(0.0032 / 0.04**2))
    floor = noise.floor(pair)  # type: ignore[arg-type]
    assert floor is not None
    assert floor(0.95) == pytest.approx(12.7062 * np.sqrt(0.0032 * 1.5), rel=1e-4)
    items = mean_change(change.paired.base, change.paired.tuned, 1.0)
    low, high = items.interval(0.95)
    middle = items.difference
    assert middle - np.hypot(middle - low, floor(0.95)) < -1.0  # no share falls by more than 1
    assert change.change.low == -1.0
    assert change.change.high == pytest.approx(middle + np.hypot(high - middle, floor(0.95)))
    assert change.change.p > items.p
    assert any("2 and 1 runs; a model differs from itself by up to 0.880" in n for n in model.notes)


def test_the_score_that_a_gate_asks_for_is_as_uncertain_as_its_runs(tmp_path: Path) -> None:
    first, second = ([1.0] * right + [0.0] * (50 - right) for right in (30, 26))
    base = runs_of(tmp_path, "base", [BASE])
    tuned = runs_of(tmp_path, "tuned", [first, second])
    (gate := tmp_path / "gate.toml").write_text("[arithmetic]\nat_least = 0.4\n")
    (model,) = audit_logs(base, [tuned], gate=read_gate(gate)).models
    assert model.decision is not None
    (finding,) = model.decision.findings
    assert finding.word == "open"  # in the last test by hand: S² = .0032, for one run
    low, high = mean_of(model.comparison.changes[0].paired.tuned).interval(0.9)
    floor = stdtrit(1, 0.95) * np.sqrt(0.0032 / 2)
    assert finding.low == pytest.approx(0.56 - np.hypot(0.56 - low, floor))
    assert finding.high == pytest.approx(0.56 + np.hypot(high - 0.56, floor))
    assert low > 0.4 > finding.low


def test_equal_runs_have_no_floor(tmp_path: Path) -> None:
    base, tuned = runs_of(tmp_path, "base", [BASE, BASE]), runs_of(tmp_path, "tuned", [TUNED])
    (model,) = audit_logs(base, [tuned]).models
    assert model.comparison.changes[0].flips is not None
    assert model.comparison.changes[0].change.p == pytest.approx(158 / 4096)
    assert any("those of one model have the same scores" in note for note in model.notes)


def test_a_widened_p_agrees_with_the_interval() -> None:
    rng = np.random.default_rng(0)
    base = rng.random(100)
    sample = widened(
        mean_change(base, base - 0.05 + 0.1 * rng.standard_normal(100)),
        lambda level: 0.02 * level,
    )
    assert sample.interval(1.0 - 1.01 * sample.p)[1] < 0 < sample.interval(1.0 - 0.99 * sample.p)[1]


def alarms(runs: tuple[int, int], shift: float, draws: int) -> float:
    """Return the share of audits with a false alarm among models that have the same chances."""
    rng = np.random.default_rng([*runs, round(100 * shift)])
    false = 0
    for _ in range(draws):
        chance = np.where(rng.random(300) < 0.3, rng.random(300), rng.random(300) < 0.6)
        odds = np.log(np.clip(chance, 1e-9, 1) / np.clip(1 - chance, 1e-9, 1))
        pair = []
        for count in runs:
            shifts = shift * rng.standard_normal((count, 1))
            hits = rng.random((count, 300)) < 1 / (1 + np.exp(-odds - shifts))
            pair.append(logged(hits.astype(float)))
        one, two = pair
        sample = RunNoise.of([(one, two)]).add(mean_change(one.scores, two.scores, 1.0), (one, two))
        low, high = sample.interval(0.95)
        false += low > 0 or high < 0
    return false / draws


def logged(runs: Any) -> LoggedScores:
    keys = tuple(map(str, range(runs.shape[1])))
    more: dict[str, Any] = {"runs": runs, "inputs": {}, "made": {}}
    return LoggedScores("t", "behaviour", runs.mean(axis=0), keys, **more)


@pytest.mark.parametrize("shift", [0.0, 0.6])
@pytest.mark.parametrize("runs", [(2, 2), (3, 3), (5, 2)])
def test_repeated_runs_hold_false_alarms_down(runs: tuple[int, int], shift: float) -> None:
    """With a shift of all items of a run, at most 5 % (half a per cent more may be chance)."""
    assert alarms(runs, shift, 400) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 400)


# Intervals of scores that are no hits


@pytest.mark.parametrize("n", [50, 200])
def test_rare_differences_are_covered(n: int) -> None:
    """Where one item in twenty gains about a half, intervals of t miss the mean too often."""
    rng = np.random.default_rng(n)
    missed = {None: 0, 1.0: 0}
    for _ in range(1000):
        gains = np.where(rng.random(n) < 0.05, rng.beta(2, 2, n), 0.0)
        for largest in missed:
            low, high = mean_change(np.zeros(n), gains, largest).interval(0.95)
            missed[largest] += not low <= 0.025 <= high
    assert missed[None] > 60
    assert missed[1.0] <= 50


# The command


def test_the_command_writes_the_page_and_gates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, tuned = (str(lm_eval(tmp_path / n, h)) for n, h in (("base", BASE), ("tuned", TUNED)))
    out = tmp_path / "audit"
    arguments = ["audit", "--logs", base, tuned, "--out", str(out)]
    assert main([*arguments, "--fail-if", "arithmetic:-0.02"]) == 1
    output = capsys.readouterr()
    assert "tuned: forgot something in arithmetic" in output.out
    shown = " ".join(output.out.split())
    assert "forgot gsm8k, arithmetic, exact_match,strict-match -0.160" in shown
    assert "10 lost and 2 gained of 50 items" in output.out
    page = (out / "index.html").read_text()
    assert "no model was loaded" in page
    assert "Corpus" not in page
    assert "(exploratory)" in page
    assert not (out / "figures" / "layers.png").exists()
    saved = json.loads((out / "audit.json").read_text())
    assert saved["models"][0]["arithmetic"]["gsm8k"]["p"] == pytest.approx(158 / 4096)
    assert "language" not in saved["models"][0]
    assert main([*arguments, "--require", "knowledge:kept"]) == 3
    assert main([*arguments, "--localise"]) == 2
    assert main(["audit", "--logs", base, str(tmp_path / "nowhere")]) == 2


def test_logs_are_audited_without_torch(tmp_path: Path) -> None:
    base, tuned = (str(table_csv(tmp_path / n, h)) for n, h in (("base", BASE), ("tuned", TUNED)))
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from clbench.cli.app import main\n"
        "raise SystemExit(main(['audit', '--logs', *sys.argv[1:]]))"
    )
    command = [sys.executable, "-c", code, base, tuned, "--out", str(tmp_path / "audit")]
    assert subprocess.run(command, check=False).returncode == 0


def test_who_gets_nothing_right_cannot_show_forgetting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, tuned = (str(table_csv(tmp_path / name, [0.0] * 500)) for name in ("base", "tuned"))
    (change,) = audit_logs(base, [tuned]).models[0].comparison.changes
    assert change.change.word == "kept"
    assert change.cannot_show_forgetting
    arguments = ["audit", "--logs", base, tuned, "--out", str(tmp_path / "out")]
    assert main([*arguments, "--require", "kept"]) == 1
    (tmp_path / "gate.toml").write_text("[behaviour]\nnot_worse_by = 0.02\n")
    assert main([*arguments, "--gate", str(tmp_path / "gate.toml")]) == 3
    shown = " ".join(capsys.readouterr().out.split())
    assert "not enough evidence: tuned: behaviour +0.000" in shown
    assert "; cannot show forgetting: the base model" in shown
    good = str(table_csv(tmp_path / "good", [1.0] * 500))  # a gain needs no base that knows
    (change,) = audit_logs(base, [good]).models[0].comparison.changes
    assert (change.change.word, change.cannot_show_forgetting) == ("gained", True)
    arguments = ["audit", "--logs", base, good, "--out", str(tmp_path / "gain")]
    assert main([*arguments, "--require", "kept"]) == 0
    arguments[-1] = str(tmp_path / "gated")
    assert main([*arguments, "--gate", str(tmp_path / "gate.toml")]) == 0


def test_a_json_file_that_is_no_log_is_passed_over_in_capitals_too(tmp_path: Path) -> None:
    folder = inspect_json(tmp_path / "log", BASE)
    before = [each.keys for each in read_logs(str(folder)).scores]
    (folder / "NOTES.JSON").write_text("{}")
    assert [each.keys for each in read_logs(str(folder)).scores] == before


def test_a_log_with_an_extension_in_capitals_keeps_what_stands_beside_it(tmp_path: Path) -> None:
    folder = every_eval_ever(tmp_path / "log", BASE)
    before = [str(each.made) for each in read_logs(str(folder)).scores]
    (samples,) = folder.rglob("*_samples.jsonl")
    samples.rename(samples.with_suffix(".JSONL"))
    assert [str(each.made) for each in read_logs(str(folder)).scores] == before


def test_two_tuned_models_compared_say_nothing_of_the_base(tmp_path: Path) -> None:
    names = {"base": 1.0, "collapsed": 0.0, "protected": 1.0}
    paths = (str(table_csv(tmp_path / name, [hit] * 500)) for name, hit in names.items())
    found = audit_logs(next(paths), [*paths])
    (change,) = found.between[0].comparison.changes
    assert change.change.verdict == "better"
    assert "cannot show forgetting" not in str(change)
    assert not found.to_json()["between"][0]["behaviour"]["mine"]["cannot_show_forgetting"]


def test_items_without_a_score_are_counted_once(tmp_path: Path) -> None:
    base, tuned = (table_csv(tmp_path / name, BASE) for name in ("base", "tuned"))
    table = base / "scores.csv"
    table.write_text(table.read_text().replace("i3,True", "i3,"))
    (model,) = audit_logs(str(base), [str(tuned)]).models
    assert len(model.comparison.changes[0].paired) == 49
    assert any("1 item that only one model has" in note for note in model.notes)


@pytest.mark.parametrize(("name", "separator"), [("T.CSV", ", "), ("t.tsv", "\t")])
def test_tables_may_have_long_prompts_and_blanks_in_the_header(
    tmp_path: Path, name: str, separator: str
) -> None:
    rows = [["task", "item", "input", "correct"]]
    rows += [["a", str(i), "x" * 150_000, "1"] for i in range(3)]
    header, *rest = [separator.join(row) for row in rows]
    (tmp_path / name).write_text("\n".join([header, *(row.replace(", ", ",") for row in rest)]))
    (scores,) = read_logs(str(tmp_path)).scores
    assert scores.scores.tolist() == [1, 1, 1]

"""Audits of logs that were written by hand in the layouts of each harness."""

from __future__ import annotations

import csv
import json
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from clbench.audit.changes import mean_change, widened
from clbench.audit.logs.audit import NO_NOISE, audit_logs
from clbench.audit.logs.formats import FORMATS, Entry, Setup, log_format
from clbench.audit.logs.noise import RunNoise
from clbench.audit.logs.scores import part_of, read_logs
from clbench.cli.app import main
from clbench.core.errors import ClbenchError, DataError, SettingsError

Hits = Sequence[float]
BASE = [1.0] * 30 + [0.0] * 20
TUNED = [0.0] * 10 + [1.0] * 22 + [0.0] * 18  # 10 lost, 2 gained
TIME = "2026-01-21T03-44-18.458309"


def lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lm_eval(
    folder: Path,
    hits: Hits,
    *,
    task: str = "gsm8k",
    time: str = TIME,
    model: str = "",
    shots: int = 5,
    metric: str = "exact_match",
    **changes: Any,
) -> Path:
    """Write logs of lm-eval: two filters, of which the second finds everything."""
    rows = []
    for end in ("strict-match", "flexible-extract"):
        for i, hit in enumerate(hits):
            prompt = {"gen_args_0": {"arg_0": f"Question {i}", "arg_1": {"until": ["\n"]}}}
            row = {"doc_id": i, "doc": {"question": f"{i}"}, "target": "1", "arguments": prompt}
            row |= {"resps": [["1"]], "filtered_resps": ["1"], "filter": end}
            row |= {"metrics": [metric], "doc_hash": f"d{i}", "prompt_hash": f"p{i}"}
            rows.append(row | {metric: hit if end == "strict-match" else 1.0} | changes)
    facts = {"n-shot": {task: shots}, "model_name": model or folder.name}
    facts |= {"higher_is_better": {task: {metric: True}}, "configs": {task: {}}}
    lines(folder / "org__model" / f"samples_{task}_{time}.jsonl", rows)
    (folder / "org__model" / f"results_{time}.json").write_text(json.dumps(facts))
    return folder


def lighteval(folder: Path, hits: Hits) -> Path:
    rows = [
        {
            "doc": {
                "id": str(i),
                "query": f"Question {i}",
                "choices": ["no", "yes"],
                "instruction": None,
                "sampling_methods": ["SamplingMethod.LOGPROBS"],
            },
            "model_response": {"input": f"Shots. Question {i}", "logprobs": [-1.0, -2.0]},
            "metric": {"acc": hit, "prob_raw_acc": hit / 2},
        }
        for i, hit in enumerate(hits)
    ]
    path = folder / "details" / "org" / folder.name / TIME / f"details_arc:easy|5_{TIME}.parquet"
    path.parent.mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return folder


def inspect_log(hits: Hits, epochs: int = 1, model: str = "m") -> dict[str, Any]:
    samples = [
        {"id": i, "epoch": epoch + 1, "input": f"Question {i}", "target": "A", "scores": {
            "match": {"value": "C" if hit else "I", "answer": "A"},
            "judge": {"value": {"style": 0.5, "tone": "N"}},
        }}
        for epoch in range(epochs)
        for i, hit in enumerate(hits)
    ]  # fmt: skip
    steps = [{"solver": "generate", "params": {}}]
    about = {"task": "inspect_evals/gsm8k", "model": model, "task_args": {"fewshot": 10}}
    return {"version": 2, "eval": about, "plan": {"steps": steps}, "samples": samples}


def inspect_json(folder: Path, hits: Hits) -> Path:
    folder.mkdir(parents=True)
    log = inspect_log(hits, model=folder.name)
    (folder / "2026-01-21T03-44-18+00-00_gsm8k_ab.json").write_text(json.dumps(log))
    return folder


def inspect_eval(folder: Path, hits: Hits, *, epochs: int = 1, zstandard: bool = False) -> Path:
    """Write a zip as inspect does; one input is cut in the summaries."""
    folder.mkdir(parents=True)
    log = inspect_log(hits, epochs, folder.name)
    summaries = log.pop("samples")
    whole = {"input": "Question 0, and how it goes on"}
    for sample in summaries:
        if sample["id"] == 0:
            sample["input"] = "Question 0...\n(content truncated)"
    members = {"header.json": log, "summaries.json": summaries}
    members |= {f"samples/0_epoch_{epoch + 1}.json": whole for epoch in range(epochs)}
    path = folder / "2026-01-21T03-44-18+00-00_gsm8k_ab.eval"
    with ZipFile(path, "w", ZIP_STORED) as archive:
        for name, content in members.items():
            packed = json.dumps(content).encode()
            archive.writestr(
                name, pa.compress(packed, "zstd", asbytes=True) if zstandard else packed
            )
        infos = archive.infolist()
    if zstandard:  # name the method, which zipfile cannot write, in both headers
        content = bytearray(path.read_bytes())
        at = 0
        for info in infos:
            struct.pack_into("<H", content, info.header_offset + 8, 93)
            at = content.index(b"PK\1\2", at + 1)
            struct.pack_into("<H", content, at + 10, 93)
        path.write_bytes(content)
    return folder


def every_eval_ever(folder: Path, hits: Hits) -> Path:
    rows = []
    for metric in ("task/em", "task/time"):
        for i, hit in enumerate(hits):
            row = {
                "schema_version": "0.3.0",
                "evaluation_id": "e/1",
                "model_id": f"o/{folder.name}",
            }
            row |= {"evaluation_name": "boolq", "evaluation_result_id": metric}
            row |= {"sample_id": f"boolq_{i}", "interaction_type": "single_turn"}
            row |= {
                "input": {"raw": f"Question {i}", "reference": ["yes"], "choices": ["no", "yes"]}
            }
            row |= {
                "evaluation": {
                    "score": hit if metric == "task/em" else 3.0,
                    "is_correct": bool(hit),
                }
            }
            rows.append(row)
    binary = {"lower_is_better": False, "score_type": "binary", "metric_id": "accuracy"}
    seconds = {"lower_is_better": True, "min_score": 0, "max_score": "Infinity"}
    results = [
        {"evaluation_result_id": "task/em", "metric_config": binary},
        {"evaluation_result_id": "task/time", "metric_config": seconds},
    ]
    lines(folder / "ab_samples.jsonl", rows)
    (folder / "ab.json").write_text(json.dumps({"evaluation_results": results}))
    return folder


def table_rows(hits: Hits) -> list[dict[str, Any]]:
    return [
        {"task": "mine", "item": f"i{i}", "correct": bool(hit), "input": f"Question {i}"}
        for i, hit in enumerate(hits)
    ]


def table_csv(folder: Path, hits: Hits) -> Path:
    folder.mkdir(parents=True)
    with (folder / "scores.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["task", "item", "correct", "input"])
        writer.writeheader()
        writer.writerows(table_rows(hits))
    return folder


def table_jsonl(folder: Path, hits: Hits) -> Path:
    return lines(folder / "scores.jsonl", table_rows(hits)).parent


def table_parquet(folder: Path, hits: Hits) -> Path:
    folder.mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(table_rows(hits)), folder / "scores.parquet")
    return folder


WRITERS: dict[Callable[..., Path], tuple[str, str, str, float | None]] = {
    lm_eval: ("gsm8k", "arithmetic", "exact_match,strict-match", None),
    lighteval: ("arc:easy", "knowledge", "acc", 0.5),
    inspect_json: ("inspect_evals/gsm8k", "arithmetic", "match", None),
    inspect_eval: ("inspect_evals/gsm8k", "arithmetic", "match", None),
    every_eval_ever: ("boolq", "reading", "accuracy", 0.5),
    table_csv: ("mine", "behaviour", "accuracy", None),
    table_jsonl: ("mine", "behaviour", "accuracy", None),
    table_parquet: ("mine", "behaviour", "accuracy", None),
}
"""Writers of logs, and the task, part, deciding metric and chance in them."""


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
    assert "1 further metric on the page: exploratory, each judged alone." in model.notes


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
    @log_format("mine", "*.mine")
    def read(path: Path) -> Any:
        yield Entry(Setup("t", "1"), "0", "x", {"acc": 1.0})

    try:
        (tmp_path / "log.mine").touch()
        assert read_logs(str(tmp_path)).scores[0].metric == "acc"
    finally:
        FORMATS._entries.pop("mine")


# Noise from run to run


def runs_of(tmp_path: Path, name: str, draws: Sequence[Hits]) -> str:
    for number, hits in enumerate(draws):
        lm_eval(tmp_path / name, hits, time=f"2026-01-0{number + 1}T00-00-00.0")
    return str(tmp_path / name)


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
    assert change.change.low == pytest.approx(middle - np.hypot(middle - low, floor(0.95)))
    assert change.change.high == pytest.approx(middle + np.hypot(high - middle, floor(0.95)))
    assert change.change.p > items.p
    assert any("2 and 1 runs; a model differs from itself by up to 0.880" in n for n in model.notes)


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
        0.0,
    )
    assert sample.interval(1.0 - 1.01 * sample.p)[1] < 0 < sample.interval(1.0 - 0.99 * sample.p)[1]


def alarms(runs: tuple[int, int], shift: float, draws: int) -> float:
    """Return the share of audits with a false alarm among models that have the same chances."""
    rng = np.random.default_rng([*runs, round(100 * shift)])
    template = read_logs_of(np.zeros((1, 300)))
    false = 0
    for _ in range(draws):
        chance = np.where(rng.random(300) < 0.3, rng.random(300), rng.random(300) < 0.6)
        odds = np.log(np.clip(chance, 1e-9, 1) / np.clip(1 - chance, 1e-9, 1))
        pair = []
        for count in runs:
            shifts = shift * rng.standard_normal((count, 1))
            hits = rng.random((count, 300)) < 1 / (1 + np.exp(-odds - shifts))
            pair.append(template(hits.astype(float)))
        one, two = pair
        sample = RunNoise.of([(one, two)]).add(mean_change(one.scores, two.scores, 1.0), (one, two))
        low, high = sample.interval(0.95)
        false += low > 0 or high < 0
    return false / draws


def read_logs_of(shape: Any) -> Callable[[Any], Any]:
    from clbench.audit.logs.scores import LoggedScores

    keys = tuple(map(str, range(shape.shape[1])))

    def make(runs: Any) -> LoggedScores:
        return LoggedScores(
            "t",
            "behaviour",
            runs.mean(axis=0),
            keys,
            runs=runs,
            inputs={},
            prompting="",
            scale=(0.0, 1.0),
        )

    return make


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


# Bad input


def refused(base: Path | str, *tuned: Path | str, **options: Any) -> str:
    with pytest.raises(ClbenchError) as error:
        audit_logs(str(base), [str(each) for each in tuned], **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_different_tasks_are_refused_by_name(tmp_path: Path) -> None:
    base, tuned = lm_eval(tmp_path / "a", BASE), lm_eval(tmp_path / "b", BASE)
    lm_eval(base, BASE, task="boolq")
    assert f"{tuned}: has no task 'boolq', which {base} has. --tasks names" in refused(base, tuned)
    assert audit_logs(str(base), [str(tuned)], tasks=["gsm8k"]).settings["tasks"] == ["gsm8k"]
    assert "has no task 'mmlu', but gsm8k" in refused(tuned, base, tasks=["mmlu"])


def test_different_metrics_are_refused(tmp_path: Path) -> None:
    base, tuned = lm_eval(tmp_path / "a", BASE), lm_eval(tmp_path / "b", BASE, metric="em")
    message = refused(base, tuned)
    assert "gsm8k: different metrics: exact_match,strict-match in" in message


def test_different_shots_are_refused(tmp_path: Path) -> None:
    base, tuned = lm_eval(tmp_path / "a", BASE), lm_eval(tmp_path / "b", BASE, shots=0)
    assert f"gsm8k: different prompts: 5 shots in {base}, 0 shots in {tuned}." in refused(
        base, tuned
    )


def test_different_prompts_of_one_item_are_refused(tmp_path: Path) -> None:
    base, tuned = lm_eval(tmp_path / "a", BASE), lm_eval(tmp_path / "b", BASE, doc_hash="other")
    message = refused(base, tuned)
    assert "gsm8k: item '0' has one prompt in" in message
    assert "50 such items of 50" in message


def test_a_cut_line_is_named(tmp_path: Path) -> None:
    base, tuned = table_jsonl(tmp_path / "a", BASE), table_jsonl(tmp_path / "b", BASE)
    file = tuned / "scores.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    assert f"{file}, line 50: is not complete JSON." in refused(base, tuned)


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_a_log_that_is_cut_off_is_refused(write: Callable[..., Path], tmp_path: Path) -> None:
    folder = write(tmp_path / "log", BASE)
    for file in folder.rglob("*.*"):
        if file.is_file() and not file.name.startswith(("results", "ab.json")):
            file.write_bytes(file.read_bytes()[:-16])
    assert str(folder) in refused(folder, folder)


def test_an_item_with_two_results_is_refused(tmp_path: Path) -> None:
    rows = [*table_rows(BASE), table_rows([0.0])[0]]
    log = lines(tmp_path / "a.jsonl", rows)
    message = refused(log, log)
    assert "item 'i0' of 'mine' is there twice in one run, with different results" in message
    lines(log, [*table_rows(BASE), table_rows(BASE)[0]])  # the same result is no contradiction
    assert len(read_logs(str(log)).scores[0].keys) == 50
    lines(log, [*table_rows(BASE), table_rows(BASE)[0] | {"input": "?"}])
    assert "with another input" in refused(log, log)


@pytest.mark.parametrize("score", [1.5, -0.1, float("nan"), "right", 1e300])
def test_a_score_out_of_range_is_refused(score: Any, tmp_path: Path) -> None:
    rows = table_rows(BASE)
    rows[3]["correct"] = score
    log = lines(tmp_path / "a.jsonl", rows)
    assert "mine: accuracy of item 'i3' is" in refused(log, log)
    assert "not a number from 0 to 1." in refused(log, log)


def test_the_range_of_a_log_is_kept(tmp_path: Path) -> None:
    folder = every_eval_ever(tmp_path / "a", BASE)
    file = folder / "ab_samples.jsonl"
    file.write_text(file.read_text().replace('"score": 3.0', '"score": -3.0', 1))
    assert "boolq: task/time of item 'boolq_0' is -3.0, not a number from 0 to inf." in refused(
        folder, folder
    )


def test_logs_of_two_models_in_one_folder_are_refused(tmp_path: Path) -> None:
    for time, model in (("1", "one"), ("2", "two")):
        lm_eval(tmp_path / "logs", BASE, time=time, model=model)
    assert "has logs of 2 models: one, two." in refused(tmp_path / "logs", tmp_path / "logs")


def test_a_partial_run_beside_a_whole_one_is_refused(tmp_path: Path) -> None:
    log = runs_of(tmp_path, "log", [BASE, BASE[:5]])
    assert "only 5 of 50 items of 'gsm8k' are in all 2 runs" in refused(log, log)


def test_folders_without_logs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert "there is no log with items" in refused(tmp_path, tmp_path)
    with pytest.raises(DataError):
        read_logs(str(tmp_path / "missing"))
    log = str(table_csv(tmp_path / "log", BASE))
    with pytest.raises(SettingsError, match="twice"):
        audit_logs(log, [log, log])


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


def test_different_scales_are_refused(tmp_path: Path) -> None:
    both = [every_eval_ever(tmp_path / name, BASE) for name in ("base", "tuned")]
    about = json.loads((both[1] / "ab.json").read_text())
    percent = {"score_type": "continuous", "min_score": 0, "max_score": 100}
    about["evaluation_results"][0]["metric_config"] |= percent
    (both[1] / "ab.json").write_text(json.dumps(about))
    assert "different scales: 0 to 1 in" in refused(*both)


def test_items_without_a_score_are_counted_once(tmp_path: Path) -> None:
    base, tuned = (table_csv(tmp_path / name, BASE) for name in ("base", "tuned"))
    table = base / "scores.csv"
    table.write_text(table.read_text().replace("i3,True", "i3,"))
    (model,) = audit_logs(str(base), [str(tuned)]).models
    assert len(model.comparison.changes[0].paired) == 49
    assert any("1 item that only one model has" in note for note in model.notes)


def test_options_of_models_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = str(table_csv(tmp_path / "log", BASE))
    assert main(["audit", "--logs", log, log, "--rephrase", "2"]) == 2
    assert "--rephrase needs models" in capsys.readouterr().err

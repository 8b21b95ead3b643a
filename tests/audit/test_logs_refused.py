"""Logs that are refused, in one line that says what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from helpers.logs import (
    BASE,
    WRITERS,
    every_eval_ever,
    inspect_eval,
    inspect_json,
    lines,
    lm_eval,
    runs_of,
    table_csv,
    table_jsonl,
    table_rows,
)

from clbench.audit.logs.audit import audit_logs
from clbench.audit.logs.scores import read_logs
from clbench.cli.app import main
from clbench.core.errors import ClbenchError, DataError


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


@pytest.mark.parametrize(("line", "what"), [("null", "nothing"), ("[1, 2]", "a list")])
@pytest.mark.parametrize("write", [lm_eval, every_eval_ever, table_jsonl])
def test_a_line_that_is_no_object_is_named(
    write: Callable[..., Path], line: str, what: str, tmp_path: Path
) -> None:
    (file,) = write(tmp_path / "log", BASE).rglob("*.jsonl")
    rows = file.read_text().splitlines()
    file.write_text("\n".join([*rows[:3], line, *rows[3:]]))
    message = refused(tmp_path / "log", tmp_path / "log")
    assert f"{file}, line 4: is {what}, not an object. Copy the log again" in message


@pytest.mark.parametrize("status", ["started", "cancelled", "error"])
@pytest.mark.parametrize("write", [inspect_json, inspect_eval])
def test_a_run_that_did_not_end_is_refused(
    write: Callable[..., Path], status: str, tmp_path: Path
) -> None:
    (file,) = write(tmp_path / "log", BASE, status=status).iterdir()
    message = refused(tmp_path / "log", tmp_path / "log")
    assert f"{file}: the run is not whole: its status is '{status}'. Finish it with" in message


def test_an_archive_of_a_run_that_goes_on_is_refused(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "a.eval", "w") as archive:
        archive.writestr("_journal/start.json", json.dumps({"version": 2}))
    assert "its status is 'started'" in refused(tmp_path, tmp_path)


@pytest.mark.parametrize("header", ["task;item;correct", "task,question,correct", "task,item"])
def test_columns_of_other_tables_are_named(header: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\nmine;i0;1,0,0,0\n")
    message = refused(tmp_path / "a.csv", tmp_path / "a.csv")
    assert (
        "Tables need the columns task, item, and score or correct, separated by commas; " in message
    )
    assert message.endswith(f"{tmp_path / 'a.csv'} has {header.replace(',', ', ')}.")
    lines(tmp_path / "b.jsonl", [dict.fromkeys(header.split(","), "1")])
    assert f"b.jsonl has {header.replace(',', ', ')}." in refused(tmp_path, tmp_path)


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
    assert "item 'i0' of 'mine' has different results in one run: accuracy is True and " in message
    lines(log, [*table_rows(BASE), table_rows(BASE)[0]])  # the same result is no contradiction
    assert len(read_logs(str(log)).scores[0].keys) == 50
    lines(log, [*table_rows(BASE), table_rows(BASE)[0] | {"input": "?"}])
    assert "item 'i0' of 'mine' has two inputs. Name runs" in refused(log, log)


def test_runs_with_different_shots_are_refused(tmp_path: Path) -> None:
    for time, shots in (("1", 0), ("2", 5)):
        lm_eval(tmp_path / "log", BASE, time=time, shots=shots, prompt_hash=f"{shots}")
    message = refused(tmp_path / "log", tmp_path / "log")
    assert "item '0' of 'gsm8k' has two inputs, with 0 shots and 5 shots. Name runs" in message


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


def test_different_scales_are_refused(tmp_path: Path) -> None:
    both = [every_eval_ever(tmp_path / name, BASE) for name in ("base", "tuned")]
    about = json.loads((both[1] / "ab.json").read_text())
    percent = {"score_type": "continuous", "min_score": 0, "max_score": 100}
    about["evaluation_results"][0]["metric_config"] |= percent
    (both[1] / "ab.json").write_text(json.dumps(about))
    assert "different scales: 0 to 1 in" in refused(*both)


@pytest.mark.parametrize("option", [["--rephrase", "2"], ["--with-texts"], ["--device", "cpu"]])
def test_options_of_models_are_refused(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = str(table_csv(tmp_path / "log", BASE))
    assert main(["audit", "--logs", log, log, *option]) == 2
    assert f"{option[0]} needs models" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("task,item,correct\n,1,1\n", "item '1' has no task. Give it one."),
        ("task,item,correct\na,1,1,2\n", "line 2: has not as many fields as line 1. Correct it"),
        ("task,item,correct\n", "with at least one item"),
        ("task;item;correct\na;1;1\n", "separated by commas; "),
    ],
)
def test_tables_that_are_no_logs_are_refused(tmp_path: Path, table: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(table)
    assert message in refused(tmp_path, tmp_path)


def test_another_encoding_is_named_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("task,item,correct\nä,1,1\n", encoding="latin-1")
    assert f"{file}, line 2: is not UTF-8 but perhaps WINDOWS-1252" in refused(file, file)


def test_a_line_without_its_metric_is_named(tmp_path: Path) -> None:
    base = lm_eval(tmp_path / "a", BASE)
    (file,) = base.rglob("samples_*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    del rows[3]["exact_match"]
    file.write_text("\n".join(map(json.dumps, rows)))
    assert "is not a whole log of its format (an item has no 'exact_match')." in refused(base, base)


def test_a_list_among_numbers_is_named(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    scores = [0.5, [1, 2], 1.0]
    rows = [{"task": "a", "item": i, "score": score} for i, score in enumerate(scores)]
    file.write_text("\n".join(map(json.dumps, rows)))
    assert "a: score of item '1' is [1, 2], not a number from" in refused(file, file)

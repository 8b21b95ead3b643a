"""Logs written by hand, in the layouts of each harness."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import pyarrow as pa
from pyarrow import parquet

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
    """Write details with columns that the tracker of lighteval 0.13.0 writes; logs of it are read.

    Its ``model_response.input`` is a list of messages for chats.
    """
    rows = [
        {
            "doc": {
                "id": str(i),
                "query": f"Question {i}",
                "choices": ["no", "yes"],
                "instruction": None,
                "sampling_methods": ["LOGPROBS"],
            },
            "model_response": {
                "input": [{"role": "user", "content": f"Question {i}"}],
                "logprobs": [-1.0, -2.0],
            },
            "metric": {"acc": hit, "prob_raw_acc": hit / 2},
        }
        for i, hit in enumerate(hits)
    ]
    path = folder / "details" / "org" / folder.name / TIME / f"details_arc:easy|5_{TIME}.parquet"
    path.parent.mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return folder


def inspect_log(hits: Hits, epochs: int, model: str, status: str) -> dict[str, Any]:
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
    log = {"version": 2, "status": status, "eval": about, "plan": {"steps": steps}}
    return log | {"samples": samples}


def inspect_json(folder: Path, hits: Hits, *, status: str = "success") -> Path:
    folder.mkdir(parents=True)
    log = inspect_log(hits, 1, folder.name, status)
    (folder / "2026-01-21T03-44-18+00-00_gsm8k_ab.json").write_text(json.dumps(log))
    return folder


def inspect_eval(
    folder: Path, hits: Hits, *, epochs: int = 1, zstandard: bool = False, status: str = "success"
) -> Path:
    """Write a zip as inspect does; one input is cut in the summaries."""
    folder.mkdir(parents=True)
    log = inspect_log(hits, epochs, folder.name, status)
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


def runs_of(tmp_path: Path, name: str, draws: Sequence[Hits]) -> str:
    for number, hits in enumerate(draws):
        lm_eval(tmp_path / name, hits, time=f"2026-01-0{number + 1}T00-00-00.0")
    return str(tmp_path / name)

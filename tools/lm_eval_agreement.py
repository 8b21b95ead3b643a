"""Compare general tasks with lm-evaluation-harness, item by item.

Run as ``python -m tools.lm_eval_agreement MODEL DATA [--tasks A,B] [--rows N]`` where lm-eval is
installed, on copies of the hub repositories in DATA. The task files of lm-eval are used, with their
data replaced by the copies, and the first rows as solved ones.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
import yaml
from lm_eval import evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from pyarrow import parquet

from clbench.audit import ability
from clbench.audit.models import load_base
from clbench.models.checkpoint import load_tokenizer
from clbench.tasks.general import GENERAL

FIRST = {"fewshot_config": {"sampler": "first_n"}}
TASKS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "mmlu": ("mmlu_anatomy", "anatomy", {"num_fewshot": 5}),
    "bbh": (
        "leaderboard_bbh_navigate",
        "navigate",
        {"description": "", "fewshot_split": "test", **FIRST},
    ),
    "boolq": ("boolq", None, {}),
    "multirc": ("multirc", None, {}),
    "copa": ("copa", None, {"target_delimiter": ""}),  # else two blanks stand before a choice
    "gsm8k": ("gsm8k", None, FIRST),
    "bbh-counting": (
        "bbh_fewshot_object_counting",
        "object_counting",
        {"description": "", "fewshot_split": "test", **FIRST},
    ),
    "ifeval": ("ifeval", None, {"generation_kwargs": {"max_gen_toks": 256, "until": []}}),
}
"""By general task: lm-eval's task, the subject or configuration, and settings changed."""


def main() -> None:
    """Print the agreement by task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--rows", type=int, default=60)
    options = parser.parse_args()
    theirs = HFLM(pretrained=options.model, dtype="float32", device="cpu", batch_size=1)
    ours = load_base(options.model)
    for name in options.tasks.split(","):
        sys.stdout.write(f"{name}: {compare(name, ours, theirs, options.data, options.rows)}\n")
        sys.stdout.flush()


def compare(name: str, ours: Any, theirs: Any, data: Path, count: int) -> str:
    """Return how far a task agrees, in words."""
    task, (their_name, part, changes) = GENERAL[name], TASKS[name]
    config = part if task.configs else task.config
    folder = data / task.hub.rpartition("/")[2] / (config or "")
    own = task.shots_from or task.split
    tables = {
        split: parquet.read_table(next(folder.glob(f"{split}-*"))).to_pylist()
        for split in {task.split, own}
    }
    if part and not task.configs:
        tables = {s: [r for r in rows if r["subject"] == part] for s, rows in tables.items()}
    more = {"config": config, "answers": task.configs.get(part or "", ())}
    solved = [{**row, **more} for row in tables[own][: task.shots]]
    skipped = 0 if task.shots_from else task.shots
    rows = [{**row, **more} for row in tables[task.split][skipped : skipped + count]]
    questions = [task.question(row, solved) for row in rows]
    asked = ability.Asked(task, questions, frozenset(), load_tokenizer(ours.name, plain=True))
    mine = ability.answer(ours, asked, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as where:
        files = {split: f"{where}/{split}.parquet" for split in tables}
        for split, content in tables.items():
            schema = parquet.read_schema(next(folder.glob(f"{split}-*")))
            parquet.write_table(pyarrow.Table.from_pylist(content, schema), files[split])
        manager, path = TaskManager(), Path(where) / "task.yaml"
        spec = {
            "include": str(manager.task_index[their_name].yaml_path),
            "task": f"own_{their_name}",
        }
        spec |= {"dataset_path": "parquet", "dataset_name": None}
        spec |= {"dataset_kwargs": {"data_files": files}, **changes}
        spec |= {f"{s}_split": None for s in ("training", "validation", "test")}
        spec |= {"test_split": task.split, "training_split": task.shots_from}
        path.write_text(yaml.safe_dump(spec))
        loaded = manager.load([str(path)])["tasks"]
        result = evaluate(theirs, loaded, limit=skipped + len(rows), log_samples=True)
    return agreement(task, questions, mine, next(iter(result["samples"].values())), skipped)


def agreement(task: Any, questions: Any, mine: Any, samples: Any, skipped: int) -> str:
    """Return the agreement of answers with the samples of lm-eval."""
    by_item: dict[int, dict[str, Any]] = {}
    for sample in samples:
        by_item.setdefault(sample["doc_id"], {})[sample["filter"]] = sample
    prompts = same = right = 0
    widest = 0.0
    for i, question in enumerate(questions):
        found = by_item[skipped + i]
        sample = found.get("flexible-extract") or next(iter(found.values()))
        prompt = sample["arguments"][0][0]
        prompts += prompt == question.prompts[0][0]
        if task.choices:
            metric = "acc_norm" if task.by_length else "acc"
            sums = np.array([float(resp[0]) for resp in sample["filtered_resps"]], np.float64)
            shares = np.exp(sums - sums.max()) / np.exp(sums - sums.max()).sum()
            mine_, theirs = mine.shares[i], shares
            if sample["arguments"][0][1].endswith(" yes"):
                theirs = theirs[::-1]
            widest = max(widest, float(np.abs(np.log(mine_) - np.log(theirs)).max()))
            score = sample[metric]
        else:
            metric = next(m for m in ("exact_match", "prompt_level_strict_acc") if m in sample)
            written = sample["resps"][0][0]
            widest += written.strip() == mine.said[i].strip()
            score = sample[metric]
        same += bool(score) == bool(mine.right[i])
        right += bool(score)
    n = len(questions)
    how = f"log shares within {widest:.1e}" if task.choices else f"equal texts {widest:.0f}/{n}"
    return f"equal prompts {prompts}/{n}, equal scores {same}/{n} ({right} right by lm-eval), {how}"


if __name__ == "__main__":
    main()

"""A few rows of every general task, made by hand in the hub's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DEV = [
    {
        "question": f"What is {n} + {n}?",
        "subject": s,
        "choices": ["1", str(2 * n), "7", "9"],
        "answer": 1,
    }
    for s in ("elementary_mathematics", "us_foreign_policy")
    for n in (2, 3)
]
ROWS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "mmlu/all": {
        "dev": DEV,
        "test": [
            {
                "question": " What is 4 + 4? ",
                "subject": "elementary_mathematics",
                "choices": ["3", "5", "8", "9"],
                "answer": 2,
            }
        ],
    },
    "ai2_arc/ARC-Easy": {
        "test": [
            {
                "id": "a",
                "question": "Where do fish live?",
                "choices": {"text": ["in trees", "in water", "in sand"], "label": ["1", "2", "3"]},
                "answerKey": "2",
            }
        ]
    },
    "ai2_arc/ARC-Challenge": {
        "test": [
            {
                "id": "b",
                "question": "Which is warm?",
                "choices": {
                    "text": ["ice", "snow", "fire", "frost"],
                    "label": ["A", "B", "C", "D"],
                },
                "answerKey": "C",
            }
        ]
    },
    "truthful_qa/multiple_choice": {
        "validation": [
            {
                "question": "Can pigs fly?",
                "mc1_targets": {"choices": ["No.", "Yes, by night."], "labels": [1, 0]},
                "mc2_targets": {"choices": ["No.", "Yes, by night."], "labels": [1, 0]},
            }
        ]
    },
    "hellaswag": {
        "validation": [
            {
                "ind": 0,
                "activity_label": "Baking",
                "ctx_a": "A woman opens an oven. [title] Step one",
                "ctx_b": "the Woman",
                "ctx": "",
                "endings": ["takes out [step] a cake.", "swims.", "is  a lake.", "flies away."],
                "label": "0",
            }
        ]
    },
    "winogrande/winogrande_xl": {
        "validation": [
            {
                "sentence": "The cup fell off the table because the _ was shaken.",
                "option1": "cup",
                "option2": "table",
                "answer": "2",
            }
        ]
    },
    "super_glue/copa": {
        "validation": [
            {
                "premise": "The man fell.",
                "choice1": "He slipped.",
                "choice2": "He sang.",
                "question": "cause",
                "label": 0,
                "idx": 0,
            }
        ]
    },
    "super_glue/boolq": {
        "validation": [
            {"passage": "Dogs bark.", "question": "do dogs bark", "label": 1, "idx": 0},
            {"passage": "Dogs bark.", "question": "do dogs fly", "label": 0, "idx": 1},
        ]
    },
    "super_glue/multirc": {
        "validation": [
            {
                "paragraph": "Ann has a dog.",
                "question": "Who has a dog?",
                "answer": "Ann",
                "label": 1,
                "idx": 0,
            }
        ]
    },
    "gsm8k/main": {
        "train": [
            {
                "question": f"What is {n} + 1?",
                "answer": f"{n} + 1 = <<{n}+1={n + 1}>>{n + 1}\n#### {n + 1}",
            }
            for n in range(5)
        ],
        "test": [{"question": "What is 999 + 1?", "answer": "It is a lot.\n#### 1,000"}],
    },
    "IFEval": {
        "train": [
            {
                "key": 1,
                "prompt": "Say hello without commas.",
                "instruction_id_list": ["punctuation:no_comma"],
                "kwargs": "[{}]",
            }
        ]
    },
}
for _name, _target in (
    ("boolean_expressions", "True"),
    ("disambiguation_qa", "(B)"),
    ("formal_fallacies", "valid"),
    ("hyperbaton", "(A)"),
    ("logical_deduction_three_objects", "(C)"),
    ("navigate", "No"),
    ("snarks", "(A)"),
    ("sports_understanding", "no"),
    ("temporal_sequences", "(D)"),
    ("web_of_lies", "Yes"),
    ("multistep_arithmetic_two", "-12"),
    ("object_counting", "6"),
):
    ROWS[f"bbh/{_name}"] = {
        "test": [{"input": f"{_name} number {n}", "target": _target} for n in range(5)]
    }


def write_hub(folder: Path, *names: str, times: int = 1) -> Path:
    """Write the rows of some repositories, by default of all; `times` copies of scored ones."""
    for place, splits in ROWS.items():
        if names and place.partition("/")[0] not in names:
            continue
        (folder / place).mkdir(parents=True, exist_ok=True)
        for split, rows in splits.items():
            more = times if split != "dev" and (place, split) != ("gsm8k/main", "train") else 1
            lines = "".join(json.dumps(row) + "\n" for _ in range(more) for row in rows)
            (folder / place / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    return folder

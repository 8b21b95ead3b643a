"""Every Eval Ever 0.3: a record of each model, its items, and the paired changes.

The schemas are those of https://github.com/evaleval/every_eval_ever. Each model is a record; the
base model's has the items of all tuned ones, with equal hashes. That of a tuned model also has the
change from the base model by each measure, as a further result.
"""

import hashlib
import json
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime
from statistics import fmean
from typing import Any

from clbench.audit.record import Measure, Record, Role, measures
from clbench.audit.scores import SEPARATOR
from clbench.core.files import folders

VERSION = "0.3.0"
PLACE = "clbench-audit"
FACTS = ("verdict", "p", "p_family", "flips_lost", "flips_gained")

Json = dict[str, Any]


def export(record: Record) -> Iterator[tuple[str, str]]:
    """Yield a file of JSON for each model, and one of its items, a line each.

    Models without an organisation in their name get ``local``.
    """
    content = {**record.content}
    by_model = {model["model"]: measures(model) for model in content["models"]}
    distinct: dict[str, list[Measure]] = {}
    for each in (each for changes in by_model.values() for each in changes):
        distinct.setdefault(_id(each), []).append(each)
    names = [content["base"], *by_model]
    places = folders(name for name in names if "/" not in name)
    base, *ids = (f"local/{places[name]}" if name in places else name for name in names)
    yield from _files(content, content["base"], base, [*map(_of_base, distinct.values())])
    for own_id, (name, changes) in zip(ids, by_model.items(), strict=True):
        yield from _files(content, name, own_id, changes, base)


def _of_base(changes: Sequence[Measure]) -> Measure:
    """Return one measure with the base model's scores of all items that a tuned model has, too."""
    first, rows = changes[0], dict[str, Sequence[Any]]()
    texts = [name for name in ("inputs", "answers") if name in first.items]
    for each in changes:
        columns = each.scores("base"), *(each.items[name] for name in texts)
        rows |= zip(each.items["keys"], zip(*columns, strict=True), strict=True)
    scores, *others = zip(*rows.values(), strict=True)
    items = {
        **first.items,
        "keys": [*rows],
        "base": scores,
        **dict(zip(texts, others, strict=True)),
    }
    return Measure({**first.numbers, "base": fmean(scores)}, items, first.primary)


def _files(
    content: Json, name: str, own_id: str, changes: Sequence[Measure], base: str | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the record of a model and its items; `base` is the base model's id, if it is tuned."""
    role: Role = "base" if base is None else "tuned"
    number = uuid.UUID(_sha256(json.dumps([content.get("identity"), name]))[:32], version=4)
    path = f"data/{PLACE}/{own_id}/{number}"
    own = {"schema_version": VERSION, "evaluation_id": f"{PLACE}/{own_id}/{number}"}
    rows = [{**own, "model_id": own_id, **row} for each in changes for row in _items(each, role)]
    samples = "".join(f"{json.dumps(row, sort_keys=True)}\n" for row in rows)
    yield f"{path}_samples.jsonl", samples
    results = [_result(each, role) for each in changes]
    results += [] if base is None else [_result(each, "change", base) for each in changes]
    record = own | {
        "evaluation_timestamp": content["date"],
        "retrieved_timestamp": f"{datetime.fromisoformat(content['date']).timestamp():.0f}",
        "source_metadata": {
            "source_name": "clbench audit",
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "other",
        },
        "eval_library": {"name": "clbench", "version": content["version"]},
        "model_info": {
            "name": name,
            "id": own_id,
            "developer": own_id.partition("/")[0],
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "unknown",
                "role": role,
            },
        },
        "evaluation_results": results,
        "detailed_evaluation_results": {
            "format": "jsonl",
            "file_path": f"{path}_samples.jsonl",
            "total_rows": len(rows),
            "hash_algorithm": "sha256",
            "checksum": _sha256(samples),
        },
    }
    yield f"{path}.json", json.dumps(record, indent=1, allow_nan=False) + "\n"


def _items(each: Measure, role: Role) -> Iterator[Json]:
    keys, scores = each.items["keys"], each.scores(role)
    inputs = each.items.get("inputs") or [f"withheld, digest {key}" for key in keys]
    answers = each.items.get("answers") or [None] * len(keys)
    for key, text, answer, score in zip(keys, inputs, answers, scores, strict=True):
        given = {"raw": text.replace(SEPARATOR, "\n"), "reference": [answer] if answer else []}
        yield {
            "evaluation_result_id": _id(each),
            "evaluation_name": _name(each),
            "interaction_type": "single_turn",
            "answer_attribution": [],
            "sample_id": key,
            "sample_hash": _sha256(json.dumps(given, sort_keys=True, separators=(",", ":"))),
            "input": given,
            "output": {"raw": []},
            "evaluation": {"score": score, "is_correct": score == 1 and not each.lower_is_better},
        }


def _result(each: Measure, what: str, base: str = "") -> Json:
    """Return the mean of the ``base`` or ``tuned`` model, or the ``change`` from `base`."""
    numbers, source, name = each.numbers, each.items["source"], each.items["metric"]
    data: Json = {"dataset_name": each.items["task"], "source_type": "other"}
    if source.get("hub"):
        more = {key: source[key] for key in ("config", "revision") if source.get(key)}
        data |= {"source_type": "hf_dataset", "hf_repo": source["hub"]}
        data |= {"hf_split": source["split"], "additional_details": more}
    is_share = numbers.get("flips_lost") is not None
    low, high = (0, 1) if is_share else (0 if each.is_loss else "-Infinity", "Infinity")
    suffix, details = "", {"score": numbers.get(what)}
    metric: Json = {"metric_id": name, "lower_is_better": each.lower_is_better}
    if what == "change":
        suffix, low = "/change", -1 if is_share else "-Infinity"
        order = "base minus tuned" if each.lower_is_better else "tuned minus base"
        metric = {
            "metric_id": f"{name}-change",
            "lower_is_better": False,
            "evaluation_description": f"{order}, on the same items; below 0 is worse",
            "additional_details": {"base_model": base},
        }
        bounds = {"lower": numbers["low"], "upper": numbers["high"]}
        details = {
            "score": numbers["difference"],
            "details": {key: str(numbers[key]) for key in FACTS if numbers.get(key) is not None},
            "uncertainty": {
                "confidence_interval": {**bounds, "confidence_level": numbers["level"]}
            },
        }
    return {
        "evaluation_result_id": f"{_id(each)}{suffix}",
        "evaluation_name": f"{_name(each)}{suffix}",
        "source_data": data,
        "metric_config": metric | {"score_type": "continuous", "min_score": low, "max_score": high},
        "score_details": details,
    }


def _name(each: Measure) -> str:
    """Return the task; with the part where a model's own answers may have that name, too."""
    return str(each.items["title" if each.part == "features" else "task"])


def _id(each: Measure) -> str:
    return "/".join(each.items[key] for key in ("task", "part", "metric"))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

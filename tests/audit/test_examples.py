"""The examples of docs/audit.md say what follows from every item of their kept audits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clbench.audit.comparison import Comparison, compare
from clbench.audit.record import Record, Role, measures
from clbench.audit.scores import ItemScores

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8").replace("−", "-")
LANGUAGE_MODEL, ENCODER = "## A language model", "## An example"


def section(heading: str) -> str:
    """Return the text of a section in one line."""
    text = PAGE[PAGE.index(f"{heading}\n") :]
    return " ".join(re.split(r"\n## ", text[3:])[0].split())


def audits(name: str) -> dict[str, dict[str, Any]]:
    """Return what a kept audit says of each model, with its margin."""
    content = Record.read(ROOT / "results" / "audits" / name).content
    margin = content["settings"]["margin"]
    return {model["model"]: {**model, "margin": margin} for model in content["models"]}


def judged(model: dict[str, Any], unit: str) -> Comparison:
    """Return the comparison that a model's items give."""
    scores: dict[Role, list[ItemScores]] = {"base": [], "tuned": []}
    for each in measures(model):
        table, numbers = each.items, each.numbers
        probed = table["part"] in ("features", "behaviour")
        for role, found in scores.items():
            found.append(
                ItemScores(
                    table["task"],
                    table["part"],
                    (-1.0 if each.lower_is_better else 1.0) * np.array(each.scores(role)),
                    tuple(table["keys"]),
                    metric=table["metric"],
                    chance=numbers.get("chance"),
                    choices=numbers.get("choices"),
                    primary=each.primary,
                    unit="texts" if each.is_loss else "rows" if probed else unit,
                )
            )
    return compare(scores["base"], scores["tuned"], model["margin"])


@pytest.mark.parametrize(
    ("heading", "name", "tuned"),
    [(LANGUAGE_MODEL, "smollm2-fomc", "fomc"), (ENCODER, "minilm-sst2", "sst2")],
)
def test_the_terminal_shows_what_the_items_give(heading: str, name: str, tuned: str) -> None:
    shown, model = section(heading), audits(name)[tuned]
    assert model["headline"] in shown
    found = judged(model, "questions").measures
    assert len(found) == len([each for each in measures(model) if each.primary])
    for each in found:
        line = " ".join(f"{each.change.word} {each.title} {each}".split())
        assert line in shown, line


def test_the_answers_in_form_are_those_of_the_items() -> None:
    model = audits("smollm2-fomc")["fomc"]
    (form,) = [each.items for each in measures(model) if each.part == "format"]
    base, tuned = (sum(form[role][:50]) for role in ("base", "tuned"))  # those of GSM8K
    text = section(LANGUAGE_MODEL)
    assert f"of 50 answers to GSM8K, {base} of the base model's end" in text
    assert f"and {tuned} of the tuned one's" in text
    able = [
        model[part] for part in ("knowledge", "reasoning", "arithmetic", "instructions", "reading")
    ]
    blind = [each["cannot_show_forgetting"] for part in able for each in part.values()]
    assert (sum(blind), len(blind)) == (8, 9)
    assert "in eight of nine tasks it is not shown to be above chance" in text


def test_the_table_and_the_relearning_are_those_of_the_audit_of_both_models() -> None:
    text = section(LANGUAGE_MODEL)
    measured = ("fomc, behaviour", "written answers, format, in form", "language")
    models = audits("smollm2-fomc-methods")
    for name, model in models.items():
        changes = {each.title: str(each.change) for each in judged(model, "questions").changes}
        assert f"| `{name}` | {' | '.join(changes[title] for title in measured)} |" in text
    (found,) = models["fomc"]["relearned"]
    tuned, base, left = (
        "{difference:+.3f} [{low:+.3f}, {high:+.3f}]".format(**found[part])
        for part in ("tuned", "base", "left")
    )
    assert f"{found['word']} {found['task']}: {found['rows']} rows bring back {tuned}" in text
    assert f"(base model: {base}), which leaves {left}" in text


def table_of(heading: str) -> dict[str, list[str]]:
    """Return the cells of a section's table by the first one of their row."""
    text = re.split(r"\n## ", PAGE[PAGE.index(f"{heading}\n") + 3 :])[0]
    rows = re.findall(r"^\| (?!method|---)(.+) \|$", text, re.MULTILINE)
    cells = [[cell.strip(" `") for cell in row.split("|")] for row in rows]
    return {name: rest for name, *rest in cells}


def test_the_methods_of_the_encoder_lost_what_the_items_of_their_audit_give() -> None:
    models, table = audits("minilm-sst2"), table_of(ENCODER)
    content = Record.read(ROOT / "results" / "audits" / "minilm-sst2").content
    head = {p["second"]: p["behaviour"] for p in content["between"] if p["first"] == "sst2"}
    shown = "{difference:+.3f} [{low:+.3f}, {high:+.3f}]"

    def behaviour(name: str) -> str:
        return shown.format(**head[name]["glue/sst2"])

    assert len(table) == 7
    for method, cells in table.items():
        name = "sst2" if method == "none" else f"sst2-{method}"
        changes = {each.title: str(each.change) for each in judged(models[name], "rows").changes}
        expected = [changes["language, by a fitted head"], changes["ag_news, features"]]
        expected.append("" if method == "none" else behaviour(name))
        assert cells == [text.replace("+0.000]", "0.000]") for text in expected]
    text = section(ENCODER)
    language = [
        judged(models[name], "rows").language for name in ("sst2-ewc-mlm", "mended", "sst2")
    ]
    ewc, mended, plain = (f"{-each.change.difference:.3f}" for each in language if each)
    assert f"model lost {ewc} nats of language and the mended one {mended}" in text
    assert f"compared with {plain} for the plain one" in text
    gains = [head[name]["glue/sst2"]["difference"] for name in ("sst2-ewc-mlm", "mended")]
    assert "({:+.3f} and {:+.3f}, with intervals".format(*gains) in text

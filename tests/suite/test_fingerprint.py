"""What the fingerprint of a cell covers, and what it leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.planned import SUITE, Make

from clbench.api import plan_run
from clbench.core.errors import SuiteError
from clbench.suite.options import RunOptions
from clbench.suite.plan import Cell


def fingerprint(make: Make, text: str = SUITE, scenario: str = "a-b", **options: Any) -> str:
    plan = make(text, scenarios=[scenario], seeds=options.pop("seeds", [0]), **options)
    return plan.cells[0].fingerprint


def test_the_fingerprint_is_stable_and_covers_what_decides_the_scores(make: Make) -> None:
    plain = fingerprint(make)
    assert plain == fingerprint(make)
    assert len(plain) == 32
    others = [
        fingerprint(make, seeds=[1]),
        fingerprint(make, limit=50),
        fingerprint(make, limit=50, subset="seed"),
        fingerprint(make, epochs=3),
        fingerprint(make, precision="float32"),
        fingerprint(make, model="other"),
        fingerprint(make, methods=["frozen"]),
        fingerprint(make, SUITE.replace('tasks = ["a", "b"]', 'name = "a-b"\ntasks = ["b", "a"]')),
        fingerprint(make, SUITE.replace("validation_fraction = 0.5", "validation_fraction = 0.4")),
        fingerprint(make, SUITE.replace('"a" = 5', '"a" = 4')),
    ]
    Path("a.csv").write_text("text,label\nwell,1\nworse,0\n")
    others.append(fingerprint(make))
    assert len({plain, *others}) == 12


def test_the_fingerprint_ignores_what_does_not_change_scores(make: Make) -> None:
    plain = fingerprint(make, scenario="b-length")
    noted = SUITE.replace('task = "b"\n\n', 'task = "b"\nnote = "x"\n\n')
    assert noted != SUITE
    assert fingerprint(make, noted, scenario="b-length") == plain
    # Another scenario's task, other methods beside it, another device.
    assert fingerprint(make, SUITE.replace('"a" = 5', '"a" = 4'), scenario="b-length") == plain
    assert fingerprint(make, scenario="b-length", methods=["vanilla"], device="cpu") == plain


def test_a_reused_split_enters_the_fingerprint_by_content(make: Make) -> None:
    text = SUITE.replace('task = "b"\n\n', 'task = "b"\nsplit = "saved.json"\n\n')
    Path("saved.json").write_text("{}")
    first = fingerprint(make, text, scenario="b-length")
    Path("saved.json").write_text("[]")
    assert fingerprint(make, text, scenario="b-length") != first


def test_an_edited_plugin_changes_the_fingerprint(make: Make) -> None:
    plugin = (
        "import clbench\n\n\n@clbench.method('{0}')\nclass A(clbench.Method):\n    x: int = {1}\n"
        "\n\n@clbench.method('{0}-other')\nclass B(clbench.Method):\n    x: int = 1\n"
    )
    Path("own.py").write_text(plugin.format("planned", 1))
    options = {"methods": ["planned"], "plugins": ["own.py"]}
    first = fingerprint(make, **options)
    assert first == fingerprint(make, **options)
    assert first != fingerprint(make, methods=["planned-other"], plugins=["own.py"])
    Path("own.py").write_text(plugin.format("planned", 2))
    assert fingerprint(make, **options) != first


OWN_SHIFT = """import clbench


@clbench.shift("planned-pair")
class Pair(clbench.Shift):
    old: str
    new: list[str]

    def build(self, context):
        return [context.task(self.old), *map(context.task, self.new)]
"""


def test_the_tasks_of_a_plugin_s_shift_change_the_fingerprint(make: Make) -> None:
    Path("own.py").write_text(OWN_SHIFT)
    scenario = '[[scenario]]\nname = "pair"\nshift = "planned-pair"\nold = "a"\nnew = ["b"]\n'
    text = f"{SUITE}\n{scenario}"

    def cell(text: str = text) -> Cell:
        return make(text, scenarios=["pair"], seeds=[0], plugins=["own.py"]).cells[0]

    first = cell()
    assert first.recipe["tasks"].keys() == {"a", "b"}
    assert first.recipe["protocol"]["task_epochs"] == {"a": 5}
    assert cell().fingerprint == first.fingerprint
    assert cell(text.replace('"a" = 5', '"a" = 4')).fingerprint != first.fingerprint
    Path("b.csv").write_text("text,label\nwell,1\nworse,0\n")
    assert cell(text).fingerprint != first.fingerprint


def test_other_texts_in_the_settings_of_a_packaged_shift_are_no_tasks(make: Make) -> None:
    text = SUITE.replace('task = "b"\n\n', 'task = "b"\nsplit = "a"\n\n')
    recipe = make(text, scenarios=["b-length"]).cells[0].recipe
    assert recipe["tasks"].keys() == {"b"}
    assert recipe["protocol"]["task_epochs"] == {}


def test_an_edited_metric_of_the_protocol_changes_the_fingerprint(make: Make) -> None:
    plugin = (
        "import clbench\n\n\n@clbench.metric('planned-metric')\n"
        "def planned(outputs, labels):\n    return {0}\n"
    )

    def cells(metric: str, value: float = 0.5) -> list[Cell]:
        Path("own.py").write_text(plugin.format(value))
        text = SUITE.replace("limit = 100", f'limit = 100\ntask_metric = {{ "a" = "{metric}" }}')
        Path("s.toml").write_text(text)
        return list(plan_run("s.toml", RunOptions(plugins=["own.py"], seeds=[0])).cells)

    make()  # writes the files
    name = "planned-metric"
    first, again, edited = cells(name), cells(name), cells(name, 1)
    assert first[0].recipe["metrics"].keys() == {name}
    assert [cell.fingerprint for cell in first] == [cell.fingerprint for cell in again]
    # Only the scenario of task a is scored by it.
    changed = [x.scenario.name for x, y in zip(first, edited, strict=True) if x.recipe != y.recipe]
    assert set(changed) == {"a-b"}
    assert "metrics" not in cells("f1")[0].recipe
    with pytest.raises(SuiteError, match=r"task_metric\.a: the task has no metric 'f2'"):
        cells("f2")

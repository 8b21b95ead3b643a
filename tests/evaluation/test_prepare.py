"""Checks, scorers and saved files of prepared scenarios."""

from __future__ import annotations

import numpy as np
import pytest
from workspace import Workspace

from clbench import figures
from clbench.errors import ModelError, ShiftError
from clbench.results.store import Store


def test_a_shift_that_drops_the_tuning_split_is_refused(world: Workspace) -> None:
    plugin = world.write(
        "loses.py",
        "from dataclasses import replace\n\nimport clbench\n\n\n"
        "@clbench.shift('loses')\nclass Loses(clbench.Shift):\n"
        "    task: str\n\n"
        "    def build(self, context):\n"
        "        task = context.task(self.task)\n"
        "        return [task, replace(task, name='lost', tuning=None)]\n",
    )
    text = world.suite.read_text()
    world.suite.write_text(
        text.replace("[protocol]", '[protocol]\nscore_on = "tuning"')
        + '\n[[scenario]]\nname = "loses"\nshift = "loses"\ntask = "mood"\n'
    )
    with pytest.raises(ShiftError, match="'lost': its shift has dropped the tuning split"):
        world.run(scenario="loses", plugins=[world.plugin, plugin])


def test_a_run_saves_the_data_for_figures_of_its_shifts(world: Workspace) -> None:
    run = world.run(scenario="mood-length", epochs=1)
    content = Store(run.path).read_pictures()["mood-length"]
    counts = content["counts"]["train"]
    rows = {part: sum(count for _, count in counts[part]) for part in ("short", "long")}
    assert rows == {"short": 80, "long": 80}
    assert max(length for length, _ in counts["short"]) <= min(n for n, _ in counts["long"])
    figures.shift(run)


def test_clusters_are_saved_as_points_with_part_and_label(world: Workspace) -> None:
    text = world.suite.read_text().replace(
        'shift = "sentence-length"', 'shift = "embedding-cluster"'
    )
    world.suite.write_text(text)
    run = world.run(scenario="mood-length", epochs=1)
    content = Store(run.path).read_pictures()["mood-length"]
    assert len(content["points"]) == len(content["parts"]) == len(content["labels"]) == 160
    sizes = run.cells[0].scenario_report["numbers"]["cluster_sizes"]["train"]
    assert sizes == {f"cluster-{i}": content["parts"].count(i) for i in (0, 1)}
    assert set(content["labels"]) == {"down", "up"}


def test_a_shift_may_bring_a_scorer_of_its_own(world: Workspace) -> None:
    plugin = world.write(
        "constant.py",
        """
import clbench
from clbench.shifts.base import ColumnSpec, ScenarioTasks


class Constant:
    part_tokens = 0

    def __init__(self, protocol, device, *, value):
        self.value = value

    def score(self, backbone, *, part=False, precision, device):
        return {"value": self.value}

    def describe(self, initial=None):
        return "always the same"


@clbench.shift("constant")
class ConstantColumn(clbench.Shift):
    task: str

    def build(self, context):
        column = ColumnSpec("constant", "value", Constant, {"value": 0.25})
        return ScenarioTasks((context.task(self.task),), columns=(column,))
""",
    )
    text = world.suite.read_text()
    world.suite.write_text(
        text + '\n[[scenario]]\nname = "constant"\nshift = "constant"\ntask = "mood"\n'
    )
    (cell,) = world.run(scenario="constant", plugins=[world.plugin, plugin], epochs=1).cells
    assert cell.tasks == ["constant", "mood"]
    assert [row[0] for row in cell.R] == [0.25, 0.25]
    assert "always the same" in cell.notes


def test_embeddings_that_are_not_finite_are_refused(
    world: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "clbench.evaluation.prepare.embed_rows", lambda *_, **__: np.full((2, 2), np.nan)
    )
    with pytest.raises(ModelError, match="its embeddings are not finite"):
        world.run()

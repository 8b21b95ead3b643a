"""What is kept of prepared scenarios."""

from __future__ import annotations

import pytest
from workspace import Workspace

from clbench import figures
from clbench.errors import ShiftError
from clbench.results.store import Store


def test_a_shift_that_loses_the_tuning_split_is_refused(world: Workspace) -> None:
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
    with pytest.raises(ShiftError, match="'lost': its shift has lost the tuning split"):
        world.run(scenario="loses", plugins=[world.plugin, plugin])


def test_a_run_keeps_what_its_shifts_are_drawn_from(world: Workspace) -> None:
    run = world.run(scenario="mood-length", epochs=1)
    content = Store(run.path).read_pictures()["mood-length"]
    counts = content["counts"]["train"]
    rows = {part: sum(count for _, count in counts[part]) for part in ("short", "long")}
    assert rows == {"short": 80, "long": 80}
    assert max(length for length, _ in counts["short"]) <= min(n for n, _ in counts["long"])
    figures.shift(run)


def test_clusters_are_kept_as_points_with_part_and_label(world: Workspace) -> None:
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

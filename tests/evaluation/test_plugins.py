from __future__ import annotations

import json

import pytest
from workspace import Steps, Workspace

import clbench


def test_a_plugin_that_raises_fails_its_own_cell_and_is_tried_again(world: Workspace) -> None:
    broken = """
import clbench


@clbench.method("fragile")
class Fragile(clbench.Method):
    def {hook}(self, *arguments):
        {body}
"""
    plugin = world.write("fragile.py", broken.format(hook="after_step", body="1 / 0"))
    run = world.run(methods=["fragile", "vanilla"], plugins=[world.plugin, plugin])
    failed, fine = run.cells
    assert (failed.status, fine.status) == ("failed", "ok")
    assert failed.reason is not None
    assert "ZeroDivisionError: division by zero (fragile.py:8 in after_step)" in failed.reason
    assert failed.R == []
    assert json.loads((run.path / "cells" / f"{failed.key}.json").read_text())["status"] == "failed"
    steps = Steps()
    world.run(methods=["fragile", "vanilla"], plugins=[world.plugin, plugin], listener=steps)
    assert (steps.pending, steps.finished) == (1, [failed.key])


@pytest.mark.parametrize(
    "hook",
    [
        "acts_in",
        "setup",
        "before_stage",
        "training_data",
        "phases",
        "before_phase",
        "parameter_groups",
        "optimizer",
        "schedule",
        "before_step",
        "loss",
        "penalty",
        "edit_gradients",
        "after_step",
        "after_stage",
        "scoring",
        "state",
    ],
)
def test_any_hook_may_raise(world: Workspace, hook: str) -> None:
    plugin = world.write(
        "bad.py",
        f"import clbench\n\n\n@clbench.method('bad')\nclass Bad(clbench.Method):\n"
        f"    def {hook}(self, *a, **k):\n        raise RuntimeError('out of order')\n",
    )
    run = world.run(methods=["bad", "vanilla"], plugins=[world.plugin, plugin])
    assert [cell.status for cell in run.cells] == ["failed", "ok"]
    assert f"RuntimeError: out of order (bad.py:7 in {hook})" in str(run.cells[0].reason)


def test_setup_may_not_change_weights_behind_vanillas_back(world: Workspace) -> None:
    plugin = world.write(
        "sneaky.py",
        "import clbench\nimport torch\n\n\n@clbench.method('sneaky')\n"
        "class Sneaky(clbench.Method):\n"
        "    def acts_in(self, index):\n        return index > 0\n\n"
        "    def setup(self, context):\n        context.model.randomise_backbone(1)\n",
    )
    run = world.run(methods=["sneaky"], plugins=[world.plugin, plugin])
    assert "changes the model in setup, yet acts_in(0)" in str(run.cells[0].reason)


def test_rows_of_earlier_tasks_only_for_those_who_declare_it(world: Workspace) -> None:
    text = """
import clbench


@clbench.method("peeks")
class Peeks(clbench.Method):
    {declaration}

    def training_data(self, stage):
        return [stage.earlier(j) for j in range(stage.index + 1)]
"""
    plugin = world.write("peeks.py", text.format(declaration='"""Undeclared."""'))
    run = world.run("a", methods=["peeks"], plugins=[world.plugin, plugin])
    assert "must declare keeps_rows = True" in str(run.cells[0].reason)
    declared = world.write("peeks2.py", text.format(declaration="keeps_rows = True"))
    declared.write_text(declared.read_text().replace('"peeks"', '"peeks2"'))
    run = world.run("b", methods=["peeks2"], plugins=[world.plugin, declared])
    (cell,) = run.cells
    assert cell.status == "ok", cell.reason
    assert cell.keeps_rows
    assert [stage.rows for stage in cell.stages] == [160, 320]
    assert cell.stages[1].steps == 160


def test_a_stage_holds_no_rows_of_tasks_to_come(world: Workspace) -> None:
    plugin = world.write(
        "ahead.py",
        "import clbench\n\n\n@clbench.method('ahead')\nclass Ahead(clbench.Method):\n"
        "    def before_stage(self, stage):\n        stage.tasks[stage.index + 1]\n",
    )
    (failed,) = world.run(methods=["ahead"], plugins=[world.plugin, plugin]).cells
    assert failed.reason is not None
    assert "IndexError" in failed.reason


def test_state_that_cannot_be_stored_costs_the_continuation_only(world: Workspace) -> None:
    plugin = world.write(
        "odd.py",
        "import clbench\n\n\n@clbench.method('odd')\nclass Odd(clbench.Method):\n"
        "    def before_stage(self, stage):\n        self.thing = object()\n",
    )
    run = world.run(methods=["odd"], plugins=[world.plugin, plugin])
    (cell,) = run.cells
    assert cell.status == "ok"
    assert any("state.thing is a object" in note for note in cell.notes)


def test_a_shift_that_raises_fails_its_own_cells(world: Workspace) -> None:
    world.suite.write_text(
        world.suite.read_text() + '\n[[scenario]]\nname = "bad"\nshift = "bad"\ntask = "mood"\n'
    )
    plugin = world.write(
        "bad_shift.py",
        "import clbench\n\n\n@clbench.shift('bad')\nclass Bad(clbench.Shift):\n    task: str\n\n"
        "    def build(self, context):\n        return [][0]\n",
    )
    steps = Steps()
    run = clbench.run(
        world.suite,
        out=world.folder / "out",
        scenarios=["bad", "mood-thing"],
        plugins=[world.plugin, plugin],
        listener=steps,
    )
    by_scenario = {cell.scenario: cell for cell in run.cells}
    assert by_scenario["mood-thing"].status == "ok"
    assert by_scenario["bad"].status == "failed"
    reason = str(by_scenario["bad"].reason)
    assert reason == "IndexError: list index out of range (bad_shift.py:9 in build)"
    assert any("bad cannot be built: IndexError" in note for note in steps.notes)


@pytest.mark.parametrize(
    ("hook", "value", "message"),
    [
        ("training_data", "[]", "training_data must return a list with at least one TaskData"),
        ("training_data", "42", "training_data must return a list with at least one TaskData"),
        ("training_data", "[1]", "training_data must return a list of TaskData, but one is an int"),
        ("phases", "[]", "phases must return a list with at least one Phase, not an empty one"),
        ("phases", "3", "phases must return a list with at least one Phase, not an int"),
        ("parameter_groups", "None", "parameter_groups must return a list with at least one"),
        ("parameter_groups", "[{'params': []}]", "parameter_groups gave no weights to train"),
        ("parameter_groups", "[{'lr': 1}]", 'each group needs a list of weights as "params"'),
        ("optimizer", "None", "optimizer must return a torch.optim.Optimizer, not None"),
        ("schedule", "7", "schedule must return a scheduler or None, not an int"),
        ("loss", "1.0", "loss must return a tensor of one number, not a float"),
        ("loss", "a[0].loss(a[1]).detach()", "loss returned a tensor without a gradient"),
        ("penalty", "'x'", "penalty must return a tensor of one number, not a str"),
        ("penalty", "torch.zeros(2)", "penalty must return a tensor of one number, not of shape"),
        (
            "penalty",
            "torch.tensor(float('nan'))",
            "stage 0 (mood): the penalty was no longer a finite number at step 1 of 80",
        ),
        ("scoring", "None", "scoring must return a context manager, not None"),
    ],
)
def test_what_hooks_return_is_checked(
    world: Workspace, hook: str, value: str, message: str
) -> None:
    plugin = world.write(
        "wrong.py",
        "import clbench\nimport torch\n\n\n@clbench.method('wrong')\nclass Wrong(clbench.Method):\n"
        f"    def {hook}(self, *a):\n        return {value}\n",
    )
    run = world.run(methods=["wrong"], plugins=[world.plugin, plugin])
    assert message in str(run.cells[0].reason)


def test_further_passes_do_not_shift_dropout(world: Workspace) -> None:
    plugin = world.write(
        "passes.py",
        "import clbench\n\n\n@clbench.method('passes')\nclass Passes(clbench.Method):\n"
        "    def loss(self, stage, batch):\n        loss = stage.loss(batch)\n"
        "        stage.logits(batch)\n        return loss\n",
    )
    run = world.run(methods=["vanilla", "passes"], plugins=[world.plugin, plugin])
    vanilla, passes = run.cells
    assert [s.curves for s in vanilla.stages] == [s.curves for s in passes.stages]
    assert vanilla.R == passes.R


def test_a_hook_that_exits_fails_its_own_cell(world: Workspace) -> None:
    plugin = world.write(
        "exits.py",
        "import clbench\n\n\n@clbench.method('exits')\nclass Exits(clbench.Method):\n"
        "    def before_stage(self, stage):\n        raise SystemExit(3)\n",
    )
    run = world.run(methods=["exits", "vanilla"], plugins=[world.plugin, plugin])
    assert [cell.status for cell in run.cells] == ["failed", "ok"]
    assert "SystemExit: 3" in str(run.cells[0].reason)

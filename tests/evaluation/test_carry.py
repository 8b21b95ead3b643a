from __future__ import annotations

import json
import math

import pytest
from small_world import Steps, World, measured

import clbench

ACTS_LATER = '''
import clbench


@clbench.method("acts-later")
class ActsLater(clbench.Method):
    """Trains stage 0 as vanilla does, then holds on to where it ended."""

    strength: float = 1.0

    def acts_in(self, index):
        return index > 0

    def after_stage(self, stage):
        self.anchor = stage.snapshot()

    def penalty(self, stage):
        return self.strength * stage.squared_distance(self.anchor)
'''


def test_forgetting_that_is_known(world: World) -> None:
    """Learning the opposite answers with the same head forgets the first ones altogether."""
    run = world.run(scenario="opposite", epochs=16)
    (cell,) = run.cells
    assert cell.status == "ok", cell.reason
    assert cell.scores["p_o_before"] == pytest.approx(1.0, abs=0.05)
    assert cell.scores["p_s"] == pytest.approx(1.0, abs=0.05)
    assert cell.scores["p_o"] == pytest.approx(0.0, abs=0.05)
    assert cell.scores["forgetting"] == pytest.approx(1.0, abs=0.1)


def test_what_a_cell_says(world: World) -> None:
    run = world.run()
    (cell,) = run.cells
    assert [s.task for s in cell.stages] == ["mood", "thing"]
    assert [s.rows for s in cell.stages] == [160, 160]
    assert [s.steps for s in cell.stages] == [80, 80]
    assert [s.examples for s in cell.stages] == [640, 640]
    assert [s.epochs for s in cell.stages] == [4.0, 4.0]
    assert [s.cached for s in cell.stages] == [False, False]
    assert cell.R[0][1] is None
    curves = cell.stages[1].curves
    assert curves["step"] == [27, 54, 80]
    assert [step for step, _ in curves["scores"]["mood"]] == [0, 27, 54, 80]
    assert set(curves["scores"]) == {"mood", "thing"}
    # The curve ends on all 80 rows, as R does.
    assert curves["scores"]["mood"][-1][1] == cell.R[1][0]
    assert curves["loss"][-1] < curves["loss"][0]
    assert cell.peak_memory_mb is not None
    assert cell.peak_memory_mb > 50
    assert cell.scenario_report["severity"] > 0
    row = run.frame.iloc[0]
    assert (row.p_o, row.p_s, row.status) == (cell.R[1][0], cell.R[1][1], "ok")


def test_two_runs_give_identical_scores_and_seeds_differ(world: World) -> None:
    first = world.run("a", seeds=[0, 1])
    second = world.run("b", seeds=[0, 1])
    assert measured(first) == measured(second)
    losses = [cell.stages[0].curves["loss"] for cell in first.cells]
    assert losses[0] != losses[1]


@pytest.mark.parametrize("stop_after", [1, 79, 80, 81, 100, 159, 160, 170, 239])
def test_interrupted_and_continued_equals_uninterrupted(world: World, stop_after: int) -> None:
    whole = world.run("whole", scenario="three")
    with pytest.raises(KeyboardInterrupt):
        world.run("broken", scenario="three", listener=Steps(stop_after))
    again = Steps()
    continued = world.run("broken", scenario="three", listener=again)
    assert measured(continued) == measured(whole)
    # Whole stages are not trained twice; the one that was broken off is.
    assert again.steps == 240 - (stop_after - 1) // 80 * 80
    cached = [stage.cached for stage in continued.cells[0].stages]
    assert cached == [i < (stop_after - 1) // 80 for i in range(3)]


def test_a_finished_run_trains_nothing(world: World) -> None:
    first = world.run()
    steps = Steps()
    assert measured(world.run(listener=steps)) == measured(first)
    assert (steps.steps, steps.pending) == (0, 0)


def test_methods_that_act_later_share_the_first_stage(world: World) -> None:
    plugin = world.write("later.py", ACTS_LATER)
    alone = world.run("alone", methods=["acts-later"], plugins=[world.plugin, plugin])
    steps = Steps()
    both = world.run(
        "both",
        methods=["vanilla", "acts-later"],
        plugins=[world.plugin, plugin],
        listener=steps,
    )
    vanilla, later = both.cells
    assert steps.steps == 80 * 3
    assert [stage.cached for stage in later.stages] == [True, False]
    assert later.R == alone.cells[0].R
    assert later.R[0] == vanilla.R[0]
    assert later.stages[1].curves["loss"] != vanilla.stages[1].curves["loss"]


def test_two_methods_see_the_same_batches(world: World) -> None:
    spy = world.write(
        "spy.py",
        """
import clbench


class Spy(clbench.Method):
    def before_stage(self, stage):
        self.seen = []

    def loss(self, stage, batch):
        self.seen.append(batch.positions.tolist())
        return stage.loss(batch)

    def after_stage(self, stage):
        for number, rows in enumerate(self.seen):
            for row in rows:
                stage.log.setdefault("rows", []).append([number, row])


clbench.method("spy")(Spy)


@clbench.method("noisy-spy")
class NoisySpy(Spy):
    def loss(self, stage, batch):
        import torch

        torch.rand(7)
        stage.random_seed("x")
        return super().loss(stage, batch) * 3.0
""",
    )
    run = world.run(methods=["spy", "noisy-spy"], plugins=[world.plugin, spy])
    first, second = run.cells
    assert first.status == second.status == "ok", (first.reason, second.reason)
    for mine, other in zip(first.stages, second.stages, strict=True):
        assert mine.curves["rows"] == other.curves["rows"]
        assert mine.curves["loss"] != other.curves["loss"]


def test_cutting_the_embedding_table_changes_no_score(world: World) -> None:
    text = world.suite.read_text()
    cut = world.run("cut")
    world.suite.write_text(text.replace("[protocol]", "[protocol]\ntrim_embeddings = false"))
    whole = world.run("whole")
    assert measured(cut) == measured(whole)


def test_frozen_leaves_the_backbone_and_cannot_forget(world: World) -> None:
    run = world.run(methods=["frozen"])
    (cell,) = run.cells
    assert cell.status == "ok", cell.reason
    assert cell.scores["forgetting"] == 0.0
    losses = cell.stages[0].curves["loss"]
    assert losses[-1] < losses[0]


def test_references_give_intransigence(world: World) -> None:
    run = world.run(references=True)
    pair, alone = run.cells
    assert alone.reference_of == 1
    reference = alone.scores["reference"]
    assert reference == alone.R[0][1]
    row = run.frame[run.frame.method == "vanilla"].iloc[0]
    assert row.intransigence == pytest.approx(reference - pair.R[1][1])


def test_tuning_rows_are_scored_instead_and_not_trained_on(world: World) -> None:
    text = world.suite.read_text()
    world.suite.write_text(text.replace("[protocol]", '[protocol]\nscore_on = "tuning"'))
    run = world.run()
    (cell,) = run.cells
    assert cell.status == "ok", cell.reason
    assert [stage.rows for stage in cell.stages] == [144, 144]
    # 16 tuning rows: every score is a multiple of 1/16.
    assert all((cell.R[1][j] * 16) % 1 == 0 for j in range(2))


def test_a_plugin_that_raises_fails_its_own_cell_and_is_tried_again(world: World) -> None:
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
def test_any_hook_may_raise(world: World, hook: str) -> None:
    plugin = world.write(
        "bad.py",
        f"import clbench\n\n\n@clbench.method('bad')\nclass Bad(clbench.Method):\n"
        f"    def {hook}(self, *a, **k):\n        raise RuntimeError('out of order')\n",
    )
    run = world.run(methods=["bad", "vanilla"], plugins=[world.plugin, plugin])
    assert [cell.status for cell in run.cells] == ["failed", "ok"]
    assert f"RuntimeError: out of order (bad.py:7 in {hook})" in str(run.cells[0].reason)


def test_divergence_stops_its_cell_with_a_message(world: World) -> None:
    plugin = world.write(
        "huge.py",
        "import clbench\n\n\n@clbench.method('huge')\nclass Huge(clbench.Method):\n"
        "    def loss(self, stage, batch):\n"
        "        return stage.loss(batch) * (float('nan') if stage.step == 11 else 1.0)\n",
    )
    run = world.run(methods=["huge", "vanilla"], plugins=[world.plugin, plugin])
    failed, fine = run.cells
    assert fine.status == "ok"
    assert failed.reason is not None
    assert failed.reason.startswith(
        "stage 0 (mood): the loss was no longer a finite number at step 12 of 80."
    )


def test_setup_may_not_change_weights_behind_vanillas_back(world: World) -> None:
    plugin = world.write(
        "sneaky.py",
        "import clbench\nimport torch\n\n\n@clbench.method('sneaky')\n"
        "class Sneaky(clbench.Method):\n"
        "    def acts_in(self, index):\n        return index > 0\n\n"
        "    def setup(self, context):\n        context.model.randomise_backbone(1)\n",
    )
    run = world.run(methods=["sneaky"], plugins=[world.plugin, plugin])
    assert "changes the model in setup, yet acts_in(0)" in str(run.cells[0].reason)


def test_rows_of_earlier_tasks_only_for_those_who_declare_it(world: World) -> None:
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


def test_state_that_cannot_be_stored_costs_the_continuation_only(world: World) -> None:
    plugin = world.write(
        "odd.py",
        "import clbench\n\n\n@clbench.method('odd')\nclass Odd(clbench.Method):\n"
        "    def before_stage(self, stage):\n        self.thing = object()\n",
    )
    run = world.run(methods=["odd"], plugins=[world.plugin, plugin])
    (cell,) = run.cells
    assert cell.status == "ok"
    assert any("state.thing is a object" in note for note in cell.notes)


def test_a_shift_that_raises_fails_its_own_cells(world: World) -> None:
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
def test_what_hooks_return_is_checked(world: World, hook: str, value: str, message: str) -> None:
    plugin = world.write(
        "wrong.py",
        "import clbench\nimport torch\n\n\n@clbench.method('wrong')\nclass Wrong(clbench.Method):\n"
        f"    def {hook}(self, *a):\n        return {value}\n",
    )
    run = world.run(methods=["wrong"], plugins=[world.plugin, plugin])
    assert message in str(run.cells[0].reason)


def test_further_passes_do_not_shift_dropout(world: World) -> None:
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


def test_a_hook_that_exits_fails_its_own_cell(world: World) -> None:
    plugin = world.write(
        "exits.py",
        "import clbench\n\n\n@clbench.method('exits')\nclass Exits(clbench.Method):\n"
        "    def before_stage(self, stage):\n        raise SystemExit(3)\n",
    )
    run = world.run(methods=["exits", "vanilla"], plugins=[world.plugin, plugin])
    assert [cell.status for cell in run.cells] == ["failed", "ok"]
    assert "SystemExit: 3" in str(run.cells[0].reason)


@pytest.mark.parametrize("damage", ["{}", "", "no json"])
def test_a_damaged_stage_is_trained_again(world: World, damage: str) -> None:
    first = world.run()
    (entry,) = (world.folder / "out" / "stages").iterdir()
    (entry / "stage.json").write_text(damage)
    (world.folder / "out" / "cells" / "mood-thing--vanilla--seed0.json").unlink()
    again = world.run()
    assert measured(again) == measured(first)
    assert [stage.cached for stage in again.cells[0].stages] == [False, False]


def test_the_rates_of_a_curve_are_those_of_its_steps(world: World) -> None:
    (cell,) = world.run().cells
    rates = cell.stages[0].curves["lr"]
    # 80 steps, 8 of them warm-up; step 80 is the 79th from 0, so 71/72 of the cosine.
    assert rates[-1] == pytest.approx(0.002 * 0.5 * (1 + math.cos(math.pi * 71 / 72)))
    assert rates[-1] > 0

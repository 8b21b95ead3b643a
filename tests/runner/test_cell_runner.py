"""Scores, curves and sharing of stages of whole cells."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from helpers.workspace import Steps, Workspace, measured

from clbench.methods.merging import WiseFT
from clbench.runner.stage_cache import StageCache
from clbench.training.engine import train_stage

ACTS_LATER = '''
import clbench


@clbench.method("acts-later")
class ActsLater(clbench.Method):
    """Train stage 0 as vanilla does, then pull towards its final weights."""

    strength: float = 1.0

    def acts_in(self, index):
        return index > 0

    def after_stage(self, stage):
        self.anchor = stage.snapshot()

    def penalty(self, stage):
        return self.strength * stage.squared_distance(self.anchor)
'''


@pytest.mark.slow
def test_contradicting_labels_are_forgotten_altogether(world: Workspace) -> None:
    """A second task with opposite labels and the same head overwrites the first one."""
    run = world.run(scenario="opposite", epochs=8)
    (cell,) = run.cells
    assert cell.status == "ok", cell.reason
    assert cell.scores["p_o_before"] == pytest.approx(1.0, abs=0.05)
    assert cell.scores["p_s"] == pytest.approx(1.0, abs=0.05)
    assert cell.scores["p_o"] == pytest.approx(0.0, abs=0.05)
    assert cell.scores["forgetting"] == pytest.approx(1.0, abs=0.1)


@pytest.mark.slow
def test_a_cell_counts_rows_steps_and_examples(world: Workspace) -> None:
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
    assert curves["loss"][-1] < curves["loss"][0]
    # 80 steps, 8 of them warm-up; step 80 is the 79th from 0, so 71/72 of the cosine.
    assert curves["lr"][-1] == pytest.approx(0.002 * 0.5 * (1 + math.cos(math.pi * 71 / 72)))
    assert cell.peak_memory_mb is not None
    assert cell.peak_memory_mb > 50
    assert cell.training_memory_mb == cell.stages[-1].memory_mb
    assert cell.training_memory_mb is not None
    assert cell.training_memory_mb > 0
    assert cell.scenario_report["severity"] > 0
    row = run.frame.iloc[0]
    assert (row.p_o, row.p_s, row.status) == (cell.R[1][0], cell.R[1][1], "ok")


def test_a_stage_too_short_to_be_scored_within_has_the_scores_around_it(world: Workspace) -> None:
    world.suite.write_text(world.suite.read_text().replace("curve_rows = 10", "curve_rows = 80"))
    (cell,) = world.run(epochs=1).cells
    scores = cell.stages[1].curves["scores"]
    assert scores["mood"] == [[0, cell.R[0][0]], [20, cell.R[1][0]]]
    assert scores["thing"] == [[20, cell.R[1][1]]]
    assert any("scored at 0 of 4 curve points" in note for note in cell.notes)


def test_equal_seeds_give_equal_scores_and_other_seeds_differ(world: Workspace) -> None:
    first = world.run("a", seeds=[0, 1], epochs=1)
    second = world.run("b", epochs=1)
    assert measured(second).items() <= measured(first).items()
    losses = [cell.stages[0].curves["loss"] for cell in first.cells]
    assert losses[0] != losses[1]


def test_methods_that_act_later_share_the_first_stage(world: Workspace) -> None:
    plugin = world.write("later.py", ACTS_LATER)
    options = {"plugins": [world.plugin, plugin], "epochs": 1}
    alone = world.run("alone", methods=["acts-later"], **options)
    steps = Steps()
    both = world.run("both", methods=["vanilla", "acts-later"], listener=steps, **options)
    vanilla, later = both.cells
    assert steps.steps == 20 * 3
    assert [stage.cached for stage in later.stages] == [True, False]
    assert later.R == alone.cells[0].R
    assert later.R[0] == vanilla.R[0]
    assert later.stages[1].curves["loss"] != vanilla.stages[1].curves["loss"]


WISE = """
[baseline."wise-{alpha}"]
of = "wise-ft"
settings = {{ alpha = {alpha} }}
sources = {{ alpha = "this test" }}
"""


def wise(world: Workspace, *alphas: float) -> list[str]:
    """Add variants of wise-ft to the suite; return their names."""
    text = world.suite.read_text() + "".join(WISE.format(alpha=alpha) for alpha in alphas)
    world.suite.write_text(text)
    return [f"wise-{alpha}" for alpha in alphas]


@pytest.mark.slow
def test_methods_that_only_consolidate_train_no_stage_that_vanilla_serves(
    world: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = wise(world, 0.25, 0.5)
    calls: list[int] = []

    def count(stage: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(stage.index)
        return train_stage(stage, *arguments, **options)

    def run(out: str, **options: Any) -> dict[str, Any]:
        calls.clear()
        return measured(world.run(out, epochs=1, limit=48, **options))

    with monkeypatch.context() as patch:  # the hooks of each cell, and no cache
        patch.setattr(WiseFT, "only_consolidates", False)
        patch.setattr(StageCache, "load", lambda *arguments: None)
        alone = run("alone", methods=names)
        alone_three = run("alone-three", methods=names, scenario="three")
    monkeypatch.setattr("clbench.runner.cell_runner.train_stage", count)
    assert run("pair", methods=names) == alone
    assert calls == [0, 1]
    assert run("three", methods=names, scenario="three") == alone_three
    assert calls == [0, 1, 2, 2]  # the third stage starts from an average
    both = world.run("both", methods=["vanilla", *names], epochs=1, limit=48)
    assert [[stage.cached for stage in cell.stages] for cell in both.cells] == [
        [False, False],
        [True, True],
        [True, True],
    ]
    vanilla, *averaged = (cell.stages[1] for cell in both.cells)
    for stage in averaged:
        assert stage.curves == vanilla.curves
        assert stage.train_seconds > 0.9 * vanilla.train_seconds  # the averaging comes on top
        assert stage.memory_mb is not None
        assert vanilla.memory_mb is not None
        assert stage.memory_mb > vanilla.memory_mb  # the weights before the stage
    assert run("reverse", methods=[*names[::-1], "vanilla"]) == measured(both)
    assert calls == [0, 1]


def test_the_scoring_of_a_shared_stage_is_timed_once(
    world: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = world.suite.read_text()
    world.suite.write_text(text.replace("curve_points = 3", "curve_points = 0"))
    ticks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: float(next(ticks)))
    monkeypatch.setattr("clbench.runner.cell_runner.time", clock)
    (cell,) = world.run(methods=wise(world, 0.5), scenario="three", epochs=1).cells
    assert [stage.eval_seconds for stage in cell.stages] == [1.0] * 3


def test_shared_later_stages_are_kept_no_longer_than_a_run(world: Workspace) -> None:
    names = wise(world, 0.25, 0.5)

    def files(out: str) -> int:
        return len(list((world.folder / out / "stages").iterdir()))

    with pytest.raises(KeyboardInterrupt):  # in the first stage of the second seed
        world.run("out", methods=names, seeds=[0, 1], epochs=1, listener=Steps(45))
    assert files("out") == 2
    again = Steps()
    (world.folder / "out/cells/mood-thing--wise-0.5--seed0.json").unlink()
    world.run("out", methods=names, seeds=[0], epochs=1, listener=again)
    assert again.steps == 0
    assert files("out") == 1
    world.run("one", methods=names[:1], epochs=1)
    assert files("one") == 1


@pytest.mark.slow
def test_a_cell_that_is_interrupted_after_a_shared_stage_resumes(world: Workspace) -> None:
    (name,) = wise(world, 0.25)
    options: dict[str, Any] = {"methods": [name], "scenario": "three", "epochs": 1}
    whole = measured(world.run("whole", **options))
    for stop_after in (15, 35, 55):
        with pytest.raises(KeyboardInterrupt):
            world.run(f"{stop_after}", listener=Steps(stop_after), **options)
        again = Steps()
        assert measured(world.run(f"{stop_after}", listener=again, **options)) == whole
        assert again.steps == 60 - stop_after // 20 * 20


@pytest.mark.parametrize(
    ("hook", "change"),
    [
        *(
            (hook, "model.randomise_backbone(1)")
            for hook in ("before_stage", "setup", "after_stage")
        ),
        ("after_stage", "restore({n: v + 1 for n, v in context.snapshot().items()})"),
        ("setup", "model.backbone.get_input_embeddings().weight.data.mul_(2)"),
    ],
)
def test_a_method_that_only_consolidates_changes_the_model_nowhere_else(
    world: Workspace, hook: str, change: str
) -> None:
    plugin = world.write(
        "sneaky.py",
        "import clbench\n\n\n@clbench.method('sneaky')\nclass Sneaky(clbench.Method):\n"
        "    only_consolidates = True\n\n"
        "    def acts_in(self, index):\n        return index > 0\n\n"
        f"    def {hook}(self, context):\n        context.{change}\n",
    )
    run = world.run(methods=["sneaky"], plugins=[world.plugin, plugin], epochs=1)
    assert f"changes the model in {hook}, but declares only_consolidates" in str(
        run.cells[0].reason
    )


def test_two_methods_see_the_same_batches(world: Workspace) -> None:
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
    run = world.run(methods=["spy", "noisy-spy"], plugins=[world.plugin, spy], epochs=1)
    first, second = run.cells
    assert first.status == second.status == "ok", (first.reason, second.reason)
    for mine, other in zip(first.stages, second.stages, strict=True):
        assert mine.curves["rows"] == other.curves["rows"]
        assert mine.curves["loss"] != other.curves["loss"]


def test_trimming_the_embeddings_changes_no_score(world: Workspace) -> None:
    text = world.suite.read_text()
    cut = world.run("cut", epochs=1)
    world.suite.write_text(text.replace("[protocol]", "[protocol]\ntrim_embeddings = false"))
    whole = world.run("whole", epochs=1)
    assert measured(cut) == measured(whole)


def test_frozen_keeps_the_backbone_and_forgets_nothing(world: Workspace) -> None:
    run = world.run(methods=["frozen"])
    (cell,) = run.cells
    assert cell.status == "ok", cell.reason
    assert cell.scores["forgetting"] == 0.0
    losses = cell.stages[0].curves["loss"]
    assert losses[-1] < losses[0]


def test_references_give_intransigence(world: Workspace) -> None:
    run = world.run(references=True, epochs=1)
    pair, alone = run.cells
    assert alone.reference_of == 1
    reference = alone.scores["reference"]
    assert reference == alone.R[0][1]
    row = run.frame[run.frame.method == "vanilla"].iloc[0]
    assert row.intransigence == pytest.approx(reference - pair.R[1][1])


def test_cells_hold_the_floors_of_their_tasks(world: Workspace) -> None:
    (cell,) = world.run(epochs=1, methods=["vanilla"], seeds=[0]).cells
    for task, floor in zip(("mood", "thing"), cell.floors, strict=True):
        train, dev = (
            pd.read_csv(world.folder / name)["label"] for name in (f"{task}.csv", f"{task}-dev.csv")
        )
        assert floor == pytest.approx((dev == train.mode()[0]).mean())


def test_tuning_rows_are_scored_and_not_trained_on(world: Workspace) -> None:
    text = world.suite.read_text()
    world.suite.write_text(text.replace("[protocol]", '[protocol]\nscore_on = "tuning"'))
    run = world.run(epochs=1)
    (cell,) = run.cells
    assert cell.status == "ok", cell.reason
    assert [stage.rows for stage in cell.stages] == [144, 144]
    # 16 tuning rows: every score is a multiple of 1/16.
    assert all((cell.R[1][j] * 16) % 1 == 0 for j in range(2))


def test_divergence_fails_the_cell_with_a_message(world: Workspace) -> None:
    plugin = world.write(
        "huge.py",
        "import clbench\n\n\n@clbench.method('huge')\nclass Huge(clbench.Method):\n"
        "    def loss(self, stage, batch):\n"
        "        return stage.loss(batch) * (float('nan') if stage.step == 11 else 1.0)\n",
    )
    run = world.run(methods=["huge"], plugins=[world.plugin, plugin], epochs=1)
    (failed,) = run.cells
    assert failed.reason is not None
    assert failed.reason.startswith(
        "stage 0 (mood): the loss was no longer a finite number at step 12 of 20."
    )


def test_setup_may_not_change_weights_of_a_stage_trained_as_vanilla(world: Workspace) -> None:
    plugin = world.write(
        "sneaky.py",
        "import clbench\nimport torch\n\n\n@clbench.method('sneaky')\n"
        "class Sneaky(clbench.Method):\n"
        "    def acts_in(self, index):\n        return index > 0\n\n"
        "    def setup(self, context):\n        context.model.randomise_backbone(1)\n",
    )
    run = world.run(methods=["sneaky"], plugins=[world.plugin, plugin], epochs=1)
    assert "changes the model in setup, but acts_in(0)" in str(run.cells[0].reason)


def test_only_methods_that_declare_it_read_earlier_rows(world: Workspace) -> None:
    text = """
import clbench


@clbench.method("peeks")
class Peeks(clbench.Method):
    {declaration}

    def training_data(self, stage):
        return [stage.earlier(j) for j in range(stage.index + 1)]
"""
    plugin = world.write("peeks.py", text.format(declaration='"""Undeclared."""'))
    run = world.run("a", methods=["peeks"], plugins=[world.plugin, plugin], epochs=1)
    assert "must declare keeps_rows = True" in str(run.cells[0].reason)
    declared = world.write("peeks2.py", text.format(declaration="keeps_rows = True"))
    declared.write_text(declared.read_text().replace('"peeks"', '"peeks2"'))
    run = world.run("b", methods=["peeks2"], plugins=[world.plugin, declared], epochs=1)
    (cell,) = run.cells
    assert cell.status == "ok", cell.reason
    assert cell.keeps_rows
    assert [stage.rows for stage in cell.stages] == [160, 320]
    assert cell.stages[1].steps == 40


def test_a_stage_holds_no_rows_of_tasks_to_come(world: Workspace) -> None:
    plugin = world.write(
        "ahead.py",
        "import clbench\n\n\n@clbench.method('ahead')\nclass Ahead(clbench.Method):\n"
        "    def before_stage(self, stage):\n        stage.tasks[stage.index + 1]\n",
    )
    (failed,) = world.run(methods=["ahead"], plugins=[world.plugin, plugin], epochs=1).cells
    assert failed.reason is not None
    assert "IndexError" in failed.reason


def test_further_passes_do_not_shift_dropout(world: Workspace) -> None:
    plugin = world.write(
        "passes.py",
        "import clbench\n\n\n@clbench.method('passes')\nclass Passes(clbench.Method):\n"
        "    def loss(self, stage, batch):\n        loss = stage.loss(batch)\n"
        "        stage.logits(batch)\n        return loss\n",
    )
    run = world.run(methods=["vanilla", "passes"], plugins=[world.plugin, plugin], epochs=1)
    vanilla, passes = run.cells
    assert [s.curves for s in vanilla.stages] == [s.curves for s in passes.stages]
    assert vanilla.R == passes.R

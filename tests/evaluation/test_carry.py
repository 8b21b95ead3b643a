from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from safetensors import SafetensorError
from workspace import Steps, Workspace, measured

from clbench import figures
from clbench.errors import ShiftError
from clbench.results.store import Store

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


def test_forgetting_that_is_known(world: Workspace) -> None:
    """Learning the opposite answers with the same head forgets the first ones altogether."""
    run = world.run(scenario="opposite", epochs=16)
    (cell,) = run.cells
    assert cell.status == "ok", cell.reason
    assert cell.scores["p_o_before"] == pytest.approx(1.0, abs=0.05)
    assert cell.scores["p_s"] == pytest.approx(1.0, abs=0.05)
    assert cell.scores["p_o"] == pytest.approx(0.0, abs=0.05)
    assert cell.scores["forgetting"] == pytest.approx(1.0, abs=0.1)


def test_what_a_cell_says(world: Workspace) -> None:
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
    assert cell.peak_memory_mb is not None
    assert cell.peak_memory_mb > 50
    assert cell.training_memory_mb == cell.stages[-1].memory_mb
    assert cell.training_memory_mb is not None
    assert cell.training_memory_mb > 0
    assert cell.scenario_report["severity"] > 0
    row = run.frame.iloc[0]
    assert (row.p_o, row.p_s, row.status) == (cell.R[1][0], cell.R[1][1], "ok")


def test_two_runs_give_identical_scores_and_seeds_differ(world: Workspace) -> None:
    first = world.run("a", seeds=[0, 1])
    second = world.run("b", seeds=[0, 1])
    assert measured(first) == measured(second)
    losses = [cell.stages[0].curves["loss"] for cell in first.cells]
    assert losses[0] != losses[1]


def test_interrupted_and_continued_equals_uninterrupted(world: Workspace) -> None:
    whole = world.run("whole", scenario="three")
    for stop_after in (1, 79, 80, 81, 100, 159, 160, 170, 239):
        out = f"broken-{stop_after}"
        with pytest.raises(KeyboardInterrupt):
            world.run(out, scenario="three", listener=Steps(stop_after))
        again = Steps()
        continued = world.run(out, scenario="three", listener=again)
        assert measured(continued) == measured(whole), out
        # Whole stages are not trained twice; the one that was broken off is.
        assert again.steps == 240 - (stop_after - 1) // 80 * 80, out
        cached = [stage.cached for stage in continued.cells[0].stages]
        assert cached == [i < (stop_after - 1) // 80 for i in range(3)], out


def test_a_finished_run_trains_nothing(world: Workspace) -> None:
    first = world.run()
    steps = Steps()
    assert measured(world.run(listener=steps)) == measured(first)
    assert (steps.steps, steps.pending) == (0, 0)


def test_methods_that_act_later_share_the_first_stage(world: Workspace) -> None:
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


def test_what_a_method_records_is_the_same_after_an_interruption(world: Workspace) -> None:
    plugin = world.write(
        "recorder.py",
        """
import clbench


@clbench.method("recorder")
class Recorder(clbench.Method):
    def setup(self, context):
        context.note("set up")

    def before_stage(self, stage):
        stage.note(f"{stage.index} begins")

    def before_step(self, stage):
        if stage.step % 40 == 0:
            stage.record("height", stage.index)

    def after_stage(self, stage):
        stage.record("height", 10 + stage.index)
        stage.note(f"{stage.index} is over")
""",
    )
    plan = {"scenario": "three", "methods": ["recorder"], "plugins": [world.plugin, plugin]}
    for out, steps in (("early", 100), ("late", 200)):
        with pytest.raises(KeyboardInterrupt):
            world.run(out, listener=Steps(steps), **plan)
    told = [f"{stage} {what}" for stage in range(3) for what in ("begins", "is over")]
    for name in ("early", "late", "whole"):
        (cell,) = world.run(name, **plan).cells
        assert cell.notes[cell.notes.index("set up") + 1 :] == told
        for index, stage in enumerate(cell.stages):
            assert stage.curves["height"] == [[0, index], [40, index], [80, 10 + index]]


def test_a_stage_too_short_to_be_scored_within_has_the_scores_before_and_after(
    world: Workspace,
) -> None:
    world.suite.write_text(world.suite.read_text().replace("curve_rows = 10", "curve_rows = 80"))
    (cell,) = world.run().cells
    scores = cell.stages[1].curves["scores"]
    assert scores["mood"] == [[0, cell.R[0][0]], [80, cell.R[1][0]]]
    assert scores["thing"] == [[80, cell.R[1][1]]]
    assert any("scored along the way at 0 of 4 points" in note for note in cell.notes)


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
    run = world.run(methods=["spy", "noisy-spy"], plugins=[world.plugin, spy])
    first, second = run.cells
    assert first.status == second.status == "ok", (first.reason, second.reason)
    for mine, other in zip(first.stages, second.stages, strict=True):
        assert mine.curves["rows"] == other.curves["rows"]
        assert mine.curves["loss"] != other.curves["loss"]


def test_cutting_the_embedding_table_changes_no_score(world: Workspace) -> None:
    text = world.suite.read_text()
    cut = world.run("cut")
    world.suite.write_text(text.replace("[protocol]", "[protocol]\ntrim_embeddings = false"))
    whole = world.run("whole")
    assert measured(cut) == measured(whole)


def test_frozen_leaves_the_backbone_and_cannot_forget(world: Workspace) -> None:
    run = world.run(methods=["frozen"])
    (cell,) = run.cells
    assert cell.status == "ok", cell.reason
    assert cell.scores["forgetting"] == 0.0
    losses = cell.stages[0].curves["loss"]
    assert losses[-1] < losses[0]


def test_references_give_intransigence(world: Workspace) -> None:
    run = world.run(references=True)
    pair, alone = run.cells
    assert alone.reference_of == 1
    reference = alone.scores["reference"]
    assert reference == alone.R[0][1]
    row = run.frame[run.frame.method == "vanilla"].iloc[0]
    assert row.intransigence == pytest.approx(reference - pair.R[1][1])


def test_tuning_rows_are_scored_instead_and_not_trained_on(world: Workspace) -> None:
    text = world.suite.read_text()
    world.suite.write_text(text.replace("[protocol]", '[protocol]\nscore_on = "tuning"'))
    run = world.run()
    (cell,) = run.cells
    assert cell.status == "ok", cell.reason
    assert [stage.rows for stage in cell.stages] == [144, 144]
    # 16 tuning rows: every score is a multiple of 1/16.
    assert all((cell.R[1][j] * 16) % 1 == 0 for j in range(2))


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


def test_divergence_stops_its_cell_with_a_message(world: Workspace) -> None:
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


def _cut(content: bytes) -> bytes:
    return content[:-1]


def _empty(content: bytes) -> bytes:
    return b""


def _one_bit(content: bytes) -> bytes:
    """A weight is another one, and the file is readable as before."""
    return content[:-40] + bytes([content[-40] ^ 1]) + content[-39:]


def _one_digit(content: bytes) -> bytes:
    """What is told of the training is something else."""
    return content.replace(b'\\"rows\\": 1', b'\\"rows\\": 2', 1)


@pytest.mark.parametrize("damage", [_cut, _empty, _one_bit, _one_digit])
def test_a_damaged_stage_is_trained_again(
    world: Workspace, damage: Callable[[bytes], bytes]
) -> None:
    first = world.run()
    (entry,) = (world.folder / "out" / "stages").iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))
    assert entry.read_bytes() != whole
    (world.folder / "out" / "cells" / "mood-thing--vanilla--seed0.json").unlink()
    again = world.run()
    assert measured(again) == measured(first)
    assert [stage.cached for stage in again.cells[0].stages] == [False, False]
    (world.folder / "out" / "cells" / "mood-thing--vanilla--seed0.json").unlink()
    assert [stage.cached for stage in world.run().cells[0].stages] == [True, False]


def test_the_rates_of_a_curve_are_those_of_its_steps(world: Workspace) -> None:
    (cell,) = world.run().cells
    rates = cell.stages[0].curves["lr"]
    # 80 steps, 8 of them warm-up; step 80 is the 79th from 0, so 71/72 of the cosine.
    assert rates[-1] == pytest.approx(0.002 * 0.5 * (1 + math.cos(math.pi * 71 / 72)))
    assert rates[-1] > 0


def test_a_full_disk_costs_the_continuation_only(
    world: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    whole = world.run(out="whole", methods=["vanilla"])
    monkeypatch.setattr("clbench.checksummed.save_file", full)
    run = world.run(out="full", methods=["vanilla"])
    assert measured(run) == measured(whole)
    assert run.cells[0].notes[-1] == (
        f"a trained stage could not be kept in {world.folder}/full/stages (I/O error: No space "
        "left on device (os error 28)); an interrupted cell starts from its first stage."
    )
    assert list((world.folder / "full/stages").iterdir()) == []


def test_a_run_keeps_what_its_shifts_are_drawn_from(world: Workspace) -> None:
    run = world.run(scenario="mood-length")
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
    run = world.run(scenario="mood-length")
    content = Store(run.path).read_pictures()["mood-length"]
    assert len(content["points"]) == len(content["parts"]) == len(content["labels"]) == 160
    sizes = run.cells[0].scenario_report["numbers"]["cluster_sizes"]["train"]
    assert sizes == {f"cluster-{i}": content["parts"].count(i) for i in (0, 1)}
    assert set(content["labels"]) == {"down", "up"}

"""Checks, scorers and saved files of prepared scenarios."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import as_download
from helpers.workspace import Workspace, measured

import clbench
from clbench import figures
from clbench.api import plan_run
from clbench.core.errors import DataError, ModelError, ShiftError
from clbench.results.store import Store
from clbench.runner.check import InputChecker
from clbench.runner.prepare import ScenarioPreparer


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


@pytest.mark.parametrize("subset", ["fixed", "seed"])
@pytest.mark.parametrize(("score_on", "count"), [("validation", 40), ("tuning", 20)])
def test_tuning_rows_of_a_loader_are_scored_only_where_asked_for(
    world: Workspace, score_on: str, count: int, subset: Any
) -> None:
    plugin = world.write(
        "held.py",
        "import clbench\n\n\n"
        "@clbench.task('held')\ndef held(source):\n"
        "    def rows(split, count):\n"
        "        texts = [f'{split} good {i}' for i in range(count)]\n"
        "        return clbench.Rows.of(texts, None, [i % 2 for i in range(count)])\n\n"
        "    parts = {'train': rows('a', 100), 'validation': rows('b', 40)}\n"
        "    parts['tuning'] = rows('c', 30)\n"
        "    return clbench.Task('held', ('x', 'y'), ('accuracy',), head='held', **parts)\n",
    )
    text = world.suite.read_text().replace("[protocol]", f'[protocol]\nscore_on = "{score_on}"')
    text += '\n[[scenario]]\nname = "held"\nshift = "pretraining"\ntasks = ["held"]\ntexts = 4\n'
    world.suite.write_text(text)
    limits: dict[str, Any] = {"limit": 90, "scored_limit": None if count == 40 else 20}
    options = clbench.RunOptions(
        scenarios=["held"], plugins=[world.plugin, plugin], subset=subset, **limits
    )
    plan = plan_run(world.suite, options)
    prepared = ScenarioPreparer.of(plan, torch.device("cpu")).prepare(plan.scenarios[0])
    (task,) = prepared.scenario.tasks
    assert (len(task.train), len(prepared.scored[0].rows)) == (90, count)
    assert prepared.scenario.report.parts[0]["validation"] == count
    assert {text[0] for text in task.train.first} == {"a"}
    assert {text[0] for text in task.scored.first} == {"b" if score_on == "validation" else "c"}


def test_trials_are_scored_on_other_texts_than_reported_runs(world: Workspace) -> None:
    corpus = world.folder / "corpus.txt"
    corpus.write_text("".join(f"this is line number {i}\n" for i in range(200)))
    protocol = f"[protocol]\ncorpus = '{corpus}'"
    world.suite.write_text(world.suite.read_text().replace("[protocol]", protocol))
    plan = plan_run(world.suite, clbench.RunOptions(plugins=[world.plugin]))
    preparer, tuning = (ScenarioPreparer.of(plan, torch.device("cpu")) for _ in range(2))
    tuning.protocol = plan.protocol.model_copy(update={"score_on": "tuning"})
    reported, trials = (set(each.held_out_texts(8)) for each in (preparer, tuning))
    assert (len(reported), len(trials), reported & trials) == (8, 8, set())
    with pytest.raises(DataError, match=r"corpus.txt: reported runs are scored on all of its \d+ "):
        tuning.held_out_texts(100)


def rows_by_seed(world: Workspace, **options: Any) -> list[tuple[bytes, bytes, list[int]]]:
    """Return for two seeds and their repetition what `mood` trains and is scored on."""
    plan = plan_run(
        world.suite,
        clbench.RunOptions(scenarios=["mood-thing"], plugins=[world.plugin], **options),
    )
    result = []
    for seed in (0, 1, 0):  # each by a new preparer
        data = ScenarioPreparer.of(plan, torch.device("cpu")).prepare(plan.scenarios[0], seed)
        train = data.scenario.tasks[0].train
        counts = np.bincount(train.labels).tolist()
        result.append((train.index.tobytes(), data.scored[0].rows.ids.tobytes(), counts))
    return result


@pytest.mark.parametrize("score_on", ["validation", "tuning"])
def test_seeds_train_on_other_rows_and_are_scored_on_the_same(
    world: Workspace, score_on: str
) -> None:
    text = world.suite.read_text()
    protocol = f'[protocol]\ntrim_embeddings = false\nscore_on = "{score_on}"'
    world.suite.write_text(text.replace("[protocol]", protocol))
    fixed = rows_by_seed(world, limit=40)
    assert fixed[0] == fixed[1]
    first, second, again = rows_by_seed(world, limit=40, subset="seed")
    assert first == again
    assert first[0] != second[0]
    assert first[0] != fixed[0][0]
    assert first[1] == second[1] == fixed[0][1]
    assert first[2] == second[2]  # stratified


def test_rows_of_a_tuning_split_are_not_redrawn(world: Workspace) -> None:
    world.suite.write_text(
        world.suite.read_text().replace("[protocol]", '[protocol]\nscore_on = "tuning"')
    )
    plan = plan_run(
        world.suite,
        clbench.RunOptions(
            scenarios=["mood-thing"], plugins=[world.plugin], limit=120, subset="seed"
        ),
    )
    preparer = ScenarioPreparer.of(plan, torch.device("cpu"))
    for seed in (0, 1, 2):
        task = preparer.prepare(plan.scenarios[0], seed).scenario.tasks[0]
        assert task.tuning is not None
        assert (len(task.train), len(task.tuning)) == (108, 12)
        assert not set(task.train.index) & set(task.tuning.index)
        assert len(set(task.train.index)) == 108


def test_a_run_with_other_rows_for_each_seed(world: Workspace) -> None:
    options: dict[str, Any] = {"limit": 40, "subset": "seed", "epochs": 1}
    run = world.run("both", seeds=[0, 1], **options)
    assert [cell.status for cell in run.cells] == ["ok", "ok"]
    alone = world.run("alone", seeds=[1], **options)
    assert measured(alone).items() <= measured(run).items()
    error = "would divide task 'mood' differently for every seed"
    with pytest.raises(ShiftError, match=error):
        world.run("length", scenario="mood-length", **options)
    plan = plan_run(
        world.suite,
        clbench.RunOptions(
            scenarios=["mood-length"], plugins=[world.plugin], limit=40, subset="seed"
        ),
    )
    with pytest.raises(ShiftError, match=error):
        InputChecker.of(plan, torch.device("cpu")).check(plan.scenarios[0])


def test_a_run_saves_the_data_for_figures_of_its_shifts(world: Workspace) -> None:
    run = world.run(scenario="mood-length", epochs=1)
    content = Store(run.path).read_pictures()["mood-length"]
    counts = content["counts"]["train"]
    rows = {part: sum(count for _, count in counts[part]) for part in ("short", "long")}
    assert rows == {"short": 80, "long": 80}
    assert max(length for length, _ in counts["short"]) <= min(n for n, _ in counts["long"])
    figures.shift(run)


def test_files_of_a_scenario_follow_its_shift_and_its_rows(world: Workspace) -> None:
    folder = world.folder / "saved"

    def saved(limit: int, subset: Any = "fixed") -> int:
        options = clbench.RunOptions(scenarios=["mood-length"], limit=limit, subset=subset)
        plan = plan_run(world.suite, options)
        preparer = ScenarioPreparer.of(plan, torch.device("cpu"), folder)
        for seed in (0, 1):
            preparer.prepare(plan.scenarios[0], seed)
        content = json.loads((folder / "mood-length.json").read_text())
        rows: int = content["report"]["parts"][0]["train"]
        return rows

    saved(40)
    assert {path.name for path in folder.iterdir()} == {
        f"mood-length{kind}.json" for kind in ("", ".split", ".picture")
    }
    text = world.suite.read_text()
    divided = 'shift = "sentence-length"\ntask = "mood"'
    assert divided in text
    world.suite.write_text(text.replace(divided, 'shift = "dataset"\ntasks = ["mood", "thing"]'))
    assert saved(30, "seed") == 30
    assert [path.name for path in folder.iterdir()] == ["mood-length.json"]
    assert saved(20, "seed") == 20


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


@pytest.mark.parametrize("declared", [{}, {"classifier_pooling": "mean"}])
def test_an_unknown_pooling_is_noted_unless_it_is_set(
    declared: dict[str, str], world: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = as_download(world.folder / "model", tmp_path / "hub", monkeypatch) / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **declared}))
    for run, count in ("unset", 1), ("set", 0):
        if not count:
            text = world.suite.read_text()
            world.suite.write_text(text.replace("[protocol]", '[protocol]\npooling = "first"'))
        for cell in world.run(run, model="someone/model", epochs=1).cells:
            notes = [note for note in cell.notes if "what config.json says, or the" in note]
            assert len(notes) == count


def test_embeddings_that_are_not_finite_are_refused(
    world: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "clbench.runner.prepare.embed_rows", lambda *_, **__: np.full((2, 2), np.nan)
    )
    with pytest.raises(ModelError, match="its embeddings are not finite"):
        world.run()

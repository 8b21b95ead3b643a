"""Errors in plug-ins: each fails only its own cell, with the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.workspace import Steps, Workspace

import clbench
from clbench.core.errors import explain

HOOKS = [
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
]

RETURNS = [
    ("training_data", "[]", "training_data returns 0 rows and phases 0 steps: a stage needs"),
    ("training_data", "[1]", "AttributeError: 'int' object has no attribute 'head'"),
    ("phases", "[]", "and phases 0 steps: a stage needs at least one of each."),
    ("phases", "3", "TypeError: 'int' object is not iterable"),
    ("parameter_groups", "None", "parameter_groups must return a list with at least one"),
    ("parameter_groups", "[{'params': []}]", "parameter_groups returned no weights to train"),
    ("parameter_groups", "[{'lr': 1}]", 'each group needs a list of weights as "params"'),
    ("optimizer", "None", "optimizer must return a torch.optim.Optimizer, not None"),
    ("schedule", "7", "AttributeError: 'int' object has no attribute 'step'"),
    ("loss", "1.0", "loss must return a tensor of one number, not 1.0"),
    ("loss", "a[0].loss(a[1]).detach()", "loss must return a tensor that requires a gradient"),
    ("phases", "[Phase(steps=0)]", "and phases 0 steps: a stage needs at least one of each."),
    (
        "parameter_groups",
        "[{'params': a[0].trainable(), 'lr': -1.0}]",
        "rate must be a number from 0 on",
    ),
    ("parameter_groups", "[{'params': [torch.zeros(2)]}]", "1 tensor that the model does not have"),
    ("optimizer", "torch.optim.SGD([torch.zeros(2)], 0.1)", "optimizer returned 1 tensor that the"),
    ("penalty", "'x'", "penalty must return a tensor of one number, not 'x'"),
    ("penalty", "torch.zeros(2)", "penalty must return a tensor of one number, not of shape"),
    (
        "penalty",
        "torch.tensor(float('nan'))",
        "stage 0 (mood): the penalty was no longer a finite number at step 1 of 20",
    ),
    ("scoring", "None", "TypeError: 'NoneType' object does not support the context manager"),
]


def method(name: str, hook: str, body: str) -> str:
    return (
        f"\n\n@clbench.method({name!r})\nclass {name.title().replace('-', '')}(clbench.Method):\n"
        f"    def {hook}(self, *a, **k):\n        {body}\n"
    )


def test_any_hook_may_raise(world: Workspace) -> None:
    methods = {f"bad-{hook}".replace("_", "-"): hook for hook in HOOKS}
    text = "import clbench\n" + "".join(
        method(name, hook, "raise RuntimeError('out of order')") for name, hook in methods.items()
    )
    plugin = world.write("bad.py", text)
    run = world.run(methods=[*methods, "vanilla"], plugins=[world.plugin, plugin], epochs=1)
    *failed, fine = run.cells
    assert fine.status == "ok"
    for cell, hook in zip(failed, HOOKS, strict=True):
        assert cell.status == "failed"
        assert "RuntimeError: out of order (bad.py:" in str(cell.reason)
        assert f" in {hook})" in str(cell.reason)


def test_what_hooks_return_is_checked(world: Workspace) -> None:
    names = [f"wrong-{number}" for number in range(len(RETURNS))]
    text = "import clbench\nimport torch\nfrom clbench.methods.base import Phase\n" + "".join(
        method(name, hook, f"return {value}")
        for name, (hook, value, _) in zip(names, RETURNS, strict=True)
    )
    plugin = world.write("wrong.py", text)
    run = world.run(methods=names, plugins=[world.plugin, plugin], epochs=1)
    for cell, (_, _, message) in zip(run.cells, RETURNS, strict=True):
        assert message in str(cell.reason)


def test_a_failed_cell_keeps_its_reason_and_runs_again(world: Workspace) -> None:
    plugin = world.write(
        "fragile.py", "import clbench\n" + method("fragile", "after_step", "1 / 0")
    )
    options = {"methods": ["fragile", "vanilla"], "plugins": [world.plugin, plugin], "epochs": 1}
    run = world.run(**options)
    failed, fine = run.cells
    assert (failed.status, fine.status) == ("failed", "ok")
    assert "ZeroDivisionError: division by zero (fragile.py:7 in after_step)" in str(failed.reason)
    assert failed.R == []
    assert json.loads((run.path / "cells" / f"{failed.key}.json").read_text())["status"] == "failed"
    steps = Steps()
    world.run(**options, listener=steps)
    assert (steps.pending, steps.finished) == (1, [failed.key])


def test_a_hook_that_exits_fails_only_its_own_cell(world: Workspace) -> None:
    text = "import clbench\n" + method("exits", "before_stage", "raise SystemExit(3)")
    plugin = world.write("exits.py", text)
    run = world.run(methods=["exits", "vanilla"], plugins=[world.plugin, plugin], epochs=1)
    assert [cell.status for cell in run.cells] == ["failed", "ok"]
    assert "SystemExit: 3" in str(run.cells[0].reason)


CHANGES = {
    "torch's default type": "torch.set_default_dtype(torch.float64)",
    "torch's gradient mode": "torch.set_grad_enabled(False)",
    "torch's thread count": "torch.set_num_threads(7)",
    "the warning filters": "warnings.simplefilter('error')",
    "the working folder": "os.chdir('/')",
}


@pytest.mark.slow
def test_a_method_that_changes_global_state_is_named_and_changes_no_other_cell(
    world: Workspace,
) -> None:
    text = "import os, warnings\nimport torch\nimport clbench\n"
    methods = {f"change-{number}": statement for number, statement in enumerate(CHANGES.values())}
    for name, statement in methods.items():
        text += method(name, "after_stage", statement)
    plugins = [world.plugin, world.write("changes.py", text)]
    run = world.run(methods=[*methods, "vanilla"], plugins=plugins, epochs=1)
    *changed, vanilla = run.cells
    for cell, state in zip(changed, CHANGES, strict=True):
        assert any(f"method {cell.method!r} changed {state} " in note for note in cell.notes)
    alone = world.run("alone", epochs=1).cells[0]
    assert dict(vanilla.scores) == dict(alone.scores)
    assert list(vanilla.notes) == list(alone.notes)


TAINTS = {
    "a hook": "m.register_forward_hook(lambda m, i, o: o * 0.5)",
    "frozen weights": "m.requires_grad_(False)",
    "another forward": "m.forward = lambda x, f=m.forward: 0.5 * f(x)",
    "gradient hooks": "m.weight.register_hook(lambda gradient: 0.0 * gradient)",
}


@pytest.mark.parametrize(
    ("statement", "base"),
    [
        *((each, "clbench.Method") for each in TAINTS.values()),
        (TAINTS["frozen weights"], "clbench.methods.base.Vanilla"),
    ],
    ids=[*TAINTS, "a kind of vanilla"],
)
def test_what_setup_does_to_modules_stays_out_of_the_shared_stage(
    world: Workspace, statement: str, base: str
) -> None:
    text = (
        "import torch\nimport clbench.methods.base\n\n\n@clbench.method('taints')\n"
        f"class Taints({base}):\n"
        "    def acts_in(self, index):\n        return index > 0\n\n"
        "    def setup(self, context):\n"
        "        for m in context.model.backbone.modules():\n"
        f"            if isinstance(m, torch.nn.Linear):\n                {statement}\n"
    )
    plugins = [world.plugin, world.write("taints.py", text)]
    run = world.run(methods=["taints", "vanilla"], plugins=plugins, epochs=1)
    alone = world.run("alone", epochs=1).cells[0]
    tainted, vanilla = run.cells
    assert vanilla.stages[0].cached
    assert dict(vanilla.scores) == dict(alone.scores)
    assert tainted.stages[0].curves == alone.stages[0].curves


def test_a_method_cannot_change_the_rows_of_other_cells(world: Workspace) -> None:
    text = "import clbench\n" + method("relabels", "before_stage", "a[0].data.rows.labels[:] = 0")
    plugins = [world.plugin, world.write("relabels.py", text)]
    (cell,) = world.run(methods=["relabels"], plugins=plugins, epochs=1).cells
    assert "ValueError: assignment destination is read-only (relabels.py" in str(cell.reason)


def test_a_shift_that_raises_fails_only_its_own_cells(world: Workspace) -> None:
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
        epochs=1,
        listener=steps,
    )
    by_scenario = {cell.scenario: cell for cell in run.cells}
    assert by_scenario["mood-thing"].status == "ok"
    assert by_scenario["bad"].status == "failed"
    reason = str(by_scenario["bad"].reason)
    error = "IndexError: list index out of range (bad_shift.py:9 in build)"
    assert reason == f"scenario 'bad' cannot be built: {error}"
    assert any("scenario 'bad' cannot be built: IndexError" in note for note in steps.notes)


def test_an_error_is_explained_in_one_line() -> None:
    assert explain(clbench.ClbenchError("two\nlines")) == "two lines"
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")
    assert explain(caught.value).startswith("JSONDecodeError: Expecting property name")


def test_a_measure_that_fails_at_the_end_costs_only_the_last_stage(
    world: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"methods": ["ewc"], "scenario": "three", "epochs": 1}
    text = world.suite.read_text(encoding="utf-8")
    world.suite.write_text(text.replace("[protocol]", "[protocol]\nrelearn_rows = 8", 1))
    whole = Steps()
    (cell,) = world.run("whole", listener=whole, **options).cells
    assert [*cell.stages[2].curves["scores"]] == ["mood", "thing", "mood (2)"]

    def diverges(*arguments: object) -> None:
        raise ArithmeticError("diverged")

    with monkeypatch.context() as patched:
        patched.setattr("clbench.runner.cell_runner.relearn", diverges)
        (cell,) = world.run("fails", **options).cells
    assert "diverged" in str(cell.reason)
    again = Steps()
    (cell,) = world.run("fails", listener=again, **options).cells
    assert (cell.status, again.steps) == ("ok", whole.steps // 3)

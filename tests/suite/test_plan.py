from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.planned import SUITE, Make

from clbench.api import plan_run
from clbench.cli import main
from clbench.core.errors import (
    ClbenchError,
    DataError,
    PluginError,
    SettingsError,
    SuiteError,
    UnknownNameError,
)
from clbench.suite.baselines import read_baseline
from clbench.suite.options import RunOptions
from clbench.suite.plan import Plan, make_plan, validate
from clbench.suite.read import read_suite
from clbench.suite.recipe import VERSIONS
from clbench.suite.scores import SCORE, Need, Score, Steps


def test_only_methods_that_changed_have_a_version(make: Make) -> None:
    cells = make(scenarios=["a-b"], methods=["vanilla", "icarl"]).cells
    versions = {cell.baseline.name: cell.recipe["method"].get("version") for cell in cells}
    assert versions == {"vanilla": None, "icarl": VERSIONS["icarl"], "reference1": None}


def test_order_and_names_of_cells(make: Make) -> None:
    plan = make(scenarios=["a-b", "b-l*"])
    assert [cell.key for cell in plan.cells] == [
        "a-b--vanilla--seed0",
        "a-b--frozen--seed0",
        "a-b--reference1--seed0",
        "a-b--vanilla--seed1",
        "a-b--frozen--seed1",
        "a-b--reference1--seed1",
        "b-length--vanilla--seed0",
        "b-length--frozen--seed0",
        "b-length--reference1--seed0",
        "b-length--vanilla--seed1",
        "b-length--frozen--seed1",
        "b-length--reference1--seed1",
    ]
    assert [c.reference_of for c in plan.cells[:3]] == [None, None, 1]
    assert plan.cells[2].baseline.method == "vanilla"
    assert plan.out == Path("results/s")
    assert [b.name for b in plan.baselines] == ["vanilla", "frozen"]
    clusters = make(scenarios=["*clusters"], seeds=[7]).cells
    assert clusters[-1].key == "b-clusters--reference2--seed7"
    assert not any(cell.reference_of for cell in make(references=False).cells)
    one = SUITE.replace(
        'shift = "dataset"\ntasks = ["a", "b"]', 'shift = "pretraining"\ntasks = ["a"]'
    )
    cells = [cell for cell in make(one).cells if cell.scenario.shift == "pretraining"]
    assert {cell.baseline.name for cell in cells} == {"vanilla", "frozen"}  # one task needs none


def test_all_tasks_but_the_first_may_have_a_reference(make: Make) -> None:
    plan = make(f'references = "all"\n{SUITE}', seeds=[7], scenarios=["*clusters", "a-b"])
    names = [cell.baseline.name for cell in plan.cells if cell.reference_of]
    assert names == ["reference1", "reference1", "reference2"]
    assert plan.resolved()["references"] == "all"


def test_patterns_keep_the_suites_order(make: Make) -> None:
    plan = make(scenarios=["b-[cl]*", "a-b"], methods=["vanilla"], seeds=[4])
    assert [s.name for s in plan.scenarios] == ["a-b", "b-length", "b-clusters"]
    with pytest.raises(UnknownNameError) as raised:
        make(scenarios=["a-b", "c*"])
    assert str(raised.value) == (
        "scenarios 'c*' matches no scenario of s. Available: a-b, b-clusters, b-length."
    )


def test_options_override_the_protocol(make: Make) -> None:
    protocol = make(epochs=1, limit=7, precision="bf16", model="other").protocol
    assert (protocol.epochs, protocol.limit, protocol.precision) == (1, 7, "bf16")
    assert protocol.task_epochs == {}
    assert protocol.model == "other"
    assert make().protocol.stage_length("a", 16) == (5, 1)
    assert protocol.stage_length("a", 16) == (1, 1)


def test_a_smoke_run_is_a_tenth_of_a_suite_with_a_name_of_its_own(make: Make) -> None:
    plan, whole = make(smoke=True), make()
    assert {cell.seed for cell in plan.cells} == {0}
    assert {cell.key for cell in plan.cells} == {c.key for c in whole.cells if c.seed == 0}
    assert plan.resolved()["name"] == "s-smoke"
    assert plan.out == Path("results/s-smoke")
    assert plan.command == ("clbench", "run", "s.toml", "--smoke")
    recipes = [p.cells[0].recipe["protocol"] for p in (plan, whole)]
    assert recipes[0] == {**recipes[1], "smoke": True}
    assert {cell.seed for cell in make(smoke=True, seeds=[3, 4]).cells} == {3, 4}
    with pytest.raises(SettingsError, match="a smoke run settles nothing"):
        make(smoke=True, seeds="until-settled")


def test_rows_to_score_on_have_an_option(make: Make) -> None:
    protocol = make(scored_limit=30).protocol
    assert (protocol.limits["limit"], protocol.limits["scored"]) == (100, 30)
    with pytest.raises(SettingsError, match="scored_limit: must be greater than 0, got 0"):
        make(scored_limit=0)


def test_the_pooling_that_a_checkpoint_declares_is_part_of_the_recipe(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recipe(**options: Any) -> Any:
        return make(**options).cells[0].recipe["protocol"]["pooling"]

    assert recipe() == "auto"  # the checkpoint declares none, so its family decides
    monkeypatch.setattr("clbench.suite.plan.declared_pooling", lambda name, revision: "mean")
    assert recipe() == "mean"
    assert (
        make(SUITE.replace("epochs = 3", 'epochs = 3\npooling = "first"')).protocol.pooling
        == "first"
    )


def test_the_default_subset_is_no_part_of_the_recipe(make: Make) -> None:
    assert "subset" not in make(limit=7, subset="fixed").cells[0].recipe["protocol"]
    assert make(limit=7, subset="seed").cells[0].recipe["protocol"]["subset"] == "seed"
    with pytest.raises(SettingsError, match="subset = 'seed' draws nothing without a limit"):
        make(SUITE.replace("limit = 100\n", ""), subset="seed")


def test_a_model_folder_beside_the_suite_is_found(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own-model").mkdir()
    text = SUITE.replace("epochs = 3", 'epochs = 3\nmodel = "own-model"')
    assert make(text).protocol.model == str(tmp_path / "own-model")
    assert make(text, model="own-model").protocol.model == "own-model"


@pytest.mark.parametrize(
    ("options", "error", "expected"),
    [
        ({"seeds": [1, 1]}, SettingsError, "seeds: 1 is given twice"),
        (
            {"seeds": [-1]},
            SettingsError,
            "seeds item 1: must be greater than or equal to 0, got -1",
        ),
        ({"seeds": []}, SettingsError, "seeds: is empty"),
        ({"limit": 0}, SettingsError, "limit: must be greater than 0, got 0"),
        ({"epochs": -1}, SettingsError, "epochs: must be greater than 0, got -1"),
        ({"subset": "some"}, SettingsError, "subset: must be 'fixed' or 'seed'"),
        ({"precision": "fp16"}, SettingsError, "precision: must be 'auto', 'float32' or 'bf16'"),
        ({"device": "gpu"}, SettingsError, "device 'gpu': must be auto, cpu, cuda"),
        ({"methods": ["vanila"]}, UnknownNameError, "'vanila'. Did you mean 'vanilla'?"),
        ({"methods": []}, SettingsError, "methods: is empty"),
        (
            {"methods": ["vanilla", "vanilla"]},
            UnknownNameError,
            "methods: 'vanilla' is given twice",
        ),
        ({"methods": ["m.toml"]}, SuiteError, "m.toml: there is no such file"),
        ({"data": "nowhere"}, DataError, "data nowhere: there is no such folder"),
        ({"data": "a.csv"}, DataError, "data a.csv: is a file. Give a folder"),
        ({"plugins": ["none.py"]}, PluginError, "none.py: there is no such file"),
    ],
)
def test_wrong_options_are_errors(
    make: Make, options: dict[str, Any], error: type[ClbenchError], expected: str
) -> None:
    with pytest.raises(error) as raised:
        make(**options)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "--" not in str(raised.value)


def test_names_of_references_are_reserved(make: Make) -> None:
    text = SUITE.replace('"frozen"', '"reference1"') + '\n[baseline.reference1]\nof = "frozen"\n'
    own = replace(read_baseline("frozen"), name="reference1")  # as of a registered method or class
    for options in ({}, {"methods": [own]}):
        with pytest.raises(UnknownNameError, match="'reference1': 'reference' with a number is re"):
            make(text, **options)


def test_unknown_names_of_a_file_are_reported_together(make: Make) -> None:
    text = (
        SUITE.replace('"frozen"', '"forzen"')
        .replace('["a", "b"]', '["a", "glue/mprc"]')
        .replace('"sentence-length"', '"sentence-lenght"')
        .replace('"a" = 5', '"aa" = 5')
        .replace("[task.b]", '[task."glue/sst2"]\ntrain = "a.csv"\nvalidation_fraction = 0.1\n'
                 'text = "text"\nlabel = "label"\n\n[task.b]')
    )  # fmt: skip
    with pytest.raises(SuiteError) as raised:
        make(text)
    message = str(raised.value)
    assert message.startswith("s.toml: 5 errors:")
    assert "a task 'glue/sst2' already exists." in message
    assert "[protocol] task_epochs.aa: there is no task 'aa'." in message
    assert "[[scenario]] 1 'a-mprc' tasks: there is no task 'glue/mprc'." in message
    assert "Did you mean 'glue/mrpc'" in message
    assert "[[scenario]] 2 'b-sentence-lenght' shift: there is no shift 'sentence-leng" in message
    assert "methods item 2: Unknown baseline or method 'forzen'. Did you mean 'frozen'?" in message


def test_two_baselines_of_one_name_are_an_error(make: Make) -> None:
    Path("mine.toml").write_text('name = "vanilla"\nmethod = "vanilla"\n')
    with pytest.raises(UnknownNameError, match=r"'vanilla' is given twice \(.*mine\.toml\)\. Rem"):
        make(methods=["vanilla", "mine.toml"])


def test_settings_of_shifts_and_methods_are_checked(make: Make) -> None:
    plan = make(SUITE.replace("k = 3", 'k = "3"\nkk = 1'), references=False)
    with pytest.raises(SuiteError) as raised:
        validate(plan, plan.cells)
    assert str(raised.value) == (
        "s.toml: 2 errors: (1) line 32, column 1: [[scenario]] 3 'b-clusters' k: must be a whole "
        "number, got '3'. (2) line 33, column 1: [[scenario]] 3 'b-clusters' kk: unknown key. Did "
        "you mean 'k'?"
    )
    validate(plan, [cell for cell in plan.cells if cell.scenario.name == "a-b"])
    Path("mine.toml").write_text('method = "vanilla"\n[settings]\nlr = 3\n')
    with pytest.raises(
        SuiteError,
        match=r"^mine\.toml: line 3, column 1: \[settings\] lr: must be less",
    ):
        validate(plan := make(SUITE, methods=["mine.toml"]), plan.cells)


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("raise ValueError('no')", "own, with this protocol: ValueError: no (p.py:5 in check_pro"),
        ("raise SystemExit", "own, with this protocol: SystemExit (p.py:5 in check_protocol)"),
    ],
)
def test_check_protocol_may_raise_anything(make: Make, statement: str, text: str) -> None:
    Path("p.py").write_text(
        "import clbench\n@clbench.method('own')\nclass Own(clbench.Method):\n"
        f"    def check_protocol(self, protocol):\n        {statement}\n"
    )
    plan = make(SUITE, methods=["own"], plugins=["p.py"])
    with pytest.raises(PluginError) as raised:
        validate(plan, plan.cells)
    assert str(raised.value).startswith(text)


def test_the_resolved_suite_is_plain_json(make: Make) -> None:
    plan = make(epochs=1, seeds=[3], scenarios=["a-b"])
    resolved = json.loads(json.dumps(plan.resolved(), allow_nan=False))
    assert resolved["protocol"]["epochs"] == 1
    assert resolved["seeds"] == [3]
    assert resolved["methods"] == ["vanilla", "frozen"]
    assert [s["name"] for s in resolved["scenario"]] == ["a-b"]
    assert resolved["baseline"]["frozen"]["sources"].keys() == {"lr"}
    assert resolved["references"] is True


def test_the_recorded_command_makes_the_same_cells(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make().command == ("clbench", "run", "s.toml")
    Path("mirror").mkdir()
    Path("text.txt").write_text("a line of five words\n" * 20)
    for name in ("one", "two"):
        text = f"import clbench\nclbench.metric('{name}')(lambda outputs, labels: 0.5)\n"
        Path(f"{name}.py").write_text(text)
    options: dict[str, Any] = {
        "epochs": 1, "seeds": [3, 5], "references": False, "scenarios": ["a-b", "b-l*"],
        "methods": ["vanilla", read_baseline("frozen")], "data": Path("mirror").resolve(),
        "corpus": "text.txt", "device": "cpu", "plugins": ["one.py", Path("two.py").resolve()],
    }  # fmt: skip
    plan = make(**options)
    assert shlex.join(plan.command) == (
        "clbench run s.toml --data mirror --corpus text.txt --methods vanilla,frozen "
        "--scenarios a-b --scenarios 'b-l*' --seeds 3,5 --epochs 1 --device cpu "
        "--plugin one.py --plugin two.py --no-references"
    )
    plans: list[Plan] = []

    def only_plan(suite: str, options: RunOptions) -> None:
        plans.append(plan_run(suite, options))
        raise SettingsError("nothing is run")

    monkeypatch.setattr("clbench.api.plan_run", only_plan)
    assert main(plan.command[1:]) == 2
    cells, again = ([(c.key, c.recipe) for c in each.cells] for each in (plan, *plans))
    assert again == cells
    assert make_plan(read_suite("quick"), RunOptions(seeds=[0])).command == (
        "clbench", "run", "quick", "--seeds", "0",
    )  # fmt: skip


def test_planning_imports_nothing_heavy(make: Make) -> None:
    make()  # writes the files
    code = (
        "import sys\n"
        "from clbench.suite.read import read_suite\n"
        "from clbench.suite.options import RunOptions\n"
        "from clbench.suite.plan import make_plan\n"
        "import clbench.suite.recipe as recipe\n"
        "recipe.model_identity = lambda name, revision=None: {}\n"
        "make_plan(read_suite('s.toml'), RunOptions())\n"
        "heavy = {'torch', 'transformers', 'datasets', 'sklearn', 'pandas', 'matplotlib', 'ray'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    root = Path(__file__).parents[2]
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(root), "PATH": ""},
    )  # fmt: skip
    assert process.stdout.strip() == "[]"


def test_seeds_are_numbers_of_32_bits() -> None:
    assert RunOptions(seeds="7, 4294967294-4294967295").seeds == (7, 2**32 - 2, 2**32 - 1)
    for seeds in ("4294967296", "0-4294967296", "2-1", "12345678901"):
        with pytest.raises(SettingsError, match="must be seeds such as"):
            RunOptions(seeds=seeds)


def test_a_plugins_shift_decides_the_default_name_from_the_first_run_on(make: Make) -> None:
    Path("own.py").write_text(
        "import clbench\n\n\n@clbench.shift('plan-mirrored')\nclass Mirrored(clbench.Shift):\n"
        "    tasks: list[str]\n    short_name = 'm'\n\n    def build(self, context):\n"
        "        return [context.task(name) for name in self.tasks]\n"
    )
    Path("s.toml").write_text(SUITE.replace('shift = "dataset"', 'shift = "plan-mirrored"'))
    for _ in range(2):
        plan = plan_run("s.toml", RunOptions(plugins=["own.py"], seeds=[0]))
        assert plan.scenarios[0].name == "a-b-m"


@pytest.mark.parametrize(
    ("table", "options", "problem"),
    [
        ('reference = "nope"', {}, "reference: 'nope' is none of the methods vanilla, frozen"),
        ('reference = "nope"', {"scenarios": ["*"]}, "reference: 'nope' is none of the methods"),
        ('methods = ["*", "zz*"]', {}, r"methods: 'zz\*' matches none of vanilla, frozen"),
        ('scenarios = ["zzz"]', {}, "scenarios: 'zzz' matches none of"),
        ('scores = ["p_o", "p_o"]', {}, "scores: must not name a score twice"),
        ("", {"seeds": "until-settled:3,5", "methods": ["vanilla"]}, "compares no method with"),
        ('scores = ["forward_transfer"]', {}, "scores: this run will not have 'forward_transfer'"),
        (
            'scores = ["intransigence"]',
            {"references": False},
            "scores: .* Set references = true in",
        ),
        ('scores = ["plasticity"]', {}, 'scores: this run .* Set references = "all"'),
    ],
)
def test_a_question_that_compares_nothing_is_an_error(
    make: Make, table: str, options: dict[str, Any], problem: str
) -> None:
    text = (
        SUITE if not table else SUITE.replace("[protocol]", f"[question]\n{table}\n\n[protocol]", 1)
    )
    with pytest.raises(SuiteError, match=rf"\[question\] {problem}"):
        make(text, **options)


def test_a_score_says_what_to_do_where_a_run_will_not_have_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = Need("curves", lambda protocol, _: protocol.epochs > 3, "Set epochs above 3.")
    score = Score("late", "late", "late score", lambda r, _: r[-1][0], Steps.first, needs=(need,))
    monkeypatch.setitem(SCORE, "late", score)
    table = '[question]\nscores = ["late"]\n\n[protocol]\n'
    with pytest.raises(SuiteError, match=r"this run will not have 'late'\. Set epochs above 3."):
        make(SUITE.replace("[protocol]\n", table, 1))
    make(SUITE.replace("[protocol]\n", table, 1), epochs=4)


def test_a_question_about_area_needs_points_of_curves(make: Make) -> None:
    table = '[question]\nscores = ["area"]\n\n[protocol]\n'
    make(SUITE.replace("[protocol]\n", table, 1))
    with pytest.raises(
        SuiteError, match=r"this run will not have 'area'. Set curve_points above 0"
    ):
        make(SUITE.replace("[protocol]\n", f"{table}curve_points = 0\n", 1))

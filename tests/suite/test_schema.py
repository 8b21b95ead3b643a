"""Variants of baselines in a suite's ``[baseline.NAME]`` tables, and settings task by task."""

from __future__ import annotations

from pathlib import Path

import pytest

from clbench.core.errors import ClbenchError, SettingsError, SuiteError, UnknownNameError
from clbench.suite.options import RunOptions
from clbench.suite.plan import Plan, make_plan, validate
from clbench.suite.read import read_suite
from clbench.suite.schema import ScenarioSpec, SuiteFile
from clbench.tasks.registry import TASKS, task
from clbench.training.protocol import Protocol

SUITE = """
methods = ["vanilla", "soft"]
[baseline.soft]
of = "ewc"
settings = { importance = 1.0 }
sources = { importance = "ours" }
[protocol]
batch_size = 16
task_batch_size = { "synthetic/sentiment" = 4 }
[[scenario]]
shift = "dataset"
tasks = ["synthetic/sentiment", "synthetic/acceptability"]
"""


def planned(tmp_path: Path, text: str = SUITE, methods: list[str] | None = None) -> Plan:
    path = tmp_path / "suite.toml"
    path.write_text(text, encoding="utf-8")
    plan = make_plan(read_suite(path), RunOptions(methods=methods))
    validate(plan, plan.cells)
    return plan


def test_a_variant_replaces_settings_of_another_baseline(tmp_path: Path) -> None:
    (_, soft) = planned(tmp_path).baselines
    (ewc,) = planned(tmp_path, methods=["ewc"]).baselines
    assert (soft.name, soft.method) == ("soft", "ewc")
    assert soft.settings == {**ewc.settings, "importance": 1.0}
    assert soft.sources == {**ewc.sources, "importance": "ours"}
    assert [b.name for b in planned(tmp_path, methods=["soft", "ewc"]).baselines] == ["soft", "ewc"]


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (('"ewc"', '"ewk"'), SuiteError,
         r"methods item 2: \[baseline.soft\] of: Unknown baseline or method 'ewk'\. Did you mean"),
        (("importance = 1.0", "strength = 1.0"), SuiteError,
         r"\[baseline.soft\] settings strength: unknown key"),
        (("importance = 1.0", "importance = -1.0"), SuiteError,
         r"\[baseline.soft\] settings importance: must be greater"),
        (("[baseline.soft]", "[baseline.soft]\nextra = 1"), SuiteError,
         r"\[baseline.soft\] extra: unknown key"),
        (('"soft"]', '"lwf"]\n[baseline.lwf]\nof = "ewc"'), SuiteError,
         r"\[baseline.lwf\]: 'lwf' is already a baseline or method"),
        (("[baseline.soft]", '[baseline."a b"]\nof = "ewc"\n[baseline.soft]'), SuiteError,
         r'baseline."a b"\]: a name consists of at most'),
        (("task_batch_size = { \"synthetic/sentiment\"", "task_batch_size = { \"sentiment\""),
         SuiteError, r"task_batch_size.sentiment: there is no task 'sentiment'"),
        (("task_batch_size = {", "task_metric = { \"synthetic/sentiment\" = \"mse\" }\n"
          "task_batch_size = {"),
         SuiteError, r"task_metric.\"synthetic/sentiment\": the task has no metric 'mse'"),
        (("task_batch_size = {", "task_metric = { \"glue/mrpc\" = \"pearson\" }\n"
          "task_batch_size = {"),
         SuiteError, r"the task has no metric 'pearson'\. Use accuracy or f1"),
        (("task_batch_size = {", "task_metric = { \"glue/mrpc[short]\" = \"f1\" }\n"
          "task_batch_size = {"),
         SuiteError, r"the parts of a task have one metric\. Name the task, 'glue/mrpc'"),
    ],
)  # fmt: skip
def test_errors_name_the_table(
    tmp_path: Path, change: tuple[str, str], kind: type[ClbenchError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        planned(tmp_path, SUITE.replace(*change))


def test_a_task_whose_rows_decide_its_metrics_may_have_one_of_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TASKS, "_entries", {**TASKS._entries})
    task("own/letters")(lambda source: pytest.fail("read for a plan"))
    metric = SUITE.replace("task_batch_size", 'task_metric = { "own/letters" = "token-f1" }\n#')
    planned(tmp_path, metric)
    with pytest.raises(SuiteError, match="the task has no metric 'token-f2'"):
        planned(tmp_path, metric.replace("token-f1", "token-f2"))


def test_a_method_can_refuse_a_protocol_before_the_run(tmp_path: Path) -> None:
    fast = SUITE.replace("batch_size = 16", "batch_size = 16\nlr = 3e-4")
    planned(tmp_path, fast, methods=["recadam"])
    with pytest.raises(SettingsError, match=r"^recadam-paper, with this protocol: .* 1\.5"):
        planned(tmp_path, fast, methods=["vanilla", "recadam-paper"])


def test_unknown_methods_of_the_command(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Unknown baseline or method 'sofd'"):
        planned(tmp_path, methods=["sofd"])


def test_protocol_settings_for_single_tasks() -> None:
    protocol = Protocol(
        batch_size=16, task_batch_size={"glue/qqp": 32}, task_steps={"glue/qqp": 50}
    )
    assert (protocol.batch_of("glue/qqp"), protocol.batch_of("glue/sst2")) == (32, 16)
    assert protocol.batch_of("glue/qqp[short]") == 32
    assert protocol.stage_length("glue/qqp", 320) == (50, 10)
    assert protocol.stage_length("glue/sst2", 320) == (60, 20)


def test_settings_of_one_task_change_only_its_fingerprints(tmp_path: Path) -> None:
    first = planned(tmp_path).cells[0].fingerprint
    assert planned(tmp_path, SUITE.replace("= 4 }", "= 5 }")).cells[0].fingerprint != first
    other = SUITE.replace('"synthetic/sentiment" = 4', '"synthetic/qa" = 4')
    none = SUITE.replace('task_batch_size = { "synthetic/sentiment" = 4 }', "")
    assert (
        planned(tmp_path, other).cells[0].fingerprint
        == planned(tmp_path, none).cells[0].fingerprint
    )


@pytest.mark.parametrize(
    ("scenarios", "question", "scores"),
    [
        ([{"tasks": ["a", "b"]}], {}, ["p_o", "p_s"]),
        ([{"tasks": ["a", "b", "c"]}], {}, ["average"]),
        ([{"tasks": ["a", "b", "c"]}, {"tasks": ["a", "b"]}], {}, ["p_o", "p_s"]),
        ([{"task": "a", "steps": 4}], {"margin": 0.02}, ["average"]),
        ([{"task": "a", "classes": [["x"], ["y"], ["z"]]}], {}, ["average"]),
        ([{"tasks": ["a", "b", "c"]}], {"scores": ["bwt"]}, ["bwt"]),
    ],
)
def test_sequences_are_asked_about_their_average(
    scenarios: list[dict[str, object]], question: dict[str, object], scores: list[str]
) -> None:
    specs = [
        {"name": f"s{i}", "shift": "sequence", "settings": settings}
        for i, settings in enumerate(scenarios)
    ]
    file = SuiteFile(name="x", methods=["vanilla"], scenario=specs, question=question)  # type: ignore[arg-type]
    assert file.asked.scores == scores
    assert file.asked.margin == question.get("margin", 0.01)


@pytest.mark.parametrize(
    ("shift", "settings"),
    [
        ("domain-incremental", {"tasks": ["a", "b"], "classes": {"n": ["x"], "o": [], "p": []}}),
        ("class-incremental", {"tasks": ["a", "b", "c"], "steps": 2}),
    ],
)
def test_two_stages_are_no_sequence(shift: str, settings: dict[str, object]) -> None:
    assert not ScenarioSpec(name="s", shift=shift, settings=settings).is_sequence

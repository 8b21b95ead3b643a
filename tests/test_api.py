from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_engine import FakeExecutor

import clbench
from clbench.api import open_comparisons
from clbench.cli import main
from clbench.core.errors import ClbenchError, RunFolderError, SettingsError
from clbench.core.options import options_of
from clbench.results.comparisons import comparisons_frame
from clbench.results.statistics import spend
from clbench.results.store import Store
from clbench.runner.resources import Resources
from clbench.suite.baselines import read_baseline, variant
from clbench.suite.schema import Question


def test_run_returns_frame_summary_and_failures(place: Path, engine: FakeExecutor) -> None:
    engine.fails = {"one-two--frozen--seed1"}
    run = clbench.run("mine.toml", out="there", methods=["vanilla", "frozen"])
    assert run.path == Path("there")
    assert run.frame.groupby("method")[["p_o", "p_s"]].mean().loc["vanilla"].tolist() == [0.8, 0.7]
    assert [cell.key for cell in run.failed] == ["one-two--frozen--seed1"]
    assert run.summary["seeds"].tolist() == [2, 1]
    assert len(run.cells) == 6  # with a single-task reference for each seed


def test_single_values_stand_for_lists(place: Path, engine: FakeExecutor) -> None:
    run = clbench.run("mine.toml", methods="frozen", scenarios="one*", seeds=3)
    assert [cell.key for cell in run.cells] == [
        "one-two--frozen--seed3", "one-two--reference1--seed3",
    ]  # fmt: skip


def test_cells_of_other_settings_are_refused(place: Path, engine: FakeExecutor) -> None:
    clbench.run("mine.toml", methods="frozen")
    with pytest.raises(RunFolderError, match="epochs = 3, now 1"):
        clbench.run("mine.toml", methods="frozen", epochs=1)
    with pytest.raises(RunFolderError, match="epochs = 3, now 1"):
        clbench.run("mine.toml", methods="vanilla", epochs=1)


def test_the_listener_is_called(place: Path, engine: FakeExecutor) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.calls: list[str] = []

        def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
            return lambda *arguments: self.calls.append(name)

    recorder = Recorder()
    clbench.run("mine.toml", seeds=[0], listener=recorder, references=False)
    cell = ["cell_started", "progress", "cell_finished"]
    assert recorder.calls == ["started", *cell, *cell]
    recorder = Recorder()
    clbench.run("mine.toml", seeds=[0], listener=recorder, references=False)
    assert recorder.calls == ["started"]


def test_a_changed_question_is_kept_even_if_no_cell_is_left(
    place: Path, engine: FakeExecutor
) -> None:
    suite, store = place / "mine.toml", Store(place / "out")
    text = suite.read_text()

    def scores(*question: str) -> list[list[str]]:
        suite.write_text("\n".join([text, *question]))
        clbench.run("mine.toml", out="out")
        return [each.scores for each in store.questions()]

    first, second = ["p_o", "p_s"], ["forgetting"]
    asked = ("[question]", 'scores = ["forgetting"]')
    assert scores() == [first]
    engine.ran.clear()
    before = store.read_suite()
    assert scores(*asked) == scores(*asked) == [first, second]
    assert scores() == [first, second, first]  # the last one counts
    assert engine.ran == []
    assert {**store.read_suite(), "questions": before["questions"]} == before


@pytest.mark.parametrize(
    ("p_o", "seeds"),
    [
        (lambda cell: 0.8, 3),  # equivalent at the first look
        (lambda cell: 0.5 + 0.01 * cell.seed if cell.baseline.name == "frozen" else 0.8, 3),
        (lambda cell: 0.7 + 0.2 * (cell.seed % 2) if cell.baseline.name == "frozen" else 0.8, 6),
    ],
    ids=["equivalent", "worse", "open"],
)
def test_seeds_are_added_until_no_comparison_is_open(
    place: Path, engine: FakeExecutor, p_o: Callable[[Any], float], seeds: int
) -> None:
    engine.p_o = p_o
    options: dict[str, Any] = {"methods": ["vanilla", "frozen"], "scenarios": "one*", "out": "r"}
    run = clbench.run("mine.toml", seeds="until-settled:3,6", **options)
    assert {cell.seed for cell in run.cells} == set(range(seeds))
    store = Store(run.path)
    assert store.read_suite()["looks"] == [[3, 6]]
    assert [store.alpha(3), store.alpha(6)] == spend((3, 6))
    assert bool(open_comparisons(run)) == (seeds == 6)
    ran = len(engine.ran)
    clbench.run("mine.toml", seeds="until-settled:3,6", **options)
    assert len(engine.ran) == ran  # a finished run stays as it is
    with pytest.raises(RunFolderError, match="was started with seeds='until-settled:3,6'"):
        clbench.run("mine.toml", seeds="until-settled:3,7", **options)


def test_points_of_a_sweep_leave_no_comparison_open(place: Path, engine: FakeExecutor) -> None:
    own = replace(read_baseline("frozen"), family="frozen")
    methods = ["vanilla", own, variant(own, "frozen-x2", {})]
    run = clbench.run("mine.toml", methods=methods, seeds="until-settled:3,6")
    assert {(cell.baseline, cell.seed) for cell in run.cells} >= {("frozen-x2", 2)}
    assert open_comparisons(run) == []


def test_looks_must_come_before_the_first_result(place: Path, engine: FakeExecutor) -> None:
    options: dict[str, Any] = {"methods": ["vanilla", "frozen"], "scenarios": "one*", "out": "r"}
    clbench.run("mine.toml", seeds=range(3), **options)
    with pytest.raises(RunFolderError, match="Looks must be declared before the first result"):
        clbench.run("mine.toml", seeds="until-settled:3,6", **options)


def test_a_look_is_judged_at_its_share_of_the_error_rate(place: Path, engine: FakeExecutor) -> None:
    noise = (0.1, 0.12, 0.15, 0.11, 0.16)

    def p_o(cell: Any) -> float:
        return 0.6 + (noise[cell.seed % 5] if cell.baseline.name == "frozen" else 0.0)

    engine.p_o = p_o
    options: dict[str, Any] = {"methods": ["vanilla", "frozen"], "scenarios": "one*"}
    whole = clbench.run("mine.toml", seeds=range(3), out="whole", **options)
    table = comparisons_frame(whole.cells, Question())
    p = table[table["score"] == "p_o"]["p_family"].max()
    assert spend((3, 10))[0] < p < 0.05  # better at .05, open at the first look's share
    assert "p_o of frozen on one-two" not in open_comparisons(whole)
    run = clbench.run("mine.toml", seeds="until-settled:3,10", out="looks", **options)
    assert {cell.seed for cell in run.cells} == set(range(10))


def test_a_method_that_failed_leaves_its_comparisons_open(
    place: Path, engine: FakeExecutor
) -> None:
    text = Path("mine.toml").read_text(encoding="utf-8")
    Path("mine.toml").write_text(text + '\n[question]\nscores = ["forgetting"]\n')
    options: dict[str, Any] = {"methods": ["vanilla", "frozen"], "scenarios": "one*"}
    run = clbench.run("mine.toml", seeds=range(3), **options)
    lost = {"status": "failed", "reason": "killed", "R": [], "scores": {}, "tasks": []}
    cells = [c.model_copy(update=lost) if c.baseline == "frozen" else c for c in run.cells]
    assert open_comparisons(replace(run, cells=cells)) == ["forgetting of frozen on one-two"]


def test_comparisons_are_open_without_enough_seeds(place: Path, engine: FakeExecutor) -> None:
    options: dict[str, Any] = {"methods": ["vanilla", "frozen"], "scenarios": "one*"}
    opened = ["p_o of frozen on one-two", "p_s of frozen on one-two"]
    run = clbench.run("mine.toml", seeds=[0, 1], out="few", **options)
    assert open_comparisons(run) == opened
    run = clbench.run("mine.toml", seeds=[0, 1, 2], out="enough", **options)
    assert open_comparisons(run) == []
    engine.fails = {f"one-two--frozen--seed{seed}" for seed in range(3)}
    run = clbench.run("mine.toml", seeds=[0, 1, 2], out="lost", **options)
    assert open_comparisons(run) == opened


def test_comparisons_are_open_without_the_references_of_their_score(
    place: Path, engine: FakeExecutor
) -> None:
    suite = Path("mine.toml")
    question = '\n[question]\nscores = ["intransigence"]\n'
    suite.write_text(suite.read_text(encoding="utf-8") + question, encoding="utf-8")
    engine.fails = {f"one-two--reference1--seed{seed}" for seed in range(3)}
    options: dict[str, Any] = {"methods": ["vanilla", "frozen"], "scenarios": "one*"}
    run = clbench.run(suite, seeds=[0, 1, 2], references=True, **options)
    assert open_comparisons(run) == ["intransigence of frozen on one-two"]


@pytest.mark.parametrize(
    "seeds", ["until-settled:", "until-settled:5,5", "until-settled:2,9", "all"]
)
def test_looks_must_grow(seeds: str) -> None:
    with pytest.raises(SettingsError, match="growing numbers"):
        clbench.RunOptions(seeds=seeds)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0,1,2", (0, 1, 2)), ("0-4", (0, 1, 2, 3, 4)), ("7, 1-2,3", (7, 1, 2, 3)), ("3-3", (3,))],
)
def test_seeds_as_lists_and_ranges(text: str, expected: tuple[int, ...]) -> None:
    assert clbench.RunOptions(seeds=text).seeds == expected


@pytest.mark.parametrize("text", ["", "a", "1,,2", "-1", "2-1", "1.5", "0-5000"])
def test_wrong_seeds(text: str) -> None:
    with pytest.raises(SettingsError, match=f"^seeds {text!r}: "):
        clbench.RunOptions(seeds=text)


def test_the_arguments_are_those_of_the_options() -> None:
    parameters = inspect.signature(clbench.run).parameters
    options = {**options_of(clbench.RunOptions), **options_of(Resources)}
    assert list(parameters) == ["suite", *options, "listener"]
    assert parameters["suite"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert parameters["limit"].annotation == int | None
    text = " ".join((clbench.run.__doc__ or "").split())
    for name, (_, option) in options.items():
        assert f"{name} {option.text}" in text
    with pytest.raises(TypeError, match=r"^run\(\) got an unexpected keyword argument 'metods'"):
        clbench.run("quick", metods=["vanilla"])  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("methods", "vanila", "add {plugins}, or give module:Class"),
        ("methods", "vanilla,vanilla", "{methods}: 'vanilla' is given twice"),
        ("scenarios", "x*", "{scenarios} 'x*' matches no scenario"),
        ("limit", 0, "{limit}: must be greater than 0"),
        ("data", "nowhere", "{data} nowhere: there is no such folder"),
        ("corpus", "nowhere.txt", "{corpus} 'nowhere.txt': there is no such file"),
        ("device", "tpu", "{device} 'tpu': must be auto"),
        ("subset", "seed", "Set {limit} (key"),
        ("workers", 0, "{workers}: must be greater than or equal to 1, got 0"),
        ("gpus", 0.5, "{gpus}: divides GPUs among workers. Also give {workers} or {address}."),
    ],
)
def test_errors_name_arguments_in_python_and_options_in_the_shell(
    place: Path, capsys: pytest.CaptureFixture[str], option: str, value: Any, problem: str
) -> None:
    names = ("methods", "scenarios", "limit", "data", "corpus", "device", "workers", "gpus")
    in_shell = {name: f"--{name}" for name in (*names, "address")}
    assert main(["run", "mine.toml", f"--{option}", str(value)]) == 2
    assert problem.format(**in_shell, plugins="--plugin FILE") in capsys.readouterr().err
    values = value.split(",") if option == "methods" else value
    with pytest.raises(ClbenchError) as caught:
        clbench.run("mine.toml", **{option: values})
    in_python = {name: name for name in in_shell}
    assert problem.format(**in_python, plugins="plugins='FILE'") in str(caught.value)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"workers": "2"}, {"workers": 1.5}, {"sweep": 2.5}, {"methods": [3]}, {"listener": 3},
        {"replace": "no"}, {"references": "yes"}, {"seeds": "0,0"}, {"seeds": [0, 0]}, {"suite": 3},
    ],
    ids=str,
)  # fmt: skip
def test_arguments_of_a_wrong_type_are_refused(
    place: Path, engine: FakeExecutor, options: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError, match=f"^{next(iter(options))}"):
        clbench.run(**{"suite": "mine.toml", **options})
    assert not engine.ran

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("methods", "vanilla"),
        ("tasks", "glue/stsb"),
        ("models", "tiny"),
        ("shifts", "dataset"),
        ("metrics", "f1"),
    ],
)
def test_every_kind_is_listed(clbench: Call, kind: str, name: str) -> None:
    code, out, _ = clbench("list", kind)
    assert code == 0
    assert name in [line.split()[0] for line in out.splitlines()]


def test_methods_with_other_rules_are_marked(clbench: Call) -> None:
    lines = clbench("list", "methods")[1].splitlines()
    signs = {line.split()[0]: line.split()[1] for line in lines if line[0].isalpha()}
    assert {name for name, sign in signs.items() if sign == "*"} == {
        *("a-gem", "der++", "der++-paper", "icarl", "multitask", "replay"),
    }
    assert {name for name, sign in signs.items() if sign == "#"} == {
        *("lora-task", "packnet", "progressive-prompts"),
    }
    assert [line[0] for line in lines if line[0] in "*#"] == ["*", "#"]


def test_scenarios_and_tasks_of_one_suite(place: Path, clbench: Call) -> None:
    assert clbench("list", "scenarios", "--suite", "mine.toml")[1].split() == [
        *("one-two", "dataset:", "one", "→", "two"),
    ]
    tasks = clbench("list", "tasks", "--suite", "mine.toml")[1].splitlines()
    assert [line.split() for line in tasks[-2:]] == [
        ["one", "defined", "in", "mine.toml"],
        ["two", "defined", "in", "mine.toml"],
    ]


def test_scenarios_are_listed_suite_by_suite(clbench: Call) -> None:
    lines = clbench("list", "scenarios")[1].splitlines()
    suites = [line.split()[0] for line in lines if not line.startswith(" ")]
    suite_lines = clbench("list", "suites")[1].splitlines()
    assert suites == [line.split()[0] for line in suite_lines if not line.startswith(" ")]
    after = lines[lines.index(next(x for x in lines if x.startswith("quick "))) + 1 :]
    first = next(line for line in after if line.startswith("  ") and not line.startswith("   "))
    assert first.startswith("  sentiment-acceptability  dataset: synthetic/sentiment")
    assert all(line == line.rstrip() for line in lines)


def test_a_plugin_is_listed(place: Path, clbench: Call) -> None:
    (place / "own.py").write_text(
        "import clbench\n\n"
        '@clbench.method("listed-in-a-test")\n'
        "class Own(clbench.Method):\n    pass\n"
    )
    _, out, _ = clbench("list", "methods", "--plugin", "own.py")
    assert "listed-in-a-test" in out

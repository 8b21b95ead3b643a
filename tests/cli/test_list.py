from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import Call


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


def test_the_settings_of_a_method_are_listed_with_sweep_and_source(
    clbench: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    code, out, _ = clbench("list", "methods", "self-replay")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert code == 0
    assert lines["self-replay:"].endswith("(Marek et al. 2026).")
    assert re.search(
        r"share +0\.01 +0\.002 to 0\.5 +As in the baseline generic-replay", lines["share"]
    )
    assert re.search(r"prompts +'none' +'none', 'old' +Marek", lines["prompts"])
    assert re.search(r"lr +none +default", lines["lr"])
    code, _, error = clbench("list", "tasks", "dft")
    assert (code, "clbench list methods METHOD" in error) == (2, True)
    code, _, error = clbench("list", "methods", "dtf")
    assert (code, "'dft'" in error) == (2, True)


def test_methods_with_other_rules_are_marked(clbench: Call) -> None:
    lines = clbench("list", "methods")[1].splitlines()
    signs = {line.split()[0]: line.split()[1] for line in lines if line[0].isalpha()}
    assert {name for name, sign in signs.items() if sign == "*"} == {
        *("a-gem", "der++", "der++-paper", "icarl", "multitask", "replay"),
    }
    assert {name for name, sign in signs.items() if sign == "#"} == {
        *("lora-task", "packnet", "progressive-prompts"),
    }
    held = {line.split()[0] for line in lines if "^" in line.split()[1:3]}
    assert {"a-gem", "ewc", "ewc-lora", "icarl", "packnet", "recadam-previous"} <= held
    assert not {"frozen", "lora", "lwf", "o-lora", "recadam", "replay", "vanilla"} & held
    assert [line[0] for line in lines if line[0] in "*#^"] == ["*", "#", "^"]


def test_scenarios_and_tasks_of_one_suite(
    place: Path, clbench: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert clbench("list", "scenarios", "--suite", "mine.toml")[1].split() == [
        *("one-two", "dataset:", "one", "→", "two"),
    ]
    tasks = clbench("list", "tasks", "--suite", "mine.toml")[1].splitlines()
    assert [line.split() for line in tasks[-2:]] == [
        ["one", "defined", "in", "mine.toml"],
        ["two", "defined", "in", "mine.toml"],
    ]


@pytest.mark.parametrize("words", [["metrics"], ["suites"], ["methods"], ["methods", "vanilla"]])
def test_a_suite_that_would_be_ignored_is_refused(clbench: Call, words: list[str]) -> None:
    code, out, error = clbench("list", *words, "--suite", "quick")
    assert (code, out) == (2, "")
    assert "list: --suite goes with scenarios or tasks. Leave it out." in error


def test_scenarios_are_listed_suite_by_suite(clbench: Call) -> None:
    lines = clbench("list", "scenarios")[1].splitlines()
    suites = [line.split()[0] for line in lines if not line.startswith(" ")]
    suite_lines = clbench("list", "suites")[1].splitlines()
    assert suites == [line.split()[0] for line in suite_lines if not line.startswith(" ")]
    after = lines[lines.index(next(x for x in lines if x.startswith("quick "))) + 1 :]
    first = next(line for line in after if line.startswith("  ") and not line.startswith("   "))
    assert re.match(r"  sentiment-acceptability  +dataset: synthetic/sentiment", first)
    listed = [line for line in after if line.startswith("  ") and ": " in line[: len(first)]]
    assert {line.index(" dataset:") for line in listed if " dataset:" in line} == {
        first.index(" dataset:")
    }
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("kind", ["tasks", "scenarios", "methods"])
def test_a_narrow_window_gets_lines_in_place_of_columns(
    clbench: Call, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    lines = clbench("list", kind)[1].splitlines()
    assert max(map(len, lines)) <= 50
    texts = [line for line in lines if line.startswith("  ")]
    whole = [line for line in texts if len(line.strip()) >= 24]
    assert len(whole) > len(texts) / 3  # a column of a few characters would have none
    if kind == "tasks":
        at = lines.index("trec")
        assert lines[at + 1] == "  classes 6; rows 5,452 / 500; licence unknown"


def test_lora_says_what_it_is(clbench: Call) -> None:
    lines = {line.split()[0]: line for line in clbench("list", "methods")[1].splitlines()}
    assert "low-rank adapter" in lines["lora"]
    for name in lines:
        assert "The same as" not in lines[name]


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("clbench ru", {"run"}),
        ("clbench run --sm", {"--smoke"}),
        ("clbench run qu", {"quick"}),
        ("clbench list s", {"suites", "scenarios", "shifts"}),
    ],
)
def test_a_shell_completes_verbs_options_and_names(typed: str, completed: set[str]) -> None:
    shell = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    process = subprocess.run(
        [sys.executable, "-m", "clbench"],
        env={**os.environ, **shell, "_CLBENCH_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(process.stdout.split()) == completed


def test_a_plugin_is_listed(place: Path, clbench: Call) -> None:
    (place / "own.py").write_text(
        "import clbench\n\n"
        '@clbench.method("listed-in-a-test")\n'
        "class Own(clbench.Method):\n    pass\n"
    )
    _, out, _ = clbench("list", "methods", "--plugin", "own.py")
    assert "listed-in-a-test" in out

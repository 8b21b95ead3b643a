"""The site: every block of code runs or parses, the reference is whole, and tutorials run."""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import typer

from clbench.cli.app import VERBS, program
from clbench.suite.read import packaged_files
from clbench.suite.schema import SuiteFile

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
PROGRAMS = ("clbench", "python", "make", "pip", "tensorboard")
OUTPUTS = {
    "README.md": ("glue/mrpc: 92 of", "scenario  "),
    "audit.md": ("fomc: no loss", "  not forgotten", "glue/mrpc: 92 of", "task  ", "pass: sst2"),
    "quick.md": ("scenario  ",),
}
"""Beginnings of blocks that show what a command prints; all others without a language are run."""
GIVEN = {
    "audit.md": {"DIR", "Trainer", "model", "settings", "rows", "tokenizer"},
    "methods.md": {"model", "batches", "rates"},
    "gallery.md": {"watch"},
}
"""Names in Python blocks that the reader brings along."""
FILES = {"method", "settings", "sources", "sweep", "project"}
"""Keys of TOML blocks that are no suites: baselines and pyproject.toml."""


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield language and code of every fenced block."""
    text = page.read_text(encoding="utf-8")
    for indent, language, code in re.findall(r"^( *)```([\w-]*)\n(.*?)^ *```$", text, re.M | re.S):
        yield language, "\n".join(line.removeprefix(indent) for line in code.splitlines())


def is_output(page: Path, code: str) -> bool:
    return code.startswith(OUTPUTS.get(page.name, "\0"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_has_a_language_that_a_test_runs(page: Path) -> None:
    assert {language for language, _ in blocks(page)} <= {"", "python", "toml", "yaml"}


# Commands: bash expands loops and variables; the real parser reads what it would call.


def calls(block: str, folder: Path) -> list[list[str]]:
    """Return the words of each command that a block of shell calls; nothing else may be called."""
    block = block.replace(".venv/bin/python", "python")
    print_words = 'printf "%s\\0" "$FUNCNAME" "$@"; printf "\\1\\0"'
    functions = "".join(f"{name}() {{ {{ {print_words}; }} >&3; }}\n" for name in PROGRAMS)
    script = f"exec 3>&1 >/dev/null\n{functions}{block}"
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    command = [bash, "--norc", "-eu", "-c", script]
    done = subprocess.run(
        command, cwd=folder, env={"PATH": "/nowhere"}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{block}\n{done.stderr}"
    return [each.strip("\0").split("\0") for each in done.stdout.split("\1\0") if each]


def check_call(words: list[str]) -> None:
    """Fail unless the program would accept these words."""
    name, *arguments = words
    if arguments[:2] == ["-m", "clbench"]:
        name, arguments = "clbench", arguments[2:]
    if name == "clbench":
        check_clbench(arguments)
    elif name == "make":
        verbs = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
        assert arguments[0] in verbs
    elif name == "python":
        module = arguments[0] == "-m"
        target = arguments[1].replace(".", "/") if module else arguments[0]
        files = [ROOT / target, ROOT / f"{target}.py", ROOT / target / "__main__.py"]
        (file, *_) = [each for each in files if each.is_file()]
        source = file.read_text(encoding="utf-8")
        missing = [w for w in arguments if w.startswith("--") and f'"{w}"' not in source]
        assert not missing


def check_block(block: str, folder: Path) -> None:
    for words in calls(block, folder):
        check_call(words)


def check_clbench(arguments: list[str]) -> None:
    verb = next((word for word in arguments if not word.startswith("-")), "")
    if verb == "" and arguments:  # such as --install-completion
        return
    assert verb in {name for verbs in VERBS.values() for name in verbs}
    command: Any = typer.main.get_command(program(verb))
    try:
        context = command.commands[verb].make_context(verb, arguments[1:])
    except Exception as error:
        if type(error).__name__ == "Exit":  # from an eager option that prints something
            return
        raise AssertionError(f"clbench {' '.join(arguments)}: {error}") from error
    suite = context.params.get("suite")
    if suite and re.fullmatch(r"[a-z0-9-]+", suite):
        assert suite in packaged_files("scenarios")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_one_that_the_program_accepts(page: Path, tmp_path: Path) -> None:
    for language, code in blocks(page):
        if language == "" and not is_output(page, code):
            check_block(code, tmp_path)


@pytest.mark.parametrize(
    "block",
    ["clbench run quick --metods ewc", "clbench rnu quick", "clbench run quik", "clbnech run"],
)
def test_a_command_that_is_wrong_fails(block: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check_block(block, tmp_path)


# Python: it compiles, each name is there, and calls fit the signatures of what they call.


def found(node: ast.expr, names: dict[str, Any]) -> Any:
    """Return what a dotted name stands for, None if that is only known when it runs."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and (owner := found(node.value, names)) is not None:
        assert hasattr(owner, node.attr), f"{ast.unparse(node)} does not exist"
        return getattr(owner, node.attr)
    return None


def check_python(code: str, given: set[str], names: dict[str, Any]) -> None:
    """Fail unless names resolve and calls fit; `names` are those of the page's earlier blocks."""
    tree = ast.parse(code)
    bound = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                module = importlib.import_module(alias.name)
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = module if alias.asname else sys.modules[top]
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                value = resolve_name(f"{node.module}:{alias.name}")
                names[alias.asname or alias.name] = value
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    names |= dict.fromkeys(bound - names.keys())
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            known = node.id in names or node.id in given or hasattr(builtins, node.id)
            assert known, f"{node.id} is not defined"
        elif isinstance(node, ast.Attribute):
            found(node, names)
        elif isinstance(node, ast.Call):
            function = found(node.func, names)
            if function is not None and not any(isinstance(a, ast.Starred) for a in node.args):
                keywords = {each.arg: None for each in node.keywords if each.arg}
                inspect.signature(function).bind(*node.args, **keywords)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_names_what_exists(page: Path) -> None:
    names: dict[str, Any] = {}
    for language, code in blocks(page):
        if language == "python":
            check_python(code, GIVEN.get(page.name, set()), names)


@pytest.mark.parametrize(
    "code",
    ["import clbench\nclbench.rum('quick')", "import clbench\nclbench.run(sede=1)", "x = y", "f("],
)
def test_a_python_block_that_is_wrong_fails(code: str) -> None:
    with pytest.raises((AssertionError, TypeError, SyntaxError)):
        check_python(code, set(), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_toml_block_has_keys_that_clbench_reads(page: Path) -> None:
    from clbench.audit.gate import read_gate

    for language, code in blocks(page):
        if language == "toml":
            table = tomllib.loads(code)
            keys = {field.alias or name for name, field in SuiteFile.model_fields.items()}
            if not table.keys() <= keys | FILES:
                gate = Path(ROOT / "build" / "gate.toml")
                gate.parent.mkdir(exist_ok=True)
                gate.write_text(code, encoding="utf-8")
                assert read_gate(gate)


# The gallery.


def test_the_gallery_shows_every_figure_and_how_it_is_drawn() -> None:
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    figures = {path.name for path in (ROOT / "docs" / "figures").iterdir()}
    assert set(re.findall(r"\(figures/([\w.-]+)\)", text)) == figures


# The reference.


def documented() -> set[str]:
    pages = (ROOT / "docs" / "api").glob("*.rst")
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    return set(re.findall(r"^\.\. (?:auto\w+|py:data):: ([\w.]+)", text, re.M))


def test_the_reference_has_every_public_name() -> None:
    stub = (ROOT / "clbench" / "__init__.pyi").read_text(encoding="utf-8")
    public = {f"clbench.{name}" for name in re.findall(r" as (\w+)$", stub, re.M)}
    for name in ("conformance", "figures", "fisher", "hf", "optim", "search"):
        module = importlib.import_module(f"clbench.{name}")
        public |= {f"clbench.{name}.{each}" for each in module.__all__}
    modules = {f"clbench.{name}" for name in ("conformance", "fisher", "optim", "search")}
    assert public - modules - documented() == set()


@pytest.mark.parametrize("name", sorted(documented()))
def test_what_the_reference_names_exists_and_is_described(name: str) -> None:
    parts = name.split(".")
    value: Any = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        if not hasattr(value, part):
            importlib.import_module(".".join(parts[:i]))
        value = getattr(value, part)
    assert isinstance(value, str | tuple) or inspect.getdoc(value)


# The tutorials.


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_the_code_of_a_tutorial_is_whole(path: Path, tmp_path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    number = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        number += 1
        assert cell["execution_count"] in (None, number), "run python -m tools.notebooks"
        code = "".join(cell["source"])
        if code.startswith("!"):
            check_block(code.removeprefix("!"), tmp_path)
        elif not code.startswith("%%writefile"):
            check_python(code.replace("%matplotlib inline", ""), set(), names)
    assert path.stat().st_size < 100_000


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path: Path) -> None:
    command = [sys.executable, "-m", "tools.notebooks", "--check", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="needs clbench[docs]")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    options = ["-W", "--keep-going", "-q", "-c", "docs", "-d", str(tmp_path / "trees")]
    command = [sys.executable, "-m", "sphinx", *options, ".", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "What did my model forget?" in (tmp_path / "site" / "index.html").read_text("utf-8")
    pages = {
        path.stem: path.read_text("utf-8") for path in (tmp_path / "site/docs/api").glob("*.html")
    }
    for page, names in (
        ("board", "url, contact"), ("board", "data, model, corpus"), ("extend", "lr, lr_multiple"),
    ):  # fmt: skip
        assert pages[page].count(f"<strong>{names}</strong>") == 1  # one text, so one entry

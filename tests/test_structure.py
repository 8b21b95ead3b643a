"""The order of the rooms: imports point down this list, and no two modules import each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOMS = (
    "cli",
    "hf",
    "audit",
    "board",
    "api",
    "conformance",
    "search",
    "report",
    "figures",
    "evaluation",
    "runner",
    "measure",
    "results",
    "suite",
    "methods",
    "optim",
    "fisher",
    "training",
    "models",
    "shifts",
    "tasks",
    "core",
)
"""Packages and modules of clbench; each imports only from itself and from rooms below it."""

PACKAGE = Path(__file__).parents[1] / "clbench"
FREE = {"clbench", "clbench.__main__"}
"""The public names, and ``python -m clbench``."""


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield what a module imports, also in functions and for types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module


def references(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that a module names in strings such as ``"module:object"``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"^(clbench(?:\.\w+)+):\w+$", node.value)


TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in MODULES.items()}
ARROWS = {name: {*imports(tree)} & MODULES.keys() for name, tree in TREES.items()}
NAMED = {name: {*references(tree)} & MODULES.keys() for name, tree in TREES.items()}


def room(module: str) -> str:
    return module.split(".")[1]


def test_every_room_is_in_the_list() -> None:
    assert {room(module) for module in MODULES if module not in FREE} == set(ROOMS)


@pytest.mark.parametrize("name", ROOMS)
def test_imports_point_down_the_list(name: str) -> None:
    up = {
        (module, target)
        for module in MODULES
        if module not in FREE and room(module) == name
        for target in ARROWS[module] | NAMED[module]
        if target not in FREE and ROOMS.index(room(target)) < ROOMS.index(name)
    }
    assert not up


def test_no_modules_import_each_other() -> None:
    try:
        TopologicalSorter(ARROWS).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_world import World, make_world


@pytest.fixture(autouse=True)
def _forget_plugins() -> Iterator[None]:
    """What a test's plug-ins register goes with the test."""
    from clbench.suite.plugins import registries

    before = [(registry, dict(registry._entries)) for registry in registries()]
    modules = set(sys.modules)
    yield
    for registry, entries in before:
        registry._entries.clear()
        registry._entries.update(entries)
    for name in set(sys.modules) - modules:
        if name.startswith("clbench_plugin_"):
            del sys.modules[name]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = make_world(tmp_path)
    monkeypatch.chdir(tmp_path)
    return made

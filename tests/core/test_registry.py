"""Registries that read the entry points of installed packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from clbench.core import registry
from clbench.core.errors import PluginError


def test_entry_points_are_read_once_and_a_clash_is_reported_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = {"first": "package:First", "taken": "package:Taken", "last": "package:Last"}
    points = [EntryPoint(name, value, "group") for name, value in values.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    methods = registry.Registry[object]("method", group="group")
    methods.add("taken", "own:Taken")
    for _ in range(2):
        with pytest.raises(PluginError, match="'taken' is registered twice: by own:Taken and by"):
            methods.names()
    points.pop(1)
    assert methods.names() == ["first", "last", "taken"]
    points.append(EntryPoint("later", "package:Later", "group"))
    assert "later" not in methods  # they are read once
    assert methods.names() == ["first", "last", "taken"]

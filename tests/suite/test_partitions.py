"""Partitions of classes in files, and orders of sequences."""

from __future__ import annotations

from pathlib import Path

import pytest

from clbench.core.errors import SuiteError
from clbench.suite.read import read_suite

SUITE = """
methods = ["vanilla"]

[[scenario]]
name = "steps"
shift = "class-incremental"
task = "clinc150"
partition = "steps.toml"
"""


@pytest.mark.parametrize(
    "text", ['a = ["x"]\nb = ["y", "z"]', '[classes]\na = ["x"]\nb = ["y", "z"]']
)
def test_a_partition_is_a_list_of_classes_for_each_step(tmp_path: Path, text: str) -> None:
    (tmp_path / "steps.toml").write_text(text)
    (tmp_path / "suite.toml").write_text(SUITE)
    (scenario,) = read_suite(tmp_path / "suite.toml").file.scenario
    assert scenario.settings["classes"] == {"a": ["x"], "b": ["y", "z"]}


@pytest.mark.parametrize(
    "text", ['classes = [["x"], ["y"]]', 'a = "x"', "a = []", '[a]\nb = ["x"]']
)
def test_an_unusable_partition_is_refused_by_its_own_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "steps.toml").write_text(text)
    (tmp_path / "suite.toml").write_text(SUITE)
    message = r"steps\.toml: (line 1, column 1: )?\w+: must be a list of class names"
    with pytest.raises(SuiteError, match=message):
        read_suite(tmp_path / "suite.toml")


def test_a_partition_beside_classes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "suite.toml").write_text(SUITE + 'classes = [["x"], ["y"]]\n')
    with pytest.raises(SuiteError, match="either partition or classes"):
        read_suite(tmp_path / "suite.toml")


def test_an_order_without_orders_is_refused(tmp_path: Path) -> None:
    text = 'methods = ["vanilla"]\n[[scenario]]\nname = "s"\nshift = "sequence"\norder = "x"\n'
    (tmp_path / "suite.toml").write_text(text + 'tasks = ["clinc150", "trec"]\n')
    with pytest.raises(SuiteError, match="`order` names one of several `orders`"):
        read_suite(tmp_path / "suite.toml")

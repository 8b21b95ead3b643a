from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Draw reports in the test's own process: test workers share the cores.
os.environ.setdefault("LOKY_MAX_CPU_COUNT", "1")

import pytest
from helpers.fake_engine import FakeExecutor

SUITE = """
name = "mine"
methods = ["vanilla", "frozen"]
seeds = [0, 1]

[task.one]
train = "one.csv"
validation = "dev.csv"
text = "text"
label = "label"

[task.two]
train = "one.csv"
validation = "dev.csv"
text = "text"
label = "label"

[[scenario]]
shift = "dataset"
tasks = ["one", "two"]
"""


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Use one torch thread: test workers share the cores."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the user's cache out of the tests and the tests out of the user's cache."""
    os.environ["CLBENCH_CACHE"] = str(tmp_path_factory.getbasetemp() / "clbench-cache")


@pytest.fixture
def clbench(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line here: exit code, stdout, stderr."""
    from clbench.cli import main

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture(scope="session")
def real_data() -> Path:
    """A folder with `glue/` in the layout of the hub; skips the test if there is none."""
    variable = os.environ.get("CLBENCH_TEST_DATA")
    folder = Path(variable) if variable else Path(__file__).parents[2] / "shared" / "data"
    if not (folder / "glue").is_dir():
        pytest.skip("no real GLUE rows: set CLBENCH_TEST_DATA to a folder that holds glue/")
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a suite of one scenario, two methods and two seeds."""
    (tmp_path / "mine.toml").write_text(SUITE)
    rows = [f"some words number {n},{n % 2}" for n in range(40)]
    for name in ("one.csv", "dev.csv"):
        (tmp_path / name).write_text("text,label\n" + "\n".join(rows) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeExecutor:
    """A fake executor, and no preparation of scenarios."""
    fake = FakeExecutor()
    monkeypatch.setattr("clbench.runner.run_plan.Executor", lambda threads: fake)
    monkeypatch.setattr("clbench.runner.run_plan._prepare_all", lambda *arguments: None)
    return fake


@pytest.fixture(autouse=True)
def forget_plugins() -> Iterator[None]:
    """Unregister what a test's plug-ins registered."""
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

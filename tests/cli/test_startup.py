"""Imports: `--help` and a finished run must not wait for torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import Call
from helpers.fake_engine import FakeExecutor

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "datasets", "sklearn", "scipy", "matplotlib", "pandas")


def python(code: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        cwd=cwd,
        check=False,
    )


def loaded_after(code: str, cwd: Path = ROOT) -> set[str]:
    process = python(f"{code}\nimport sys; print('LOADED', *sys.modules)", cwd)
    assert process.returncode == 0, process.stderr
    return set(process.stdout.rpartition("LOADED")[2].split())


@pytest.mark.parametrize(
    "code",
    [
        "import clbench; clbench.__version__; clbench.run; clbench.task; clbench.shift",
        "import clbench.results.store, clbench.results.scores, clbench.suite.plan",
        "from clbench.cli import main; main(['run', '--help'])",
        "from clbench.cli import main; main(['check', '--help'])",
        "from clbench.cli import main; main(['check', 'vanlla'])",
        "from clbench.cli import main; main(['list', 'tasks'])",
        "from clbench.cli import main; main(['list', 'models'])",
    ],
)
def test_light_commands_import_nothing_heavy(code: str) -> None:
    assert loaded_after(code).isdisjoint({*HEAVY, "pyarrow"})


def test_a_finished_run_is_quick(place: Path, engine: FakeExecutor, clbench: Call) -> None:
    # ewc has a sweep, which is not needed here.
    assert clbench("run", "mine.toml", "--methods", "vanilla,ewc")[0] == 0
    again = "from clbench.cli import main\n"
    again += "assert main(['run', 'mine.toml', '--methods', 'vanilla,ewc']) == 0"
    assert loaded_after(again, place).isdisjoint(HEAVY)
    # Processor time, since other programs may share the cores.
    before = os.times().children_user
    assert python(again, place).returncode == 0
    assert os.times().children_user - before < 2.0


def test_help_is_quick() -> None:
    def seconds() -> float:
        before = os.times().children_user
        python("from clbench.cli import main; main(['--help'])")
        return os.times().children_user - before

    assert min(seconds() for _ in range(3)) < 0.5


def test_help_imports_no_verb() -> None:
    modules = loaded_after("from clbench.cli import main; main(['--help'])")
    assert {name for name in modules if name.startswith("clbench.cli.")} == {"clbench.cli.app"}


def test_every_export_can_be_imported() -> None:
    import clbench

    for name in clbench.__all__:
        assert getattr(clbench, name) is not None
    assert set(clbench.__all__) <= set(dir(clbench))
    with pytest.raises(AttributeError, match="attribute nothing"):
        clbench.nothing  # noqa: B018

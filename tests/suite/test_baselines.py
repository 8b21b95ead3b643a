from __future__ import annotations

from pathlib import Path

import pytest

from clbench.core.errors import PluginError, SuiteError, UnknownNameError
from clbench.suite import read as reading
from clbench.suite.baselines import read_baseline

OWN = """import clbench


class {name}(clbench.Method):
    strength: float = 0.01
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "b.toml") -> str:
    Path(name).write_text(text)
    return name


def error(text: str) -> str:
    with pytest.raises(SuiteError) as raised:
        read_baseline(write(text))
    return str(raised.value)


def test_a_file_gives_settings_and_sources() -> None:
    baseline = read_baseline(
        write('method = "vanilla"\n[settings]\nlr = 1e-4\n[sources]\nlr = "me"')
    )
    assert (baseline.name, baseline.method) == ("b", "vanilla")
    assert baseline.settings == {"lr": 1e-4}
    assert baseline.sources == {"lr": "me"}
    assert baseline.path == Path("b.toml").resolve()
    assert baseline.digest is None


def test_relative_paths_start_at_the_base(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write('method = "frozen"', "sub/mine.toml")
    assert read_baseline("mine.toml", base=tmp_path / "sub").method == "frozen"
    assert read_baseline("sub/mine.toml").name == "mine"


def test_errors_of_a_file_are_reported_together() -> None:
    message = error('method = "vanila"\nsetings = 3\nname = "reference3"\n[sources]\nlr = 3\n')
    assert message.startswith("b.toml: 3 errors:")
    assert "setings: unknown key. Did you mean 'settings'?" in message
    assert "name: 'reference' with a number is reserved" in message
    message = error('method = "vanila"\n[sources]\nlr = "x"\n')
    assert "method: there is no method 'vanila'. Did you mean 'vanilla'" in message
    assert "[sources] lr: is not in [settings]." in message
    assert error("") == "b.toml: method: is missing."
    cost = 'method = "ewc"\n[cost]\ntrials = 3\nepochs = 3\nseconds = '
    for seconds in ("1e13", "1e300", "-1.0"):
        assert error(cost + seconds).startswith("b.toml: line 5, column 1: [cost] seconds: must ")


def test_a_bare_method_has_its_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_baselines").mkdir()
    monkeypatch.setattr(reading, "PACKAGE", tmp_path)
    baseline = read_baseline("vanilla")
    assert baseline.path is None
    assert baseline.settings == {}


def test_a_class_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from clbench.methods.base import METHODS

    monkeypatch.syspath_prepend(tmp_path)
    Path("own_methods_one.py").write_text(OWN.format(name="Pull"))
    baseline = read_baseline("own_methods_one:Pull")
    assert (baseline.name, baseline.method) == ("Pull", "own_methods_one:Pull")
    assert baseline.digest is not None
    assert METHODS.get(baseline.method)().settings()["strength"] == 0.01
    Path("own_methods_one.py").write_text(OWN.format(name="Pull").replace("0.01", "0.02"))
    assert read_baseline("own_methods_one:Pull").digest != baseline.digest


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(
        UnknownNameError, match=r"Unknown baseline or method 'vanila'\. Did you mean 'vanilla'"
    ):
        read_baseline("vanila")
    with pytest.raises(PluginError, match=r"there is no module 'no_such_package\.mod'"):
        read_baseline("no_such_package.mod:Cls")
    with pytest.raises(SuiteError, match=r"^none\.toml: there is no such file"):
        read_baseline("none.toml")

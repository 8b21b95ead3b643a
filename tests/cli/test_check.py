"""`clbench check`: the table, exit codes, plug-ins."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.commands import Call

from clbench.conformance.toys import checkpoint

PLUGIN = '''
import clbench


@clbench.method("{name}")
class {kind}(clbench.Method):
    """Pull the shared weights towards where the stage began."""

    strength: float = {strength}

    def before_stage(self, stage):
        self.start = stage.snapshot()

    def penalty(self, stage):
        return self.strength * stage.squared_distance(self.start)
'''


@pytest.fixture
def small() -> str:
    return checkpoint("bert")


@pytest.mark.slow
def test_correct_method_passes_all_eleven_checks(
    clbench: Call, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    code, out, err = clbench("check", "frozen", "--model", small)
    assert (code, err) == (0, "")
    assert "architectures  ok  bert, roberta, albert, distilbert, gpt2" in out
    assert out.strip().endswith("11 checks passed.")


@pytest.mark.slow
def test_plugin_that_does_nothing_fails_one_check(
    clbench: Call, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN.format(name="checked-zero", kind="Zero", strength=0.0))
    code, out, _ = clbench("check", "checked-zero", "--plugin", file, "--model", small)
    assert code == 1
    assert "acts           FAILED" in out
    assert "What to do: Check the penalty's strength" in out
    assert "10 checks passed, 1 failed." in out


@pytest.mark.slow
def test_setting_from_command_line_replaces_default(
    clbench: Call, small: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN.format(name="checked-set", kind="Set", strength=0.0))
    arguments = ("checked-set", "--plugin", file, "--model", small, "--set", "strength=5.0")
    assert clbench("check", *arguments)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["vanlla"], "Did you mean 'vanilla'?"),
        (["vanilla", "--set", "lr"], "write KEY=VALUE"),
        (["vanilla", "--set", "lr=much"], "lr"),
        (["vanilla", "--set", "rate=1.0"], "rate: unknown key"),
        (["vanilla", "--plugin", "nothing.py"], "there is no such file"),
        (["vanilla", "--model", "no/such/folder"], "no/such/folder"),
        ([], "METHOD"),
    ],
)
def test_wrong_arguments_are_one_line(clbench: Call, arguments: list[str], text: str) -> None:
    code, out, err = clbench("check", *arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert err.count("\n") == 1


def test_help_says_what_is_checked(clbench: Call) -> None:
    code, out, _ = clbench("check", "--help")
    assert code == 0
    for part in ("keeps its promises", "seeds", "memory", "--set KEY=VALUE", "Exit code"):
        assert part in " ".join(out.split())

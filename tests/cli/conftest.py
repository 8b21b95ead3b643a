from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def clbench(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line here: exit code, stdout, stderr."""
    from clbench.cli import main

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call

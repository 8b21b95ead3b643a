"""The tables on the pages of findings are those of the kept cells."""

from __future__ import annotations

from types import ModuleType

import pytest

from tools import (
    findings_decoder,
    findings_facts,
    findings_glue,
    findings_sequences,
)
from tools.findings import filled


@pytest.mark.parametrize(
    "tool",
    [
        pytest.param(findings_decoder, marks=pytest.mark.slow),
        pytest.param(findings_facts, marks=pytest.mark.slow),
        findings_glue,
        findings_sequences,
    ],
)
def test_a_page_has_the_tables_of_the_cells(tool: ModuleType) -> None:
    current = tool.PAGE.read_text(encoding="utf-8")
    contents = tool.tables()
    assert filled(current, contents) == current
    assert all(f"<!-- {name} -->" in current for name in contents)

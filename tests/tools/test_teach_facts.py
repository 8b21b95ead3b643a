"""The bases of the decoder studies are taught what their page says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools import teach_facts


@pytest.mark.parametrize("able", [False, True])
def test_an_able_base_sees_a_row_of_the_new_facts_for_six_of_an_old_one(
    able: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[int, int]] = []
    own = teach_facts._drawn

    def draw(rows: list[Any], count: int) -> list[Any]:
        drawn.append((len(rows), count))
        return own(rows, count)

    monkeypatch.setattr(teach_facts, "_drawn", draw)
    monkeypatch.setattr(teach_facts, "WARMUP", 1)
    teach_facts.teach(tmp_path, 2, able=able)
    assert (tmp_path / "model.safetensors").exists()
    assert [each for each in drawn if each[1] == 24] == [(6 * 720 + 240 if able else 720, 24)] * 2
    share = 300 * 24 / (6 * 720 + 240)
    assert (round(share, 1), round(6 * share)) == (1.6, 9)  # "one and a half times … nine times"

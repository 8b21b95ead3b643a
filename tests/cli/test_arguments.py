from __future__ import annotations

import pytest

from clbench.cli.arguments import seeds, words
from clbench.core.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0,1,2", [0, 1, 2]), ("0-4", [0, 1, 2, 3, 4]), ("7, 1-2,1", [7, 1, 2]), ("3-3", [3])],
)
def test_seeds_as_lists_and_ranges(text: str, expected: list[int]) -> None:
    assert seeds(text) == expected


@pytest.mark.parametrize("text", ["", "a", "1,,2", "-1", "2-1", "1.5", "0-5000"])
def test_wrong_seeds(text: str) -> None:
    with pytest.raises(SettingsError, match="--seeds"):
        seeds(text)


def test_words_joined_by_commas() -> None:
    assert words("--methods", ["a,b", " c "]) == ["a", "b", "c"]
    assert words("--methods", None) is None
    for texts in ([","], [""], ["a", ""], ["a,,b"]):
        with pytest.raises(SettingsError, match=r"--methods .*: holds an empty name"):
            words("--methods", texts)
